// Arguments of causal_conv: out[t] = silu(sum over j of weight[j] * input[t - K + 1 + j]), channel by channel.
#pragma once
#include "op.h"

namespace ftd {

constexpr int32_t MAX_TAPS = 16;

struct CausalConvArgs {
    const float* x;       // [T, C]
    const float* weight;  // [K, C] the last tap meets the token itself
    float* out;           // [T, C], not x
    float* state;         // [slots, K - 1, C] inputs before the step's, oldest first
    int64_t channels;     // C
    int32_t taps;         // K
};

}  // namespace ftd
