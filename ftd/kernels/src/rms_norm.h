// Arguments of rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, row by row. out may be x.
#pragma once
#include "op.h"

namespace ftd {

struct RmsNormArgs {
    const float* x;       // [rows * heads, width]
    const float* weight;  // [width]
    float* out;           // [rows * heads, width]
    int32_t width;
    float eps;
    int32_t rows;   // one of Rows
    int32_t heads;  // normalised pieces in a row: 1, or the number of heads for a per-head norm
};

}  // namespace ftd
