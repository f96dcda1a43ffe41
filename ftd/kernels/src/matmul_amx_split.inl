// Rows of bfloat16 weights by AMX tiles, of LEAST_SPLIT tokens and more: x is PARTS bfloat16, high and low or, where
// experts serve a card that computes with bfloat16 too, one.
//
//   A  [16 rows][32 columns]             weights as they lie in memory, or copied for more than 32 tokens: rows that lie
//                                        multiples of 4 KiB apart would share few places of the caches
//   B  [16 pairs of columns][16 tokens]  a record below, first the high, then the low part
//   C  [16 rows][16 tokens]              floats
//
// A record holds a block of 32 columns of the tokens of a tile: [PARTS][16 pairs of columns][tokens][2 columns]. A tile
// has 16 tokens, those past the last are zero; fewer than 16 tokens in all make one tile of as many.
// The sum of an output is one float: block after block, high before low, each as tdpbf16ps adds it; nothing else is ever
// added up, so a token's bits depend on its values alone. Fewer than LEAST_SPLIT tokens take AVX-512 (other bits): of one,
// 16 threads read 60 to 75 GB/s by tiles where vectors read 90.

constexpr int64_t PAIR_ROWS = 32;  // two tiles of rows and two of tokens are worked on at once

// Of `width` tokens: C in tiles 0 .. 3, A in 4 and 5, B in 6 and 7.
constexpr TileConfig split_config(int width) {
    TileConfig config{1, 0, {}, {}, {16, 16, 16, 16, 16, 16, 16, 16}};
    for (int i = 0; i < 8; ++i) config.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? 64 : 4 * width);
    return config;
}
struct SplitConfigs {
    TileConfig of[17];
};
constexpr SplitConfigs split_configs() {
    SplitConfigs configs{};
    for (int width = 1; width <= 16; ++width) configs.of[width] = split_config(width);
    return configs;
}
inline constexpr SplitConfigs SPLIT_CONFIGS = split_configs();

// x rounded to the nearest bfloat16, as a float's bits. A NaN keeps its upper half, quiet: rounding could carry it away.
inline __m512i round_bfloat(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

// Thirty-two floats become their high and low parts, in order.
inline void split_block(const float* x, __m512* high, __m512* low) {
    alignas(64) static constexpr uint16_t UPPER[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                       33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const __m512i upper = _mm512_load_si512(UPPER);
    const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    const __m512i first = round_bfloat(a), second = round_bfloat(b);
    const __m512i rest = round_bfloat(_mm512_sub_ps(a, _mm512_castsi512_ps(first)));
    const __m512i more = round_bfloat(_mm512_sub_ps(b, _mm512_castsi512_ps(second)));
    *high = _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, upper, second));
    *low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(rest, upper, more));
}

// Stores the parts of up to 16 tokens, a register each, as a record.
template <int PARTS>
inline void store_record(__m512 high[16], __m512 low[16], int64_t width, char* record) {
    const auto mask = static_cast<__mmask16>((1u << width) - 1);
    transpose16(high);
    for (int64_t j = 0; j < 16; ++j) _mm512_mask_storeu_ps(record + 4 * width * j, mask, high[j]);
    if constexpr (PARTS == 1) return;
    transpose16(low);
    for (int64_t j = 0; j < 16; ++j) _mm512_mask_storeu_ps(record + 4 * width * (16 + j), mask, low[j]);
}

// The record of block b of tokens [t, t + count), count at most `width`.
inline void write_split(const QuantizeArgs& a, int64_t t, int64_t count, int64_t b, int64_t width, char* record) {
    __m512 high[16], low[16];
    for (int64_t i = 0; i < 16; ++i) high[i] = low[i] = _mm512_setzero_ps();
    for (int64_t i = 0; i < count; ++i) split_block(a.x + (t + i) * a.k + 32 * b, &high[i], &low[i]);
    store_record<2>(high, low, width, record);
}

