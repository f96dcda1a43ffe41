// attention: items of work are (sequence, key-value head, block of queries) in prefill and (sequence, key-value head,
// split of keys) for a sequence with one new token; parts take the next item from a counter. The part that finishes
// the last split of a head merges them all, so no second op and no barrier is needed.
#include "attention_tile.inl"
#include "attention_softmax.inl"

struct Scratch {
    float* q;        // [rows, channels], scaled
    float* scores;   // [rows, TILE]
    State split;     // of the split in work
    State all;       // of the splits before
    int32_t* place;  // [rows] position of each row
    float* keys;     // [width, TILE] copied tile
    float* values;   // [TILE, width] copied tile
};

// One (sequence, key-value head) and the rows that look at it.
struct Task {
    const AttentionArgs* args;
    const Step* step;
    const int32_t* pages;  // the sequence's row of the page table
    int32_t sequence;
    int32_t group;   // key-value head
    int32_t first;   // first query token
    int32_t tokens;  // query tokens
    int32_t rows;    // tokens * heads / groups
    int32_t low;     // first key that any row sees
    int32_t high;    // one past the last
    int32_t stop;    // one past the last key of this item of work
    int64_t width;   // channels, padded
};

static float* after_counters(const AttentionArgs* a) {
    return reinterpret_cast<float*>(static_cast<char*>(a->workspace) +
                                    attention_counter_bytes(a->groups, a->max_sequences));
}

static Scratch carve(const AttentionArgs* a, int32_t thread) {
    const int64_t rows = attention_max_rows(a->heads, a->groups), width = attention_padded(a->channels);
    const int64_t unfinished = attention_all_partial_floats(a->heads, a->channels, a->max_keys, a->max_sequences);
    float* next = after_counters(a) + unfinished + thread * attention_scratch_floats(a->heads, a->groups, a->channels);
    const auto take = [&next](int64_t count) {
        float* taken = next;
        next += count;
        return taken;
    };
    Scratch s;
    s.q = take(rows * width);
    s.scores = take(rows * TILE);
    s.split.mixed = take(rows * width);
    s.all.mixed = take(rows * width);
    s.keys = take(width * TILE);
    s.values = take(width * TILE);
    s.split.maximum = take(rows);
    s.split.total = take(rows);
    s.all.maximum = take(rows);
    s.all.total = take(rows);
    s.place = reinterpret_cast<int32_t*>(take(rows));
    return s;
}

template <class Item>
static const Item* key_at(const Task& t, int32_t key) {
    const AttentionArgs* a = t.args;
    const int32_t page_size = t.step->page_size;
    const int64_t head = static_cast<int64_t>(t.pages[key / page_size]) * a->groups + t.group;
    return static_cast<const Item*>(a->k_pages) + head * a->channels * page_size + key % page_size;
}

template <class Item>
static const Item* value_at(const Task& t, int32_t key) {
    const AttentionArgs* a = t.args;
    const int32_t page_size = t.step->page_size;
    const int64_t head = static_cast<int64_t>(t.pages[key / page_size]) * a->groups + t.group;
    return static_cast<const Item*>(a->v_pages) + (head * page_size + key % page_size) * a->channels;
}

static int tile_count(const Task& t, int32_t start) { return t.high - start < TILE ? t.high - start : TILE; }

// The tiles of an item read where they lie: the one in work and the one after it.
template <class Item>
struct Walk {
    Tile<Item> tiles[2];
    int32_t starts[2] = {-1, -1};
    int now = 0;
};

template <class Item>
static void fill_tile(const Task& t, int32_t start, Tile<Item>* tile) {
    const int32_t page_size = t.step->page_size;
    tile->count = tile_count(t, start);
    tile->stride = page_size;
    tile->ahead = tile;
    for (int i = 0; i < TILE; ++i) tile->keys[i / W] = nullptr;
    for (int i = 0; i < tile->count; i += W) tile->keys[i / W] = key_at<Item>(t, start + i);
    for (int i = 0; i < tile->count;) {
        const Item* value = value_at<Item>(t, start + i);
        int left = page_size - (start + i) % page_size;
        for (; left > 0 && i < tile->count; --left, ++i, value += t.args->channels) tile->values[i] = value;
    }
    for (int i = tile->count; i < TILE; ++i) tile->values[i] = nullptr;
}

