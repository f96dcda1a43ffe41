// Many rows of x times a tile of rows of W: the tile is unpacked once so that rows are lanes, then serves every token.
//
// A tile has NR vectors of LANES rows. For each block of 32 values it holds
//   codes   [NR][8] vectors: dword j of a lane is the row's four codes that meet dword j of q (in q's order)
//   scales  [GROUPS][NR], sums of codes [GROUPS][NR], mins [NR]   vectors of floats

#if FTD_VNNI
constexpr int LANES = 16, TILE_VECTORS = 2, TILE_TOKENS = 6;
using Floats = __m512;
using Ints = __m512i;
inline Floats load_floats(const float* p) { return _mm512_load_ps(p); }
inline Floats all_floats(float x) { return _mm512_set1_ps(x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline void store_floats(float* p, Floats a) { _mm512_store_ps(p, a); }
inline Ints load_ints(const char* p) { return _mm512_load_si512(p); }
inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline Floats zero_floats() { return _mm512_setzero_ps(); }
#else
constexpr int LANES = 8, TILE_VECTORS = 2, TILE_TOKENS = 4;
using Floats = __m256;
using Ints = __m256i;
inline Floats load_floats(const float* p) { return _mm256_load_ps(p); }
inline Floats all_floats(float x) { return _mm256_set1_ps(x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline void store_floats(float* p, Floats a) { _mm256_store_ps(p, a); }
inline Ints load_ints(const char* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
inline Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
inline Floats zero_floats() { return _mm256_setzero_ps(); }
#endif

constexpr int VECTOR_BYTES = 4 * LANES;

template <int32_t FORMAT, int NR>
struct Tile {
    static constexpr int GROUPS = Codes<FORMAT>::GROUPS;
    static constexpr int64_t SCALES = NR * 8 * VECTOR_BYTES;
    static constexpr int64_t SUMS = SCALES + GROUPS * NR * VECTOR_BYTES;
    static constexpr int64_t MINS = SUMS + GROUPS * NR * VECTOR_BYTES;
    static constexpr int64_t RECORD = MINS + (Codes<FORMAT>::MINS ? NR * VECTOR_BYTES : 0);
};

// Unpacks eight rows into lanes lane0 .. lane0 + 7 of vector v of the tile.
template <int32_t FORMAT, int NR>
inline void pack_rows8(const Matrix& w, int64_t row, int v, int lane0, char* tile) {
    using C = Codes<FORMAT>;
    using T = Tile<FORMAT, NR>;
    const int64_t blocks = w.k / 32;
    __m256 scales[8 * C::GROUPS], mins[8] = {};
    for (int64_t b0 = 0; b0 < blocks; b0 += 8) {
        const int count = static_cast<int>(blocks - b0 < 8 ? blocks - b0 : 8);
        eight_scales<FORMAT>(w, row, b0, count, scales, mins);
        for (int i = 0; i < count; ++i) {
            char* record = tile + (b0 + i) * T::RECORD + 4 * lane0;
            for (int g = 0; g < C::GROUPS; ++g)
                _mm256_store_ps(reinterpret_cast<float*>(record + T::SCALES + (g * NR + v) * VECTOR_BYTES),
                                scales[i * C::GROUPS + g]);
            if constexpr (C::MINS)
                _mm256_store_ps(reinterpret_cast<float*>(record + T::MINS + v * VECTOR_BYTES), mins[i]);
        }
        for (int i = 0; i < count; i += 2) {
            __m256 part[2][8];
            for (int r = 0; r < 8; ++r) {
                __m256i lo, hi;
                pair_codes<FORMAT>(w, row + r, (b0 + i) / 2, i + 1 == count, &lo, &hi);
                part[0][r] = _mm256_castsi256_ps(lo);
                part[1][r] = _mm256_castsi256_ps(hi);
            }
            transpose8(part[0]);
            transpose8(part[1]);
            for (int h = 0; h < 2 && i + h < count; ++h) {
                char* record = tile + (b0 + i + h) * T::RECORD + 4 * lane0;
                __m256i sums[2];
                for (int half = 0; half < 2; ++half) {
                    __m256i sum = _mm256_setzero_si256();
                    for (int j = 0; j < 4; ++j) {
                        __m256i codes = _mm256_castps_si256(part[half][4 * h + j]);
                        const __m256i ones = _mm256_set1_epi8(1);
                        constexpr bool FLIP = FTD_VNNI && FORMAT == Q8_0;  // the tile holds c + 128
                        if constexpr (FLIP) codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
                        if constexpr (FORMAT == Q8_0 && !FLIP) {
                            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, codes));
                        } else {
                            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, ones));
                        }
                        _mm256_store_si256(
                            reinterpret_cast<__m256i*>(record + (v * 8 + 4 * half + j) * VECTOR_BYTES), codes);
                    }
                    sums[half] = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
                }
                if constexpr (C::GROUPS == 1) sums[0] = _mm256_add_epi32(sums[0], sums[1]);
                for (int g = 0; g < C::GROUPS; ++g)
                    _mm256_store_ps(reinterpret_cast<float*>(record + T::SUMS + (g * NR + v) * VECTOR_BYTES),
                                    _mm256_cvtepi32_ps(sums[g]));
            }
        }
    }
}

#if !FTD_VNNI
// Adds pair sums of codes times q. One piece of assembly: the compiler would sum many products in a tree, in memory.
inline void add_products(Ints* pairs, Ints codes, Ints q) {
    Ints product;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(*pairs), "=&x"(product) : "x"(codes), "x"(q));
}
#endif

