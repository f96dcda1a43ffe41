// index_select; a token is one part's work. The scores of a key are one chain in rising order of heads.
#include "dot_block.inl"

constexpr int INDEX_TILE = ATTENTION_TILE;

template <class Item>
static void index_keys(const IndexSelectArgs* a, const Step* step, const int32_t* pages, int32_t start, int count, float* keys) {
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

static void score_keys(const IndexSelectArgs* a, const Step* step, int64_t token, const int32_t* pages, int32_t seen,
                       float* keys, float* by_head, float* scores) {
    const int64_t wide = attention_padded(a->channels);
    const float* q = a->q + token * a->heads * a->channels;
    const float* weights = a->weights + token * a->heads;
    for (int32_t start = 0; start < seen; start += INDEX_TILE) {
        const int count = seen - start < INDEX_TILE ? seen - start : INDEX_TILE;
        if (a->page_type == PAGES_F16)
            index_keys<Half>(a, step, pages, start, count, keys);
        else
            index_keys<float>(a, step, pages, start, count, keys);
        dot_tile(a->heads, q, a->channels, count, keys, wide, a->channels, 1.0f, by_head, INDEX_TILE, 1);
        for (int i = 0; i < count; ++i) {
            float total = 0.0f;
            for (int32_t h = 0; h < a->heads; ++h) {
                const float score = by_head[h * INDEX_TILE + i];
                total += weights[h] * (score > 0.0f ? score : score == score ? 0.0f : score);
            }
            scores[start + i] = total == total ? total : -INFINITY;
        }
    }
}

static void select_best(const IndexSelectArgs* a, int32_t seen, const float* scores, float* sorted, uint64_t* bits) {
    memcpy(sorted, scores, sizeof(float) * seen);
    std::nth_element(sorted, sorted + a->count - 1, sorted + seen, std::greater<float>());
    const float least = sorted[a->count - 1];
    int32_t above = 0;
    for (int32_t i = 0; i < seen; ++i) above += scores[i] > least;
    int32_t equal = a->count - above;  // of those the first
    for (int32_t i = 0; i < seen; ++i) {
        bool taken = scores[i] > least;
        if (scores[i] == least && equal > 0) {
            taken = true;
            --equal;
        }
        if (taken) bits[i / 64] |= uint64_t{1} << (i % 64);
    }
}

static void index_select_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const IndexSelectArgs*>(args);
    float* keys = a->scratch + thread * index_scratch_floats(a->heads, a->channels, a->words);
    float* by_head = keys + INDEX_TILE * attention_padded(a->channels);
    float* scores = by_head + INDEX_TILE * a->heads;
    float* sorted = scores + static_cast<int64_t>(INDEX_TILE) * a->words;
    for (int32_t b = 0; b < step->num_sequences; ++b) {
        const int32_t* pages = step->page_table + static_cast<int64_t>(b) * step->max_pages;
        for (int32_t token = step->q_start[b]; token < step->q_start[b + 1]; ++token) {
            if (token % num_threads != thread) continue;
            uint64_t* bits = a->selected + static_cast<int64_t>(token) * a->words;
            memset(bits, 0, sizeof(uint64_t) * a->words);
            const int32_t seen = step->positions[token] + 1;
            if (seen <= a->count) {
                for (int32_t i = 0; i < seen; ++i) bits[i / 64] |= uint64_t{1} << (i % 64);
                continue;
            }
            score_keys(a, step, token, pages, seen, keys, by_head, scores);
            select_best(a, seen, scores, sorted, bits);
        }
    }
}
