// Reads a buffer with all threads: what the machine's memory gives to a program that does nothing else.
#pragma once
#include "op.h"

namespace ftd {

struct ReadArgs {
    const uint64_t* data;
    int64_t count;
    uint64_t* sums;  // one for each part, 8 apart: keeps the reads alive
};

inline void read_op(const void* args, const Step*, int32_t thread, int32_t num_threads) noexcept {
    const ReadArgs& a = *static_cast<const ReadArgs*>(args);
    int64_t begin, end;
    share(a.count, 512, thread, num_threads, &begin, &end);
    uint64_t sum[8] = {};
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
        __builtin_prefetch(a.data + i + 128, 0, 2);  // as the products do: faster than what the hardware fetches alone
        for (int j = 0; j < 8; ++j) sum[j] ^= a.data[i + j];
    }
    for (; i < end; ++i) sum[0] ^= a.data[i];
    for (int j = 1; j < 8; ++j) sum[0] ^= sum[j];
    a.sums[8 * thread] = sum[0];
}

}  // namespace ftd
