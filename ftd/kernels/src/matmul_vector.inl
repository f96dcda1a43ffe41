// One row of x times eight rows of W: each weight is read once, codes never leave registers.
//
// A pair of blocks of one row gives one vector P: the dot product in the low 18 bits of each 32-bit lane, the sum of
// the codes above it (both fit: |I| <= 63 * 127 * 16 or 31 * 127 * 32 < 2^17, C < 2^13). Adding the lanes of eight
// rows then turns rows into lanes for both sums at once. q8_0's sums are too large for that and stay apart.

constexpr int SUM_SHIFT = 18;

// Lane sums of eight vectors: *b0 gets the sums of their low halves, *b1 of their high halves, row r in lane r.
inline void add_lanes(const __m256i p[8], __m256i* b0, __m256i* b1) {
    const __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
    const __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
    *b0 = _mm256_permute2x128_si256(low, high, 0x20);
    *b1 = _mm256_permute2x128_si256(low, high, 0x31);
}

// Four-lane dot products of unsigned codes and signed q, added to `acc`; codes < 64.
inline __m256i dot_codes(__m256i acc, __m256i codes, __m256i q) {
#if FTD_VNNI
    return _mm256_dpbusd_epi32(acc, codes, q);
#else
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, q), _mm256_set1_epi16(1)));
#endif
}

inline __m256i dot_codes2(__m256i acc, __m256i lo, __m256i hi, __m256i q_lo, __m256i q_hi) {
#if FTD_VNNI
    return _mm256_dpbusd_epi32(_mm256_dpbusd_epi32(acc, lo, q_lo), hi, q_hi);
#else
    const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(lo, q_lo), _mm256_maddubs_epi16(hi, q_hi));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(both, _mm256_set1_epi16(1)));
#endif
}

// The same for signed codes c: |c| times q with c's sign (q is never -128).
inline __m256i dot_signed(__m256i acc, __m256i codes, __m256i q) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Four-lane sums of unsigned codes below 64, moved above the dot products: times 16, times 2^14.
inline __m256i shifted_sum(__m256i codes) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, _mm256_set1_epi8(16)),
                             _mm256_set1_epi16(1 << (SUM_SHIFT - 4)));
}

// The float operations of one group for eight rows: finish_group of matmul_block.h.
template <int32_t FORMAT>
inline __m256 finish8(__m256 acc, __m256i dot, __m256i sum, __m256 s, __m256 m, float d, float z, float x_sum) {
    using C = Codes<FORMAT>;
    const __m256 codes = _mm256_cvtepi32_ps(sum), zs = _mm256_set1_ps(z);
    __m256 u;
    if constexpr (C::OFFSET != 0)
        u = _mm256_fmadd_ps(codes, zs, _mm256_set1_ps(static_cast<float>(-C::OFFSET) * x_sum));
    else
        u = _mm256_mul_ps(codes, zs);
    u = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(d), u);
    acc = _mm256_fmadd_ps(s, u, acc);
    if constexpr (C::MINS) acc = _mm256_fmadd_ps(m, _mm256_set1_ps(x_sum), acc);
    return acc;
}

template <int32_t FORMAT>
inline __m256 finish_packed(__m256 acc, __m256i packed, __m256 s, __m256 m, float d, float z, float x_sum) {
    const __m256i dot = _mm256_srai_epi32(_mm256_slli_epi32(packed, 32 - SUM_SHIFT), 32 - SUM_SHIFT);
    const __m256i sum = _mm256_srli_epi32(_mm256_sub_epi32(packed, dot), SUM_SHIFT);
    return finish8<FORMAT>(acc, dot, sum, s, m, d, z, x_sum);
}

