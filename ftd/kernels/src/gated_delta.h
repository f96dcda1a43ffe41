// Arguments of gated_delta: one matrix of state for each value head, decayed, corrected and read token by token.
#pragma once
#include "op.h"

namespace ftd {

struct GatedDeltaArgs {
    const float* qkv;    // [T, 2 * Hk * Ck + Hv * Cv] query heads, key heads, value heads
    const float* a;      // [T, Hv]
    const float* b;      // [T, Hv]
    const float* decay;  // [Hv] below 0
    const float* bias;   // [Hv]
    float* out;          // [T, Hv * Cv]
    float* state;        // [slots, Hv, Ck, Cv]
    int32_t key_heads;       // Hk
    int32_t value_heads;     // Hv, a multiple of Hk
    int32_t key_channels;    // Ck
    int32_t value_channels;  // Cv
    int32_t tiled;           // value head h meets key head h % Hk; if 0, h / (Hv / Hk)
};

}  // namespace ftd
