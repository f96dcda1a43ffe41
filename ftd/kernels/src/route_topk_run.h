// The SPMD function of route_topk; only _route_topk_cy includes this. Plain C++: the work is T * E exponentials.
#pragma once
#include <cmath>

#include "route_topk.h"

namespace ftd {

// Exponentials in double and scores rounded once: ties and ranks are the reference's.
inline void router_scores(const RouteTopkArgs& a, const float* logits, float* scores) {
    double highest = logits[0], total = 0.0;
    for (int32_t e = 1; e < a.num_experts; ++e) highest = logits[e] > highest ? logits[e] : highest;
    if (!a.sigmoid)
        for (int32_t e = 0; e < a.num_experts; ++e) total += std::exp(logits[e] - highest);
    for (int32_t e = 0; e < a.num_experts; ++e)
        scores[e] = static_cast<float>(a.sigmoid ? 1.0 / (1.0 + std::exp(-static_cast<double>(logits[e])))
                                                 : std::exp(logits[e] - highest) / total);
}

// Marks all experts outside the best groups with -inf. A group counts the sum of its group_top best ranks.
inline void keep_top_groups(const RouteTopkArgs& a, float* ranks) {
    const int32_t size = a.num_experts / a.num_groups;
    double sums[MAX_GROUPS];
    bool allowed[MAX_GROUPS] = {};
    for (int32_t g = 0; g < a.num_groups; ++g) {
        const float* group = ranks + g * size;
        float last = INFINITY;
        int32_t last_at = -1;
        sums[g] = 0.0;
        for (int32_t i = 0; i < a.group_top; ++i) {  // the next in order of (falling rank, rising index)
            int32_t best = -1;
            for (int32_t e = 0; e < size; ++e) {
                const bool later = group[e] < last || (group[e] == last && e > last_at);
                if (later && (best < 0 || group[e] > group[best])) best = e;
            }
            last = group[best];
            last_at = best;
            sums[g] += last;
        }
    }
    for (int32_t i = 0; i < a.top_groups; ++i) {
        int32_t best = -1;
        for (int32_t g = 0; g < a.num_groups; ++g)
            if (!allowed[g] && (best < 0 || sums[g] > sums[best])) best = g;
        allowed[best] = true;
    }
    for (int32_t e = 0; e < a.num_experts; ++e)
        if (!allowed[e / size]) ranks[e] = -INFINITY;
}

// Ids of the best ranks, of equals the lowest; taken ones are marked with NaN, so ids are distinct and in range.
inline void choose_largest(const RouteTopkArgs& a, float* ranks, int32_t* ids) {
    for (int32_t i = 0; i < a.num_chosen; ++i) {
        int32_t best = -1;
        for (int32_t e = 0; e < a.num_experts; ++e)
            if (ranks[e] == ranks[e] && (best < 0 || ranks[e] > ranks[best])) best = e;
        ids[i] = best;
        ranks[best] = NAN;
    }
}

inline void route_row(const RouteTopkArgs& a, const float* logits, float* scores, float* ranks, int32_t* ids,
                      float* weights) {
    const bool plain = !a.sigmoid && !a.bias && a.num_groups == 1;
    if (!plain || !a.renormalise) router_scores(a, logits, scores);
    for (int32_t e = 0; e < a.num_experts; ++e) {
        const float rank = plain ? logits[e] : a.bias ? scores[e] + a.bias[e] : scores[e];
        ranks[e] = rank == rank ? rank : -INFINITY;
    }
    if (a.num_groups > 1) keep_top_groups(a, ranks);
    choose_largest(a, ranks, ids);
    double highest = logits[ids[0]], total = 0.0;
    for (int32_t i = 0; i < a.num_chosen; ++i) highest = logits[ids[i]] > highest ? logits[ids[i]] : highest;
    for (int32_t i = 0; i < a.num_chosen; ++i)
        total += a.sigmoid ? static_cast<double>(scores[ids[i]]) : std::exp(logits[ids[i]] - highest);
    for (int32_t i = 0; i < a.num_chosen; ++i) {
        double weight = 0.0;
        if (!a.renormalise)
            weight = scores[ids[i]];
        else if (a.sigmoid)
            weight = scores[ids[i]] / (total + 1e-20);
        else
            weight = std::exp(logits[ids[i]] - highest) / total;
        weights[i] = static_cast<float>(weight * a.scale);
    }
}

inline void route_topk_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const RouteTopkArgs& a = *static_cast<const RouteTopkArgs*>(args);
    float* scores = a.work + static_cast<int64_t>(thread) * 2 * a.num_experts;
    int64_t begin, end;
    share(step->num_tokens, 1, thread, num_threads, &begin, &end);
    for (int64_t t = begin; t < end; ++t)
        route_row(a, a.logits + t * a.num_experts, scores, scores + a.num_experts, a.ids + t * a.num_chosen,
                  a.weights + t * a.num_chosen);
}

}  // namespace ftd
