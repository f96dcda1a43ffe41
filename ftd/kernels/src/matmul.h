// Arguments of the ops quantize and matmul.
//
// Fast precision: x is quantised per block of 32 values along K as x = d * (q + z) with q and z whole numbers in
// -127 .. 127, and with weights s * (c - offset) + m
//   y = sum over blocks of  s * (d * J) + m * X     J = sum (c - offset) * (q + z), a whole number below 2^24: exact
//                                                   X = d * sum (q + z)
// evaluated in float with fused multiply-adds in one fixed order: blocks b, b + 4, b + 8 ... make one partial sum, and
// the four partial sums are added in their order. Every version (scalar, AVX2, AVX-512, one row or many) computes
// exactly this, so a result depends neither on the machine nor on the batch.
#pragma once
#include "matrix.h"
#include "op.h"

namespace ftd {

constexpr int64_t BLOCK = 32;

// T quantised rows. K is padded to groups of four blocks with zeros. Within a group q lies as
// b0[0:16] b1[0:16] b2[0:16] b3[0:16] b0[16:32] ... b3[16:32]: what unpacking 64 bytes of nibbles gives without a shuffle.
struct Activations {
    int8_t* q;       // [T, padded K]
    float* d;        // [T, padded K / 32] step
    float* z;        // [T, padded K / 32] whole number that q counts from, mostly 0
    float* sum32;    // [T, padded K / 32] X of each block
    int32_t* sum16;  // [T, padded K / 16] sum of q + z of each half block
    int32_t* q_sum;  // [T, padded K / 32] sum of q + z
    int64_t blocks;  // padded K / 32
    char* tiles;     // null, or the same for AMX: see matmul_amx_tokens.inl
};

inline int64_t activation_blocks(int64_t k) { return (k + 4 * BLOCK - 1) / (4 * BLOCK) * 4; }

// AMX reads 16 tokens of a block as one record: a tile of q and z, then d and X.
// With bfloat16 weights a record is a tile of the high parts of x and one of the low.
constexpr int64_t TILE_WIDTH = 16, TOKEN_RECORD = 16 * 64 + 2 * 64, TOKEN_SPLIT = 2 * 16 * 64;

// Bytes of t rows as instruction set `isa` wants them.
inline int64_t activation_bytes(int64_t t, int64_t k, int32_t isa = ISA_SCALAR) {
    const int64_t blocks = activation_blocks(k), bytes = t * blocks * (32 + 6 * 4) + 64;
    if (isa < ISA_AMX) return bytes;
    const int64_t records = (t + TILE_WIDTH - 1) / TILE_WIDTH * blocks, codes = bytes + records * TOKEN_RECORD;
    return codes > records * TOKEN_SPLIT ? codes : records * TOKEN_SPLIT;
}

// Lays the arrays of t rows into memory (64-aligned, activation_bytes long).
inline Activations place_activations(void* memory, int64_t t, int64_t k, int32_t isa = ISA_SCALAR) {
    const int64_t blocks = activation_blocks(k), items = t * blocks;
    char* at = static_cast<char*>(memory);
    Activations x;
    x.blocks = blocks;
    x.q = reinterpret_cast<int8_t*>(at);
    x.d = reinterpret_cast<float*>(at + items * 32);
    x.z = x.d + items;
    x.sum32 = x.z + items;
    x.sum16 = reinterpret_cast<int32_t*>(x.sum32 + items);
    x.q_sum = x.sum16 + 2 * items;
    x.tiles = isa >= ISA_AMX ? at + (items * (32 + 6 * 4) + 63) / 64 * 64 : nullptr;
    return x;
}

// Where products of bfloat16 weights on AMX have, instead of all that, x as one or two bfloat16: see matmul_amx_split.inl.
// Fewer than LEAST_SPLIT tokens have no records.
constexpr int64_t LEAST_SPLIT = 8;
inline char* split_records(const Activations& x) { return reinterpret_cast<char*>(x.q); }
inline int64_t split_width(int64_t num_tokens) { return num_tokens < TILE_WIDTH ? num_tokens : TILE_WIDTH; }

// Up to 16 rows of x, floats or bfloat16, that become the records of a tile of `width` tokens.
struct TokenRows {
    const void* at[TILE_WIDTH];
    int64_t count, width;
    bool are_bfloats;
};
using RecordsFn = void (*)(const TokenRows& rows, int64_t k, char* records) noexcept;

struct QuantizeArgs {
    const float* x;  // [rows, K]
    int64_t k;
    int32_t rows;    // Rows
    Activations out;
};

// One product of a matmul op: out = start + x W^T, where start is zero, the bias, or out itself (residual).
struct Product {
    Matrix weight;
    const float* bias;  // [N] or null
    float* out;         // [rows, N]
    int32_t add;        // out += instead of out =; excludes bias
    int32_t exact;      // 1: floats of x times exact weights; 0: quantised x
};

struct MatmulArgs {
    const Product* products;  // all of the same x
    int32_t num_products;
    int32_t rows;             // Rows
    const float* x;           // [rows, K]; read by exact products
    Activations activations;  // read by the others; made by a quantize op before
    char* scratch;            // matmul_scratch_bytes(K) for each part
    int64_t scratch_stride;
};

// What AMX works on at once: 64 rows of weights, of which 32 blocks are unpacked, and 256 tokens.
constexpr int64_t AMX_BLOCKS = 32, AMX_ROWS = 64, AMX_TOKENS = 256;
constexpr int64_t AMX_WEIGHT_BYTES = AMX_ROWS / 16 * AMX_BLOCKS * (16 * 64 + 2 * 64);
constexpr int64_t AMX_CODES_BYTES = AMX_WEIGHT_BYTES + AMX_TOKENS * AMX_ROWS * 4 * 4;

// Of bfloat16 weights: 192 rows, of which eight blocks are copied, and 512 tokens. Their sums and the copy take 480 KiB of
// the second cache's 2 MiB; of 32 tokens these blocks stay in the first.
constexpr int64_t SPLIT_ROWS = 192, SPLIT_TOKENS = 512, SPLIT_BLOCKS = 8;
constexpr int64_t SPLIT_COPY_BYTES = SPLIT_ROWS * SPLIT_BLOCKS * 64;
constexpr int64_t SPLIT_BYTES = SPLIT_COPY_BYTES + SPLIT_ROWS * SPLIT_TOKENS * 4;
constexpr int64_t AMX_SCRATCH_BYTES = AMX_CODES_BYTES > SPLIT_BYTES ? AMX_CODES_BYTES : SPLIT_BYTES;

// What the ops of one row of x are made of, for ops that share rows out in their own way.
//
// VectorFn: rows [begin, end) of a product; x and codes are the one row, of which the product reads one. While the last
// rows are computed those of `next` (or null) from next_row on are fetched.
// BlockFn: quantises the 32 values at x (null: zeros) as block b of the first row of out.
using VectorFn = void (*)(const Product& p, const float* x, const Activations& codes, int64_t begin, int64_t end,
                          const Matrix* next, int64_t next_row, char* scratch) noexcept;
using BlockFn = void (*)(const float* x, const Activations& out, int64_t b) noexcept;

// What AVX2 works on at once in exact products: panels of 16 rows of floats, lane j of them columns j, j + 16 ..., and
// six tokens; sums of lanes wait for the next columns. Four panels at most, in 200 KB of the second cache's 512.
constexpr int64_t PANEL_ROWS = 16, PANEL_TOKENS = 6, MOST_PANELS = 4, PANELS_BYTES = 200 * 1024;
struct alignas(64) LaneSums {
    float of[16][PANEL_TOKENS][PANEL_ROWS];
};
constexpr int64_t SUMS_BYTES = sizeof(LaneSums);

// Columns of a lane, odd: lanes that lie multiples of 4 KiB apart would share few places of the first cache.
inline int64_t lane_stride(int64_t k) { return (k + 15) / 16 | 1; }
inline int64_t panel_bytes(int64_t k) { return 16 * lane_stride(k) * PANEL_ROWS * 4; }
inline int64_t panels_at_once(int64_t k) {
    const int64_t count = PANELS_BYTES / panel_bytes(k);
    return count < 1 ? 1 : count > MOST_PANELS ? MOST_PANELS : count;
}

// Bytes of unpacked weights that one part holds: 32 rows of codes and four floats a block, or panels of floats, the
// rows that become one, and sums. A larger K never takes less.
inline int64_t matmul_scratch_bytes(int64_t k, int32_t isa = ISA_SCALAR) {
    const int64_t codes = activation_blocks(k) * 32 * (32 + 4 * 4) + 64, panel = panel_bytes(k);
    const int64_t floats = (PANELS_BYTES > panel ? PANELS_BYTES : panel) + panel + MOST_PANELS * SUMS_BYTES;
    const int64_t bytes = codes > floats ? codes : floats;
    return isa >= ISA_AMX && bytes < AMX_SCRATCH_BYTES ? AMX_SCRATCH_BYTES : bytes;
}

// Whether products of the fast precision take x as the sum of two bfloat16, high + low, which leaves 2^-17 of a value at
// most. Fewer than 8 tokens take the exact rows of AVX-512 all the same.
inline bool takes_split(const Matrix& w, int32_t isa) {
    return isa >= ISA_AMX && w.format == BF16 && w.n >= 16 && w.k % BLOCK == 0;
}

// Whether a format's codes are small whole numbers, so that the fast precision can use them.
inline bool has_integer_codes(const Matrix& w) {
    return w.format >= Q8_0 && w.format <= NVFP4 && w.k % BLOCK == 0;
}

}  // namespace ftd
