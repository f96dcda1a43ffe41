// Arguments of kv_store: keys and values of the step go to their pages.
#pragma once
#include "op.h"

namespace ftd {
enum PageType : int32_t { PAGES_F32 = 0, PAGES_F16 = 1 };
}

namespace ftd {

struct KvStoreArgs {
    const float* k;  // [T, groups, channels]
    const float* v;  // [T, groups, channels]
    void* k_pages;   // [P, groups, channels, page_size]
    void* v_pages;   // [P, groups, page_size, channels]
    int32_t groups;
    int32_t channels;
    int32_t page_type;  // one of PageType
};

}  // namespace ftd
