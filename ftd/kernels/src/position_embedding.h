// Arguments of position_embedding: out = x + table[positions]. out may be x.
#pragma once
#include "op.h"

namespace ftd {

struct PositionEmbeddingArgs {
    const float* x;      // [T, width]
    const float* table;  // [S, width]
    float* out;          // [T, width]
    int32_t width;
};

}  // namespace ftd
