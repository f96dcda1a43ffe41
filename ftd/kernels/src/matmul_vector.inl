// One row of x times eight rows of W, AVX2: each weight is read once, codes never leave registers.
//
// A pair of blocks of one row gives one vector of sums, block 0 in its low half. Adding the lanes of four rows' vectors
// makes a quad: row r of block 0 in lane r, of block 1 in lane 4 + r. Scales, minimums and results are quads too.

// How many of a row's 16-bit sums fit 16 bits together; 1: sums have 32. Without z a sum is of four products (of two
// where a block has two groups), at most 4 * 15 * 127 = 7620, 4 * 31 * 127 = 15748 or 2 * 63 * 127 = 16002; z doubles it.
template <int32_t FORMAT, bool ZEROS>
constexpr int SUMS_THAT_FIT = FORMAT == Q8_0 ? 1 : (Codes<FORMAT>::BITS == 4 ? 4 : 2) / (ZEROS ? 2 : 1);

template <bool WIDE>
inline __m256i add_lanes(__m256i a, __m256i b) {
    return WIDE ? _mm256_add_epi32(a, b) : _mm256_add_epi16(a, b);
}

// Lane sums of four rows' vectors as a quad of whole numbers.
template <int FIT>
inline __m256i add_rows(const __m256i r[4]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i a = add_lanes<FIT == 1>(_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
    __m256i b = add_lanes<FIT == 1>(_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
    if constexpr (FIT == 2) {
        a = _mm256_madd_epi16(a, ones);
        b = _mm256_madd_epi16(b, ones);
    }
    const __m256i quad = add_lanes<FIT != 4>(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return FIT == 4 ? _mm256_madd_epi16(quad, ones) : quad;
}

// Pair sums of signed codes c times q: |c| times q with c's sign (q is never -128).
inline __m256i dot_signed(__m256i codes, __m256i q) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// z, in every byte, times the sums of signed codes.
inline __m256i times_zero(__m256i lo, __m256i hi, __m256i z) {
    const __m256i flip = _mm256_set1_epi8(-128), zero = _mm256_setzero_si256();
    const __m256i sum = _mm256_add_epi32(_mm256_sad_epu8(_mm256_xor_si256(lo, flip), zero),
                                         _mm256_sad_epu8(_mm256_xor_si256(hi, flip), zero));
    return _mm256_madd_epi16(_mm256_sub_epi16(sum, _mm256_set1_epi64x(16 * 128)), _mm256_srai_epi16(z, 8));
}

// The two floats at `from` as a quad, the same for every row; and whole numbers, the second `every` after the first.
inline __m256 spread_pair(const float* from) {
    double two;
    std::memcpy(&two, from, sizeof two);
    return _mm256_permutevar_ps(_mm256_castpd_ps(_mm256_set1_pd(two)), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}
inline __m256i spread_pair(const int32_t* from, int every) {
    if (every == 2) return _mm256_setr_m128i(_mm_set1_epi32(from[0]), _mm_set1_epi32(from[2]));
    return _mm256_castps_si256(spread_pair(reinterpret_cast<const float*>(from)));
}

// OFFSET times a number.
template <int32_t FORMAT>
inline __m256i times_offset(__m256i number) {
    constexpr int OFFSET = Codes<FORMAT>::OFFSET, SHIFT = OFFSET == 8 ? 3 : OFFSET == 16 ? 4 : 5;
    if constexpr (OFFSET == 12) return _mm256_add_epi32(_mm256_slli_epi32(number, 3), _mm256_slli_epi32(number, 2));
    return _mm256_slli_epi32(number, SHIFT);
}

// Where a pair of eight rows lies.
struct EightRows {
    const uint8_t *codes, *high;
    int64_t stride, high_stride;

    template <int32_t FORMAT>
    static EightRows of(const Matrix& w, int64_t row, int64_t pair) {
        constexpr int64_t BYTES = PAIR_BYTES<FORMAT>, HIGH = PAIR_HIGH_BYTES<FORMAT>;
        const int64_t stride = w.k * BYTES / 64, high_stride = w.k * HIGH / 64;
        const uint8_t* high = HIGH ? plane_row<uint8_t>(w, 1, row, high_stride) + HIGH * pair : nullptr;
        return {plane_row<uint8_t>(w, 0, row, stride) + BYTES * pair, high, stride, high_stride};
    }
};

// Dot products of a pair of eight rows with the pair at q: dot[group][rows / 4]. ZEROS: it counts from the two z.
template <int32_t FORMAT, bool SINGLE, bool ZEROS>
inline void dot_pair(__m256i dot[][2], const EightRows& rows, const int8_t* q, const float* two_z) {
    constexpr int FIT = SUMS_THAT_FIT<FORMAT, ZEROS>;
    const __m256i q_lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
    const __m256i q_hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 64));
    const __m256i z = ZEROS ? _mm256_shuffle_epi8(_mm256_cvttps_epi32(spread_pair(two_z)), _mm256_set1_epi32(0)) : q_lo;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        __m256i sums[2][4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
            __m256i lo, hi;
            unpack_pair<FORMAT>(rows.codes + (4 * half + r) * rows.stride, rows.high + (4 * half + r) * rows.high_stride,
                                SINGLE, &lo, &hi);
            if constexpr (FORMAT == Q8_0) {
                sums[0][r] = _mm256_add_epi32(dot_signed(lo, q_lo), dot_signed(hi, q_hi));
                if constexpr (ZEROS) sums[0][r] = _mm256_add_epi32(sums[0][r], times_zero(lo, hi, z));
            } else if constexpr (Codes<FORMAT>::GROUPS == 2) {
                sums[0][r] = _mm256_maddubs_epi16(lo, q_lo);
                sums[1][r] = _mm256_maddubs_epi16(hi, q_hi);
                if constexpr (ZEROS) {
                    sums[0][r] = _mm256_add_epi16(sums[0][r], _mm256_maddubs_epi16(lo, z));
                    sums[1][r] = _mm256_add_epi16(sums[1][r], _mm256_maddubs_epi16(hi, z));
                }
            } else {
                sums[0][r] = _mm256_add_epi16(_mm256_maddubs_epi16(lo, q_lo), _mm256_maddubs_epi16(hi, q_hi));
                if constexpr (ZEROS)
                    sums[0][r] = _mm256_add_epi16(sums[0][r], _mm256_maddubs_epi16(_mm256_add_epi8(lo, hi), z));
            }
            if constexpr (FORMAT != Q8_0 && FIT == 1)
                for (int g = 0; g < Codes<FORMAT>::GROUPS; ++g)
                    sums[g][r] = _mm256_madd_epi16(sums[g][r], _mm256_set1_epi16(1));
        }
#pragma GCC unroll 2
        for (int g = 0; g < Codes<FORMAT>::GROUPS; ++g) dot[g][half] = add_rows<FIT>(sums[g]);
    }
}

// The same, whatever the two z are: mostly 0, which saves a fifth of the work.
template <int32_t FORMAT, bool SINGLE>
inline void dot_any_pair(__m256i dot[][2], const EightRows& rows, const int8_t* q, const float* two_z) {
    uint64_t bits;
    std::memcpy(&bits, two_z, sizeof bits);
    if (bits != 0)
        dot_pair<FORMAT, SINGLE, true>(dot, rows, q, two_z);
    else
        dot_pair<FORMAT, SINGLE, false>(dot, rows, q, two_z);
}

// A quad without its second block where that is past the row.
template <bool SINGLE>
inline __m256 valid_part(__m256 quad) {
    return SINGLE ? _mm256_zextps128_ps256(_mm256_castps256_ps128(quad)) : quad;
}

// Adds what the dot products of blocks b and b + 1 are worth to their partial sums, acc[rows / 4].
template <int32_t FORMAT, bool SINGLE>
inline void finish_pair(__m256 acc[2], __m256i dot[][2], const Activations& x, int64_t b, const PairScales<FORMAT>& s) {
    using C = Codes<FORMAT>;
    const __m256 d = spread_pair(x.d + b);
#pragma GCC unroll 2
    for (int g = 0; g < C::GROUPS; ++g) {
        if constexpr (C::OFFSET != 0) {
            const int32_t* sum = C::GROUPS == 2 ? x.sum16 + 2 * b + g : x.q_sum + b;
            const __m256i above = times_offset<FORMAT>(spread_pair(sum, C::GROUPS));
            for (int half = 0; half < 2; ++half) dot[g][half] = _mm256_sub_epi32(dot[g][half], above);
        }
        for (int half = 0; half < 2; ++half)
            acc[half] =
                _mm256_fmadd_ps(valid_part<SINGLE>(s.scale[g][half]), _mm256_mul_ps(_mm256_cvtepi32_ps(dot[g][half]), d), acc[half]);
    }
    if constexpr (C::MINS)
        for (int half = 0; half < 2; ++half)
            acc[half] = _mm256_fmadd_ps(valid_part<SINGLE>(s.minimum[half]), spread_pair(x.sum32 + b), acc[half]);
}

// Adds eight blocks from b0 on of rows row .. row + 7; acc[0] is of even pairs, acc[1] of odd ones.
template <int32_t FORMAT>
inline void add_eight(__m256 acc[2][2], const Matrix& w, int64_t row, int64_t b0, const Activations& x,
                      const PairScales<FORMAT> scales[4], Ahead<FORMAT, 8>* ahead) {
    EightRows rows = EightRows::of<FORMAT>(w, row, b0 / 2);
    __m256 sums[2][2] = {{acc[0][0], acc[0][1]}, {acc[1][0], acc[1][1]}};
#pragma GCC unroll 1  // a few fetches at a time: many at once hold up the loads
    for (int i = 0; i < 4; ++i) {
        __m256i dot[Codes<FORMAT>::GROUPS][2];
        ahead->codes();
        dot_any_pair<FORMAT, false>(dot, rows, x.q + 32 * b0 + i / 2 * 128 + i % 2 * 32, x.z + b0 + 2 * i);
        finish_pair<FORMAT, false>(sums[0], dot, x, b0 + 2 * i, scales[i]);
        rows.codes += PAIR_BYTES<FORMAT>;
        rows.high += PAIR_HIGH_BYTES<FORMAT>;
        std::swap(sums[0], sums[1]);
    }
    for (int i = 0; i < 4; ++i) acc[i / 2][i % 2] = sums[i / 2][i % 2];
}

// The same of a pair, the last one maybe of one block.
template <int32_t FORMAT, bool SINGLE>
[[gnu::noinline]] void add_pair(__m256 acc[2], const Matrix& w, int64_t row, int64_t pair, const Activations& x,
                                const PairScales<FORMAT>& scales) {
    __m256i dot[Codes<FORMAT>::GROUPS][2];
    const int8_t* q = x.q + pair / 2 * 128 + pair % 2 * 32;
    dot_any_pair<FORMAT, SINGLE>(dot, EightRows::of<FORMAT>(w, row, pair), q, x.z + 2 * pair);
    finish_pair<FORMAT, SINGLE>(acc, dot, x, 2 * pair, scales);
}

// Products of rows row .. row + 7 with the one row of x.
template <int32_t FORMAT>
inline __m256 dot_rows8(const Matrix& w, int64_t row, const Activations& x, Ahead<FORMAT, 8> ahead) {
    const int64_t blocks = w.k / 32;
    __m256 acc[2][2] = {};  // of even pairs: partial sums 0 and 1; of odd ones: 2 and 3
    SuperScales<FORMAT> super;
    PairScales<FORMAT> scales[4];
    for (int64_t b0 = 0; b0 < blocks; b0 += 8) {
        ahead.scales();
        if constexpr (SuperScales<FORMAT>::ANY)
            if (b0 % 64 == 0) super.load(w, row, b0 / 8);
        pair_scales<FORMAT>(w, row, b0, super, scales);
        if (blocks - b0 >= 8) {
            add_eight<FORMAT>(acc, w, row, b0, x, scales, &ahead);
            continue;
        }
        const int64_t pairs = (blocks - b0) / 2, pair = b0 / 2;
        for (int64_t i = 0; i < pairs; ++i) {
            ahead.codes();
            add_pair<FORMAT, false>(acc[i % 2], w, row, pair + i, x, scales[i]);
        }
        if constexpr (FORMAT != Q4_K && FORMAT != Q5_K && FORMAT != Q6_K)  // their K is a multiple of 256
            if (blocks % 2) add_pair<FORMAT, true>(acc[pairs % 2], w, row, pair + pairs, x, scales[pairs]);
    }
    const __m256 part0 = _mm256_permute2f128_ps(acc[0][0], acc[0][1], 0x20), part1 = _mm256_permute2f128_ps(acc[0][0], acc[0][1], 0x31);
    const __m256 part2 = _mm256_permute2f128_ps(acc[1][0], acc[1][1], 0x20), part3 = _mm256_permute2f128_ps(acc[1][0], acc[1][1], 0x31);
    return _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(part0, part1), part2), part3);
}
