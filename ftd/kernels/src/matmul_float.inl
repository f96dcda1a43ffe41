// Exact products: rows of W as floats in L1, dot products of 16 lanes in one fixed order (dot_floats_scalar's).

#if FTD_VNNI
struct Lanes16 {
    __m512 v;
    void clear() { v = _mm512_setzero_ps(); }
    void add(const float* a, const float* b) { v = _mm512_fmadd_ps(_mm512_loadu_ps(a), _mm512_loadu_ps(b), v); }
    void store(float* out) const { _mm512_storeu_ps(out, v); }
};
#else
struct Lanes16 {
    __m256 v0, v1;
    void clear() { v0 = v1 = _mm256_setzero_ps(); }
    void add(const float* a, const float* b) {
        v0 = _mm256_fmadd_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b), v0);
        v1 = _mm256_fmadd_ps(_mm256_loadu_ps(a + 8), _mm256_loadu_ps(b + 8), v1);
    }
    void store(float* out) const {
        _mm256_storeu_ps(out, v0);
        _mm256_storeu_ps(out + 8, v1);
    }
};
#endif

// One row of W as floats, the same bits as dequantize_row.
inline void float_row(const Matrix& w, int64_t row, float* out) {
    int64_t i = 0;
    if (w.format == F16) {
        const uint16_t* from = plane_row<uint16_t>(w, 0, row, w.k);
        for (; i + 8 <= w.k; i += 8) _mm256_storeu_ps(out + i, load_halves(from + i));
        for (; i < w.k; ++i) out[i] = half_to_float(from[i]);
    } else if (w.format == BF16) {
        const uint16_t* from = plane_row<uint16_t>(w, 0, row, w.k);
        for (; i + 8 <= w.k; i += 8) {
            const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
            _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
        }
        for (; i < w.k; ++i) out[i] = bfloat_to_float(from[i]);
    } else {
        dequantize_row(w, row, out);
    }
}

template <int NT>
void float_tokens(const float* const rows[4], int64_t count, const Product& p, const float* x, int64_t row, int64_t t) {
    const int64_t k = p.weight.k;
    Lanes16 acc[4][NT];
    for (int r = 0; r < 4; ++r)
        for (int i = 0; i < NT; ++i) acc[r][i].clear();
    int64_t at = 0;
    for (; at + 16 <= k; at += 16)
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r)
#pragma GCC unroll 4
            for (int i = 0; i < NT; ++i) acc[r][i].add(rows[r] + at, x + (t + i) * k + at);
    for (int64_t r = 0; r < count; ++r)
        for (int i = 0; i < NT; ++i) {
            float lane[16];
            acc[r][i].store(lane);
            for (int64_t j = 0; at + j < k; ++j)
                lane[j] = __builtin_fmaf(rows[r][at + j], x[(t + i) * k + at + j], lane[j]);
            for (int width = 8; width > 0; width /= 2)
                for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
            store_product(p, t + i, row + r, lane[0]);
        }
}

// Rows [begin, end) of one exact product for tokens [t0, t1).
inline void float_range(const Product& p, const float* x, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                        char* scratch) {
    const int64_t k = p.weight.k;
    auto* values = reinterpret_cast<float*>(scratch);
    for (int64_t row = begin; row < end; row += 4) {
        const int64_t count = end - row < 4 ? end - row : 4;
        const float* rows[4];
        for (int64_t r = 0; r < 4; ++r) {
            if (r >= count) {
                rows[r] = rows[0];
            } else if (p.weight.format == F32) {
                rows[r] = plane_row<float>(p.weight, 0, row + r, k);
            } else {
                float_row(p.weight, row + r, values + r * k);
                rows[r] = values + r * k;
            }
        }
        int64_t t = t0;
        for (; t + 3 <= t1; t += 3) float_tokens<3>(rows, count, p, x, row, t);
        for (; t < t1; ++t) float_tokens<1>(rows, count, p, x, row, t);
    }
}
