// Scales of eight rows as the products of one row of x want them, AVX2: see matmul_vector.inl for pairs and quads.

// Scales of a pair of blocks of eight rows, [group][rows / 4], and minimums, [rows / 4]: row r of a four in lane r of
// its quad for the first block and in lane 4 + r for the second.
template <int32_t FORMAT>
struct PairScales {
    __m256 scale[Codes<FORMAT>::GROUPS][2], minimum[2];
};

// Eight rows of a plane: few registers say where all of them lie.
struct EightRows {
    const uint8_t* third[3];  // rows 0, 3 and 6
    int64_t stride;           // bytes of a row

    static EightRows of(const Matrix& w, int plane, int64_t row, int64_t stride) {
        const uint8_t* first = plane_row<uint8_t>(w, plane, row, stride);
        return {{first, first + 3 * stride, first + 6 * stride}, stride};
    }
    const uint8_t* at(int r) const { return third[r / 3] + r % 3 * stride; }
    void advance(int64_t bytes) {
        for (auto& row : third) row += bytes;
    }
};

// Scales of eight rows, and minimums.
struct ScaleRows {
    EightRows scales, mins;

    template <int32_t FORMAT>
    static ScaleRows of(const Matrix& w, int64_t row) {
        using C = Codes<FORMAT>;
        const int64_t stride = w.k / Ahead<FORMAT, 8>::SCALES;
        return {EightRows::of(w, C::SCALES_PLANE, row, stride),
                C::MINS ? EightRows::of(w, C::SCALES_PLANE + 1, row, stride) : EightRows{}};
    }
};

// BYTES bytes (8 or 16) from byte `at` of four rows on. Beyond a row lies the next row's, which nobody uses; beyond the
// last row lies nothing, so of the last rows no more than a row is read.
template <int BYTES>
inline void four_rows(const EightRows& rows, int first, int64_t at, bool last, __m128i out[4]) {
    for (int r = 0; r < 4; ++r) {
        const uint8_t* from = rows.at(first + r) + at;
        uint8_t part[16] = {};
        if (last) [[unlikely]] {
            std::memcpy(part, from, static_cast<size_t>(rows.stride - at < BYTES ? rows.stride - at : BYTES));
            out[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part));
        } else {
            const auto* items = reinterpret_cast<const __m128i*>(from);
            out[r] = BYTES == 8 ? _mm_loadl_epi64(items) : _mm_loadu_si128(items);
        }
    }
}

// The halves of a pair of blocks of four rows, from eight of each row.
inline void transpose_halves(const __m128i r[4], __m128i pairs[4]) {
    const __m128i a = _mm_unpacklo_epi16(r[0], r[1]), b = _mm_unpacklo_epi16(r[2], r[3]);
    const __m128i c = _mm_unpackhi_epi16(r[0], r[1]), d = _mm_unpackhi_epi16(r[2], r[3]);
    pairs[0] = _mm_unpacklo_epi32(a, b);
    pairs[1] = _mm_unpackhi_epi32(a, b);
    pairs[2] = _mm_unpacklo_epi32(c, d);
    pairs[3] = _mm_unpackhi_epi32(c, d);
}

// The bytes of two pairs of blocks of four rows in each of two vectors, from eight of each row.
inline void transpose_bytes(const __m128i r[4], __m128i pairs[4]) {
    const __m128i a = _mm_unpacklo_epi8(r[0], r[1]), b = _mm_unpacklo_epi8(r[2], r[3]);
    pairs[0] = _mm_unpacklo_epi16(a, b);
    pairs[1] = _mm_unpackhi_epi64(pairs[0], pairs[0]);
    pairs[2] = _mm_unpackhi_epi16(a, b);
    pairs[3] = _mm_unpackhi_epi64(pairs[2], pairs[2]);
}

// The same from 16 bytes of each row, two of a block: those of the first group in the low half of a pair's vector.
inline void transpose_groups(const __m128i rows[4], __m128i pairs[4]) {
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    __m128i r[4];
    for (int i = 0; i < 4; ++i) r[i] = _mm_shuffle_epi8(rows[i], order);
    const __m128i a = _mm_unpacklo_epi8(r[0], r[1]), b = _mm_unpacklo_epi8(r[2], r[3]);
    const __m128i c = _mm_unpackhi_epi8(r[0], r[1]), d = _mm_unpackhi_epi8(r[2], r[3]);
    pairs[0] = _mm_unpacklo_epi16(a, b);
    pairs[1] = _mm_unpackhi_epi16(a, b);
    pairs[2] = _mm_unpacklo_epi16(c, d);
    pairs[3] = _mm_unpackhi_epi16(c, d);
}

