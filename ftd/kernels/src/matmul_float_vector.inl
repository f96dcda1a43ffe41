// Exact products of one row of x: weights become floats in registers and are multiplied there, several rows at a time.
// The same bits as float_row and float_tokens: each weight rounded as dequantize_row does, 16 lanes in rising order.

template <int32_t FORMAT>
inline float coded_value(const char* row, int64_t i) {
    if constexpr (FORMAT == F32) return reinterpret_cast<const float*>(row)[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(row)[i];
    return FORMAT == F16 ? half_to_float(bits) : bfloat_to_float(bits);
}

// Rows [begin, end) of one product of floats for one row of x: widened in registers, later rows fetched meanwhile, with
// AVX2 up to 32 KiB and 16 rows ahead.
template <int32_t FORMAT, int64_t ROWS>
void float_rows(const Product& p, const float* x, int64_t begin, int64_t end, const Matrix* next, int64_t next_row) {
    constexpr int64_t ITEM = FORMAT == F32 ? 4 : 2, STEP = FTD_VNNI ? 16 : 64 / ITEM;
    const int64_t k = p.weight.k, groups = FTD_VNNI ? 1 : 32768 / (ROWS * k * ITEM);
    const int64_t distance = groups < 1 ? ROWS : groups * ROWS < 16 ? groups * ROWS : 16;
    const char* plane = static_cast<const char*>(p.weight.planes[0]);
    for (int64_t row = begin; row < end; row += ROWS) {
        const char* rows[ROWS];
        for (int64_t r = 0; r < ROWS; ++r) rows[r] = plane + (row + r < end ? row + r : end - 1) * k * ITEM;
        const int64_t beyond = row + distance - end;
        const bool over = beyond >= 0 && next && next->format == FORMAT;
        const char* ahead = over ? static_cast<const char*>(next->planes[0]) + (next_row + beyond) * next->k * ITEM
                                 : plane + (row + distance) * k * ITEM;
        Lanes16 acc[ROWS];
        for (auto& lanes : acc) lanes.clear();
        int64_t at = 0;
        for (; at + STEP <= k; at += STEP) {
            for (int64_t line = 0; line < ROWS * ITEM * STEP; line += 64) __builtin_prefetch(ahead + line, 0, FETCH_LOCALITY);
            ahead += ROWS * ITEM * STEP;
#pragma GCC unroll 8
            for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int64_t i = at; i < at + STEP; i += 16) acc[r].template add_coded<FORMAT>(rows[r] + i * ITEM, x + i);
        }
        for (; at + 16 <= k; at += 16)
            for (int64_t r = 0; r < ROWS; ++r) acc[r].template add_coded<FORMAT>(rows[r] + at * ITEM, x + at);
        for (int64_t r = 0; r < ROWS && row + r < end; ++r) {
            float lane[16];
            acc[r].store(lane);
            for (int64_t j = 0; at + j < k; ++j)
                lane[j] = __builtin_fmaf(coded_value<FORMAT>(rows[r], at + j), x[at + j], lane[j]);
            for (int width = 8; width > 0; width /= 2)
                for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
            store_product(p, 0, row + r, lane[0]);
        }
    }
}

// With AVX2 four rows compute fastest, but of short rows the memory gives two more (92 % of a plain read, against 80 %).
template <int32_t FORMAT>
void float_vector(const Product& p, const float* x, int64_t begin, int64_t end, const Matrix* next, int64_t next_row) {
    constexpr int64_t MANY = FTD_VNNI ? 8 : 4, FEW = FTD_VNNI ? 8 : 2;
    if (p.weight.k < 1024) return float_rows<FORMAT, FEW>(p, x, begin, end, next, next_row);
    float_rows<FORMAT, MANY>(p, x, begin, end, next, next_row);
}