template <class Item>
static const Tile<Item>& tile_in_place(const Task& t, int32_t start, Walk<Item>* walk) {
    if (walk->starts[1 - walk->now] == start) walk->now = 1 - walk->now;
    Tile<Item>*now = walk->tiles + walk->now, *after = walk->tiles + 1 - walk->now;
    if (walk->starts[walk->now] != start) fill_tile(t, start, now);
    walk->starts[walk->now] = start;
    if (start + TILE < t.stop) {
        fill_tile(t, start + TILE, after);
        walk->starts[1 - walk->now] = start + TILE;
        now->ahead = after;
    }
    return *now;
}

template <class Item>
static inline void copy_floats(const Item* from, float* to, int count) {
    int i = 0;
    for (; i + W <= count; i += W) store(to + i, load(from + i));
    if (i < count) store_part(to + i, load_part(from + i, count - i), count - i);
}

// Copies the tile to floats: worth it for many rows, needed where vectors would cross a page or a head's end.
template <class Item>
static Tile<float> tile_copied(const Task& t, int32_t start, int count, const Scratch& s) {
    const int channels = t.args->channels;
    const int32_t page_size = t.step->page_size;
    Tile<float> tile;
    tile.ahead = &tile;  // never followed: fetch does nothing for floats
    tile.count = count;
    tile.stride = TILE;
    for (int i = 0; i < KEY_VECTORS; ++i) tile.keys[i] = s.keys + i * W;
    for (int i = 0; i < count;) {
        const int32_t key = start + i, left = page_size - key % page_size;
        const int run = left < count - i ? left : count - i;
        const Item* from = key_at<Item>(t, key);
        for (int c = 0; c < channels; ++c) copy_floats(from + static_cast<int64_t>(c) * page_size, s.keys + c * TILE + i, run);
        i += run;
    }
    for (int i = 0; i < count; ++i) {
        float* row = s.values + i * t.width;
        copy_floats(value_at<Item>(t, start + i), row, channels);
        for (int64_t c = channels; c < t.width; ++c) row[c] = 0.0f;
        tile.values[i] = row;
    }
    return tile;
}

template <class Item>
static void attend_tile(const Task& t, const Tile<Item>& tile, int32_t start, const Scratch& s) {
    const AttentionArgs* a = t.args;
    score_tile(t.rows, s.q, a->channels, tile, s.scores);
    for (int r = 0; r < t.rows; ++r) {
        const int32_t place = s.place[r];
        const int32_t after = place + 1 - start, before = a->window > 0 ? place - a->window + 1 - start : 0;
        soften(s.scores + r * TILE, before > 0 ? before : 0, after < tile.count ? after : tile.count,
               s.split.maximum + r, s.split.total + r, s.split.mixed + r * t.width, t.width);
    }
    mix_tile(t.rows, s.scores, tile, t.width, s.split.mixed);
}

template <class Item>
static void attend_split(const Task& t, int32_t split, const Scratch& s, Walk<Item>* walk) {
    const AttentionArgs* a = t.args;
    const bool in_place = t.rows <= MAX_ROWS && a->channels % 16 == 0 && t.step->page_size % 16 == 0;
    reset(s.split, t.rows, t.width);
    for (int32_t start = split * SPLIT; start < (split + 1) * SPLIT && start < t.high; start += TILE) {
        if (start + TILE <= t.low) continue;
        if (in_place)
            attend_tile(t, tile_in_place<Item>(t, start, walk), start, s);
        else
            attend_tile(t, tile_copied<Item>(t, start, tile_count(t, start), s), start, s);
    }
}

// The last key that a query sees: its own, or the last of its sequence.
static int32_t place_of(const AttentionArgs* a, const Step* step, int32_t sequence, int32_t token) {
    return a->bidirectional ? step->kv_len[sequence] - 1 : step->positions[token];
}

