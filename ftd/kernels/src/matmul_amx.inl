// Many tokens times 64 rows of W by AMX tiles: 16 rows, 16 tokens and a block of 32 values a product.
//
//   A  [16 rows][64]   the codes of a block less their offset, twice: [c | c] (two scales a block: [c0 0 | c0 0], then
//                      [0 c1 | 0 c1]); unpacked once for all tokens
//   B  [16][16 dwords] a record of matmul_amx_tokens.inl
//   C  [16 rows][16 tokens] whole numbers J, exact; scaled by AVX-512 in the order that matmul.h gives, a token a lane
//
// Partial sums of 256 tokens stay in scratch while W is unpacked 32 blocks at a time: nothing grows with K.
// What bounds it is the scaling: 512-bit additions and products start once a cycle while tiles are in use, and a block
// of a tile needs 48 of them, 64 with minimums.

constexpr int64_t TILE_ROWS = avx512::TILE_ROWS, TOKEN_GRAIN = TILE_WIDTH;

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

inline void configure_tiles() {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
}

// Sixteen rows of one block: tiles [GROUPS][16][64], scales [GROUPS][16], mins [16].
template <int32_t FORMAT>
struct RowRecord {
    static constexpr int GROUPS = Codes<FORMAT>::GROUPS;
    static constexpr int64_t SCALES = GROUPS * 1024, MINS = SCALES + GROUPS * 64, BYTES = MINS + 64;
};

// Tiles of rows that are unpacked at once: as many as scratch holds.
template <int32_t FORMAT>
constexpr int ROW_TILES = Codes<FORMAT>::GROUPS == 2 ? 2 : 4;

inline void store_codes(__m256i codes, bool halves, char* to) {
    if (!halves) return _mm512_store_si512(to, _mm512_broadcast_i64x4(codes));
    const __m512i twice = _mm512_broadcast_i64x4(codes);
    _mm512_store_si512(to, _mm512_maskz_mov_epi64(0x33, twice));
    _mm512_store_si512(to + 1024, _mm512_maskz_mov_epi64(0xcc, twice));
}

// Unpacks blocks b0 .. b0 + count - 1 of rows row .. row + 15 (b0 a multiple of 8) to the places that record_place gives.
template <int32_t FORMAT>
void unpack_rows16(const Matrix& w, int64_t row, int64_t b0, int64_t count, int64_t padded, char* records) {
    using C = Codes<FORMAT>;
    using R = RowRecord<FORMAT>;
    const __m256i offset = _mm256_set1_epi8(C::OFFSET);
    const auto record = [&](int64_t b) { return records + record_place(b, padded) * R::BYTES; };
    for (int64_t b = 0; b < count; b += 8) {
        const int some = static_cast<int>(count - b < 8 ? count - b : 8);
        for (int lane = 0; lane < 16; lane += 8) {
            __m256 scales[8 * C::GROUPS], mins[8] = {};
            avx512::eight_scales<FORMAT>(w, row + lane, b0 + b, some, scales, mins);
            for (int i = 0; i < some; ++i) {
                float* to = reinterpret_cast<float*>(record(b + i) + R::SCALES) + lane;
                for (int g = 0; g < C::GROUPS; ++g) _mm256_store_ps(to + 16 * g, scales[i * C::GROUPS + g]);
                if constexpr (C::MINS) _mm256_store_ps(to + 16, mins[i]);
            }
        }
        for (int i = 0; i < some; i += 2) {
            char* first = record(b + i);
            char* second = i + 1 < some ? record(b + i + 1) : nullptr;
            for (int r = 0; r < 16; ++r) {
                __m256i lo, hi;
                avx512::pair_codes<FORMAT>(w, row + r, (b0 + b + i) / 2, !second, &lo, &hi);
                if constexpr (C::OFFSET != 0) {
                    lo = _mm256_sub_epi8(lo, offset);
                    hi = _mm256_sub_epi8(hi, offset);
                }
                store_codes(_mm256_permute2x128_si256(lo, hi, 0x20), C::GROUPS == 2, first + 64 * r);
                if (second) store_codes(_mm256_permute2x128_si256(lo, hi, 0x31), C::GROUPS == 2, second + 64 * r);
            }
        }
    }
}