// What the sixteen 4-bit codes of a format stand for, before the scale.
template <int32_t FORMAT>
struct NibbleTable {
    alignas(64) float value[16];
    constexpr NibbleTable() : value() {
        for (int code = 0; code < 16; ++code)
            value[code] = Codes<FORMAT>::FP4 ? 0.5f * E2M1_TWICE[code] : static_cast<float>(code - Codes<FORMAT>::OFFSET);
    }
};
template <int32_t FORMAT>
inline constexpr NibbleTable<FORMAT> NIBBLES;

// Scales (of 16 or 32 values) and minimums of up to eight blocks of one row.
struct RowScales {
    alignas(32) float s[16];
    alignas(32) float m[8];
};

template <int32_t FORMAT>
inline void row_scales(const Matrix& w, int64_t row, int64_t b0, int count, RowScales* out) {
    using C = Codes<FORMAT>;
    constexpr int P = C::SCALES_PLANE;
    if constexpr (FORMAT == NVFP4) {  // without the matrix's own scale, which comes last
        const uint8_t* from = plane_row<uint8_t>(w, 1, row, w.k / 16) + 2 * b0;
        for (int i = 0; i < 2 * count; ++i) out->s[i] = E4M3.value[from[i]];
    } else if constexpr (FORMAT == MXFP4) {
        const uint8_t* from = plane_row<uint8_t>(w, 1, row, w.k / 32) + b0;
        for (int i = 0; i < count; ++i) out->s[i] = 2.0f * E8M0_HALF.value[from[i]];
    } else if constexpr (FORMAT == Q6_K) {
        const __m256 d = spread_half(plane_row<uint16_t>(w, 3, row, w.k / 256)[b0 / 8]);
        const int8_t* from = plane_row<int8_t>(w, 2, row, w.k / 16) + 2 * b0;
        for (int half = 0; half < 2; ++half) {
            const __m128i s = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * half));
            _mm256_store_ps(out->s + 8 * half, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s))));
        }
    } else if constexpr (FORMAT == Q4_K || FORMAT == Q5_K) {
        const __m256 d = spread_half(plane_row<uint16_t>(w, P + 2, row, w.k / 256)[b0 / 8]);
        const __m256 minus_dmin = spread_half(plane_row<uint16_t>(w, P + 3, row, w.k / 256)[b0 / 8] ^ 0x8000);
        _mm256_store_ps(out->s, _mm256_mul_ps(d, load_bytes(plane_row<uint8_t>(w, P, row, w.k / 32) + b0)));
        _mm256_store_ps(out->m, _mm256_mul_ps(minus_dmin, load_bytes(plane_row<uint8_t>(w, P + 1, row, w.k / 32) + b0)));
    } else {
        _mm256_store_ps(out->s, load_row_halves(w, P, row, w.k / 32, b0));
        if constexpr (C::MINS) _mm256_store_ps(out->m, load_row_halves(w, P + 1, row, w.k / 32, b0));
    }
}

// Where a row's codes lie, and their high bits.
template <int32_t FORMAT>
struct RowCodes {
    const uint8_t *codes, *high;

    static RowCodes of(const Matrix& w, int64_t row) {
        constexpr int64_t HIGH = PAIR_HIGH_BYTES<FORMAT>;
        return {plane_row<uint8_t>(w, 0, row, w.k * PAIR_BYTES<FORMAT> / 64),
                HIGH ? plane_row<uint8_t>(w, 1, row, w.k * HIGH / 64) : nullptr};
    }
};

