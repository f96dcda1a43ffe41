// Dot products of R rows with N rows, each one chain of fma over W lanes in rising order of channels and one sum of the
// lanes: the same bits whatever R and N are.

template <int R, int N>
static inline void dot_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int channels, float scale,
                             float* out, int64_t out_stride, int64_t out_step) {
    vf sums[R][N];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sums[r][n] = zero();
    int c = 0;
    for (; c + W <= channels; c += W) {
        vf right[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) right[n] = load(b + n * b_stride + c);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const vf left = load(a + r * a_stride + c);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) sums[r][n] = fma(left, right[n], sums[r][n]);
        }
    }
    if (c < channels) {
        const int rest = channels - c;
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n)
                sums[r][n] = fma(load_part(a + r * a_stride + c, rest), load_part(b + n * b_stride + c, rest), sums[r][n]);
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) out[r * out_stride + n * out_step] = sum(sums[r][n]) * scale;
}

constexpr int DOT_ROWS = TILE_VECTORS == 1 ? 2 : 4, DOT_COLUMNS = TILE_VECTORS == 4 ? 4 : 2;  // sums stay in registers

// out[r * out_stride + n * out_step] = scale * a[r] . b[n] for all of `rows` and `columns`.
static void dot_tile(int64_t rows, const float* a, int64_t a_stride, int64_t columns, const float* b, int64_t b_stride,
                     int channels, float scale, float* out, int64_t out_stride, int64_t out_step) {
    for (int64_t n = 0; n < columns;) {
        const bool wide = columns - n >= DOT_COLUMNS;
        const float* right = b + n * b_stride;
        for (int64_t r = 0; r < rows;) {
            const float* left = a + r * a_stride;
            float* to = out + r * out_stride + n * out_step;
            if (rows - r >= DOT_ROWS) {
                if (wide)
                    dot_block<DOT_ROWS, DOT_COLUMNS>(left, a_stride, right, b_stride, channels, scale, to, out_stride, out_step);
                else
                    dot_block<DOT_ROWS, 1>(left, a_stride, right, b_stride, channels, scale, to, out_stride, out_step);
                r += DOT_ROWS;
            } else {
                if (wide)
                    dot_block<1, DOT_COLUMNS>(left, a_stride, right, b_stride, channels, scale, to, out_stride, out_step);
                else
                    dot_block<1, 1>(left, a_stride, right, b_stride, channels, scale, to, out_stride, out_step);
                ++r;
            }
        }
        n += wide ? DOT_COLUMNS : 1;
    }
}
