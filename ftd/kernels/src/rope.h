// Arguments of rope. The cosines and sines of a step are made once by rope_table and read by every layer's rope.
#pragma once
#include "op.h"

namespace ftd {

struct RopeTableArgs {
    const float* inv_freq;  // [half]
    float* table;           // [T, 2 * half]: cosines, then sines
    int32_t half;           // rotated pairs of a head
    float scale;
};

struct RopeArgs {
    const float* x;      // [T, heads * channels]
    float* out;          // [T, heads * channels]; may be x
    const float* table;  // written by rope_table in the same step
    int32_t heads;
    int32_t channels;
    int32_t half;
};

}  // namespace ftd
