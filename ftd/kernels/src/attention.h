// Arguments of attention and the size of its workspace.
#pragma once
#include "kv_store.h"
#include "op.h"

namespace ftd {

struct AttentionArgs {
    const float* q;       // [T, heads, channels]
    float* out;           // [T, heads, channels]
    const void* k_pages;  // [P, groups, channels, page_size]
    const void* v_pages;  // [P, groups, page_size, channels]
    const float* sinks;   // [heads] or null
    int32_t heads;
    int32_t groups;       // key-value heads
    int32_t channels;
    int32_t page_type;    // one of PageType
    int32_t window;       // 0: all
    float scale;
    // From attention_workspace_bytes() with these numbers, its first attention_counter_bytes() zeroed once. Ops of the
    // same heads, groups and channels that run one after the other share one workspace.
    void* workspace;
    int32_t max_sequences;
    int32_t max_keys;     // longest context
    int32_t bidirectional;  // 1: every query sees all keys of its sequence
};

// Keys are taken in tiles; a split is what one part of a decode step works on. Both start at multiples of their length,
// and a row's result is made split by split in rising order in prefill too: so it has the same bits however the tokens
// were divided into steps, sequences, parts and threads.
constexpr int32_t ATTENTION_TILE = 64;
constexpr int32_t ATTENTION_SPLIT = 128;
constexpr int32_t ATTENTION_ROWS = 96;  // query rows that share one pass over the keys: about what fits into L2

inline int64_t attention_padded(int64_t channels) { return (channels + 15) / 16 * 16; }

inline int64_t attention_max_rows(int32_t heads, int32_t groups) {
    const int32_t group = heads / groups;
    return group > ATTENTION_ROWS ? group : ATTENTION_ROWS;
}

// Counters: next item, parts done, then for each sequence and key-value head the splits done.
inline int64_t attention_counter_bytes(int32_t groups, int32_t max_sequences) {
    return (4 * (2 + static_cast<int64_t>(max_sequences) * groups) + 63) / 64 * 64;
}

// Floats of one unfinished split row: maximum, sum, weighted values.
inline int64_t attention_partial_floats(int32_t channels) { return attention_padded(channels) + 16; }

inline int64_t attention_max_splits(int32_t max_keys) { return (max_keys + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT; }

inline int64_t attention_all_partial_floats(int32_t heads, int32_t channels, int32_t max_keys, int32_t max_sequences) {
    return attention_max_splits(max_keys) * max_sequences * heads * attention_partial_floats(channels);
}

// Floats that each part needs for itself.
inline int64_t attention_scratch_floats(int32_t heads, int32_t groups, int32_t channels) {
    const int64_t rows = attention_max_rows(heads, groups), wide = attention_padded(channels);
    return rows * (3 * wide + ATTENTION_TILE + 16) + 2 * ATTENTION_TILE * wide;
}

inline int64_t attention_workspace_bytes(int32_t heads, int32_t groups, int32_t channels, int32_t max_keys,
                                         int32_t max_sequences, int32_t num_threads) {
    const int64_t partial = attention_all_partial_floats(heads, channels, max_keys, max_sequences);
    const int64_t scratch = num_threads * attention_scratch_floats(heads, groups, channels);
    return attention_counter_bytes(groups, max_sequences) + 4 * (scratch + partial);
}

}  // namespace ftd
