// Arguments of gelu: out = x * (1 + erf(x / sqrt(2))) / 2. out may be x.
#pragma once
#include "op.h"

namespace ftd {

struct GeluArgs {
    const float* x;  // [rows, width]
    float* out;      // [rows, width]
    int32_t width;
    int32_t rows;  // one of Rows
};

}  // namespace ftd
