// The shape of every CPU op: one C struct of arguments and one SPMD function that all threads of the pool run.
//
// A Step is what changes from step to step. An Op is what stays. A program is an array of Ops; the pool's threads
// run them in order and no part of an op starts before all parts of the op before it are done, so an op may read what
// earlier ops wrote. Ops never allocate, never take the GIL and never fail: shapes are checked where ops are made.
#pragma once
#include <cstdint>

namespace ftd {

struct Step {
    int32_t num_tokens;         // T, all sequences flat
    int32_t num_sequences;      // B
    int32_t num_logits;         // rows whose logits are wanted
    int32_t page_size;          // tokens of a KV page
    int32_t max_pages;          // row length of page_table
    const int32_t* ids;         // [T]
    const int32_t* positions;   // [T]
    const int32_t* kv_index;    // [T] page * page_size + offset: where each token's K and V go
    const int32_t* q_start;     // [B + 1] first token of each sequence; q_start[B] = T
    const int32_t* kv_len;      // [B] context length of each sequence after this step
    const int32_t* page_table;  // [B, max_pages]
    const int32_t* logit_rows;  // [num_logits] token index
    // [B] slot of each sequence's recurrent state; null if no op reads it. A sequence whose first position in the step
    // is 0 starts from zeros, whatever the slot holds.
    const int32_t* state_index;
};

// args points to the op's own struct. thread runs over 0 .. num_threads - 1; which thread of the pool executes which
// of these parts is not fixed (an idle thread takes over the part of one that the system has not scheduled), so a part
// may own scratch memory by its number but nothing by its thread.
using OpFn = void (*)(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept;

struct Op {
    OpFn run;
    const void* args;
};

// What an op's rows are: one for each token of the step, or one for each row whose logits are wanted. Ops that can
// stand on either side of select_logit_rows hold one of these in their args.
enum Rows : int32_t { ROWS_TOKENS = 0, ROWS_LOGITS = 1 };

inline int32_t num_rows(const Step* step, int32_t rows) {
    return rows == ROWS_LOGITS ? step->num_logits : step->num_tokens;
}

// Instruction sets in rising order; the same numbers as the places in ftd.kernels.cpu.ISA_LEVELS.
enum Isa : int32_t { ISA_SCALAR = 0, ISA_AVX2 = 1, ISA_AVX512 = 2, ISA_AMX = 3 };

// Rows or items [begin, end) of `total` that belong to `thread`, in multiples of `grain`.
inline void share(int64_t total, int64_t grain, int32_t thread, int32_t num_threads, int64_t* begin, int64_t* end) {
    const int64_t chunks = (total + grain - 1) / grain;
    const int64_t first = chunks * thread / num_threads, last = chunks * (thread + 1) / num_threads;
    *begin = first * grain < total ? first * grain : total;
    *end = last * grain < total ? last * grain : total;
}

}  // namespace ftd
