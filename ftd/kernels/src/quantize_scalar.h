// Quantising a block of activations in plain C++: the definition that the SIMD version must equal bit for bit.
#pragma once
#include <cmath>

#include "matmul_block.h"

namespace ftd {

// The 32 values of block b of row t.
inline void quantize_block_scalar(const float* x, const Activations& out, int64_t t, int64_t b) {
    float low = x[0], high = x[0];
    for (int64_t j = 1; j < 32; ++j) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
    }
    const int64_t i = t * out.blocks + b;
    const float d = (high - low) * (1.0f / 254.0f), z = 0.5f * (high + low);
    const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
    int8_t* q = out.q + t * out.blocks * 32;
    int32_t sums[2] = {0, 0};
    for (int64_t j = 0; j < 32; ++j) {
        float scaled = (x[j] - z) * inverse;
        scaled = scaled > 127.0f ? 127.0f : scaled < -127.0f ? -127.0f : scaled;
        const int32_t code = scaled == scaled ? static_cast<int32_t>(std::nearbyint(scaled)) : 0;
        q[q_place(b, j)] = static_cast<int8_t>(code);
        sums[j / 16] += code;
    }
    out.d[i] = d;
    out.z[i] = z;
    out.sum16[2 * i] = __builtin_fmaf(d, static_cast<float>(sums[0]), 16.0f * z);
    out.sum16[2 * i + 1] = __builtin_fmaf(d, static_cast<float>(sums[1]), 16.0f * z);
    out.sum32[i] = __builtin_fmaf(d, static_cast<float>(sums[0] + sums[1]), 32.0f * z);
    out.q_sum[i] = sums[0] + sums[1];
}

// The zeros that fill the last pair of a row.
inline void clear_block(const Activations& out, int64_t t, int64_t b) {
    const int64_t i = t * out.blocks + b;
    for (int64_t j = 0; j < 32; ++j) out.q[t * out.blocks * 32 + q_place(b, j)] = 0;
    out.d[i] = out.z[i] = out.sum32[i] = out.sum16[2 * i] = out.sum16[2 * i + 1] = 0.0f;
    out.q_sum[i] = 0;
}

}  // namespace ftd