// Adds pair `pair` of rows row .. row + 7. scales and mins are those of the pair's first block.
template <int32_t FORMAT, bool SINGLE>
inline __m256 add_pair(__m256 acc, const Matrix& w, int64_t row, int64_t pair, const Activations& x,
                       const __m256* scales, const __m256* mins) {
    using C = Codes<FORMAT>;
    const __m256i q_lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.q + 64 * pair));
    const __m256i q_hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(x.q + 64 * pair + 32));
    const int64_t b = 2 * pair;
    __m256i first[8], second[8], f0, f1, s0, s1;
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
        __m256i lo, hi;
        pair_codes<FORMAT>(w, row + r, pair, SINGLE, &lo, &hi);
        if constexpr (FORMAT == Q8_0) {
            const __m256i flip = _mm256_set1_epi8(-128), zero = _mm256_setzero_si256();
            const __m256i lo_u = _mm256_xor_si256(lo, flip), hi_u = _mm256_xor_si256(hi, flip);
#if FTD_VNNI
            first[r] = dot_codes2(zero, lo_u, hi_u, q_lo, q_hi);  // 128 * sum of q too large: taken off below
#else
            first[r] = dot_signed(dot_signed(zero, lo, q_lo), hi, q_hi);
#endif
            second[r] = _mm256_add_epi32(_mm256_sad_epu8(lo_u, zero), _mm256_sad_epu8(hi_u, zero));
        } else if constexpr (C::GROUPS == 2) {
            first[r] = dot_codes(shifted_sum(lo), lo, q_lo);
            second[r] = dot_codes(shifted_sum(hi), hi, q_hi);
        } else {
            first[r] = dot_codes2(shifted_sum(_mm256_add_epi8(lo, hi)), lo, hi, q_lo, q_hi);
        }
    }
    add_lanes(first, &f0, &f1);
    if constexpr (FORMAT == Q8_0) {
        add_lanes(second, &s0, &s1);
        const __m256i extra = _mm256_set1_epi32(-128 * 32);
#if FTD_VNNI
        f0 = _mm256_sub_epi32(f0, _mm256_set1_epi32(128 * x.q_sum[b]));
        f1 = _mm256_sub_epi32(f1, _mm256_set1_epi32(128 * x.q_sum[b + 1]));
#endif
        s0 = _mm256_add_epi32(s0, extra);
        s1 = _mm256_add_epi32(s1, extra);
        acc = finish8<FORMAT>(acc, f0, s0, scales[0], mins[0], x.d[b], x.z[b], x.sum32[b]);
        if constexpr (!SINGLE)
            acc = finish8<FORMAT>(acc, f1, s1, scales[1], mins[1], x.d[b + 1], x.z[b + 1], x.sum32[b + 1]);
    } else if constexpr (C::GROUPS == 2) {
        add_lanes(second, &s0, &s1);
        const float* sums = x.sum16 + 2 * b;
        acc = finish_packed<FORMAT>(acc, f0, scales[0], mins[0], x.d[b], x.z[b], sums[0]);
        acc = finish_packed<FORMAT>(acc, s0, scales[1], mins[0], x.d[b], x.z[b], sums[1]);
        if constexpr (!SINGLE) {
            acc = finish_packed<FORMAT>(acc, f1, scales[2], mins[1], x.d[b + 1], x.z[b + 1], sums[2]);
            acc = finish_packed<FORMAT>(acc, s1, scales[3], mins[1], x.d[b + 1], x.z[b + 1], sums[3]);
        }
    } else {
        acc = finish_packed<FORMAT>(acc, f0, scales[0], mins[0], x.d[b], x.z[b], x.sum32[b]);
        if constexpr (!SINGLE)
            acc = finish_packed<FORMAT>(acc, f1, scales[1], mins[1], x.d[b + 1], x.z[b + 1], x.sum32[b + 1]);
    }
    return acc;
}

// Products of rows row .. row + 7 with the one row of x.
template <int32_t FORMAT>
inline __m256 dot_rows8(const Matrix& w, int64_t row, const Activations& x) {
    using C = Codes<FORMAT>;
    const int64_t blocks = w.k / 32;
    __m256 acc = _mm256_setzero_ps(), scales[8 * C::GROUPS], mins[8] = {};
    for (int64_t b0 = 0; b0 < blocks; b0 += 8) {
        const int count = static_cast<int>(blocks - b0 < 8 ? blocks - b0 : 8);
        eight_scales<FORMAT>(w, row, b0, count, scales, mins);
        int i = 0;
        for (; i + 2 <= count; i += 2)
            acc = add_pair<FORMAT, false>(acc, w, row, (b0 + i) / 2, x, scales + i * C::GROUPS, mins + i);
        if (i < count) acc = add_pair<FORMAT, true>(acc, w, row, (b0 + i) / 2, x, scales + i * C::GROUPS, mins + i);
    }
    return acc;
}

// Rows [begin, end) of one product for one row of x. The last eight rows start early and store only their own.
template <int32_t FORMAT>
void vector_rows(const Product& p, const Activations& x, int64_t begin, int64_t end) {
    if (p.weight.n < 8) {
        for (int64_t row = begin; row < end; ++row) store_product(p, 0, row, dot_row_scalar<FORMAT>(p.weight, row, x, 0));
        return;
    }
    for (int64_t row = begin; row < end; row += 8) {
        const int64_t first = row + 8 <= p.weight.n ? row : p.weight.n - 8;
        alignas(32) float value[8];
        _mm256_store_ps(value, dot_rows8<FORMAT>(p.weight, first, x));
        for (int64_t i = row; i < end && i < row + 8; ++i) store_product(p, 0, i, value[i - first]);
    }
}
