// Quantising a block of activations in plain C++: the definition that the SIMD version must equal bit for bit.
#pragma once
#include <cmath>

#include "matmul_block.h"

namespace ftd {

// What a block holds besides q: its step, its zero and its sums (sum0, sum1: of q in each half).
inline void store_block(const Activations& out, int64_t i, float d, float z, int32_t sum0, int32_t sum1) {
    const int32_t zeros = 16 * static_cast<int32_t>(z);
    out.d[i] = d;
    out.z[i] = z;
    out.sum16[2 * i] = sum0 + zeros;
    out.sum16[2 * i + 1] = sum1 + zeros;
    out.q_sum[i] = sum0 + sum1 + 2 * zeros;
    out.sum32[i] = d * static_cast<float>(out.q_sum[i]);
}

// Widens the range of a block, which holds 0, to the same on both sides unless that makes the step more than 8/5 as long.
// Most blocks get z = 0 by that, which saves the products of one row a fifth of their work; blocks of one sign keep
// their precision.
inline void widen_range(float* low, float* high) {
    const float most = *high > -*low ? *high : -*low;
    if (*high - *low < 1.25f * most) return;
    *low = -most;
    *high = most;
}

// The 32 values of block b of row t. The range is widened to hold 0, so that z fits where all values have one sign; one
// level less than q has leaves room for the rounding of z.
inline void quantize_block_scalar(const float* x, const Activations& out, int64_t t, int64_t b) {
    float low = 0.0f, high = 0.0f;
    for (int64_t j = 0; j < 32; ++j) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
    }
    widen_range(&low, &high);
    const int64_t i = t * out.blocks + b;
    const float d = (high - low) * (1.0f / 253.0f);
    const float inverse = d >= 0x1p-126f && d < INFINITY ? 1.0f / d : 0.0f;
    const float z = std::nearbyint(0.5f * (high + low) * inverse);
    int8_t* q = out.q + t * out.blocks * 32;
    int32_t sums[2] = {0, 0};
    bool is_number = d < INFINITY;
    for (int64_t j = 0; j < 32; ++j) {
        is_number = is_number && x[j] == x[j];
        float code = std::nearbyint(x[j] * inverse) - z;
        code = code < 127.0f ? code : 127.0f;
        code = code > -127.0f ? code : -127.0f;
        q[q_place(b, j)] = static_cast<int8_t>(code);
        sums[j / 16] += static_cast<int32_t>(code);
    }
    store_block(out, i, is_number ? d : NAN, is_number ? z : 0.0f, sums[0], sums[1]);
}

// The zeros that fill the last group of a row.
inline void clear_block(const Activations& out, int64_t t, int64_t b) {
    for (int64_t j = 0; j < 32; ++j) out.q[t * out.blocks * 32 + q_place(b, j)] = 0;
    store_block(out, t * out.blocks + b, 0.0f, 0.0f, 0, 0);
}

}  // namespace ftd
