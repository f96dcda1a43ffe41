// Arguments of the ops of expert_ffn, which run in this order:
//
//   sort      pairs (token, choice) by expert; counts the experts' uses
//   gather    rows of x in that order, quantised
//   gate_up   each named expert's products with its rows
//   activate  what goes to down, quantised
//   down      each named expert's product
//   combine   the weighted sum of each token's rows
//
// The products are matmul's: an expert is one call of its op for the rows of that expert, so bits, formats and
// instruction sets are matmul's too. All parts work on every expert, each on its share of the matrix rows.
//
// Of one token the rows of all its experts form one line that the parts share, x is quantised once, and gate_up also
// does what activate does, 32 rows of gate and of up at a time.
//
// Where tiles of AMX take bfloat16 weights, gather and activate write records (matmul_amx_split.inl) of the rows of each
// expert that has LEAST_SPLIT of them, 16 at a time; rows of the others are floats as ever.
#pragma once
#include "matmul.h"
#include "op.h"

namespace ftd {

struct ExpertFfnArgs;

// Parts of one token's experts for who shares them out in its own way (expert_worker.h), after sort and gather. They
// fetch the first weights of the part that begins at `next`, if that is not negative.
//
// hidden   values [begin, end) of the line of all experts' hidden values, not quantised; begin at a multiple of 8 of an
//          expert's
// columns  columns [begin, end) of out: down and combine
using PartFn = void (*)(const ExpertFfnArgs& a, int64_t begin, int64_t end, int64_t next) noexcept;

struct ExpertFfnArgs {
    const float* x;        // [T, D]
    const uint16_t* bfloats;  // [T, D] of bfloat16 in place of x, of several tokens where there are tiles; else null
    const int32_t* ids;    // [T, K]
    const float* weights;  // [T, K]
    float* out;            // [T, D]
    uint16_t* out_bfloats; // [T, D] of bfloat16 in place of out, or null
    int64_t* uses;         // [E + 1] or null: adds each expert's pairs, and at E the experts that were read
    int64_t width;         // D
    int64_t inner;         // F
    int64_t stride;        // bytes of a record
    int32_t num_experts;   // E
    int32_t num_chosen;    // K
    int32_t num_gate_up;   // 1: gate_up[0] is [2F, D]; 2: gate and up
    int32_t clamped;       // activation: 1 clamped, 0 silu
    float limit;
    float alpha;
    OpFn quantize;
    OpFn matmul;
    int32_t tile_parts;    // bfloat16 of which rows consist in records; 0: no tiles
    OpFn tiles;            // matmul of records
    RecordsFn records;
    VectorFn vectors;      // of one token's products
    BlockFn block;         // quantises 32 values
    PartFn hidden_part;
    PartFn column_part;
    Product gate_up[2];    // of expert 0; out is set for each expert
    Product down;
    // Workspace, rows of T * K pairs
    int32_t* order;        // [T * K] pair at each place
    int32_t* place;        // [T * K] place of each pair
    int32_t* starts;       // [E + 1] first place of each expert
    int32_t* named;        // [1 + E] number of experts with pairs, and their ids
    float* rows;           // [T * K, D] x, then the results of down
    float* gate;           // [T * K, 2F] gate and up, or [T * K, F]
    float* up;             // [T * K, F] if num_gate_up is 2
    float* hidden;         // [T * K, F]
    Activations row_codes;     // of rows, or their records
    Activations hidden_codes;  // of hidden, likewise
    char* scratch;             // of each part
    int64_t scratch_stride;
};

constexpr int32_t NUM_EXPERT_OPS = 6;

// To the nearest, ties to even; a NaN stays one.
inline uint16_t float_to_bfloat(float value) {
    const uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline Activations rows_from(const Activations& x, int64_t row) {
    const int64_t items = row * x.blocks;
    Activations from = x;
    from.q += items * BLOCK;
    from.d += items;
    from.z += items;
    from.sum32 += items;
    from.sum16 += 2 * items;
    from.q_sum += items;
    return from;
}

// Bytes of the records of a tile of 16 rows of K values.
inline int64_t tile_bytes(const ExpertFfnArgs& a, int64_t k) { return 2 * TILE_WIDTH * a.tile_parts * k; }

// Lays the workspace for steps of `tokens` tokens into memory (64-aligned; null: only counts) and returns its bytes.
inline int64_t place_expert_workspace(ExpertFfnArgs* a, char* memory, int64_t tokens, int64_t parts) {
    const int64_t pairs = tokens * a->num_chosen;
    int64_t used = 0;
    const auto take = [&](int64_t bytes) {
        char* at = memory ? memory + used : nullptr;
        used += (bytes + 63) / 64 * 64;
        return at;
    };
    a->order = reinterpret_cast<int32_t*>(take(4 * pairs));
    a->place = reinterpret_cast<int32_t*>(take(4 * pairs));
    a->starts = reinterpret_cast<int32_t*>(take(4 * (a->num_experts + 1)));
    a->named = reinterpret_cast<int32_t*>(take(4 * (a->num_experts + 1)));
    a->rows = reinterpret_cast<float*>(take(4 * pairs * a->width));
    a->gate = reinterpret_cast<float*>(take(4 * pairs * a->inner * (a->num_gate_up == 1 ? 2 : 1)));
    a->up = reinterpret_cast<float*>(take(a->num_gate_up == 1 ? 0 : 4 * pairs * a->inner));
    a->hidden = reinterpret_cast<float*>(take(4 * pairs * a->inner));
    // The last tile of each expert has rows to spare.
    const int64_t tiles = pairs / TILE_WIDTH + (pairs < a->num_experts ? pairs : a->num_experts);
    const auto take_codes = [&](Activations* codes, int64_t k) {
        char* at = take(a->tile_parts ? tiles * tile_bytes(*a, k) : activation_bytes(pairs, k));
        if (at) *codes = place_activations(at, pairs, k);
    };
    take_codes(&a->row_codes, a->width);
    take_codes(&a->hidden_codes, a->inner);
    const int64_t widest = a->width > a->inner ? a->width : a->inner;
    a->scratch_stride = (matmul_scratch_bytes(widest, a->tile_parts ? ISA_AMX : ISA_SCALAR) + 63) / 64 * 64;
    a->scratch = take(parts * a->scratch_stride);
    return used;
}

}  // namespace ftd
