// Exact products: rows of W as floats in L1, dot products of 16 lanes in one fixed order (dot_floats_scalar's).

// The sum of 16 lanes as dot_floats_scalar takes it: halves onto each other.
inline float sum_lanes(__m256 low, __m256 high) {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#if FTD_VNNI
struct Lanes16 {
    __m512 v;
    void clear() { v = _mm512_setzero_ps(); }
    void add(Floats a, Floats b) { v = _mm512_fmadd_ps(a, b, v); }
    void add(const float* a, const float* b) { v = _mm512_fmadd_ps(_mm512_loadu_ps(a), _mm512_loadu_ps(b), v); }
    template <int32_t FORMAT>
    void add_coded(const char* a, const float* b) {
        __m512 w;
        if constexpr (FORMAT == F32) {
            w = _mm512_loadu_ps(a);
        } else {
            const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
            w = FORMAT == F16 ? _mm512_cvtph_ps(bits)
                              : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
        }
        v = _mm512_fmadd_ps(w, _mm512_loadu_ps(b), v);
    }
    static Lanes16 of(const float* from) { return {_mm512_loadu_ps(from)}; }
    // Adds sixteen signed codes times s, with MINS and m, times x.
    template <bool MINS>
    void add_codes(const int8_t* codes, float s, float m, const Lanes16& x) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
        __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), _mm512_set1_ps(s));
        if constexpr (MINS) value = _mm512_add_ps(value, _mm512_set1_ps(m));
        v = _mm512_fmadd_ps(value, x.v, v);
    }
    void store(float* out) const { _mm512_storeu_ps(out, v); }
    float sum() const { return sum_lanes(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
};
#else
struct Lanes16 {
    __m256 v0, v1;
    void clear() { v0 = v1 = _mm256_setzero_ps(); }
    void add(const float* a, const float* b) {
        v0 = _mm256_fmadd_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b), v0);
        v1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + 8), _mm256_loadu_ps(b + 8), v1);
    }
    template <int32_t FORMAT>
    static __m256 widen(const char* a) {
        if constexpr (FORMAT == F32) return _mm256_loadu_ps(reinterpret_cast<const float*>(a));
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
        return FORMAT == F16 ? _mm256_cvtph_ps(bits)
                             : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    template <int32_t FORMAT>
    void add_coded(const char* a, const float* b) {
        v0 = _mm256_fmadd_ps(widen<FORMAT>(a), _mm256_loadu_ps(b), v0);
        v1 = _mm256_fmadd_ps(widen<FORMAT>(a + (FORMAT == F32 ? 32 : 16)), _mm256_loadu_ps(b + 8), v1);
    }
    static Lanes16 of(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
    template <bool MINS>
    static __m256 value_of(const int8_t* codes, float s, float m) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
        const __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_set1_ps(s));
        return MINS ? _mm256_add_ps(value, _mm256_set1_ps(m)) : value;
    }
    // Adds sixteen signed codes times s, with MINS and m, times x.
    template <bool MINS>
    void add_codes(const int8_t* codes, float s, float m, const Lanes16& x) {
        v0 = _mm256_fmadd_ps(value_of<MINS>(codes, s, m), x.v0, v0);
        v1 = _mm256_fmadd_ps(value_of<MINS>(codes + 8, s, m), x.v1, v1);
    }
    void store(float* out) const {
        _mm256_storeu_ps(out, v0);
        _mm256_storeu_ps(out + 8, v1);
    }
    float sum() const { return sum_lanes(v0, v1); }
};
#endif

// Sixteen codes of a half block as floats: (c - OFFSET) * s, then + m, each rounded once.
template <int32_t FORMAT>
inline void float_codes(__m128i codes, float s, float m, float* out) {
    using C = Codes<FORMAT>;
    for (int half = 0; half < 2; ++half) {
        const __m128i eight = half ? _mm_srli_si128(codes, 8) : codes;
        const __m256i wide = FORMAT == Q8_0 ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
        const __m256 whole = _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(C::OFFSET)));
        __m256 value = _mm256_mul_ps(whole, _mm256_set1_ps(s));
        if constexpr (C::MINS) value = _mm256_add_ps(value, _mm256_set1_ps(m));
        _mm256_storeu_ps(out + 8 * half, value);
    }
}

