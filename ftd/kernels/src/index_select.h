// Arguments of index_select and the size of its scratch.
#pragma once
#include "attention.h"
#include "kv_store.h"
#include "op.h"

namespace ftd {

struct IndexSelectArgs {
    const float* q;        // [T, heads, channels]
    const float* weights;  // [T, heads]
    const void* pages;     // [P, page_size, channels]
    uint64_t* selected;    // [T, words]
    float* scratch;        // index_scratch_floats() for each part
    int32_t heads;
    int32_t channels;
    int32_t page_type;     // one of PageType
    int32_t count;
    int32_t words;
};

// A tile of keys as floats, its scores by head, and the scores of all keys twice (to find the least that is selected).
inline int64_t index_scratch_floats(int32_t heads, int32_t channels, int32_t words) {
    return ATTENTION_TILE * (attention_padded(channels) + heads) + 2 * ATTENTION_TILE * static_cast<int64_t>(words);
}

}  // namespace ftd
