// The op dequantize: threads share the rows. Not on any hot path, so there is one version for all instruction sets.
#pragma once
#include "dequantize.h"
#include "dequantize_row.h"

namespace ftd {

inline void dequantize_run(const void* args, const Step*, int32_t thread, int32_t num_threads) noexcept {
    const DequantizeArgs& a = *static_cast<const DequantizeArgs*>(args);
    int64_t begin, end;
    share(a.weight.n, 1, thread, num_threads, &begin, &end);
    for (int64_t row = begin; row < end; ++row) dequantize_row(a.weight, row, a.out + row * a.weight.k);
}

}  // namespace ftd