template <int32_t FORMAT>
void float_row_codes(const Matrix& w, int64_t row, float* out) {
    constexpr int GROUPS = Codes<FORMAT>::GROUPS;
    const int64_t blocks = w.k / 32;
    for (int64_t b = 0; b < blocks; b += 2) {
        __m256i lo, hi;
        const bool single = b + 1 == blocks;
        pair_codes<FORMAT>(w, row, b / 2, single, &lo, &hi);
        for (int i = 0; i < (single ? 1 : 2); ++i) {
            float s0, s1, m;
            group_scale<FORMAT>(w, row, (b + i) * GROUPS, &s0, &m);
            s1 = s0;
            if constexpr (GROUPS == 2) group_scale<FORMAT>(w, row, 2 * (b + i) + 1, &s1, &m);
            const __m128i first = i ? _mm256_extracti128_si256(lo, 1) : _mm256_castsi256_si128(lo);
            const __m128i second = i ? _mm256_extracti128_si256(hi, 1) : _mm256_castsi256_si128(hi);
            float_codes<FORMAT>(first, s0, m, out + 32 * (b + i));
            float_codes<FORMAT>(second, s1, m, out + 32 * (b + i) + 16);
        }
    }
}

// By way of halves, whose conversion has no slow path for subnormal numbers: the same exponent bits, 2^8 smaller.
inline void float_row_fp8(const Matrix& w, int64_t row, float* out) {
    const uint8_t* codes = plane_row<uint8_t>(w, 0, row, w.k);
    const float* scales = plane_row<float>(w, 1, row / 128, (w.k + 127) / 128);
    const __m128i magnitude = _mm_set1_epi16(0x7f), sign = _mm_set1_epi16(0x80), nan = _mm_set1_epi16(0x7e00);
    int64_t i = 0;
    for (; i + 8 <= w.k; i += 8) {
        const __m128i c = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
        const __m128i rest = _mm_and_si128(c, magnitude);
        __m128i half = _mm_or_si128(_mm_slli_epi16(rest, 7), _mm_slli_epi16(_mm_and_si128(c, sign), 8));
        half = _mm_or_si128(half, _mm_and_si128(_mm_cmpeq_epi16(rest, magnitude), nan));
        const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(value, _mm256_set1_ps(scales[i / 128])));
    }
    for (; i < w.k; ++i) out[i] = e4m3_to_float(codes[i]) * scales[i / 128];
}

inline void float_row_halves(const Matrix& w, int64_t row, float* out) {
    const uint16_t* from = plane_row<uint16_t>(w, 0, row, w.k);
    int64_t i = 0;
    for (; i + 8 <= w.k; i += 8) _mm256_storeu_ps(out + i, load_halves(from + i));
    for (; i < w.k; ++i) out[i] = half_to_float(from[i]);
}

inline void float_row_bfloats(const Matrix& w, int64_t row, float* out) {
    const uint16_t* from = plane_row<uint16_t>(w, 0, row, w.k);
    int64_t i = 0;
    for (; i + 8 <= w.k; i += 8) {
        const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
    }
    for (; i < w.k; ++i) out[i] = bfloat_to_float(from[i]);
}

// One row of W as floats, the same bits as dequantize_row.
inline void float_row(const Matrix& w, int64_t row, float* out) {
    switch (w.format) {
        case F16: return float_row_halves(w, row, out);
        case BF16: return float_row_bfloats(w, row, out);
        case Q8_0: return float_row_codes<Q8_0>(w, row, out);
        case Q4_0: return float_row_codes<Q4_0>(w, row, out);
        case Q4_1: return float_row_codes<Q4_1>(w, row, out);
        case Q5_0: return float_row_codes<Q5_0>(w, row, out);
        case Q5_1: return float_row_codes<Q5_1>(w, row, out);
        case Q4_K: return float_row_codes<Q4_K>(w, row, out);
        case Q5_K: return float_row_codes<Q5_K>(w, row, out);
        case Q6_K: return float_row_codes<Q6_K>(w, row, out);
        case FP8_B128: return float_row_fp8(w, row, out);
        default: return dequantize_row(w, row, out);
    }
}

#if FTD_VNNI
// Rows and tokens of one tile of products: their sums and operands fit the registers.
constexpr int FLOAT_ROWS = 8, FLOAT_TOKENS = 3;

