// Arguments of layer_norm: out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, row by row. out may be x.
#pragma once
#include "op.h"

namespace ftd {

struct LayerNormArgs {
    const float* x;       // [rows, width]
    const float* weight;  // [width]
    const float* bias;    // [width]
    float* out;           // [rows, width]
    int32_t width;
    float eps;
    int32_t rows;  // one of Rows
};

}  // namespace ftd
