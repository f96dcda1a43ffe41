// Arguments of the op dequantize: all rows of a weight as floats.
#pragma once
#include "matrix.h"
#include "op.h"

namespace ftd {

struct DequantizeArgs {
    Matrix weight;
    float* out;  // [N, K]
};

}  // namespace ftd
