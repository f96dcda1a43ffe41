// latent_attention: rows are heads of tokens, all of a sequence look at the same keys. An item of work is a run of rows of
// one sequence; it takes the keys tile by tile from the first on, so a row's bits depend on nothing but its own keys.
#include "attention_tile.inl"
#include "attention_softmax.inl"
#include "dot_block.inl"

struct LatentScratch {
    float* keys;     // [TILE, wide] a tile as floats
    float* scores;   // [rows, TILE]
    float* mixed;    // [rows, padded latent]
    float* maximum;  // [rows]
    float* total;    // [rows]
};

static LatentScratch latent_scratch(const LatentAttentionArgs* a, int32_t thread) {
    const int64_t wide = attention_padded(a->channels);
    LatentScratch s;
    s.keys = a->scratch + thread * latent_scratch_floats(a->channels, a->latent);
    s.scores = s.keys + TILE * wide;
    s.mixed = s.scores + LATENT_ROWS * TILE;
    s.maximum = s.mixed + LATENT_ROWS * attention_padded(a->latent);
    s.total = s.maximum + LATENT_ROWS;
    return s;
}

template <class Item>
static void copy_keys(const LatentAttentionArgs* a, const Step* step, const int32_t* pages, int32_t start, int count,
                      float* keys) {
    const int channels = a->channels;
    const int64_t wide = attention_padded(channels);
    for (int i = 0; i < count; ++i) {
        const int32_t key = start + i;
        const int64_t place = static_cast<int64_t>(pages[key / step->page_size]) * step->page_size + key % step->page_size;
        const Item* from = static_cast<const Item*>(a->pages) + place * channels;
        float* to = keys + i * wide;
        int c = 0;
        for (; c + W <= channels; c += W) store(to + c, load(from + c));
        if (c < channels) store_part(to + c, load_part(from + c, channels - c), channels - c);
    }
}

// Takes the keys that are not selected out of a row of scores; false if none is left.
static bool keep_selected(uint64_t bits, int count, float* scores) {
    const uint64_t all = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    if ((bits & all) == all) return true;
    for (int i = 0; i < count; ++i)
        if (!(bits >> i & 1)) scores[i] = -INFINITY;
    return (bits & all) != 0;
}

// Rows [first, first + rows) of all tokens' heads, of sequence b.
static void latent_rows(const LatentAttentionArgs* a, const Step* step, int32_t b, int64_t first, int64_t rows,
                        const LatentScratch& s) {
    const int64_t wide = attention_padded(a->channels), width = attention_padded(a->latent);
    const int32_t* pages = step->page_table + static_cast<int64_t>(b) * step->max_pages;
    int32_t last = 0;
    for (int64_t r = 0; r < rows; ++r) {
        const int32_t place = step->positions[(first + r) / a->heads];
        last = place > last ? place : last;
    }
    reset(State{s.maximum, s.total, s.mixed}, static_cast<int>(rows), width);
    Tile<float> tile;
    tile.stride = TILE;
    tile.ahead = &tile;
    for (int i = 0; i < TILE; ++i) tile.values[i] = s.keys + i * wide;
    for (int32_t start = 0; start <= last; start += TILE) {
        tile.count = last + 1 - start < TILE ? last + 1 - start : TILE;
        if (a->page_type == PAGES_F16)
            copy_keys<Half>(a, step, pages, start, tile.count, s.keys);
        else
            copy_keys<float>(a, step, pages, start, tile.count, s.keys);
        dot_tile(rows, a->q + first * a->channels, a->channels, tile.count, s.keys, wide, a->channels, a->scale, s.scores,
                 TILE, 1);
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t token = (first + r) / a->heads;
            const int32_t after = step->positions[token] + 1 - start;
            int end = after < tile.count ? after : tile.count;
            if (a->selected != nullptr && end > 0 &&
                !keep_selected(a->selected[token * a->words + start / TILE], end, s.scores + r * TILE))
                end = 0;
            soften(s.scores + r * TILE, 0, end, s.maximum + r, s.total + r, s.mixed + r * width, width);
        }
        mix_tile(static_cast<int>(rows), s.scores, tile, width, s.mixed);
    }
    for (int64_t r = 0; r < rows; ++r) {
        float* out = a->out + (first + r) * a->latent;
        const float* mixed = s.mixed + r * width;
        const vf by = set1(s.total[r] == 0.0f ? 0.0f : 1.0f / s.total[r]);
        int c = 0;
        for (; c + W <= a->latent; c += W) store(out + c, mul(load(mixed + c), by));
        if (c < a->latent) store_part(out + c, mul(load_part(mixed + c, a->latent - c), by), a->latent - c);
    }
}

// Rows of an item: as many as share one pass, fewer where parts would be idle.
static int64_t item_rows(const LatentAttentionArgs* a, const Step* step, int32_t num_threads) {
    const int64_t all = static_cast<int64_t>(step->num_tokens) * a->heads, fair = (all + num_threads - 1) / num_threads;
    return fair < 4 ? 4 : fair > LATENT_ROWS ? LATENT_ROWS : fair;
}

static void latent_attention_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const LatentAttentionArgs*>(args);
    const LatentScratch s = latent_scratch(a, thread);
    const int64_t each = item_rows(a, step, num_threads);
    int64_t item = 0;
    for (int32_t b = 0; b < step->num_sequences; ++b) {
        const int64_t end = static_cast<int64_t>(step->q_start[b + 1]) * a->heads;
        for (int64_t first = static_cast<int64_t>(step->q_start[b]) * a->heads; first < end; first += each, ++item)
            if (item % num_threads == thread)
                latent_rows(a, step, b, first, end - first < each ? end - first : each, s);
    }
}
