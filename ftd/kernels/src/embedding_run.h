// The SPMD function of embedding; only _embedding_cy includes this. One row a token: nothing to gain from wider vectors.
#pragma once
#include "dequantize_row.h"
#include "embedding.h"

namespace ftd {

inline void embedding_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const EmbeddingArgs*>(args);
    int64_t token, end;
    share(step->num_tokens, 1, thread, num_threads, &token, &end);
    for (; token < end; ++token) {
        float* out = a->out + token * a->width;
        dequantize_row(a->weight, step->ids[token], out);
        if (a->scale != 1.0f)
            for (int32_t i = 0; i < a->width; ++i) out[i] *= a->scale;
    }
}

}  // namespace ftd