// Adds the dot products of COUNT dwords of a block from `first` on to dot[NR][NT]. q[t] points to the block's q.
template <int32_t FORMAT, int NR, int NT, int COUNT>
inline void tile_dot(const char* codes, const int8_t* const q[NT], int first, Ints dot[NR][NT]) {
#if FTD_VNNI
#pragma GCC unroll 8
    for (int i = 0; i < COUNT; ++i) {
        const int j = first + i;
        Ints w[NR];
        for (int v = 0; v < NR; ++v) w[v] = load_ints(codes + (v * 8 + j) * VECTOR_BYTES);
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t) {
            int32_t four;
            std::memcpy(&four, q[t] + (j / 4) * 64 + (j % 4) * 4, 4);
            const Ints x = all_ints(four);
            for (int v = 0; v < NR; ++v) dot[v][t] = _mm512_dpbusd_epi32(dot[v][t], w[v], x);
        }
    }
#else
    // Pair sums of 16 bits hold 8, 4 or 2 products of 4-, 5- or 6-bit codes before they can overflow.
    constexpr int BITS = Codes<FORMAT>::BITS;
    constexpr int MAX_RUN = BITS == 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1, RUN = MAX_RUN < COUNT ? MAX_RUN : COUNT;
    const __m256i ones = _mm256_set1_epi16(1);
    for (int start = first; start < first + COUNT; start += RUN) {
        Ints pairs[NR][NT];
#pragma GCC unroll 8
        for (int i = 0; i < RUN; ++i) {
            const int j = start + i;
            Ints w[NR];
            for (int v = 0; v < NR; ++v) w[v] = load_ints(codes + (v * 8 + j) * VECTOR_BYTES);
#pragma GCC unroll 8
            for (int t = 0; t < NT; ++t) {
                int32_t four;
                std::memcpy(&four, q[t] + (j / 4) * 64 + (j % 4) * 4, 4);
                const Ints x = all_ints(four);
                for (int v = 0; v < NR; ++v) {
                    if constexpr (BITS == 8) {
                        pairs[v][t] = _mm256_maddubs_epi16(_mm256_abs_epi8(w[v]), _mm256_sign_epi8(x, w[v]));
                    } else if (i == 0) {
                        pairs[v][t] = _mm256_maddubs_epi16(w[v], x);
                    } else {
                        add_products(&pairs[v][t], w[v], x);
                    }
                }
            }
        }
        for (int v = 0; v < NR; ++v)
            for (int t = 0; t < NT; ++t) dot[v][t] = _mm256_add_epi32(dot[v][t], _mm256_madd_epi16(pairs[v][t], ones));
    }
#endif
}

// Blocks first, first + 4, ... of one tile times tokens t0 .. t0 + NT - 1, added to value[t][NR * LANES].
template <int32_t FORMAT, int NR, int NT>
inline void tile_part(const char* tile, int64_t first, int64_t blocks, const Activations& x, int64_t t0,
                      float (*value)[NR * LANES]) {
    using C = Codes<FORMAT>;
    using T = Tile<FORMAT, NR>;
    constexpr int OFFSET = FTD_VNNI && FORMAT == Q8_0 ? 128 : C::OFFSET;
    Floats acc[NR][NT];
    const int8_t* rows[NT];
    for (int t = 0; t < NT; ++t) {
        rows[t] = x.q + (t0 + t) * x.blocks * 32;
        for (int v = 0; v < NR; ++v) acc[v][t] = zero_floats();
    }
    for (int64_t b = first; b < blocks; b += 4) {
        const char* record = tile + b * T::RECORD;
        const int8_t* q[NT];
        for (int t = 0; t < NT; ++t) q[t] = rows[t] + b / 4 * 128 + b % 4 * 16;
        for (int g = 0; g < C::GROUPS; ++g) {
            Ints dot[NR][NT];
            for (int t = 0; t < NT; ++t) {
                const int64_t i = (t0 + t) * x.blocks + b;
                const Ints start = all_ints(OFFSET ? -OFFSET * (C::GROUPS == 2 ? x.sum16[2 * i + g] : x.q_sum[i]) : 0);
                for (int v = 0; v < NR; ++v) dot[v][t] = start;
            }
            constexpr int DWORDS = 8 / C::GROUPS;
            tile_dot<FORMAT, NR, NT, DWORDS>(record, q, g * DWORDS, dot);
            for (int t = 0; t < NT; ++t) {
                const int64_t i = (t0 + t) * x.blocks + b;
                const Floats d = all_floats(x.d[i]), z = all_floats(x.z[i]);
                for (int v = 0; v < NR; ++v) {
                    const auto* floats = reinterpret_cast<const float*>(record);
                    const Floats sum = load_floats(floats + (T::SUMS + (g * NR + v) * VECTOR_BYTES) / 4);
                    const Floats scale = load_floats(floats + (T::SCALES + (g * NR + v) * VECTOR_BYTES) / 4);
                    const Floats whole = multiply_add(sum, z, to_floats(dot[v][t]));
                    acc[v][t] = multiply_add(scale, multiply(whole, d), acc[v][t]);
                    if constexpr (C::MINS)
                        acc[v][t] = multiply_add(load_floats(floats + (T::MINS + v * VECTOR_BYTES) / 4),
                                                 all_floats(x.sum32[i]), acc[v][t]);
                }
            }
        }
    }
    for (int t = 0; t < NT; ++t)
        for (int v = 0; v < NR; ++v) {
            float* to = value[t] + v * LANES;
            store_floats(to, first == 0 ? acc[v][t] : add(load_floats(to), acc[v][t]));
        }
}

