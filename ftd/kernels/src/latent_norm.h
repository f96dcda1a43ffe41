// Arguments of latent_norm: out = (rms_norm of the first `latent` channels of x, the others).
#pragma once
#include "op.h"

namespace ftd {

struct LatentNormArgs {
    const float* x;       // [T, width]
    const float* weight;  // [latent]
    float* out;           // [T, width]; not x
    int32_t width;
    int32_t latent;
    float eps;
    int32_t interleaved;  // 1: even channels behind the latent, then odd ones
};

}  // namespace ftd
