// Arguments of add: out = x + scale * y. out may be x or y.
#pragma once
#include "op.h"

namespace ftd {

struct AddArgs {
    const float* x;  // [rows, width]
    const float* y;  // [rows, width]
    float* out;      // [rows, width]
    float scale;
    int32_t width;
    int32_t rows;  // one of Rows
};

}  // namespace ftd
