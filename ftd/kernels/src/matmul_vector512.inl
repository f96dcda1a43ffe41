// One row of x times eight rows of W, AVX-512 with VNNI: each weight is read once, codes never leave registers.
//
// Four blocks of one row make a vector: lane i, of four 32-bit sums, is block i's. Adding up the lanes of eight rows'
// vectors gives two: rows 0-7 of block 0 and of block 1, rows 0-7 of block 2 and of block 3.

inline __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
inline __m512 join(__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); }

// The whole-number codes of blocks 4 * group .. of a row as unsigned bytes (q8_0: moved up by 128), values 0-15 of each
// block in lo and 16-31 in hi; of `count` blocks, the others 0 (q8_0: anything).
template <int32_t FORMAT>
inline void group_codes(const Matrix& w, int64_t row, int64_t group, int count, __m512i* lo, __m512i* hi) {
    using C = Codes<FORMAT>;
    if constexpr (FORMAT == Q8_0) {
        const int8_t* codes = plane_row<int8_t>(w, 0, row, w.k) + 128 * group;
        const __m512i flip = _mm512_set1_epi8(-128);
        const __m512i a = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(count >= 2 ? 0xff : 0xf), codes);
        const __m512i b = count == 4   ? _mm512_loadu_si512(codes + 64)
                          : count == 3 ? _mm512_maskz_loadu_epi64(0xf, codes + 64)
                                       : _mm512_setzero_si512();
        *lo = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0x88), flip);
        *hi = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0xdd), flip);
    } else if constexpr (C::HIGH1 || FORMAT == Q6_K) {
        __m256i l[2] = {}, h[2] = {};
        pair_codes<FORMAT>(w, row, 2 * group, count == 1, &l[0], &h[0]);
        if (count > 2) pair_codes<FORMAT>(w, row, 2 * group + 1, count == 3, &l[1], &h[1]);
        *lo = join(l[0], l[1]);
        *hi = join(h[0], h[1]);
    } else {
        const auto valid = static_cast<__mmask8>((1u << 2 * count) - 1);
        const __m512i bytes = _mm512_maskz_loadu_epi64(valid, plane_row<uint8_t>(w, 0, row, w.k / 2) + 64 * group);
        const __m512i nibble = _mm512_set1_epi8(15);
        *lo = _mm512_and_si512(bytes, nibble);
        *hi = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
        if constexpr (C::FP4) {
            const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(E2M1_CODES)));
            *lo = _mm512_shuffle_epi8(table, *lo);
            *hi = _mm512_shuffle_epi8(table, *hi);
        }
    }
}

