// Arguments of geglu: out = gelu(gate) * up. out may be gate or up.
#pragma once
#include "op.h"

namespace ftd {

struct GegluArgs {
    const float* gate;  // [rows, width]
    const float* up;    // [rows, width]
    float* out;         // [rows, width]
    int32_t width;
    int32_t rows;  // one of Rows
};

}  // namespace ftd