template <int PARTS>
inline void split_rows(const TokenRows& rows, int64_t k, char* records) noexcept {
    for (int64_t b = 0; b < k / 32; ++b) {
        __m512 high[16], low[16];
        for (int64_t i = 0; i < 16; ++i) high[i] = low[i] = _mm512_setzero_ps();
        for (int64_t i = 0; i < rows.count; ++i) {
            if (rows.are_bfloats)
                high[i] = _mm512_loadu_ps(static_cast<const uint16_t*>(rows.at[i]) + 32 * b);
            else
                split_block(static_cast<const float*>(rows.at[i]) + 32 * b, &high[i], &low[i]);
        }
        store_record<PARTS>(high, low, rows.width, records + b * PARTS * 64 * rows.width);
    }
}

inline void split_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const QuantizeArgs& a = *static_cast<const QuantizeArgs*>(args);
    const int64_t num_tokens = num_rows(step, a.rows), blocks = a.k / 32, width = split_width(num_tokens);
    if (num_tokens < LEAST_SPLIT) return;
    int64_t begin, end;
    share((num_tokens + TILE_WIDTH - 1) / TILE_WIDTH * blocks, 1, thread, num_threads, &begin, &end);
    for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / blocks * TILE_WIDTH, count = num_tokens - t < TILE_WIDTH ? num_tokens - t : TILE_WIDTH;
        write_split(a, t, count, i % blocks, width, split_records(a.out) + i * 128 * width);
    }
}

// Two tiles of rows, `stride` bytes a row, the next block `step` bytes on, and two of tokens, of `width` tokens each. The
// second may be the first again.
struct SplitTiles {
    const char *rows[2], *tokens[2];
    int64_t stride, step, width;
};

inline void load_sums(const float* sums) {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + 256, 64);
    _tile_loadd(2, sums + 512, 64);
    _tile_loadd(3, sums + 768, 64);
}

inline void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

inline void store_sums(float* sums) {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    asm volatile("" ::: "memory");  // tile stores do not tell the compiler what they write
}

// Adds blocks [0, count) to the sums [2 tiles of tokens][2 of rows][16 rows][16 tokens], which are zero if `fresh`.
template <int PARTS>
inline void add_blocks(const SplitTiles& at, int64_t count, bool fresh, float* sums) {
    asm volatile("" ::: "memory");  // nor loads what they read
    const int64_t token_step = PARTS * 64 * at.width, low = 64 * at.width, of_pair = 4 * at.width;
    if (fresh)
        clear_sums();
    else
        load_sums(sums);
    for (int64_t i = 0; i < count; ++i) {
        const char *first = at.tokens[0] + i * token_step, *second = at.tokens[1] + i * token_step;
        _tile_loadd(4, at.rows[0] + i * at.step, at.stride);
        _tile_loadd(6, first, of_pair);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, at.rows[1] + i * at.step, at.stride);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(7, second, of_pair);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
        if constexpr (PARTS == 1) continue;
        _tile_loadd(6, first + low, of_pair);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(7, second + low, of_pair);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
    store_sums(sums);
}

// The same of all blocks of one tile of each. The 16 rows behind these are fetched meanwhile, in order.
template <int PARTS>
inline void add_tile(const SplitTiles& at, int64_t count, const char* ahead, float* sums) {
    asm volatile("" ::: "memory");
    const int64_t token_step = PARTS * 64 * at.width, low = 64 * at.width, of_pair = 4 * at.width;
    _tile_zero(0);
    for (int64_t i = 0; i < count; ++i, ahead += 1024) {
        for (int64_t line = 0; line < 1024; line += 64) __builtin_prefetch(ahead + line, 0, FETCH_LOCALITY);
        _tile_loadd(4, at.rows[0] + i * at.step, at.stride);
        _tile_loadd(6, at.tokens[0] + i * token_step, of_pair);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (PARTS == 1) continue;
        _tile_loadd(7, at.tokens[0] + i * token_step + low, of_pair);
        _tile_dpbf16ps(0, 4, 7);
    }
    _tile_stored(0, sums, 64);
    asm volatile("" ::: "memory");
}