inline __m512i add_lanes4(const __m512i p[4]) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(p[0], p[1]), _mm512_unpackhi_epi32(p[0], p[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(p[2], p[3]), _mm512_unpackhi_epi32(p[2], p[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

// Lane sums of eight vectors as floats: blocks 0 and 1, blocks 2 and 3.
inline void add_lanes(const __m512i p[8], __m512* b01, __m512* b23) {
    const __m512i low = add_lanes4(p), high = add_lanes4(p + 4);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    *b01 = _mm512_cvtepi32_ps(_mm512_permutex2var_epi64(low, first, high));
    *b23 = _mm512_cvtepi32_ps(_mm512_permutex2var_epi64(low, second, high));
}

// values[0] in the low half and values[1] in the high half.
inline __m512 halves(const float* values) { return join(_mm256_set1_ps(values[0]), _mm256_set1_ps(values[1])); }

// Four whole numbers, each spread over the four dwords of its lane / in the first dword of its lane.
inline __m512i spread_lanes(__m128i four) {
    const __m512i index = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_epi32(index, _mm512_castsi128_si512(four));
}
inline __m512i first_of_lanes(__m128i four) { return _mm512_maskz_mov_epi32(0x1111, spread_lanes(four)); }

inline __m128i load_four(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

// Adds blocks 4 * group .. + count - 1 of rows row .. row + 7. scales: [2][GROUPS] vectors, mins: [2], of two blocks each.
template <int32_t FORMAT>
inline void add_group(__m512 acc[2], const Matrix& w, int64_t row, int64_t group, int count, const Activations& x,
                      const __m512* scales, const __m512* mins) {
    using C = Codes<FORMAT>;
    constexpr int OFFSET = FORMAT == Q8_0 ? 128 : C::OFFSET;
    const __m512i q_lo = _mm512_load_si512(x.q + 128 * group), q_hi = _mm512_load_si512(x.q + 128 * group + 64);
    const int64_t b = 4 * group;
    const __m512i in_lane = _mm512_set1_epi32(0);  // the low byte of a dword in all its bytes
    const __m512i z = _mm512_shuffle_epi8(spread_lanes(_mm_cvtps_epi32(_mm_loadu_ps(x.z + b))), in_lane);
    const __m128i minus = _mm_set1_epi32(-OFFSET);
    __m512i start[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if constexpr (OFFSET != 0 && C::GROUPS == 1)
        start[0] = first_of_lanes(_mm_mullo_epi32(load_four(x.q_sum + b), minus));
    if constexpr (OFFSET != 0 && C::GROUPS == 2) {
        const __m128 a = _mm_castsi128_ps(load_four(x.sum16 + 2 * b)), c = _mm_castsi128_ps(load_four(x.sum16 + 2 * b + 4));
        start[0] = first_of_lanes(_mm_mullo_epi32(_mm_castps_si128(_mm_shuffle_ps(a, c, 0x88)), minus));
        start[1] = first_of_lanes(_mm_mullo_epi32(_mm_castps_si128(_mm_shuffle_ps(a, c, 0xdd)), minus));
    }
    __m512i dot[C::GROUPS][8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
        __m512i lo, hi;
        group_codes<FORMAT>(w, row + r, group, count, &lo, &hi);
        if constexpr (C::GROUPS == 2) {
            dot[0][r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start[0], lo, q_lo), lo, z);
            dot[1][r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start[1], hi, q_hi), hi, z);
        } else {
            dot[0][r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start[0], lo, q_lo), hi, q_hi);
            if constexpr (FORMAT == Q8_0)
                dot[0][r] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(dot[0][r], lo, z), hi, z);
            else
                dot[0][r] = _mm512_dpbusd_epi32(dot[0][r], _mm512_add_epi8(lo, hi), z);
        }
    }
    const auto valid = static_cast<uint32_t>(count == 4 ? ~0u : (1u << 8 * count) - 1);
    for (int g = 0; g < C::GROUPS; ++g) {
        __m512 sum[2];
        add_lanes(dot[g], &sum[0], &sum[1]);
        for (int i = 0; i < 2; ++i) {
            const auto mask = static_cast<__mmask16>(valid >> 16 * i);
            const __m512 scaled = _mm512_mul_ps(sum[i], halves(x.d + b + 2 * i));
            acc[i] = _mm512_mask3_fmadd_ps(scales[i * C::GROUPS + g], scaled, acc[i], mask);
            if constexpr (C::MINS) acc[i] = _mm512_mask3_fmadd_ps(mins[i], halves(x.sum32 + b + 2 * i), acc[i], mask);
        }
    }
}

// eight_scales with two blocks a vector.
template <int32_t FORMAT>
inline void eight_scales2(const Matrix& w, int64_t row, int64_t b0, int count, __m512* scales, __m512* mins) {
    constexpr int GROUPS = Codes<FORMAT>::GROUPS;
    __m256 s[8 * GROUPS], m[8] = {};
    eight_scales<FORMAT>(w, row, b0, count, s, m);
    for (int i = 0; i < 4; ++i) {
        for (int g = 0; g < GROUPS; ++g) scales[i * GROUPS + g] = join(s[2 * i * GROUPS + g], s[(2 * i + 1) * GROUPS + g]);
        mins[i] = join(m[2 * i], m[2 * i + 1]);
    }
}

// Products of rows row .. row + 7 with the one row of x.
template <int32_t FORMAT>
inline __m256 dot_rows8(const Matrix& w, int64_t row, const Activations& x, Ahead<FORMAT, 8> ahead) {
    constexpr int GROUPS = Codes<FORMAT>::GROUPS;
    const int64_t blocks = w.k / 32;
    __m512 acc[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, scales[4 * GROUPS], mins[4];
    for (int64_t b0 = 0; b0 < blocks; b0 += 8) {
        const int count = static_cast<int>(blocks - b0 < 8 ? blocks - b0 : 8);
        ahead.scales();
        eight_scales2<FORMAT>(w, row, b0, count, scales, mins);
        for (int i = 0; i < count; i += 4) {
            ahead.codes();
            ahead.codes();
            add_group<FORMAT>(acc, w, row, (b0 + i) / 4, count - i < 4 ? count - i : 4, x, scales + i / 2 * GROUPS, mins + i / 2);
        }
    }
    const __m256 first = _mm256_add_ps(_mm512_castps512_ps256(acc[0]), _mm512_extractf32x8_ps(acc[0], 1));
    return _mm256_add_ps(_mm256_add_ps(first, _mm512_castps512_ps256(acc[1])), _mm512_extractf32x8_ps(acc[1], 1));
}