// Adds `count` records of 16 rows times those of 16 tokens to sums [16 rows][16 tokens], which are zero if `fresh`. The
// tile product of the next scale is under way while one is scaled.
template <int32_t FORMAT>
inline void tile_sums(const char* rows, const char* tokens, int64_t count, bool fresh, float* sums) {
    using C = Codes<FORMAT>;
    using R = RowRecord<FORMAT>;
    constexpr int64_t GROUPS = C::GROUPS;
    alignas(64) int32_t whole[2][256];
    __m512 acc[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) acc[r] = fresh ? _mm512_setzero_ps() : _mm512_load_ps(sums + 16 * r);
    const auto multiply = [&](int64_t i) {  // the intrinsics want numbers: tile 0 is C, 1 is A, 2 is B
        _tile_zero(0);
        _tile_loadd(1, rows + i / GROUPS * R::BYTES + i % GROUPS * 1024, 64);
        _tile_loadd(2, tokens + i / GROUPS * TOKEN_RECORD, 64);
        _tile_dpbssd(0, 1, 2);
        _tile_stored(0, whole[i % 2], 64);
    };
    multiply(0);
    for (int64_t i = 0; i < count * GROUPS; ++i) {
        if (i + 1 < count * GROUPS) multiply(i + 1);
        const auto* of_token = reinterpret_cast<const float*>(tokens + i / GROUPS * TOKEN_RECORD + 1024);
        const char* record = rows + i / GROUPS * R::BYTES;
        const auto* scale = reinterpret_cast<const float*>(record + R::SCALES) + i % GROUPS * 16;
        const auto* min = reinterpret_cast<const float*>(record + R::MINS);
        const __m512 d = _mm512_load_ps(of_token), x_sum = _mm512_load_ps(of_token + 16);
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) {
            const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(whole[i % 2] + 16 * r));
            acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(scale[r]), _mm512_mul_ps(value, d), acc[r]);
            if constexpr (C::MINS) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(min[r]), x_sum, acc[r]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_store_ps(sums + 16 * r, acc[r]);
}

inline void transpose16(__m512 r[16]) {
    __m512 a[16];
    for (int i = 0; i < 16; i += 4) {
        const __m512 p = _mm512_unpacklo_ps(r[i], r[i + 1]), q = _mm512_unpackhi_ps(r[i], r[i + 1]);
        const __m512 s = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), t = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
        a[i] = _mm512_shuffle_ps(p, s, 0x44);
        a[i + 1] = _mm512_shuffle_ps(p, s, 0xee);
        a[i + 2] = _mm512_shuffle_ps(q, t, 0x44);
        a[i + 3] = _mm512_shuffle_ps(q, t, 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512 p = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), q = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        const __m512 s = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        const __m512 t = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(p, s, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(q, t, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(p, s, 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(q, t, 0xdd);
    }
}

// Adds up the four partial sums of a tile of 16 rows from `row` on and stores tokens [t0, t1), rows of `mask`.
inline void store_tile(const Product& p, const float* sums, int64_t row, __mmask16 mask, int64_t t0, int64_t t1) {
    __m512 value[16];
    for (int r = 0; r < 16; ++r) {
        const __m512 first = _mm512_add_ps(_mm512_load_ps(sums + 16 * r), _mm512_load_ps(sums + 256 + 16 * r));
        value[r] = _mm512_add_ps(_mm512_add_ps(first, _mm512_load_ps(sums + 512 + 16 * r)),
                                 _mm512_load_ps(sums + 768 + 16 * r));
    }
    transpose16(value);
    const __m512 bias = p.bias ? _mm512_maskz_loadu_ps(mask, p.bias + row) : _mm512_setzero_ps();
    for (int64_t t = t0; t < t1; ++t) {
        float* out = p.out + t * p.weight.n + row;
        __m512 v = value[t - t0];
        if (p.add)
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), v);
        else if (p.bias)
            v = _mm512_add_ps(bias, v);
        _mm512_mask_storeu_ps(out, mask, v);
    }
}

