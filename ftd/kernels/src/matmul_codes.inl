// Unpacks eight rows of codes and scales; included once for each instruction set, inside its namespace and target.
//
// A pair is two neighbouring blocks of a row: lo holds values 0-15 of both, hi values 16-31 (b0 in the low half).

// Bytes of codes, and of their high bits, that a pair has in a row.
template <int32_t FORMAT>
constexpr int64_t PAIR_BYTES = FORMAT == Q8_0 ? 64 : 32;
template <int32_t FORMAT>
constexpr int64_t PAIR_HIGH_BYTES = FORMAT == Q6_K ? 16 : Codes<FORMAT>::HIGH1 ? 8 : 0;

// The whole-number codes of the pair at `from`, as unsigned bytes (q8_0: signed); its high bits, if any, at `high`.
// `single`: the second block is past the row.
template <int32_t FORMAT>
inline void unpack_pair(const uint8_t* from, const uint8_t* high, bool single, __m256i* lo, __m256i* hi) {
    using C = Codes<FORMAT>;
    if constexpr (FORMAT == Q8_0) {
        const auto* codes = reinterpret_cast<const __m256i*>(from);
        const __m256i a = _mm256_loadu_si256(codes);
        const __m256i b = single ? _mm256_setzero_si256() : _mm256_loadu_si256(codes + 1);
        *lo = _mm256_permute2x128_si256(a, b, 0x20);
        *hi = _mm256_permute2x128_si256(a, b, 0x31);
        return;
    }
    const __m256i bytes = single ? _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))
                                 : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i nibble = _mm256_set1_epi8(15);
    *lo = _mm256_and_si256(bytes, nibble);
    *hi = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
    if constexpr (C::FP4) {
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(E2M1_CODES)));
        *lo = _mm256_shuffle_epi8(table, *lo);
        *hi = _mm256_shuffle_epi8(table, *hi);
    }
    if constexpr (C::HIGH1) {
        int64_t bits = 0;
        std::memcpy(&bits, high, single ? 4 : 8);
        const __m256i spread = _mm256_set1_epi64x(bits);
        const __m256i which_lo = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0404040404040404, 0x0505050505050505);
        const __m256i which_hi = _mm256_add_epi8(which_lo, _mm256_set1_epi8(2));
        const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
        const __m256i sixteen = _mm256_set1_epi8(16);
        const __m256i set_lo = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(spread, which_lo), bit), bit);
        const __m256i set_hi = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(spread, which_hi), bit), bit);
        *lo = _mm256_or_si256(*lo, _mm256_and_si256(set_lo, sixteen));
        *hi = _mm256_or_si256(*hi, _mm256_and_si256(set_hi, sixteen));
    }
    if constexpr (FORMAT == Q6_K) {
        const __m128i bytes16 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(high));
        constexpr int64_t FIRST = 0x0706050403020100, SECOND = 0x0f0e0d0c0b0a0908;
        const __m256i order = _mm256_setr_epi64x(FIRST, FIRST, SECOND, SECOND);
        const __m256i twice = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes16), order);  // b0 b0 b1 b1
        const __m256i above = _mm256_set1_epi8(0x30);  // where bits 4 and 5 of a code lie
        const __m256i add_lo = _mm256_and_si256(_mm256_sllv_epi64(twice, _mm256_setr_epi64x(4, 2, 4, 2)), above);
        const __m256i add_hi = _mm256_and_si256(_mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 2, 0, 2)), above);
        *lo = _mm256_or_si256(*lo, add_lo);
        *hi = _mm256_or_si256(*hi, add_hi);
    }
}

// The same of a pair of a row.
template <int32_t FORMAT>
inline void pair_codes(const Matrix& w, int64_t row, int64_t pair, bool single, __m256i* lo, __m256i* hi) {
    constexpr int64_t BYTES = PAIR_BYTES<FORMAT>, HIGH = PAIR_HIGH_BYTES<FORMAT>;
    const uint8_t* high = HIGH ? plane_row<uint8_t>(w, 1, row, w.k * HIGH / 64) + HIGH * pair : nullptr;
    unpack_pair<FORMAT>(plane_row<uint8_t>(w, 0, row, w.k * BYTES / 64) + BYTES * pair, high, single, lo, hi);
}

