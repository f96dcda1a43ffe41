// Arguments of latent_store: the step's latents go to their pages.
#pragma once
#include "kv_store.h"
#include "op.h"

namespace ftd {

struct LatentStoreArgs {
    const float* x;     // [T, channels]
    void* pages;        // [P, page_size, channels]
    int32_t channels;
    int32_t page_type;  // one of PageType
};

}  // namespace ftd
