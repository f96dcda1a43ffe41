// One row of x times eight rows of W, AVX2: each weight is read once, codes never leave registers.
//
// A pair of blocks of one row gives one vector of eight 32-bit sums, block 0 in its low half. Adding the lanes of eight
// rows' vectors turns rows into lanes.

// Sums of two vectors' neighbours: lanes of a and b in turn, each the sum of two of its vector's lanes.
inline __m256i add_halves(__m256i a, __m256i b) {
    return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}

// Lane sums of eight vectors, given as add_halves of two each: *b0 gets the sums of their low halves, *b1 of their high
// halves, row r in lane r. (Two shuffles and a sum: horizontal additions take twice as long.)
inline void add_lanes(const __m256i p[4], __m256i* b0, __m256i* b1) {
    const __m256i low = _mm256_add_epi32(_mm256_unpacklo_epi64(p[0], p[1]), _mm256_unpackhi_epi64(p[0], p[1]));
    const __m256i high = _mm256_add_epi32(_mm256_unpacklo_epi64(p[2], p[3]), _mm256_unpackhi_epi64(p[2], p[3]));
    *b0 = _mm256_permute2x128_si256(low, high, 0x20);
    *b1 = _mm256_permute2x128_si256(low, high, 0x31);
}

// add_halves of two vectors of 16-bit pair sums. NARROW: two of the sums fit 16 bits.
template <bool NARROW>
inline __m256i add_pairs(__m256i a, __m256i b) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (!NARROW) return add_halves(_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));
    return _mm256_madd_epi16(_mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)), ones);
}

// Pair sums of signed codes c times q: |c| times q with c's sign (q is never -128).
inline __m256i dot_signed(__m256i codes, __m256i q) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// OFFSET times a number, in all lanes.
template <int32_t FORMAT>
inline __m256i spread_offset(const int32_t* number) {
    constexpr int OFFSET = Codes<FORMAT>::OFFSET, SHIFT = OFFSET == 8 ? 3 : OFFSET == 16 ? 4 : 5;
    if constexpr (OFFSET == 12) return _mm256_set1_epi32(OFFSET * *number);
    return _mm256_slli_epi32(_mm256_set1_epi32(*number), SHIFT);
}

// Adds what one group of eight rows is worth: dot products, scales and minimums of a block, a row a lane.
template <int32_t FORMAT>
inline __m256 finish8(__m256 acc, __m256i dot, const int32_t* above, __m256 s, __m256 m, float d, float x_sum) {
    if constexpr (Codes<FORMAT>::OFFSET != 0) dot = _mm256_sub_epi32(dot, spread_offset<FORMAT>(above));
    acc = _mm256_fmadd_ps(s, _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(d)), acc);
    if constexpr (Codes<FORMAT>::MINS) acc = _mm256_fmadd_ps(m, _mm256_set1_ps(x_sum), acc);
    return acc;
}

// z of blocks b and b + 1 in every byte of the low and of the high half; b is even.
inline __m256i zero_bytes(const Activations& x, int64_t b) {
    double two;
    std::memcpy(&two, x.z + b, sizeof two);
    const __m256i whole = _mm256_cvttps_epi32(_mm256_castpd_ps(_mm256_set1_pd(two)));
    return _mm256_shuffle_epi8(whole, _mm256_setr_epi64x(0, 0, 0x0404040404040404, 0x0404040404040404));
}

// Adds pair `pair` of rows row .. row + 7 to the partial sums of its blocks. scales and mins are the first block's.
template <int32_t FORMAT, bool SINGLE>
inline void add_pair(__m256 acc[2], const Matrix& w, int64_t row, int64_t pair, const Activations& x,
                     const __m256* scales, const __m256* mins) {
    using C = Codes<FORMAT>;
    constexpr bool NARROW = C::BITS == 4 || FORMAT == NVFP4;
    const int8_t* q = x.q + pair / 2 * 128 + pair % 2 * 32;
    const __m256i q_lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
    const __m256i q_hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 64));
    const int64_t b = 2 * pair;
    const __m256i z = zero_bytes(x, b);
    __m256i first[4], second[4], f[2], s[2];