// Fills low, high and rows of the task, scales its queries.
static void open_task(Task* t, const Scratch& s) {
    const AttentionArgs* a = t->args;
    const int32_t group = a->heads / a->groups;
    int32_t least = INT32_MAX, most = -1;
    const vf scale = set1(a->scale);
    for (int32_t i = 0; i < t->tokens; ++i) {
        const int32_t place = place_of(a, t->step, t->sequence, t->first + i);
        least = place < least ? place : least;
        most = place > most ? place : most;
        for (int32_t h = 0; h < group; ++h) {
            const float* q = a->q + ((static_cast<int64_t>(t->first) + i) * a->heads + t->group * group + h) * a->channels;
            float* to = s.q + (static_cast<int64_t>(i) * group + h) * a->channels;
            s.place[i * group + h] = place;
            int c = 0;
            for (; c + W <= a->channels; c += W) store(to + c, mul(load(q + c), scale));
            if (c < a->channels) store_part(to + c, mul(load_part(q + c, a->channels - c), scale), a->channels - c);
        }
    }
    t->rows = t->tokens * group;
    t->high = most + 1;
    t->low = a->window > 0 && least - a->window + 1 > 0 ? least - a->window + 1 : 0;
}

template <class Item>
static void attend_block(Task* t, const Scratch& s) {
    const AttentionArgs* a = t->args;
    const int32_t group = a->heads / a->groups;
    open_task(t, s);
    reset(s.all, t->rows, t->width);
    Walk<Item> walk;
    t->stop = t->high;
    for (int32_t split = t->low / SPLIT; split * SPLIT < t->high; ++split) {
        attend_split<Item>(*t, split, s, &walk);
        for (int r = 0; r < t->rows; ++r)
            merge(s.all.maximum + r, s.all.total + r, s.all.mixed + r * t->width, s.split.maximum[r], s.split.total[r],
                  s.split.mixed + r * t->width, t->width);
    }
    for (int r = 0; r < t->rows; ++r)
        write_row(a, t->first + r / group, t->group * group + r % group, s.all.maximum[r], s.all.total[r],
                  s.all.mixed + r * t->width);
}

// Where the unfinished row of a head and split lies: maximum, total, 14 unused, mixed.
static float* partial_at(const Task& t, int32_t split, int32_t head) {
    const AttentionArgs* a = t.args;
    const int64_t place = (t.sequence * attention_max_splits(a->max_keys) + split) * a->heads + head;
    return after_counters(a) + place * attention_partial_floats(a->channels);
}

// Merges the splits of one key-value head in rising order and writes its rows.
static void merge_splits(const Task& t, int32_t first, int32_t last, const Scratch& s) {
    const AttentionArgs* a = t.args;
    reset(s.all, t.rows, t.width);
    for (int r = 0; r < t.rows; ++r) {
        const int32_t head = t.group * t.rows + r;
        for (int32_t split = first; split < last; ++split) {
            const float* from = partial_at(t, split, head);
            merge(s.all.maximum + r, s.all.total + r, s.all.mixed + r * t.width, from[0], from[1], from + 16, t.width);
        }
        write_row(a, t.first, head, s.all.maximum[r], s.all.total[r], s.all.mixed + r * t.width);
    }
}

static std::atomic<int32_t>* counters(const AttentionArgs* a) { return static_cast<std::atomic<int32_t>*>(a->workspace); }

// Keeps the state of a split, or writes the result where it is the only one.
static void close_split(const Task& t, int32_t split, bool only, const Scratch& s) {
    for (int r = 0; r < t.rows; ++r) {
        const int32_t head = t.group * t.rows + r;
        const float* mixed = s.split.mixed + r * t.width;
        if (only) {
            write_row(t.args, t.first, head, s.split.maximum[r], s.split.total[r], mixed);
            continue;
        }
        float* to = partial_at(t, split, head);
        to[0] = s.split.maximum[r];
        to[1] = s.split.total[r];
        memcpy(to + 16, mixed, sizeof(float) * t.width);
    }
}

// `most` splits, from number `which` on, of a sequence with one new token.
template <class Item>
static void attend_part(Task* t, int32_t which, int32_t most, const Scratch& s) {
    const AttentionArgs* a = t->args;
    open_task(t, s);
    const int32_t first = t->low / SPLIT, last = (t->high + SPLIT - 1) / SPLIT;
    const int32_t begin = first + which, end = begin + most < last ? begin + most : last;
    Walk<Item> walk;
    t->stop = end * SPLIT < t->high ? end * SPLIT : t->high;
    for (int32_t split = begin; split < end; ++split) {
        attend_split<Item>(*t, split, s, &walk);
        close_split(*t, split, last - first == 1, s);
    }
    if (last - first == 1) return;
    std::atomic<int32_t>& done = counters(a)[2 + t->sequence * a->groups + t->group];
    if (done.fetch_add(end - begin, std::memory_order_acq_rel) + end - begin < last - first) return;
    done.store(0, std::memory_order_relaxed);
    merge_splits(*t, first, last, s);
}

