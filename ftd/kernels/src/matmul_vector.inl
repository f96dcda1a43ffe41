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

// Lane sums of two rows' vectors side by side, and of two such results: four rows as a quad of whole numbers.
template <int FIT>
inline __m256i add_two_rows(__m256i a, __m256i b) {
    const __m256i sum = add_lanes<FIT == 1>(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    return FIT == 2 ? _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) : sum;
}
template <int FIT>
inline __m256i add_four_rows(__m256i a, __m256i b) {
    const __m256i quad = add_lanes<FIT != 4>(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    return FIT == 4 ? _mm256_madd_epi16(quad, _mm256_set1_epi16(1)) : quad;
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

// Two floats as a quad, the same for every row, the second `every` after the first; and whole numbers.
inline __m256 spread_pair(const float* from, int every = 1) {
    return _mm256_blend_ps(_mm256_broadcast_ss(from), _mm256_broadcast_ss(from + every), 0xf0);
}
inline __m256i spread_pair(const int32_t* from, int every) {
    return _mm256_castps_si256(spread_pair(reinterpret_cast<const float*>(from), every));
}

// OFFSET times a number.
template <int32_t FORMAT>
inline __m256i times_offset(__m256i number) {
    constexpr int OFFSET = Codes<FORMAT>::OFFSET, SHIFT = OFFSET == 8 ? 3 : OFFSET == 16 ? 4 : 5;
    if constexpr (OFFSET == 12) return _mm256_add_epi32(_mm256_slli_epi32(number, 3), _mm256_slli_epi32(number, 2));
    return _mm256_slli_epi32(number, SHIFT);
}

// Codes of eight rows, and their high bits.
struct CodeRows {
    EightRows codes, high;

    template <int32_t FORMAT>
    static CodeRows of(const Matrix& w, int64_t row) {
        constexpr int64_t HIGH = PAIR_HIGH_BYTES<FORMAT>;
        return {EightRows::of(w, 0, row, w.k * PAIR_BYTES<FORMAT> / 64),
                HIGH ? EightRows::of(w, 1, row, w.k * HIGH / 64) : EightRows{}};
    }
    template <int32_t FORMAT>
    void advance(int64_t pairs) {
        codes.advance(pairs * PAIR_BYTES<FORMAT>);
        if constexpr (PAIR_HIGH_BYTES<FORMAT> != 0) high.advance(pairs * PAIR_HIGH_BYTES<FORMAT>);
    }
};

// Dot products of pair i of eight rows with a pair of x, which counts from z where ZEROS: dot[group][rows / 4]. LINES of
// `ahead` are fetched meanwhile, a few at a time: many at once hold up the loads.
template <int32_t FORMAT, bool SINGLE, int LINES, bool ZEROS>
inline void dot_pair(__m256i dot[][2], const CodeRows& rows, int i, __m256i q_lo, __m256i q_hi, __m256i z,
                     const char* ahead) {
    constexpr int GROUPS = Codes<FORMAT>::GROUPS, FIT = SUMS_THAT_FIT<FORMAT, ZEROS>;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        for (int line = half * LINES / 2; line < (half + 1) * LINES / 2; ++line)
            __builtin_prefetch(ahead + 64 * line, 0, FETCH_LOCALITY);
        if constexpr (LINES != 0) asm volatile("");  // or the compiler puts all fetches first
        __m256i two[GROUPS][2];
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; ++pair) {
            __m256i sums[GROUPS][2];
#pragma GCC unroll 2
            for (int r = 0; r < 2; ++r) {
                const int row = 4 * half + 2 * pair + r;
                __m256i lo, hi;
                unpack_pair<FORMAT>(rows.codes.at(row) + i * PAIR_BYTES<FORMAT>,
                                    rows.high.at(row) + i * PAIR_HIGH_BYTES<FORMAT>, SINGLE, &lo, &hi);
                if constexpr (FORMAT == Q8_0) {
                    sums[0][r] = _mm256_add_epi32(dot_signed(lo, q_lo), dot_signed(hi, q_hi));
                    if constexpr (ZEROS) sums[0][r] = _mm256_add_epi32(sums[0][r], times_zero(lo, hi, z));
                } else if constexpr (GROUPS == 2) {
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
                    for (int g = 0; g < GROUPS; ++g) sums[g][r] = _mm256_madd_epi16(sums[g][r], _mm256_set1_epi16(1));
            }
#pragma GCC unroll 2
            for (int g = 0; g < GROUPS; ++g) two[g][pair] = add_two_rows<FIT>(sums[g][0], sums[g][1]);
        }
#pragma GCC unroll 2
        for (int g = 0; g < GROUPS; ++g) dot[g][half] = add_four_rows<FIT>(two[g][0], two[g][1]);
    }
}

// The same of the pair at q, whatever its two z are: mostly 0, which saves a fifth of the work. MIXED: they may not be.
template <int32_t FORMAT, bool SINGLE, int LINES, bool MIXED>
inline void dot_any_pair(__m256i dot[][2], const CodeRows& rows, int i, const int8_t* q, const float* two_z,
                         const char* ahead) {
    const __m256i q_lo = _mm256_load_si256(reinterpret_cast<const __m256i*>(q));
    const __m256i q_hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(q + 64));
    uint64_t bits = 0;
    if constexpr (MIXED) std::memcpy(&bits, two_z, sizeof bits);
    if (bits == 0) return dot_pair<FORMAT, SINGLE, LINES, false>(dot, rows, i, q_lo, q_hi, q_lo, ahead);
    const __m256i z = _mm256_shuffle_epi8(_mm256_cvttps_epi32(spread_pair(two_z)), _mm256_setzero_si256());
    dot_pair<FORMAT, SINGLE, LINES, true>(dot, rows, i, q_lo, q_hi, z, ahead);
}

