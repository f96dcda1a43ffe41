// Arguments of head_linear: out[t, h] = (W_h x[t, h, :K] or W_h^T x[t, h, :K], tail of x[t, h]).
#pragma once
#include "matrix.h"
#include "op.h"

namespace ftd {

struct HeadLinearArgs {
    const float* x;       // [T, heads, K + tail]
    float* out;           // [T, heads, N + tail]
    Matrix weight;        // [heads * R, M]
    float* scratch;       // head_linear_scratch_floats(M) for each part
    int32_t heads;
    int32_t tail;
    int32_t interleaved;  // 1: even channels of the tail, then odd ones
    int32_t first;        // rows [first, first + rows) of a head's R rows are W_h
    int32_t rows;
    int32_t transposed;   // 0: N = rows, K = M; 1: K = rows, N = M
};

constexpr int64_t HEAD_LINEAR_ROWS = 8;  // rows of a matrix that are floats at the same time

inline int64_t head_linear_scratch_floats(int64_t m) { return HEAD_LINEAR_ROWS * m; }

}  // namespace ftd