// Adds the blocks of a pair of several rows times x. Codes go through memory: any eight are one load then, which makes them
// wide, and a part of x is loaded once for all rows. Block i of a row has scales s[i * GROUPS ..] and minimum m[i].
template <int32_t FORMAT, int64_t ROWS>
inline void add_byte_pairs(Lanes16 acc[ROWS], const RowCodes<FORMAT> rows[ROWS], int64_t pair, int blocks,
                           const RowScales scales[ROWS], int first_block, const float* x) {
    using C = Codes<FORMAT>;
    alignas(32) int8_t codes[ROWS][2][32];
    const __m256i offset = _mm256_set1_epi8(C::OFFSET);
    for (int64_t r = 0; r < ROWS; ++r) {
        __m256i part[2];
        unpack_pair<FORMAT>(rows[r].codes + PAIR_BYTES<FORMAT> * pair, rows[r].high + PAIR_HIGH_BYTES<FORMAT> * pair,
                            blocks == 1, part, part + 1);
        for (int half = 0; half < 2; ++half)
            _mm256_store_si256(reinterpret_cast<__m256i*>(codes[r][half]), _mm256_sub_epi8(part[half], offset));
    }
    asm("" : "+m"(codes));  // or the compiler takes them apart in registers
    for (int i = 0; i < blocks; ++i) {
        const Lanes16 first = Lanes16::of(x + 32 * i), second = Lanes16::of(x + 32 * i + 16);
        const int b = first_block + i;
#pragma GCC unroll 8
        for (int64_t r = 0; r < ROWS; ++r) {
            const RowScales& of = scales[r];
            acc[r].template add_codes<C::MINS>(codes[r][0] + 16 * i, of.s[b * C::GROUPS], of.m[b], first);
            acc[r].template add_codes<C::MINS>(codes[r][1] + 16 * i, of.s[(b + 1) * C::GROUPS - 1], of.m[b], second);
        }
    }
}

// Adds sixteen 4-bit floats, given as twice their values, times x. Halving is exact.
template <int32_t FORMAT>
inline void add_twice(Lanes16& acc, __m128i twice, float s, float global, const float* x) {
    float values[16];
    for (int half = 0; half < 2; ++half) {
        const __m256i wide = _mm256_cvtepi8_epi32(half ? _mm_srli_si128(twice, 8) : twice);
        __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(0.5f * s));
        if constexpr (FORMAT == NVFP4) value = _mm256_mul_ps(value, _mm256_set1_ps(global));
        _mm256_storeu_ps(values + 8 * half, value);
    }
    acc.add(values, x);
}

// Adds pair `pair` of one row times x; block i of the pair has scales s[i * GROUPS ..] and minimum m[i].
template <int32_t FORMAT>
inline void add_float_pair(Lanes16& acc, const RowCodes<FORMAT>& row, int64_t pair, int blocks, const float* s,
                           const float* m, float global, const float* x) {
    using C = Codes<FORMAT>;
    const uint8_t* from = row.codes + PAIR_BYTES<FORMAT> * pair;
#if FTD_VNNI
    if constexpr (C::BITS == 4 || C::FP4) {
        const __m512 table = _mm512_load_ps(NIBBLES<FORMAT>.value);
        for (int i = 0; i < blocks; ++i) {
            const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i)));
            __m512 low = _mm512_mul_ps(table, _mm512_set1_ps(s[i * C::GROUPS])), high = low;
            if constexpr (C::GROUPS == 2) high = _mm512_mul_ps(table, _mm512_set1_ps(s[i * 2 + 1]));
            if constexpr (FORMAT == NVFP4) {
                low = _mm512_mul_ps(low, _mm512_set1_ps(global));
                high = _mm512_mul_ps(high, _mm512_set1_ps(global));
            }
            if constexpr (C::MINS) low = high = _mm512_add_ps(low, _mm512_set1_ps(m[i]));
            acc.v = _mm512_fmadd_ps(_mm512_permutexvar_ps(bytes, low), _mm512_loadu_ps(x + 32 * i), acc.v);
            const __m512i above = _mm512_srli_epi32(bytes, 4);
            acc.v = _mm512_fmadd_ps(_mm512_permutexvar_ps(above, high), _mm512_loadu_ps(x + 32 * i + 16), acc.v);
        }
        return;
    }
