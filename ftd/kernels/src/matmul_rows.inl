// One row of x times a range of rows of W. While eight rows are computed the next eight are on their way from memory.

template <int32_t FORMAT>
void vector_rows(const Product& p, const Activations& x, int64_t begin, int64_t end, const Matrix* next, int64_t next_row) {
    const Matrix& w = p.weight;
    if (w.n < 8) {
        for (int64_t row = begin; row < end; ++row) store_product(p, 0, row, dot_row_scalar<FORMAT>(w, row, x, 0));
        return;
    }
    for (int64_t row = begin; row < end; row += 8) {
        const int64_t first = row + 8 <= w.n ? row : w.n - 8;
        alignas(32) float value[8];
        _mm256_store_ps(value, dot_rows8<FORMAT>(w, first, x, Ahead<FORMAT, 8>::after(w, row + 8, end, next, next_row)));
        for (int64_t i = row; i < end && i < row + 8; ++i) store_product(p, 0, i, value[i - first]);
    }
}
