// Arguments of embedding: out = scale * weight[ids].
#pragma once
#include "op.h"
#include "matrix.h"

namespace ftd {

struct EmbeddingArgs {
    Matrix weight;  // [V, width]
    float* out;     // [T, width]
    int32_t width;
    float scale;
};

}  // namespace ftd
