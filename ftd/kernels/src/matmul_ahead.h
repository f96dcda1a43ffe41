// Fetches weights into the caches ahead of the products of one row of x.
#pragma once
#include "matmul_block.h"

namespace ftd {

// The planes of the rows after those in work, in order: a piece with every pair and every eight blocks that the caller
// computes. Reading past the end of a matrix this way is harmless.
struct Ahead {
    static constexpr int MAX_PLANES = 3;
    const char* code_plane;
    const char* planes[MAX_PLANES];  // of everything else
    int32_t code_bytes;              // of all rows and two blocks
    int32_t bytes[MAX_PLANES];       // of all rows and eight blocks
    int32_t num_planes;

    template <int32_t FORMAT>
    static Ahead of(const Matrix& w, int64_t row, int32_t rows = 8) {
        using C = Codes<FORMAT>;
        const int64_t code_row = FORMAT == Q8_0 ? w.k : w.k / 2;
        Ahead ahead = {static_cast<const char*>(w.planes[0]) + row * code_row, {}, rows * (FORMAT == Q8_0 ? 64 : 32), {}, 0};
        // part: values that one byte of a row of the plane stands for
        const auto add = [&](int plane, int64_t part) {
            ahead.planes[ahead.num_planes] = static_cast<const char*>(w.planes[plane]) + row * (w.k / part);
            ahead.bytes[ahead.num_planes++] = static_cast<int32_t>(rows * (256 / part));
        };
        constexpr bool K_SCALES = FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == MXFP4;
        if constexpr (C::HIGH1) add(1, 8);
        if constexpr (FORMAT == Q6_K) add(1, 4);
        add(C::SCALES_PLANE, K_SCALES ? 32 : 16);
        if constexpr (C::MINS) add(C::SCALES_PLANE + 1, K_SCALES ? 32 : 16);
        return ahead;
    }
    void codes() {
        for (int32_t at = 0; at < code_bytes; at += 64) __builtin_prefetch(code_plane + at, 0, FETCH_LOCALITY);
        code_plane += code_bytes;
    }
    void scales() {
        for (int32_t i = 0; i < num_planes; ++i) {
            for (int32_t at = 0; at < bytes[i]; at += 64) __builtin_prefetch(planes[i] + at, 0, FETCH_LOCALITY);
            planes[i] += bytes[i];
        }
    }
};

}  // namespace ftd
