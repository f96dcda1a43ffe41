// Arguments of select_logit_rows: the wanted rows, one after the other.
#pragma once
#include "op.h"

namespace ftd {

struct SelectLogitRowsArgs {
    const float* x;  // [T, width]
    float* out;      // [num_logits, width]
    int32_t width;
};

}  // namespace ftd
