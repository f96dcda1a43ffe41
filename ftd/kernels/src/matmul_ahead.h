// Fetches weights into the caches ahead of the products of one row of x.
#pragma once
#include "matmul_block.h"

namespace ftd {

// The planes of the ROWS rows after those in work, in order: a piece with every pair and every eight blocks that the
// caller computes. Reading past the end of a matrix this way is harmless.
template <int32_t FORMAT, int ROWS>
struct Ahead {
    using C = Codes<FORMAT>;
    static constexpr bool BYTE_SCALES = FORMAT == Q4_K || FORMAT == Q5_K || FORMAT == MXFP4;
    // Values that one byte of a plane stands for: of high bits (0: none), of scales, of minimums.
    static constexpr int HIGH = FORMAT == Q6_K ? 4 : C::HIGH1 ? 8 : 0, SCALES = BYTE_SCALES ? 32 : 16;
    static constexpr int CODE_BYTES = ROWS * (FORMAT == Q8_0 ? 64 : 32);

    const char* code_plane;
    const char* high_plane;
    const char* scale_plane;
    const char* min_plane;

    static Ahead of(const Matrix& w, int64_t row) {
        const auto at = [&](int plane, int64_t part) { return static_cast<const char*>(w.planes[plane]) + row * (w.k / part); };
        return {at(0, FORMAT == Q8_0 ? 1 : 2), HIGH ? at(1, HIGH ? HIGH : 1) : nullptr, at(C::SCALES_PLANE, SCALES),
                C::MINS ? at(C::SCALES_PLANE + 1, SCALES) : nullptr};
    }
    // Of row `row` on, or where that is the end of what the caller computes, of `next`.
    static Ahead after(const Matrix& w, int64_t row, int64_t end, const Matrix* next, int64_t next_row) {
        return row < end || !next || next->format != FORMAT ? of(w, row) : of(*next, next_row);
    }
    template <int BYTES>
    static void fetch(const char** plane) {
        for (int at = 0; at < BYTES; at += 64) __builtin_prefetch(*plane + at, 0, FETCH_LOCALITY);
        *plane += BYTES;
    }
    void codes() { fetch<CODE_BYTES>(&code_plane); }
    void scales() {
        if constexpr (HIGH != 0) fetch<ROWS * 256 / (HIGH ? HIGH : 1)>(&high_plane);
        fetch<ROWS * 256 / SCALES>(&scale_plane);
        if constexpr (C::MINS) fetch<ROWS * 256 / SCALES>(&min_plane);
    }
};

}  // namespace ftd