#endif
    if constexpr (C::FP4) {
        const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(E2M1_TWICE)), nibble = _mm_set1_epi8(15);
        for (int i = 0; i < blocks; ++i) {
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
            const __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(bytes, nibble));
            const __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble));
            add_twice<FORMAT>(acc, low, s[i * C::GROUPS], global, x + 32 * i);
            add_twice<FORMAT>(acc, high, s[i * C::GROUPS + C::GROUPS - 1], global, x + 32 * i + 16);
        }
    }
}

// Rows [begin, end) for one row of x; K is a multiple of 32.
template <int32_t FORMAT>
void coded_vector(const Product& p, const float* x, int64_t begin, int64_t end, const Matrix* next, int64_t next_row) {
    using C = Codes<FORMAT>;
    constexpr int64_t ROWS = FTD_VNNI ? 8 : 4;
    const Matrix& w = p.weight;
    const int64_t blocks = w.k / 32;
    const float global = FORMAT == NVFP4 ? *static_cast<const float*>(w.planes[2]) : 1.0f;
    for (int64_t row = begin; row < end; row += ROWS) {
        Lanes16 acc[ROWS];
        for (auto& lanes : acc) lanes.clear();
        RowScales scales[ROWS];
        RowCodes<FORMAT> codes[ROWS];
        for (int64_t r = 0; r < ROWS; ++r) codes[r] = RowCodes<FORMAT>::of(w, row + r < end ? row + r : end - 1);
        auto ahead = Ahead<FORMAT, ROWS>::after(w, row + ROWS, end, next, next_row);
        for (int64_t b0 = 0; b0 < blocks; b0 += 8) {
            const int count = static_cast<int>(blocks - b0 < 8 ? blocks - b0 : 8);
            ahead.scales();
            for (int64_t r = 0; r < ROWS; ++r) row_scales<FORMAT>(w, row + r < end ? row + r : end - 1, b0, count, scales + r);
            for (int i = 0; i < count; i += 2) {
                ahead.codes();
                const int pair_blocks = count - i < 2 ? 1 : 2;
                if constexpr (C::FP4 || (FTD_VNNI && C::BITS == 4)) {
#pragma GCC unroll 8
                    for (int64_t r = 0; r < ROWS; ++r)
                        add_float_pair<FORMAT>(acc[r], codes[r], (b0 + i) / 2, pair_blocks, scales[r].s + i * C::GROUPS,
                                               scales[r].m + i, global, x + 32 * (b0 + i));
                } else {
                    add_byte_pairs<FORMAT, ROWS>(acc, codes, (b0 + i) / 2, pair_blocks, scales, i, x + 32 * (b0 + i));
                }
            }
        }
        for (int64_t r = 0; r < ROWS && row + r < end; ++r) store_product(p, 0, row + r, acc[r].sum());
    }
}

// Thirty-two codes of fp8 become halves, 2^8 smaller: sign extension puts the sign where it belongs.
inline void add_fp8(Lanes16& acc, const uint8_t* codes, float scale, const float* x) {
#if FTD_VNNI
    const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<short>(0xbfff)));
    const __m512 low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves)), s = _mm512_set1_ps(scale);
    const __m512 high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
    acc.v = _mm512_fmadd_ps(_mm512_mul_ps(low, s), _mm512_loadu_ps(x), acc.v);
    acc.v = _mm512_fmadd_ps(_mm512_mul_ps(high, s), _mm512_loadu_ps(x + 16), acc.v);
#else
    const __m256 s = _mm256_set1_ps(scale);
    for (int i = 0; i < 32; i += 16) {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
        const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
        const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
        const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
        acc.v0 = _mm256_fmadd_ps(_mm256_mul_ps(low, s), _mm256_loadu_ps(x + i), acc.v0);
        acc.v1 = _mm256_fmadd_ps(_mm256_mul_ps(high, s), _mm256_loadu_ps(x + i + 8), acc.v1);
    }
#endif
}

