// Arguments of sigmoid_gate: out = x * sigmoid(gate). out may be x or gate.
#pragma once
#include "op.h"

namespace ftd {

struct SigmoidGateArgs {
    const float* x;     // [rows, width]
    const float* gate;  // [rows, width]
    float* out;         // [rows, width]
    int32_t width;
    int32_t rows;  // one of Rows
};

}  // namespace ftd
