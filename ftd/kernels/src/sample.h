// What one request's sampling needs, and the tables of vector functions under it.
#pragma once
#include <cstdint>

namespace ftd {

// The links of the chain are documented in sample_ref.py.
struct SampleOptions {
    double temperature;
    double top_p;
    double min_p;
    double typical_p;
    double repeat_penalty;
    double presence_penalty;
    double frequency_penalty;
    int32_t top_k;  // <= 0: all
};

constexpr int32_t SAMPLE_BLOCK = 64;  // logits that share one maximum

struct SampleKernels {
    // Writes the maximum of each block of SAMPLE_BLOCK values; returns whether any value is NaN.
    bool (*block_maxima)(const float* x, int32_t count, float* maxima);
    // x = exp(x * factor - shift * factor); returns the sum, in double over blocks.
    double (*exponentials)(float* x, int32_t count, float shift, float factor);
};

}  // namespace ftd
