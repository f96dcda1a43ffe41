// One row of x times a range of rows of W. While eight rows are computed the next eight are on their way from memory.

// Eight products, of rows row .. row + 7: store_product.
inline void store_products(const Product& p, int64_t row, __m256 sums) {
    float* out = p.out + row;
    if (p.add) sums = _mm256_add_ps(_mm256_loadu_ps(out), sums);
    if (p.bias) sums = _mm256_add_ps(_mm256_loadu_ps(p.bias + row), sums);
    _mm256_storeu_ps(out, sums);
}

template <int32_t FORMAT>
void vector_rows(const Product& p, const Activations& x, int64_t begin, int64_t end, const Matrix* next, int64_t next_row) {
    const Matrix& w = p.weight;
    if (w.n < 8) {
        for (int64_t row = begin; row < end; ++row) store_product(p, 0, row, dot_row_scalar<FORMAT>(w, row, x, 0));
        return;
    }
    for (int64_t row = begin; row < end; row += 8) {
        const int64_t first = row + 8 <= w.n ? row : w.n - 8;
        const __m256 sums = dot_rows8<FORMAT>(w, first, x, Ahead<FORMAT, 8>::after(w, row + 8, end, next, next_row));
        if (row + 8 <= end) {
            store_products(p, row, sums);
            continue;
        }
        alignas(32) float value[8];
        _mm256_store_ps(value, sums);
        for (int64_t i = row; i < end && i < row + 8; ++i) store_product(p, 0, i, value[i - first]);
    }
}