// Rows [begin, end) of one product for tokens [t0, t1), of whose tiles `split` holds all, from token 0 on.
template <int PARTS>
struct SplitRange {
    const Product& p;
    const char* split;
    int64_t begin, end, t0, t1, width;
    char* copy;   // [pair of row tiles][2][SPLIT_BLOCKS][16 rows][32 columns]
    float* sums;  // [pair of token tiles][pair of row tiles][2 of tokens][2 of rows][16 rows][16 tokens]

    int64_t blocks() const { return p.weight.k / 32; }
    int64_t record() const { return PARTS * 64 * width; }
    int64_t row_pairs() const { return (end - begin + PAIR_ROWS - 1) / PAIR_ROWS; }
    int64_t token_tiles() const { return (t1 - t0 + TILE_WIDTH - 1) / TILE_WIDTH; }
    int64_t token_pairs() const { return (token_tiles() + 1) / 2; }
    bool copies() const { return token_pairs() > 1; }

    // The first row of a tile of 16: one that would pass the last row of the matrix starts early.
    int64_t tile_row(int64_t row) const { return row + 16 <= p.weight.n ? row : p.weight.n - 16; }
    const char* row_at(int64_t row) const {
        return reinterpret_cast<const char*>(plane_row<uint16_t>(p.weight, 0, row, p.weight.k));
    }
    // Tile i of a pair of rows; past the range's last it is the one before it again, whose sums go nowhere.
    const char* row_tile(int64_t row_pair, int64_t i) const {
        const int64_t row = begin + PAIR_ROWS * row_pair;
        return row_at(tile_row(row + 16 * i < end ? row + 16 * i : row));
    }
    const char* token_tile(int64_t tile) const {
        const int64_t last = token_tiles() - 1;
        return split + (t0 / TILE_WIDTH + (tile < last ? tile : last)) * blocks() * record();
    }

    // From block b on.
    SplitTiles tiles(int64_t row_pair, int64_t token_pair, int64_t b) const {
        const char* first = token_tile(2 * token_pair) + b * record();
        const char* second = token_tile(2 * token_pair + 1) + b * record();
        if (copies()) {
            const char* rows = copy + row_pair * 2 * SPLIT_BLOCKS * 1024;
            return {{rows, rows + SPLIT_BLOCKS * 1024}, {first, second}, 64, 1024, width};
        }
        const char *rows = row_tile(row_pair, 0) + 64 * b, *more = row_tile(row_pair, 1) + 64 * b;
        return {{rows, more}, {first, second}, p.weight.k * 2, 64, width};
    }

    // Copies `count` blocks from block b on.
    void copy_rows(int64_t b, int64_t count) const {
        for (int64_t tile = 0; tile < 2 * row_pairs(); ++tile)
            for (int64_t r = 0; r < 16; ++r) {
                const char* from = row_tile(tile / 2, tile % 2) + r * p.weight.k * 2 + 64 * b;
                char* to = copy + tile * SPLIT_BLOCKS * 1024 + 64 * r;
                for (int64_t i = 0; i < count; ++i) _mm512_storeu_ps(to + 1024 * i, _mm512_loadu_ps(from + 64 * i));
            }
    }

    // Stores one tile of sums: rows from `row` on, tokens of tile `tile`.
    void store(const float* from, int64_t row, int64_t tile) const {
        const int64_t first = tile_row(row), at = t0 + TILE_WIDTH * tile;
        const __mmask16 mask = lanes_between(first, row, end);
        __m512 value[16];
        for (int r = 0; r < 16; ++r) value[r] = _mm512_loadu_ps(from + 16 * r);
        store_values(p, value, first, mask, at, at + TILE_WIDTH < t1 ? at + TILE_WIDTH : t1);
    }
};

