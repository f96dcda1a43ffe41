// Arguments of quantize_k: blocks of 256 floats become the planes of q4_k, q5_k or q6_k, each with a row a block.
#pragma once
#include "op.h"

namespace ftd {

struct QuantizeKArgs {
    const float* x;       // [blocks, 256] finite
    int64_t num_blocks;
    int32_t bits;         // 4, 5 or 6
    uint8_t* codes;       // [blocks, 128]
    uint8_t* high;        // [blocks, 32] of q5_k, [blocks, 64] of q6_k
    uint8_t* scales;      // [blocks, 8]; int8 [blocks, 16] of q6_k
    uint8_t* mins;        // [blocks, 8], not of q6_k
    uint16_t* d;          // [blocks] f16
    uint16_t* dmin;       // [blocks] f16, not of q6_k
};

}  // namespace ftd
