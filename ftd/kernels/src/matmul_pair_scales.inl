// Scales of eight rows as the products of one row of x want them, AVX2: see matmul_vector.inl for pairs and quads.

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
inline void transpose_bytes(const __m128i r[4], __m128i two[2]) {
    const __m128i a = _mm_unpacklo_epi8(r[0], r[1]), b = _mm_unpacklo_epi8(r[2], r[3]);
    two[0] = _mm_unpacklo_epi16(a, b);
    two[1] = _mm_unpackhi_epi16(a, b);
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

// Scales of four pairs of blocks of eight rows, and minimums, as they lie in the planes but in the order of quads: they
// become floats where they are used, since loads that widen cost less than moves between the halves of a register.
template <int32_t FORMAT>
struct PairScales {
    static constexpr bool MINS = Codes<FORMAT>::MINS, BYTES = Ahead<FORMAT, 8>::BYTE_SCALES;
    static constexpr int GROUPS = Codes<FORMAT>::GROUPS, QUAD = BYTES || GROUPS == 2 ? 8 : 16;  // bytes of a quad
    __m256 d[2], minus_dmin[2];  // [rows / 4] what all of them are multiplied by, if anything
    alignas(16) uint8_t scales[2][4 * GROUPS * QUAD], mins[2][MINS ? 4 * QUAD : 1];

    // Of pair i: row r of a four in lane r for the first block and in lane 4 + r for the second.
    __m256 scale(int i, int group, int half) const {
        const auto* from = reinterpret_cast<const __m128i*>(scales[half] + (GROUPS * i + group) * QUAD);
        if constexpr (QUAD == 16) return _mm256_cvtph_ps(_mm_load_si128(from));
        const __m128i eight = _mm_loadl_epi64(from);
        if constexpr (FORMAT == MXFP4) return half_powers(eight);
        if constexpr (FORMAT == NVFP4) return _mm256_mul_ps(small_floats(eight), d[half]);
        const __m256i wide = FORMAT == Q6_K ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
        return _mm256_mul_ps(d[half], _mm256_cvtepi32_ps(wide));
    }
    __m256 minimum(int i, int half) const {
        const uint8_t* from = mins[half] + QUAD * i;
        if constexpr (BYTES) return _mm256_mul_ps(minus_dmin[half], load_bytes(from));
        return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
    }
};

// One plane of scales, of four rows and four pairs.
template <int32_t FORMAT>
inline void order_quads(const EightRows& plane, int half, int64_t b0, bool last, uint8_t* out) {
    using S = PairScales<FORMAT>;
    constexpr int VECTORS = S::BYTES ? 2 : 4;
    __m128i rows[4], quads[4];
    four_rows<S::BYTES ? 8 : 16>(plane, 4 * half, S::BYTES ? b0 : 2 * b0, last, rows);
    if constexpr (S::BYTES)
        transpose_bytes(rows, quads);
    else if constexpr (S::GROUPS == 2)
        transpose_groups(rows, quads);
    else
        transpose_halves(rows, quads);
    for (int i = 0; i < VECTORS; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(out) + i, quads[i]);
}

// Scales of eight rows, blocks b0 .. b0 + 7 (b0 a multiple of 8; beyond the row: anything). `last`: fewer
// than 16 bytes lie behind the rows, which have no eight blocks left.
template <int32_t FORMAT>
inline void pair_scales(const Matrix& w, const ScaleRows& at, int64_t b0, bool last, const SuperScales<FORMAT>& super,
                        PairScales<FORMAT>* out) {
    using S = PairScales<FORMAT>;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        if constexpr (FORMAT == NVFP4) out->d[half] = _mm256_set1_ps(0.5f * *static_cast<const float*>(w.planes[2]));
        if constexpr (SuperScales<FORMAT>::ANY) out->d[half] = twice(super.d[b0 / 8 % 8], half);
        if constexpr (S::MINS && S::BYTES) out->minus_dmin[half] = twice(super.minus_dmin[b0 / 8 % 8], half);
        order_quads<FORMAT>(at.scales, half, b0, last, out->scales[half]);
        if constexpr (S::MINS) order_quads<FORMAT>(at.mins, half, b0, last, out->mins[half]);
    }
}