// sum_lanes of eight rows at once, row r in lane r.
inline __m256 sum_rows(const Lanes16 rows[8]) {
    __m512 pair[4], four[2];
    for (int i = 0; i < 4; ++i) {  // rows i and i + 4, 8 lanes each
        const __m512 a = rows[i].v, b = rows[i + 4].v;
        pair[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    for (int i = 0; i < 2; ++i) {  // rows i, i + 4, i + 2, i + 6, 4 lanes each
        const __m512 a = pair[i], b = pair[i + 2];
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    const __m512 low = _mm512_shuffle_ps(four[0], four[1], 0x44), high = _mm512_shuffle_ps(four[0], four[1], 0xee);
    const __m512 two = _mm512_add_ps(low, high);  // rows 0, 1 | 4, 5 | 2, 3 | 6, 7, 2 lanes each
    const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    const __m512i order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one));
}

inline void store_rows(const Product& p, int64_t t, int64_t row, int64_t count, __m256 value) {
    const auto mask = static_cast<__mmask8>((1u << count) - 1);
    float* out = p.out + t * p.weight.n + row;
    if (p.add)
        value = _mm256_add_ps(_mm256_maskz_loadu_ps(mask, out), value);
    else if (p.bias)
        value = _mm256_add_ps(_mm256_maskz_loadu_ps(mask, p.bias + row), value);
    _mm256_mask_storeu_ps(out, mask, value);
}

// The columns from `at` on that 16 lanes leave, and the sums of one row with one token.
inline float finish_row(const float* row, const float* x, int64_t at, int64_t k, const float lanes[16]) {
    float lane[16];
    std::memcpy(lane, lanes, sizeof lane);
    for (int64_t j = 0; at + j < k; ++j) lane[j] = __builtin_fmaf(row[at + j], x[at + j], lane[j]);
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0];
}

// Sixteen columns: of each token one register, and of one row after the other.
template <int NT>
inline void float_columns(const float* const rows[FLOAT_ROWS], const float* x, int64_t k, Lanes16 (*acc)[FLOAT_ROWS]) {
    Floats tokens[NT];
#pragma GCC unroll 4
    for (int i = 0; i < NT; ++i) std::memcpy(&tokens[i], x + i * k, sizeof(Floats));
#pragma GCC unroll 8
    for (int r = 0; r < FLOAT_ROWS; ++r) {
        Floats weights;
        std::memcpy(&weights, rows[r], sizeof(Floats));
        asm("" : "+v"(weights));  // stays in its register: the compiler would load it anew for each token
#pragma GCC unroll 4
        for (int i = 0; i < NT; ++i) acc[i][r].add(weights, tokens[i]);
    }
}

template <int NT>
void float_tokens(const float* const rows[FLOAT_ROWS], int64_t count, const Product& p, const float* x, int64_t row,
                  int64_t t) {
    const int64_t k = p.weight.k;
    Lanes16 acc[NT][FLOAT_ROWS];
    for (auto& token : acc)
        for (auto& lanes : token) lanes.clear();
    int64_t at = 0;
    for (; at + 16 <= k; at += 16) {
        const float* columns[FLOAT_ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < FLOAT_ROWS; ++r) columns[r] = rows[r] + at;
        float_columns<NT>(columns, x + t * k + at, k, acc);
    }
    if (at == k) {
#pragma GCC unroll 4
        for (int i = 0; i < NT; ++i) store_rows(p, t + i, row, count, sum_rows(acc[i]));
        return;
    }
    for (int i = 0; i < NT; ++i)
        for (int64_t r = 0; r < count; ++r) {
            float lanes[16];
            acc[i][r].store(lanes);
            store_product(p, t + i, row + r, finish_row(rows[r], x + (t + i) * k, at, k, lanes));
        }
}

inline void float_batch(const float* const rows[FLOAT_ROWS], int64_t count, const Product& p, const float* x, int64_t row,
                        int64_t t0, int64_t t1) {
    int64_t t = t0;
    for (; t + FLOAT_TOKENS <= t1; t += FLOAT_TOKENS) float_tokens<FLOAT_TOKENS>(rows, count, p, x, row, t);
    for (; t < t1; ++t) float_tokens<1>(rows, count, p, x, row, t);
}

// Rows [begin, end) of one exact product for tokens [t0, t1).
inline void float_range(const Product& p, const float* x, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                        char* scratch) {
    const int64_t k = p.weight.k;
    auto* values = reinterpret_cast<float*>(scratch);
    for (int64_t row = begin; row < end; row += FLOAT_ROWS) {
        const int64_t count = end - row < FLOAT_ROWS ? end - row : FLOAT_ROWS;
        const float* rows[FLOAT_ROWS];
        for (int64_t r = 0; r < FLOAT_ROWS; ++r) {
            if (r >= count) {
                rows[r] = rows[0];
            } else if (p.weight.format == F32) {
                rows[r] = plane_row<float>(p.weight, 0, row + r, k);
            } else {
                float_row(p.weight, row + r, values + r * k);
                rows[r] = values + r * k;
            }
        }
        float_batch(rows, count, p, x, row, t0, t1);
    }
}
#else
#include "matmul_float_panels.inl"
#endif