// A quad without its second block where that is past the row.
template <bool SINGLE>
inline __m256 valid_part(__m256 quad) {
    return SINGLE ? _mm256_zextps128_ps256(_mm256_castps256_ps128(quad)) : quad;
}

// Adds what the dot products of blocks b and b + 1 are worth to their partial sums, acc[rows / 4].
template <int32_t FORMAT, bool SINGLE>
inline void finish_pair(__m256 acc[2], __m256i dot[][2], const Activations& x, int64_t b, const PairScales<FORMAT>& s,
                        int i) {
    using C = Codes<FORMAT>;
    const __m256 d = spread_pair(x.d + b);
#pragma GCC unroll 2
    for (int g = 0; g < C::GROUPS; ++g) {
        if constexpr (C::OFFSET != 0) {
            const int32_t* sum = C::GROUPS == 2 ? x.sum16 + 2 * b + g : x.q_sum + b;
            const __m256i above = times_offset<FORMAT>(spread_pair(sum, C::GROUPS));
            for (int half = 0; half < 2; ++half) dot[g][half] = _mm256_sub_epi32(dot[g][half], above);
        }
        for (int half = 0; half < 2; ++half) {
            const __m256 stepped = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[g][half]), d);
            acc[half] = _mm256_fmadd_ps(valid_part<SINGLE>(s.scale(i, g, half)), stepped, acc[half]);
        }
    }
    if constexpr (C::MINS)
        for (int half = 0; half < 2; ++half)
            acc[half] = _mm256_fmadd_ps(valid_part<SINGLE>(s.minimum(i, half)), spread_pair(x.sum32 + b), acc[half]);
}

// Adds the eight blocks from b0 on, pairs 0 .. 3 of `at`; acc[0] is of even pairs, acc[1] of odd ones. MIXED: a z is
// not 0. Unrolled, since every address is a register and a number then; inline, since it is the loop of all work.
template <int32_t FORMAT, bool MIXED>
[[gnu::always_inline]] inline void add_eight(__m256 acc[2][2], const CodeRows& at, int64_t b0, const Activations& x,
                                             const PairScales<FORMAT>& scales, const char* ahead) {
    constexpr int BYTES = Ahead<FORMAT, 8>::CODE_BYTES;
    const CodeRows rows = at;
    const int8_t* q = x.q + 32 * b0;
    const float* z = x.z + b0;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        __m256i dot[Codes<FORMAT>::GROUPS][2];
        dot_any_pair<FORMAT, false, BYTES / 64, MIXED>(dot, rows, i, q + i / 2 * 128 + i % 2 * 32, z + 2 * i,
                                                       ahead + i * BYTES);
        finish_pair<FORMAT, false>(acc[i % 2], dot, x, b0 + 2 * i, scales, i);
    }
}

