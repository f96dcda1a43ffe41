// The two products of a tile: scores = q k and mixed += weights v, for rows of queries and 64 keys.
//
// One output is always one chain of fma in rising order of channels (scores) or keys (mixed), whatever the blocking.

// Unrolled early, the accumulators become registers; left to the optimiser they go through the stack once a call.
#define FTD_UNROLL _Pragma("GCC unroll 8")

constexpr int TILE = ATTENTION_TILE, SPLIT = ATTENTION_SPLIT;
constexpr int KEY_VECTORS = TILE / W;
constexpr int MAX_ROWS = 6;  // rows x vectors accumulators and their operands stay in registers
constexpr int MAX_VECTORS = TILE_VECTORS;

// Where the keys of a tile lie: vector j holds channel 0 of keys j*W.., channel c is c * stride items further.
template <class Item>
struct Tile {
    const Item* keys[KEY_VECTORS];
    const Item* values[TILE];
    int64_t stride;
    int count;           // keys in use, 1 .. TILE
    const Tile* ahead;   // whose halves to fetch into the cache meanwhile; itself where nothing follows
};

// A page is too short a run for the hardware to see it coming. Tiles of floats are copies that are in the cache.
static inline void fetch(const Half* from) { __builtin_prefetch(from, 0, 3); }
static inline void fetch(const float*) {}

template <int R, int N, class Item>
static void score_block(const float* q, int64_t q_stride, const Tile<Item>& tile, int first, int channels,
                        float* scores) {
    const Item* const* keys = tile.keys + first;
    const Item* const* ahead = tile.ahead->keys + first;
    const int64_t stride = tile.stride;
    vf sums[R][N];
    FTD_UNROLL
    for (int r = 0; r < R; ++r)
        FTD_UNROLL
        for (int j = 0; j < N; ++j) sums[r][j] = zero();
    for (int c = 0; c < channels; ++c) {
        vf key[N];
        FTD_UNROLL
        for (int j = 0; j < N; ++j) {
            key[j] = load(keys[j] + c * stride);
            fetch(ahead[j] + c * stride);
        }
        FTD_UNROLL
        for (int r = 0; r < R; ++r) {
            const vf query = set1(q[r * q_stride + c]);
            FTD_UNROLL
            for (int j = 0; j < N; ++j) sums[r][j] = fma(query, key[j], sums[r][j]);
        }
    }
    FTD_UNROLL
    for (int r = 0; r < R; ++r)
        FTD_UNROLL
        for (int j = 0; j < N; ++j) store(scores + r * TILE + j * W, sums[r][j]);
}

template <int R, int N, class Item>
static void mix_block(const float* weights, const Tile<Item>& tile, int64_t first, float* mixed, int64_t mixed_stride) {
    const Item* const* values = tile.values;
    const Item* const* ahead = tile.ahead->values;
    vf sums[R][N];
    FTD_UNROLL
    for (int r = 0; r < R; ++r)
        FTD_UNROLL
        for (int j = 0; j < N; ++j) sums[r][j] = load(mixed + r * mixed_stride + j * W);
    for (int t = 0; t < tile.count; ++t) {
        vf value[N];
        FTD_UNROLL
        for (int j = 0; j < N; ++j) {
            value[j] = load(values[t] + first + j * W);
            fetch(ahead[t] + first + j * W);
        }
        FTD_UNROLL
        for (int r = 0; r < R; ++r) {
            const vf weight = set1(weights[r * TILE + t]);
            FTD_UNROLL
            for (int j = 0; j < N; ++j) sums[r][j] = fma(weight, value[j], sums[r][j]);
        }
    }
    FTD_UNROLL
    for (int r = 0; r < R; ++r)
        FTD_UNROLL
        for (int j = 0; j < N; ++j) store(mixed + r * mixed_stride + j * W, sums[r][j]);
}

// The size of the next piece when `left` items go in equal pieces of at most `most`.
static inline int piece(int left, int most) {
    const int pieces = (left + most - 1) / most;
    return (left + pieces - 1) / pieces;
}

template <int R, class Item>
static void score_rows(const float* q, int64_t q_stride, const Tile<Item>& tile, int channels, float* scores) {
    const int vectors = (tile.count + W - 1) / W;
    for (int j = 0; j < vectors;) {
        const int n = piece(vectors - j, MAX_VECTORS);
        float* to = scores + j * W;
        if (n == 1) score_block<R, 1>(q, q_stride, tile, j, channels, to);
        if constexpr (MAX_VECTORS > 1)
            if (n == 2) score_block<R, 2>(q, q_stride, tile, j, channels, to);
        if constexpr (MAX_VECTORS > 2) {
            if (n == 3) score_block<R, 3>(q, q_stride, tile, j, channels, to);
            if (n == 4) score_block<R, 4>(q, q_stride, tile, j, channels, to);
        }
        j += n;
    }
}

template <int R, class Item>
static void mix_rows(const float* weights, const Tile<Item>& tile, int64_t width, float* mixed) {
    const int vectors = static_cast<int>(width / W);
    for (int j = 0; j < vectors;) {
        const int n = piece(vectors - j, MAX_VECTORS);
        const int64_t first = static_cast<int64_t>(j) * W;
        if (n == 1) mix_block<R, 1>(weights, tile, first, mixed + first, width);
        if constexpr (MAX_VECTORS > 1)
            if (n == 2) mix_block<R, 2>(weights, tile, first, mixed + first, width);
        if constexpr (MAX_VECTORS > 2) {
            if (n == 3) mix_block<R, 3>(weights, tile, first, mixed + first, width);
            if (n == 4) mix_block<R, 4>(weights, tile, first, mixed + first, width);
        }
        j += n;
    }
}

// scores [rows, TILE] = q [rows, channels] times the tile's keys; lanes past tile.count hold anything.
template <class Item>
static void score_tile(int rows, const float* q, int channels, const Tile<Item>& tile, float* scores) {
    for (int r = 0; r < rows;) {
        const int n = piece(rows - r, MAX_ROWS);
        const float* from = q + static_cast<int64_t>(r) * channels;
        float* to = scores + r * TILE;
        switch (n) {
            case 1: score_rows<1>(from, channels, tile, channels, to); break;
            case 2: score_rows<2>(from, channels, tile, channels, to); break;
            case 3: score_rows<3>(from, channels, tile, channels, to); break;
            case 4: score_rows<4>(from, channels, tile, channels, to); break;
            case 5: score_rows<5>(from, channels, tile, channels, to); break;
            default: score_rows<6>(from, channels, tile, channels, to); break;
        }
        r += n;
    }
}

// mixed [rows, width] += weights [rows, TILE] times the tile's values.
template <class Item>
static void mix_tile(int rows, const float* weights, const Tile<Item>& tile, int64_t width, float* mixed) {
    for (int r = 0; r < rows;) {
        const int n = piece(rows - r, MAX_ROWS);
        const float* from = weights + r * TILE;
        float* to = mixed + r * width;
        switch (n) {
            case 1: mix_rows<1>(from, tile, width, to); break;
            case 2: mix_rows<2>(from, tile, width, to); break;
            case 3: mix_rows<3>(from, tile, width, to); break;
            case 4: mix_rows<4>(from, tile, width, to); break;
            case 5: mix_rows<5>(from, tile, width, to); break;
            default: mix_rows<6>(from, tile, width, to); break;
        }
        r += n;
    }
}

#undef FTD_UNROLL
