// One row of x times eight rows of W, AVX2: each weight is read once, codes never leave registers.
//
// A pair of blocks of one row gives one vector of eight 32-bit sums, block 0 in its low half. Adding the lanes of eight
// rows' vectors turns rows into lanes.

// Lane sums of eight vectors: *b0 gets the sums of their low halves, *b1 of their high halves, row r in lane r.
inline void add_lanes(const __m256i p[8], __m256i* b0, __m256i* b1) {
    const __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
    const __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
    *b0 = _mm256_permute2x128_si256(low, high, 0x20);
    *b1 = _mm256_permute2x128_si256(low, high, 0x31);
}

// Pair sums of signed codes c times q: |c| times q with c's sign (q is never -128).
inline __m256i dot_signed(__m256i codes, __m256i q) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// Adds what one group of eight rows is worth: dot products, scales and minimums of a block, a row a lane.
template <int32_t FORMAT>
inline __m256 finish8(__m256 acc, __m256i dot, int32_t above, __m256 s, __m256 m, float d, float x_sum) {
    if constexpr (Codes<FORMAT>::OFFSET != 0)
        dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(Codes<FORMAT>::OFFSET * above));
    acc = _mm256_fmadd_ps(s, _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(d)), acc);
    if constexpr (Codes<FORMAT>::MINS) acc = _mm256_fmadd_ps(m, _mm256_set1_ps(x_sum), acc);
    return acc;
}

// z of blocks b and b + 1 in every byte of the low and of the high half.
inline __m256i zero_bytes(const Activations& x, int64_t b) {
    const auto spread = [](float z) { return _mm_set1_epi8(static_cast<char>(static_cast<int32_t>(z))); };
    return _mm256_set_m128i(spread(x.z[b + 1]), spread(x.z[b]));
}

// Adds pair `pair` of rows row .. row + 7 to the partial sums of its blocks. scales and mins are the first block's.
template <int32_t FORMAT, bool SINGLE>
inline void add_pair(__m256 acc[2], const Matrix& w, int64_t row, int64_t pair, const Activations& x,
                     const __m256* scales, const __m256* mins) {
    using C = Codes<FORMAT>;
    const int8_t* q = x.q + pair / 2 * 128 + pair % 2 * 32;
    const __m256i q_lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
    const __m256i q_hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 64));
    const int64_t b = 2 * pair;
    const __m256i z = zero_bytes(x, b), ones = _mm256_set1_epi16(1);
    __m256i first[8], second[8], f[2], s[2];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
        __m256i lo, hi;
        pair_codes<FORMAT>(w, row + r, pair, SINGLE, &lo, &hi);
        if constexpr (FORMAT == Q8_0) {
            const __m256i flip = _mm256_set1_epi8(-128), zero = _mm256_setzero_si256();
            first[r] = _mm256_add_epi32(dot_signed(lo, q_lo), dot_signed(hi, q_hi));
            const __m256i sum = _mm256_add_epi32(_mm256_sad_epu8(_mm256_xor_si256(lo, flip), zero),
                                                 _mm256_sad_epu8(_mm256_xor_si256(hi, flip), zero));
            const __m256i signed_sum = _mm256_sub_epi16(sum, _mm256_set1_epi64x(16 * 128));
            const __m256i z16 = _mm256_srai_epi16(z, 8);
            first[r] = _mm256_add_epi32(first[r], _mm256_madd_epi16(signed_sum, z16));
        } else if constexpr (C::GROUPS == 2) {
            first[r] = _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(lo, q_lo), _mm256_maddubs_epi16(lo, z)), ones);
            second[r] = _mm256_madd_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(hi, q_hi), _mm256_maddubs_epi16(hi, z)), ones);
        } else {  // at most 4 * 31 * 127 * 2 = 31496: no 16-bit sum overflows
            const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(lo, q_lo), _mm256_maddubs_epi16(hi, q_hi));
            const __m256i zeros = _mm256_maddubs_epi16(_mm256_add_epi8(lo, hi), z);
            first[r] = _mm256_madd_epi16(_mm256_add_epi16(both, zeros), ones);
        }
    }
    add_lanes(first, &f[0], &f[1]);
    if constexpr (C::GROUPS == 2) add_lanes(second, &s[0], &s[1]);
    for (int i = 0; i < (SINGLE ? 1 : 2); ++i) {
        if constexpr (C::GROUPS == 2) {
            const int32_t* above = x.sum16 + 2 * (b + i);
            acc[i] = finish8<FORMAT>(acc[i], f[i], above[0], scales[2 * i], mins[i], x.d[b + i], 0.0f);
            acc[i] = finish8<FORMAT>(acc[i], s[i], above[1], scales[2 * i + 1], mins[i], x.d[b + i], 0.0f);
        } else {
            acc[i] = finish8<FORMAT>(acc[i], f[i], x.q_sum[b + i], scales[i], mins[i], x.d[b + i], x.sum32[b + i]);
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
