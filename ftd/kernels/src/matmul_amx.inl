// Many tokens times 64 rows of W by AMX tiles: 16 rows, 16 tokens and a block of 32 values a product.
//
//   A  [16 rows][64]   the codes of a block less their offset, twice: [c | c]; unpacked once for all tokens
//   B  [16][16 dwords] a record of matmul_amx_tokens.inl
//   C  [16 rows][16 tokens] whole numbers J, exact; scaled by AVX-512 in the order that matmul.h gives, a token a lane
//
// Partial sums of 256 tokens stay in scratch while W is unpacked 32 blocks at a time: nothing grows with K.
// What bounds it is the scaling: 512-bit additions and products start once a cycle while tiles are in use, and a block
// of a tile needs 48 of them, 64 with minimums. Formats with two scales a block would need 96: AVX-512 is as fast.

constexpr int64_t TILE_ROWS = avx512::TILE_ROWS, TOKEN_GRAIN = TILE_WIDTH;

struct alignas(64) TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

// Eight tiles of 16 rows of 64 bytes. Not on the stack: the compiler knows only of 8 bytes that the instruction reads.
inline constexpr TileConfig TILE_CONFIG = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

// Sixteen rows of one block: a tile [16][64], scales [16], mins [16].
constexpr int64_t ROW_SCALES = 1024, ROW_MINS = 1088, ROW_RECORD = 1152;
static_assert(AMX_WEIGHT_BYTES == AMX_ROWS / 16 * AMX_BLOCKS * ROW_RECORD);

inline void store_twice(__m256i codes, char* to) { _mm512_store_si512(to, _mm512_broadcast_i64x4(codes)); }

// Unpacks blocks b0 .. b0 + count - 1 (b0 a multiple of 8) of rows row .. row + 15; records lie as the tokens' do.
template <int32_t FORMAT>
void unpack_rows16(const Matrix& w, int64_t row, int64_t b0, int64_t count, char* records) {
    using C = Codes<FORMAT>;
    const __m256i offset = _mm256_set1_epi8(C::OFFSET);
    const auto record = [&](int64_t b) { return records + record_place(b, (count + 3) / 4 * 4) * ROW_RECORD; };
    for (int64_t b = 0; b < count; b += 8) {
        const int some = static_cast<int>(count - b < 8 ? count - b : 8);
        for (int lane = 0; lane < 16; lane += 8) {
            __m256 scales[8], mins[8] = {};
            avx512::eight_scales<FORMAT>(w, row + lane, b0 + b, some, scales, mins);
            for (int i = 0; i < some; ++i) {
                auto* to = reinterpret_cast<float*>(record(b + i) + ROW_SCALES) + lane;
                _mm256_store_ps(to, scales[i]);
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
                store_twice(_mm256_permute2x128_si256(lo, hi, 0x20), first + 64 * r);
                if (second) store_twice(_mm256_permute2x128_si256(lo, hi, 0x31), second + 64 * r);
            }
        }
    }
}

// Adds `count` records of 16 rows times those of 16 tokens to sums [16 rows][16 tokens], which are zero if `fresh`. The
// tile products of the next blocks are under way while one is scaled. Half of the tokens to come, at `ahead`, is fetched.
template <bool MINIMUMS>
void tile_sums(const char* rows, const char* tokens, const char* ahead, int64_t count, bool fresh, float* sums) {
    constexpr int64_t DEPTH = 2, HALF = TOKEN_RECORD / 2;
    asm volatile("" ::: "memory");  // tile loads do not tell the compiler what they read
    alignas(64) int32_t whole[2 * DEPTH][256];
    __m512 acc[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) acc[r] = fresh ? _mm512_setzero_ps() : _mm512_load_ps(sums + 16 * r);
    const auto multiply = [&](int64_t i) {  // the intrinsics want numbers: tile 0 is C, 1 is A, 2 is B
        _tile_zero(0);
        _tile_loadd(1, rows + i * ROW_RECORD, 64);
        _tile_loadd(2, tokens + i * TOKEN_RECORD, 64);
        _tile_dpbssd(0, 1, 2);
        _tile_stored(0, whole[i % (2 * DEPTH)], 64);
    };
    for (int64_t i = 0; i < DEPTH && i < count; ++i) multiply(i);
    for (int64_t i = 0; i < count; ++i) {
        if (i + DEPTH < count) multiply(i + DEPTH);
        const auto* of_token = reinterpret_cast<const float*>(tokens + i * TOKEN_RECORD + 1024);
        const auto* scale = reinterpret_cast<const float*>(rows + i * ROW_RECORD + ROW_SCALES);
        const auto* min = reinterpret_cast<const float*>(rows + i * ROW_RECORD + ROW_MINS);
        const __m512 d = _mm512_load_ps(of_token), x_sum = _mm512_load_ps(of_token + 16);
        for (int line = 0; line < HALF; line += 64) __builtin_prefetch(ahead + i * HALF + line);
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) {
            const __m512 value = _mm512_cvtepi32_ps(_mm512_load_si512(whole[i % (2 * DEPTH)] + 16 * r));
            acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(scale[r]), _mm512_mul_ps(value, d), acc[r]);
            if constexpr (MINIMUMS) acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(min[r]), x_sum, acc[r]);
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

// The lanes of rows `first` .. first + 15 that lie in [begin, end).
inline __mmask16 lanes_between(int64_t first, int64_t begin, int64_t end) {
    const unsigned below = end - first < 16 ? (1u << (end - first)) - 1 : 0xffffu;
    return static_cast<__mmask16>(0xffffu << (begin - first) & below);
}