// Scales of eight superblocks of 256 values of eight rows, and minus their minimums: superblock i in d[i], a row a lane.
template <int32_t FORMAT>
struct SuperScales {
    static constexpr bool ANY = FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == Q6_K, MINS = Codes<FORMAT>::MINS;
    __m256 d[ANY ? 8 : 1], minus_dmin[MINS ? 8 : 1];

    void load(const Matrix& w, int64_t row, int64_t first) {
        constexpr int PLANE = FORMAT == Q6_K ? 3 : Codes<FORMAT>::SCALES_PLANE + 2;
        eight_rows_halves(w, PLANE, row, w.k / 256, first, d);
        if constexpr (MINS) {
            eight_rows_halves(w, PLANE + 1, row, w.k / 256, first, minus_dmin);
            for (auto& scale : minus_dmin) scale = _mm256_xor_ps(scale, _mm256_set1_ps(-0.0f));
        }
    }
};

// Lanes 0-3 or 4-7 in both halves.
inline __m256 twice(__m256 v, int half) {
    return half ? _mm256_permute2f128_ps(v, v, 0x11) : _mm256_permute2f128_ps(v, v, 0x00);
}

// Half of the power of two that each of eight bytes is: its exponent, of which 0 and 1 make subnormals and 255 NaN.
inline __m256 half_powers(__m128i codes) {
    const __m256i e = _mm256_cvtepu8_epi32(codes), one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e);
    const __m256i bits = _mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one));
    const __m256i is_nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), is_nan));
}

// Scales of eight rows, blocks b0 .. b0 + 7 (b0 a multiple of 8; beyond the row: anything). `last`: fewer
// than 16 bytes lie behind the rows, which have no eight blocks left.
template <int32_t FORMAT>
inline void pair_scales(const Matrix& w, const ScaleRows& at, int64_t b0, bool last, const SuperScales<FORMAT>& super,
                        PairScales<FORMAT> out[4]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        __m128i rows[4], pairs[4];
        if constexpr (FORMAT == MXFP4) {
            four_rows<8>(at.scales, 4 * half, b0, last, rows);
            transpose_bytes(rows, pairs);
            for (int i = 0; i < 4; ++i) out[i].scale[0][half] = half_powers(pairs[i]);
        } else if constexpr (FORMAT == NVFP4) {
            const __m256 all = _mm256_set1_ps(0.5f * *static_cast<const float*>(w.planes[2]));
            four_rows<16>(at.scales, 4 * half, 2 * b0, last, rows);
            transpose_groups(rows, pairs);
            for (int i = 0; i < 4; ++i) {
                out[i].scale[0][half] = _mm256_mul_ps(small_floats(pairs[i]), all);
                out[i].scale[1][half] = _mm256_mul_ps(small_floats(_mm_unpackhi_epi64(pairs[i], pairs[i])), all);
            }
        } else if constexpr (FORMAT == Q6_K) {
            const __m256 d = twice(super.d[b0 / 8 % 8], half);
            four_rows<16>(at.scales, 4 * half, 2 * b0, last, rows);
            transpose_groups(rows, pairs);
            for (int i = 0; i < 4; ++i) {
                const __m128i second = _mm_unpackhi_epi64(pairs[i], pairs[i]);
                out[i].scale[0][half] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(pairs[i])));
                out[i].scale[1][half] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(second)));
            }
        } else if constexpr (FORMAT == Q4_K || FORMAT == Q5_K) {
            const __m256 d = twice(super.d[b0 / 8 % 8], half), minus_dmin = twice(super.minus_dmin[b0 / 8 % 8], half);
            four_rows<8>(at.scales, 4 * half, b0, last, rows);
            transpose_bytes(rows, pairs);
            for (int i = 0; i < 4; ++i)
                out[i].scale[0][half] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(pairs[i])));
            four_rows<8>(at.mins, 4 * half, b0, last, rows);
            transpose_bytes(rows, pairs);
            for (int i = 0; i < 4; ++i)
                out[i].minimum[half] = _mm256_mul_ps(minus_dmin, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(pairs[i])));
        } else {
            four_rows<16>(at.scales, 4 * half, 2 * b0, last, rows);
            transpose_halves(rows, pairs);
            for (int i = 0; i < 4; ++i) out[i].scale[0][half] = _mm256_cvtph_ps(pairs[i]);
            if constexpr (Codes<FORMAT>::MINS) {
                four_rows<16>(at.mins, 4 * half, 2 * b0, last, rows);
                transpose_halves(rows, pairs);
                for (int i = 0; i < 4; ++i) out[i].minimum[half] = _mm256_cvtph_ps(pairs[i]);
            }
        }
    }
}