// coded_vector of fp8. Returns the first row that it has not done, for dequantize_row: codes that are no numbers, and
// scales so large that 2^8 times one is none.
inline int64_t fp8_vector(const Product& p, const float* x, int64_t begin, int64_t end) {
    constexpr int64_t ROWS = FTD_VNNI ? 8 : 4;
    const Matrix& w = p.weight;
    const auto* plane = static_cast<const uint8_t*>(w.planes[0]);
    const __m256i all = _mm256_set1_epi8(-1), magnitude = _mm256_set1_epi8(0x7f);
    for (int64_t row = begin; row < end; row += ROWS) {
        Lanes16 acc[ROWS];
        for (auto& lanes : acc) lanes.clear();
        const uint8_t *codes[ROWS], *ahead = plane + (row + ROWS) * w.k;
        for (int64_t r = 0; r < ROWS; ++r) codes[r] = plane + (row + r < end ? row + r : end - 1) * w.k;
        __m256i least = all;  // of the bits that a code lacks: 0 if one has all
        for (int64_t b = 0; b < w.k; b += 128) {
            float scales[ROWS];
            for (int64_t r = 0; r < ROWS; ++r) {
                const int64_t at = row + r < end ? row + r : end - 1;
                scales[r] = 256.0f * plane_row<float>(w, 1, at / 128, (w.k + 127) / 128)[b / 128];
                if (!(__builtin_fabsf(scales[r]) < INFINITY)) return row;
            }
            for (int64_t i = b; i < b + 128 && i < w.k; i += 32) {
                for (int64_t line = 0; line < 32 * ROWS; line += 64) __builtin_prefetch(ahead + line, 0, FETCH_LOCALITY);
                ahead += 32 * ROWS;
#pragma GCC unroll 8
                for (int64_t r = 0; r < ROWS; ++r) {
                    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes[r] + i));
                    least = _mm256_min_epu8(least, _mm256_andnot_si256(c, magnitude));
                    add_fp8(acc[r], codes[r] + i, scales[r], x + i);
                }
            }
        }
        if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(least, _mm256_setzero_si256()))) return row;
        for (int64_t r = 0; r < ROWS && row + r < end; ++r) store_product(p, 0, row + r, acc[r].sum());
    }
    return end;
}

// VectorFn of the exact products.
inline void exact_vector(const Product& p, const float* x, int64_t begin, int64_t end, const Matrix* next,
                         int64_t next_row, char* scratch) {
    switch (p.weight.k % 32 == 0 ? p.weight.format : NUM_FORMATS) {
        case Q8_0: return coded_vector<Q8_0>(p, x, begin, end, next, next_row);
        case Q4_0: return coded_vector<Q4_0>(p, x, begin, end, next, next_row);
        case Q4_1: return coded_vector<Q4_1>(p, x, begin, end, next, next_row);
        case Q5_0: return coded_vector<Q5_0>(p, x, begin, end, next, next_row);
        case Q5_1: return coded_vector<Q5_1>(p, x, begin, end, next, next_row);
        case Q4_K: return coded_vector<Q4_K>(p, x, begin, end, next, next_row);
        case Q5_K: return coded_vector<Q5_K>(p, x, begin, end, next, next_row);
        case Q6_K: return coded_vector<Q6_K>(p, x, begin, end, next, next_row);
        case MXFP4: return coded_vector<MXFP4>(p, x, begin, end, next, next_row);
        case NVFP4: return coded_vector<NVFP4>(p, x, begin, end, next, next_row);
        case FP8_B128: begin = fp8_vector(p, x, begin, end); break;
        default: break;
    }
    switch (p.weight.format) {
        case F32: return float_vector<F32>(p, x, begin, end, next, next_row);
        case F16: return float_vector<F16>(p, x, begin, end, next, next_row);
        case BF16: return float_vector<BF16>(p, x, begin, end, next, next_row);
        default: break;
    }
    if (begin < end) float_range(p, x, begin, end, 0, 1, scratch);
}