// Stores token t of the rows from `row` on that `mask` says, a row a lane.
inline void store_lanes(const Product& p, int64_t t, int64_t row, __mmask16 mask, __m512 value) {
    float* out = p.out + t * p.weight.n + row;
    if (p.add)
        value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
    else if (p.bias)
        value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, p.bias + row), value);
    _mm512_mask_storeu_ps(out, mask, value);
}

// Stores tokens [t0, t1) of a tile, a row of weights each, a token a lane.
inline void store_values(const Product& p, __m512 value[16], int64_t row, __mmask16 mask, int64_t t0, int64_t t1) {
    transpose16(value);
    for (int64_t t = t0; t < t1; ++t) store_lanes(p, t, row, mask, value[t - t0]);
}

// Adds up the four partial sums of a tile and stores it.
inline void store_tile(const Product& p, const float* sums, int64_t row, __mmask16 mask, int64_t t0, int64_t t1) {
    __m512 value[16];
    for (int r = 0; r < 16; ++r) {
        const __m512 first = _mm512_add_ps(_mm512_load_ps(sums + 16 * r), _mm512_load_ps(sums + 256 + 16 * r));
        value[r] = _mm512_add_ps(_mm512_add_ps(first, _mm512_load_ps(sums + 512 + 16 * r)),
                                 _mm512_load_ps(sums + 768 + 16 * r));
    }
    store_values(p, value, row, mask, t0, t1);
}

// The part of one product that tile_range does at once.
struct TileRows {
    const Product& p;
    const Activations& x;
    int64_t begin, end;  // rows, at most AMX_ROWS
    int64_t t0, t1;      // tokens, at most AMX_TOKENS; t0 is a multiple of 16
    char* records;       // [row tile][block]
    float* sums;         // [token tile][row tile][4 partial sums][16 rows][16 tokens]

    int64_t row_tiles() const { return (end - begin + 15) / 16; }
    int64_t token_tiles() const { return (t1 - t0 + 15) / 16; }

    // The first row of a tile: one that would pass the last row of the matrix starts early.
    int64_t first_row(int64_t tile) const {
        const int64_t row = begin + 16 * tile;
        return row + 16 <= p.weight.n ? row : p.weight.n - 16;
    }
};

// Partial sum `part` of blocks b0 .. b0 + count - 1 of tiles i0 and i0 + 1 of rows, for all tokens.
template <bool MINIMUMS>
void add_part(const TileRows& a, int64_t b0, int64_t count, int64_t part, int64_t i0) {
    const int64_t run = (count + 3) / 4, some = (count - part + 3) / 4, num_tiles = a.row_tiles();
    for (int64_t t = 0; t < a.token_tiles(); ++t)
        for (int64_t i = i0; i < i0 + 2 && i < num_tiles; ++i) {
            const char* rows = a.records + (i * AMX_BLOCKS + part * run) * ROW_RECORD;
            const char* tokens = a.x.tiles + ((a.t0 / 16 + t) * a.x.blocks + b0 + part * run) * TOKEN_RECORD;
            const char* ahead = tokens + (a.x.blocks * 2 + (i - i0) * some) * (TOKEN_RECORD / 2);
            float* sums = a.sums + ((t * num_tiles + i) * 4 + part) * 256;
            if (some > 0)
                tile_sums<MINIMUMS>(rows, tokens, ahead, some, b0 == 0, sums);
            else if (b0 == 0)
                std::memset(sums, 0, 1024);
        }
}

template <int32_t FORMAT>
void tile_rows(const TileRows& a) {
    const int64_t blocks = a.p.weight.k / 32, num_tiles = a.row_tiles();
    for (int64_t b0 = 0; b0 < blocks; b0 += AMX_BLOCKS) {
        const int64_t count = blocks - b0 < AMX_BLOCKS ? blocks - b0 : AMX_BLOCKS;
        for (int64_t i = 0; i < num_tiles; ++i)
            unpack_rows16<FORMAT>(a.p.weight, a.first_row(i), b0, count, a.records + i * AMX_BLOCKS * ROW_RECORD);
        for (int64_t i = 0; i < num_tiles; i += 2)  // of two tiles, what one partial sum needs stays in the first cache
            for (int64_t part = 0; part < 4; ++part) add_part<Codes<FORMAT>::MINS>(a, b0, count, part, i);
    }
    for (int64_t t = 0; t < a.token_tiles(); ++t)
        for (int64_t i = 0; i < num_tiles; ++i) {
            const int64_t row = a.first_row(i), at = a.t0 + 16 * t;
            const __mmask16 mask = lanes_between(row, a.begin + 16 * i, a.end);
            store_tile(a.p, a.sums + (t * num_tiles + i) * 1024, row, mask, at, at + 16 < a.t1 ? at + 16 : a.t1);
        }
}

// Rows [begin, end) of one product, begin a multiple of TILE_ROWS, for tokens [t0, t1), t0 a multiple of TOKEN_GRAIN.
template <int32_t FORMAT>
void tile_range(const Product& p, const Activations& x, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                char* scratch) {
    if constexpr (Codes<FORMAT>::GROUPS == 1) {
        if (x.tiles && t1 - t0 >= AMX_LEAST_TOKENS && p.weight.n >= 16) {
            _tile_loadconfig(&TILE_CONFIG);
            auto* sums = reinterpret_cast<float*>(scratch + AMX_WEIGHT_BYTES);
            for (int64_t t = t0; t < t1; t += AMX_TOKENS)
                for (int64_t row = begin; row < end; row += AMX_ROWS)
                    tile_rows<FORMAT>({p, x, row, row + AMX_ROWS < end ? row + AMX_ROWS : end, t,
                                       t + AMX_TOKENS < t1 ? t + AMX_TOKENS : t1, scratch, sums});
            return _tile_release();
        }
    }
    avx512::tile_range<FORMAT>(p, x, begin, end, t0, t1, scratch);
}
