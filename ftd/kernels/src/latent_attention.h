// Arguments of latent_attention and the size of its workspace.
#pragma once
#include "attention.h"
#include "kv_store.h"
#include "op.h"

namespace ftd {

struct LatentAttentionArgs {
    const float* q;      // [T, heads, channels]
    float* out;          // [T, heads, latent]
    const void* pages;   // [P, page_size, channels]
    float* scratch;      // latent_scratch_floats() for each part
    int32_t heads;
    int32_t channels;
    int32_t latent;      // first channels of a row: its value
    int32_t page_type;   // one of PageType
    float scale;
    const uint64_t* selected;  // [T, words] bits of the keys that a token sees, or null: all
    int32_t words;
};

// Rows (a token's head each) that share one pass over the keys: with their mixed values about what fits into L2.
constexpr int64_t LATENT_ROWS = 64;

inline int64_t latent_scratch_floats(int32_t channels, int32_t latent) {
    const int64_t wide = attention_padded(channels);
    return ATTENTION_TILE * wide + LATENT_ROWS * (ATTENTION_TILE + attention_padded(latent) + 16);
}

}  // namespace ftd