#pragma GCC unroll 4
    for (int r = 0; r < 8; r += 2) {
        __m256i row1[2], row2[2];  // sums of two rows: of the first or only group, of the second
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            __m256i lo, hi;
            pair_codes<FORMAT>(w, row + r + i, pair, SINGLE, &lo, &hi);
            if constexpr (FORMAT == Q8_0) {
                const __m256i flip = _mm256_set1_epi8(-128), zero = _mm256_setzero_si256();
                const __m256i dot = _mm256_add_epi32(dot_signed(lo, q_lo), dot_signed(hi, q_hi));
                const __m256i sum = _mm256_add_epi32(_mm256_sad_epu8(_mm256_xor_si256(lo, flip), zero),
                                                     _mm256_sad_epu8(_mm256_xor_si256(hi, flip), zero));
                const __m256i signed_sum = _mm256_sub_epi16(sum, _mm256_set1_epi64x(16 * 128));
                row1[i] = _mm256_add_epi32(dot, _mm256_madd_epi16(signed_sum, _mm256_srai_epi16(z, 8)));
            } else if constexpr (C::GROUPS == 2) {
                row1[i] = _mm256_add_epi16(_mm256_maddubs_epi16(lo, q_lo), _mm256_maddubs_epi16(lo, z));
                row2[i] = _mm256_add_epi16(_mm256_maddubs_epi16(hi, q_hi), _mm256_maddubs_epi16(hi, z));
            } else {  // at most 4 * 31 * 127 * 2 = 31496: no 16-bit sum overflows
                const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(lo, q_lo), _mm256_maddubs_epi16(hi, q_hi));
                row1[i] = _mm256_add_epi16(both, _mm256_maddubs_epi16(_mm256_add_epi8(lo, hi), z));
            }
        }
        first[r / 2] = FORMAT == Q8_0 ? add_halves(row1[0], row1[1]) : add_pairs<NARROW>(row1[0], row1[1]);
        if constexpr (C::GROUPS == 2) second[r / 2] = add_pairs<NARROW>(row2[0], row2[1]);
    }
    add_lanes(first, &f[0], &f[1]);
    if constexpr (C::GROUPS == 2) add_lanes(second, &s[0], &s[1]);
    for (int i = 0; i < (SINGLE ? 1 : 2); ++i) {
        if constexpr (C::GROUPS == 2) {
            const int32_t* above = x.sum16 + 2 * (b + i);
            acc[i] = finish8<FORMAT>(acc[i], f[i], above, scales[2 * i], mins[i], x.d[b + i], 0.0f);
            acc[i] = finish8<FORMAT>(acc[i], s[i], above + 1, scales[2 * i + 1], mins[i], x.d[b + i], 0.0f);
        } else {
            acc[i] = finish8<FORMAT>(acc[i], f[i], x.q_sum + b + i, scales[i], mins[i], x.d[b + i], x.sum32[b + i]);
        }
    }
}

// Products of rows row .. row + 7 with the one row of x.
template <int32_t FORMAT>
inline __m256 dot_rows8(const Matrix& w, int64_t row, const Activations& x, Ahead<FORMAT, 8> ahead) {
    using C = Codes<FORMAT>;
    const int64_t blocks = w.k / 32;
    __m256 acc[4] = {}, scales[8 * C::GROUPS], mins[8] = {};
    for (int64_t b0 = 0; b0 < blocks; b0 += 8) {
        const int count = static_cast<int>(blocks - b0 < 8 ? blocks - b0 : 8);
        ahead.scales();
        eight_scales<FORMAT>(w, row, b0, count, scales, mins);
        int i = 0;
        for (; i + 2 <= count; i += 2) {
            ahead.codes();
            add_pair<FORMAT, false>(acc + i % 4, w, row, (b0 + i) / 2, x, scales + i * C::GROUPS, mins + i);
        }
        if constexpr (FORMAT != Q4_K && FORMAT != Q5_K && FORMAT != Q6_K)  // their K is a multiple of 256
            if (i < count)
                add_pair<FORMAT, true>(acc + i % 4, w, row, (b0 + i) / 2, x, scales + i * C::GROUPS, mins + i);
    }
    return _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), acc[2]), acc[3]);
}