// One tile times tokens t0 .. t0 + NT - 1, into value[t][NR * LANES].
template <int32_t FORMAT, int NR, int NT>
int64_t tile_tokens(const char* tile, int64_t blocks, const Activations& x, int64_t t0, float (*value)[NR * LANES]) {
    for (int64_t first = 0; first < 4; ++first) tile_part<FORMAT, NR, NT>(tile, first, blocks, x, t0, value);
    return NT;
}

// Does as many of `left` tokens at once as there is a loop for, and returns how many: few sizes, for short compiling.
template <int32_t FORMAT, int NR>
inline int64_t tile_some(const char* tile, int64_t blocks, const Activations& x, int64_t t, int64_t left,
                         float (*value)[NR * LANES]) {
    if constexpr (NR == TILE_VECTORS) {
        if (left >= TILE_TOKENS) return tile_tokens<FORMAT, NR, TILE_TOKENS>(tile, blocks, x, t, value);
        if constexpr (TILE_TOKENS > 4)
            if (left >= 4) return tile_tokens<FORMAT, NR, 4>(tile, blocks, x, t, value);
    }
    if (left >= 2) return tile_tokens<FORMAT, NR, 2>(tile, blocks, x, t, value);
    return tile_tokens<FORMAT, NR, 1>(tile, blocks, x, t, value);
}

// Rows [begin, end) (at most NR * LANES) for tokens [t0, t1); the tile's first row is `first`.
template <int32_t FORMAT, int NR>
void tile_rows(const Product& p, const Activations& x, int64_t first, int64_t begin, int64_t end, int64_t t0, int64_t t1,
               char* scratch) {
    const int64_t blocks = p.weight.k / 32;
    for (int v = 0; v < NR; ++v)
        for (int lane = 0; lane < LANES; lane += 8)
            pack_rows8<FORMAT, NR>(p.weight, first + v * LANES + lane, v, lane, scratch);
    alignas(64) float value[TILE_TOKENS][NR * LANES];
    for (int64_t t = t0, count; t < t1; t += count) {
        count = tile_some<FORMAT, NR>(scratch, blocks, x, t, t1 - t, value);
        for (int64_t i = 0; i < count; ++i) {
            const float* from = value[i] + (begin - first);
            float* out = p.out + (t + i) * p.weight.n + begin;
            const int64_t length = end - begin;
            if (p.add)
                for (int64_t j = 0; j < length; ++j) out[j] += from[j];
            else if (p.bias)
                for (int64_t j = 0; j < length; ++j) out[j] = p.bias[begin + j] + from[j];
            else
                std::memcpy(out, from, static_cast<size_t>(length) * 4);
        }
    }
}

constexpr int64_t TILE_ROWS = TILE_VECTORS * LANES, TOKEN_GRAIN = 1;

// Rows [begin, end) of one product, begin a multiple of TILE_ROWS, for tokens [t0, t1). A tile that would pass the last
// row starts early and stores only its own rows; matrices lower than a tile are rare and done row by row.
template <int32_t FORMAT>
void tile_range(const Product& p, const Activations& x, int64_t begin, int64_t end, int64_t t0, int64_t t1, char* scratch) {
    const int64_t n = p.weight.n;
    for (int64_t row = begin; row < end; row += TILE_ROWS) {
        const int64_t stop = row + TILE_ROWS < end ? row + TILE_ROWS : end;
        if (n >= TILE_ROWS && stop - row > LANES) {
            tile_rows<FORMAT, TILE_VECTORS>(p, x, row + TILE_ROWS <= n ? row : n - TILE_ROWS, row, stop, t0, t1, scratch);
        } else if (n >= LANES) {
            for (int64_t at = row; at < stop; at += LANES) {
                const int64_t last = at + LANES < stop ? at + LANES : stop;
                tile_rows<FORMAT, 1>(p, x, at + LANES <= n ? at : n - LANES, at, last, t0, t1, scratch);
            }
        } else {
            for (int64_t t = t0; t < t1; ++t)
                for (int64_t i = row; i < stop; ++i) store_product(p, t, i, dot_row_scalar<FORMAT>(p.weight, i, x, t));
        }
    }
}