// Elsewhere, for the registers' sake.
template <int32_t FORMAT>
[[gnu::noinline]] void add_mixed_eight(__m256 acc[2][2], const CodeRows& at, int64_t b0, const Activations& x,
                                       const PairScales<FORMAT>& scales, const char* ahead) {
    add_eight<FORMAT, true>(acc, at, b0, x, scales, ahead);
}

// Adds blocks b and b + 1, pair i of `rows`; SINGLE: there is no b + 1.
template <int32_t FORMAT, bool SINGLE>
[[gnu::noinline]] void add_pair(__m256 acc[2], const CodeRows& rows, int i, int64_t b, const Activations& x,
                                const PairScales<FORMAT>& scales) {
    __m256i dot[Codes<FORMAT>::GROUPS][2];
    dot_any_pair<FORMAT, SINGLE, 0, true>(dot, rows, i, x.q + b / 4 * 128 + b % 4 * 16, x.z + b, nullptr);
    finish_pair<FORMAT, SINGLE>(acc, dot, x, b, scales, i);
}

// Whether all z of the eight blocks from b0 on are 0.
inline bool counts_from_zero(const Activations& x, int64_t b0) {
    const __m256i z = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x.z + b0));
    return _mm256_testz_si256(z, z);
}

// Products of rows row .. row + 7 with the one row of x.
template <int32_t FORMAT>
inline __m256 dot_rows8(const Matrix& w, int64_t row, const Activations& x, Ahead<FORMAT, 8> ahead) {
    constexpr bool SUPER = SuperScales<FORMAT>::ANY;
    const int64_t blocks = w.k / 32;
    __m256 acc[2][2] = {};  // of even pairs: partial sums 0 and 1; of odd ones: 2 and 3
    SuperScales<FORMAT> super;
    PairScales<FORMAT> scales;
    CodeRows rows = CodeRows::of<FORMAT>(w, row);
    const ScaleRows scale_rows = ScaleRows::of<FORMAT>(w, row);
    int64_t b0 = 0;
    for (; b0 + 8 <= blocks; b0 += 8) {
        ahead.scales();
        if (SUPER && b0 % 64 == 0) super.load(w, row, b0 / 8);
        pair_scales<FORMAT>(w, scale_rows, b0, false, super, &scales);
        asm("" : "+m"(scales));  // or the compiler spills what it could load
        if (counts_from_zero(x, b0)) [[likely]]
            add_eight<FORMAT, false>(acc, rows, b0, x, scales, ahead.code_plane);
        else
            add_mixed_eight<FORMAT>(acc, rows, b0, x, scales, ahead.code_plane);
        ahead.code_plane += 4 * Ahead<FORMAT, 8>::CODE_BYTES;
        rows.advance<FORMAT>(4);
    }
    if (!SUPER && b0 < blocks) {  // K of the others is a multiple of 256
        ahead.scales();
        const bool last = (w.n - row - 8) * scale_rows.scales.stride < 16;  // what lies behind the rows
        pair_scales<FORMAT>(w, scale_rows, b0, last, super, &scales);
        const int pairs = static_cast<int>((blocks - b0) / 2);
        for (int i = 0; i < pairs; ++i) {
            ahead.codes();
            add_pair<FORMAT, false>(acc[i % 2], rows, i, b0 + 2 * i, x, scales);
        }
        if (blocks % 2) add_pair<FORMAT, true>(acc[pairs % 2], rows, pairs, b0 + 2 * pairs, x, scales);
    }
    const __m256 part0 = _mm256_permute2f128_ps(acc[0][0], acc[0][1], 0x20), part1 = _mm256_permute2f128_ps(acc[0][0], acc[0][1], 0x31);
    const __m256 part2 = _mm256_permute2f128_ps(acc[1][0], acc[1][1], 0x20), part3 = _mm256_permute2f128_ps(acc[1][0], acc[1][1], 0x31);
    return _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(part0, part1), part2), part3);
}