// Rows [begin, end) (at most 16 * ROW_TILES) of one product for tokens [t0, t1) (at most AMX_TOKENS; t0 % 16 is 0).
template <int32_t FORMAT>
void tile_rows(const Product& p, const Activations& x, int64_t begin, int64_t end, int64_t t0, int64_t t1, char* scratch) {
    using R = RowRecord<FORMAT>;
    const Matrix& w = p.weight;
    const int64_t blocks = w.k / 32, num_tiles = (end - begin + 15) / 16, token_tiles = (t1 - t0 + 15) / 16;
    auto* sums = reinterpret_cast<float*>(scratch + AMX_WEIGHT_BYTES);
    const auto first_row = [&](int64_t i) { return begin + 16 * i + 16 <= w.n ? begin + 16 * i : w.n - 16; };
    for (int64_t b0 = 0; b0 < blocks; b0 += AMX_BLOCKS) {
        const int64_t count = blocks - b0 < AMX_BLOCKS ? blocks - b0 : AMX_BLOCKS, run = (count + 3) / 4;
        for (int64_t i = 0; i < num_tiles; ++i)
            unpack_rows16<FORMAT>(w, first_row(i), b0, count, 4 * run, scratch + i * AMX_BLOCKS * R::BYTES);
        for (int64_t part = 0; part < 4; ++part) {
            const int64_t some = (count - part + 3) / 4;
            for (int64_t t = 0; t < token_tiles; ++t)
                for (int64_t i = 0; i < num_tiles; ++i) {
                    const char* tokens = x.tiles + ((t0 / 16 + t) * x.blocks + b0 + part * run) * TOKEN_RECORD;
                    const char* rows = scratch + (i * AMX_BLOCKS + part * run) * R::BYTES;
                    float* to = sums + ((t * num_tiles + i) * 4 + part) * 256;
                    if (some > 0)
                        tile_sums<FORMAT>(rows, tokens, some, b0 == 0, to);
                    else if (b0 == 0)
                        std::memset(to, 0, 1024);
                }
        }
    }
    for (int64_t t = 0; t < token_tiles; ++t)
        for (int64_t i = 0; i < num_tiles; ++i) {
            const int64_t row = first_row(i), skip = begin + 16 * i - row, left = end - begin - 16 * i;
            const auto mask = static_cast<__mmask16>((0xffffu << skip) & (left < 16 ? (1u << (skip + left)) - 1 : 0xffffu));
            const int64_t at = t0 + 16 * t;
            store_tile(p, sums + (t * num_tiles + i) * 1024, row, mask, at, at + 16 < t1 ? at + 16 : t1);
        }
}

// Rows [begin, end) of one product, begin a multiple of TILE_ROWS, for tokens [t0, t1), t0 a multiple of TOKEN_GRAIN.
template <int32_t FORMAT>
void tile_range(const Product& p, const Activations& x, int64_t begin, int64_t end, int64_t t0, int64_t t1, char* scratch) {
    if (!x.tiles || t1 - t0 < AMX_LEAST_TOKENS || p.weight.n < 16)
        return avx512::tile_range<FORMAT>(p, x, begin, end, t0, t1, scratch);
    configure_tiles();
    constexpr int64_t ROWS = 16 * ROW_TILES<FORMAT>;
    for (int64_t t = t0; t < t1; t += AMX_TOKENS)
        for (int64_t row = begin; row < end; row += ROWS)
            tile_rows<FORMAT>(p, x, row, row + ROWS < end ? row + ROWS : end, t, t + AMX_TOKENS < t1 ? t + AMX_TOKENS : t1,
                              scratch);
    _tile_release();
}
