// Arguments of head_linear: out[t, h] = (W_h x[t, h, :K], tail of x[t, h]).
#pragma once
#include "matrix.h"
#include "op.h"

namespace ftd {

struct HeadLinearArgs {
    const float* x;       // [T, heads, K + tail]
    float* out;           // [T, heads, N + tail]
    Matrix weight;        // [heads * N, K]
    float* scratch;       // head_linear_scratch_floats(K) for each part
    int32_t heads;
    int32_t tail;
    int32_t interleaved;  // 1: even channels of the tail, then odd ones
};

constexpr int64_t HEAD_LINEAR_ROWS = 8;  // rows of a matrix that are floats at the same time

inline int64_t head_linear_scratch_floats(int64_t k) { return HEAD_LINEAR_ROWS * k; }

}  // namespace ftd