// Splits of the keys that the one new token of a sequence sees.
static int32_t num_splits(const AttentionArgs* a, int32_t place) {
    const int32_t low = a->window > 0 && place - a->window + 1 > 0 ? place - a->window + 1 : 0;
    return (place + SPLIT) / SPLIT - low / SPLIT;
}

// Splits of an item: several in a row, because fetching ahead pays along one run of keys.
static int32_t part_splits(const AttentionArgs* a, int32_t splits, int32_t num_threads) {
    return (splits * a->groups + 4 * num_threads - 1) / (4 * num_threads);
}

// Query tokens of a block: as many as share one pass over the keys, fewer where parts would be idle.
static int32_t block_tokens(const AttentionArgs* a, int32_t tokens, int32_t num_threads) {
    const int32_t most = attention_max_rows(a->heads, a->groups) / (a->heads / a->groups);
    const int32_t fair = (tokens * a->groups + 4 * num_threads - 1) / (4 * num_threads);
    const int32_t least = most < 8 ? most : 8;
    return fair < least ? least : fair > most ? most : fair;
}

template <class Item>
static void run_item(const AttentionArgs* a, const Step* step, int32_t b, int32_t item, int32_t num_threads,
                     const Scratch& s) {
    const int32_t begin = step->q_start[b], tokens = step->q_start[b + 1] - begin;
    Task t = {a, step, step->page_table + static_cast<int64_t>(b) * step->max_pages, b, 0, begin, 1, 0, 0, 0, 0,
              attention_padded(a->channels)};
    if (tokens == 1) {
        const int32_t splits = num_splits(a, place_of(a, step, b, begin)), each = part_splits(a, splits, num_threads);
        const int32_t runs = (splits + each - 1) / each;
        t.group = item / runs;
        attend_part<Item>(&t, item % runs * each, each, s);
        return;
    }
    const int32_t each = block_tokens(a, tokens, num_threads), blocks = (tokens + each - 1) / each;
    const int32_t block = blocks - 1 - item / a->groups;  // the last sees most keys: longest work first
    t.group = item % a->groups;
    t.first = begin + block * each;
    t.tokens = tokens - block * each < each ? tokens - block * each : each;
    attend_block<Item>(&t, s);
}

static int32_t num_items(const AttentionArgs* a, const Step* step, int32_t b, int32_t num_threads) {
    const int32_t tokens = step->q_start[b + 1] - step->q_start[b];
    if (tokens == 0) return 0;
    if (tokens == 1) {
        const int32_t splits = num_splits(a, place_of(a, step, b, step->q_start[b]));
        const int32_t each = part_splits(a, splits, num_threads);
        return a->groups * ((splits + each - 1) / each);
    }
    const int32_t each = block_tokens(a, tokens, num_threads);
    return a->groups * ((tokens + each - 1) / each);
}

static void attention_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const AttentionArgs*>(args);
    const Scratch s = carve(a, thread);
    std::atomic<int32_t>*next = counters(a), *parts_done = counters(a) + 1;
    for (int32_t b = -1, below = 0, count = 0;;) {
        const int32_t item = next->fetch_add(1, std::memory_order_relaxed);
        while (item >= below + count && ++b < step->num_sequences) {
            below += count;
            count = num_items(a, step, b, num_threads);
        }
        if (b == step->num_sequences) break;
        if (a->page_type == PAGES_F16)
            run_item<Half>(a, step, b, item - below, num_threads, s);
        else
            run_item<float>(a, step, b, item - below, num_threads, s);
    }
    if (parts_done->fetch_add(1, std::memory_order_acq_rel) + 1 < num_threads) return;
    next->store(0, std::memory_order_relaxed);
    parts_done->store(0, std::memory_order_relaxed);
}