// A share of what comes next is fetched with each pair of tiles: the next blocks of rows, these of the next tokens.
template <int PARTS>
inline void fetch_split(const SplitRange<PARTS>& a, int64_t row_pair, int64_t token_pair, int64_t b) {
    const int64_t pairs = a.token_pairs(), row = a.begin + PAIR_ROWS * row_pair, next = b + SPLIT_BLOCKS;
    const int64_t last = row + PAIR_ROWS * (token_pair + 1) / pairs;
    for (int64_t r = row + PAIR_ROWS * token_pair / pairs; next < a.blocks() && r < last && r < a.end; ++r)
        for (int64_t line = 0; line < SPLIT_BLOCKS; ++line)
            __builtin_prefetch(a.row_at(r) + 64 * (next + line), 0, FETCH_LOCALITY);
    if (token_pair + 1 == pairs) return;
    constexpr int64_t RECORD = PARTS * 64 * TILE_WIDTH, BYTES = SPLIT_BLOCKS * RECORD;
    const int64_t from = BYTES * row_pair / a.row_pairs(), to = BYTES * (row_pair + 1) / a.row_pairs();
    for (int64_t i = 0; i < 2; ++i) {
        const char* tokens = a.token_tile(2 * token_pair + 2 + i) + b * RECORD;
        for (int64_t at = from; at < to; at += 64) __builtin_prefetch(tokens + at, 0, FETCH_LOCALITY);
    }
}

// More than 16 tokens, at most SPLIT_TOKENS, of at most SPLIT_ROWS rows.
template <int PARTS>
inline void split_many(const SplitRange<PARTS>& a) {
    const int64_t row_pairs = a.row_pairs(), blocks = a.blocks();
    for (int64_t b = 0; b < blocks; b += SPLIT_BLOCKS) {
        const int64_t count = blocks - b < SPLIT_BLOCKS ? blocks - b : SPLIT_BLOCKS;
        if (a.copies()) a.copy_rows(b, count);
        for (int64_t t = 0; t < a.token_pairs(); ++t)
            for (int64_t r = 0; r < row_pairs; ++r) {
                fetch_split(a, r, t, b);
                add_blocks<PARTS>(a.tiles(r, t, b), count, b == 0, a.sums + (t * row_pairs + r) * 1024);
            }
    }
    for (int64_t tile = 0; tile < a.token_tiles(); ++tile)
        for (int64_t r = 0; r < row_pairs; ++r)
            for (int64_t i = 0; i < 2 && a.begin + PAIR_ROWS * r + 16 * i < a.end; ++i)
                a.store(a.sums + (tile / 2 * row_pairs + r) * 1024 + tile % 2 * 512 + i * 256,
                        a.begin + PAIR_ROWS * r + 16 * i, tile);
}

template <int PARTS>
inline void split_few(const SplitRange<PARTS>& a) {
    for (int64_t row = a.begin; row < a.end; row += 16) {
        const SplitTiles at{{a.row_at(a.tile_row(row))}, {a.token_tile(0)}, a.p.weight.k * 2, 64, a.width};
        add_tile<PARTS>(at, a.blocks(), a.row_at(row + 16), a.sums);
        a.store(a.sums, row, 0);
    }
}

template <int PARTS>
inline void split_matmul_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const MatmulArgs& a = *static_cast<const MatmulArgs*>(args);
    const int64_t num_tokens = num_rows(step, a.rows), width = split_width(num_tokens);
    if (num_tokens == 0) return;
    if (num_tokens < LEAST_SPLIT) return avx512::matmul_op(args, step, thread, num_threads);
    char* copy = a.scratch + thread * a.scratch_stride;
    auto* sums = reinterpret_cast<float*>(copy + SPLIT_COPY_BYTES);
    _tile_loadconfig(&SPLIT_CONFIGS.of[width]);
    const int64_t grain = num_tokens <= TILE_WIDTH ? 16 : PAIR_ROWS;
    const char* split = split_records(a.activations);
    const auto range = [&](const Product& p, const Product*, int64_t begin, int64_t end, int64_t t0, int64_t t1) {
        if (num_tokens <= TILE_WIDTH) return split_few<PARTS>({p, split, begin, end, t0, t1, width, copy, sums});
        for (int64_t t = t0; t < t1; t += SPLIT_TOKENS)
            for (int64_t row = begin; row < end; row += SPLIT_ROWS)
                split_many<PARTS>({p, split, row, row + SPLIT_ROWS < end ? row + SPLIT_ROWS : end, t,
                                   t + SPLIT_TOKENS < t1 ? t + SPLIT_TOKENS : t1, width, copy, sums});
    };
    for_each_range(a, num_tokens, grain, thread, num_threads, range);
    _tile_release();
}
