// Ops of so little work that one thread does them sooner than all threads meet: one op of a program instead of several.
#pragma once
#include "op.h"

namespace ftd {

struct Chain {
    const Op* ops;
    int64_t count;
};

inline void chain_op(const void* args, const Step* step, int32_t thread, int32_t) noexcept {
    const Chain& a = *static_cast<const Chain*>(args);
    if (thread != 0) return;
    for (int64_t i = 0; i < a.count; ++i) a.ops[i].run(a.ops[i].args, step, 0, 1);
}

}  // namespace ftd
