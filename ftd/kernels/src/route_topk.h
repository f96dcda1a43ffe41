// Arguments of route_topk: the experts of each token and their weights.
#pragma once
#include "op.h"

namespace ftd {

constexpr int32_t MAX_GROUPS = 256;

struct RouteTopkArgs {
    const float* logits;  // [T, E]
    const float* bias;    // [E] or null; moves the choice, not the weights
    int32_t* ids;         // [T, K]
    float* weights;       // [T, K]
    float* work;          // [parts, 2 E]
    int32_t num_experts;
    int32_t num_chosen;
    int32_t sigmoid;      // scores: 1 sigmoid, 0 softmax
    int32_t renormalise;
    int32_t num_groups;
    int32_t top_groups;
    int32_t group_top;
    float scale;
};

}  // namespace ftd