inline void transpose8(__m256 r[8]) {
    __m256 a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

inline __m256 load_halves(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// Halves first .. first + 7 of a row of `count`. Beyond the row lie the next row's, which nobody uses; beyond the last
// row lies nothing, so those are read through a copy.
inline __m256 load_row_halves(const Matrix& w, int plane, int64_t row, int64_t count, int64_t first) {
    const int64_t at = row * count + first, left = w.n * count - at;
    const uint16_t* from = static_cast<const uint16_t*>(w.planes[plane]) + at;
    if (left >= 8) return load_halves(from);
    uint16_t part[8] = {};
    std::memcpy(part, from, static_cast<size_t>(left) * 2);
    return load_halves(part);
}

// The same of rows row .. row + 7, transposed: out[i] holds item first + i of eight rows.
inline void eight_rows_halves(const Matrix& w, int plane, int64_t row, int64_t count, int64_t first, __m256* out) {
    if ((w.n - row - 7) * count - first >= 8) {
        const uint16_t* from = static_cast<const uint16_t*>(w.planes[plane]) + row * count + first;
        for (int r = 0; r < 8; ++r) out[r] = load_halves(from + r * count);
    } else {
        for (int r = 0; r < 8; ++r) out[r] = load_row_halves(w, plane, row + r, count, first);
    }
    transpose8(out);
}

inline __m256 load_bytes(const uint8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

// A half in all lanes.
inline __m256 spread_half(uint16_t half) { return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(half))); }

// Eight 8-bit floats, E4M3's values, by way of halves 2^8 smaller: sign extension puts the sign where it belongs.
inline __m256 small_floats(__m128i codes) {
    const __m128i wide = _mm_cvtepi8_epi16(codes), most = _mm_set1_epi16(0x7f);
    __m128i half = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbfff)));
    half = _mm_or_si128(half, _mm_and_si128(_mm_cmpeq_epi16(_mm_and_si128(wide, most), most), _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
}

// `count` bytes, at most eight, and zeros.
inline __m128i load_few(const uint8_t* from, int64_t count) {
    if (count >= 8) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; ++i) bytes |= static_cast<int64_t>(from[i]) << 8 * i;
    return _mm_cvtsi64_si128(bytes);
}

// Scales of 8 rows, blocks b0 .. b0 + count - 1 (b0 a multiple of 8): scales[GROUPS * b + g] and mins[b] hold 8 rows.
template <int32_t FORMAT>
inline void eight_scales(const Matrix& w, int64_t row, int64_t b0, int count, __m256* scales, __m256* mins) {
    using C = Codes<FORMAT>;
    if constexpr (FORMAT == MXFP4) {
        for (int r = 0; r < 8; ++r)
            for (int b = 0; b < count; ++b)
                reinterpret_cast<float*>(scales + b)[r] = E8M0_HALF.value[plane_row<uint8_t>(w, 1, row + r, w.k / 32)[b0 + b]];
    } else if constexpr (FORMAT == NVFP4) {
        const __m256 all = _mm256_set1_ps(0.5f * *static_cast<const float*>(w.planes[2]));
        for (int r = 0; r < 8; ++r) {
            const uint8_t* from = plane_row<uint8_t>(w, 1, row + r, w.k / 16) + 2 * b0;
            scales[r] = _mm256_mul_ps(small_floats(load_few(from, 2 * count)), all);
            scales[8 + r] = _mm256_mul_ps(small_floats(load_few(from + 8, 2 * count - 8)), all);
        }
        transpose8(scales);
        transpose8(scales + 8);
    } else if constexpr (FORMAT == Q6_K) {
        for (int r = 0; r < 8; ++r) {
            const __m256 d = spread_half(plane_row<uint16_t>(w, 3, row + r, w.k / 256)[b0 / 8]);
            const int8_t* from = plane_row<int8_t>(w, 2, row + r, w.k / 16) + 2 * b0;
            for (int half = 0; half < 2; ++half) {
                const __m128i s = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * half));
                scales[8 * half + r] = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s)));
            }
        }
        transpose8(scales);
        transpose8(scales + 8);
    } else if constexpr (FORMAT == Q4_K || FORMAT == Q5_K) {
        for (int r = 0; r < 8; ++r) {
            constexpr int P = C::SCALES_PLANE;
            const __m256 d = spread_half(plane_row<uint16_t>(w, P + 2, row + r, w.k / 256)[b0 / 8]);
            const __m256 dmin = spread_half(plane_row<uint16_t>(w, P + 3, row + r, w.k / 256)[b0 / 8] ^ 0x8000);  // minus
            scales[r] = _mm256_mul_ps(d, load_bytes(plane_row<uint8_t>(w, P, row + r, w.k / 32) + b0));
            mins[r] = _mm256_mul_ps(dmin, load_bytes(plane_row<uint8_t>(w, P + 1, row + r, w.k / 32) + b0));
        }
        transpose8(scales);
        transpose8(mins);
    } else {
        eight_rows_halves(w, C::SCALES_PLANE, row, w.k / 32, b0, scales);
        if constexpr (C::MINS) eight_rows_halves(w, C::SCALES_PLANE + 1, row, w.k / 32, b0, mins);
    }
}
