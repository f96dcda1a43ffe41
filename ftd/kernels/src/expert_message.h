// A message of a card to the worker as one of its threads sees it: a line of items in stages, and the weights that
// these read, which can be fetched before they are due. See expert_worker.h.
#pragma once
#include "expert_ffn.h"

namespace ftd {

// A layer: its arguments, with the workspace that all threads share, and the ops that compute them.
struct WorkerLayer {
    ExpertFfnArgs args;
    Op ops[NUM_EXPERT_OPS];
};

// Items [begin, end) of one stage, counted from the first of the line; none: a part that does not exist.
struct WorkerPart {
    int stage;
    int64_t begin, end;
    explicit operator bool() const { return begin < end; }
};

struct WorkerMessage {
    static constexpr int64_t UNIT = 8, BLOCK_UNITS = BLOCK / UNIT;  // rows of an item of one token
    static constexpr int64_t LEAST_BYTES = 16384, FIRST_BYTES = 4096;  // of the smallest part's weights, of its first rows

    int32_t bell;
    int32_t layer;
    Step step;
    ExpertFfnArgs args;
    int stages;
    int64_t first[NUM_EXPERT_OPS + 1];  // item of each stage, and how many there are
    int64_t least[NUM_EXPERT_OPS];      // items of its smallest part

    // Items of one token: eight rows of a matrix.
    static int64_t units(int64_t values) { return (values + UNIT - 1) / UNIT; }

    void add_stage(int64_t items, int64_t smallest) {
        least[stages] = smallest;
        first[stages + 1] = first[stages] + items;
        ++stages;
    }

    // Several tokens: the ops one after the other, each in `parts`; beside the sort, x is made floats.
    void share_out_many(int64_t parts, bool converts) {
        stages = 0;
        first[0] = 0;
        add_stage(1 + (converts ? step.num_tokens : 0), 1);
        for (int op = 1; op < NUM_EXPERT_OPS; ++op) add_stage(parts, 1);
    }

    // One token's stages, once its experts are sorted: the hidden values of all of them, then columns of their sum.
    void share_out_one() {
        const int64_t places = args.starts[args.num_experts], hidden = units(args.inner), columns = units(args.width);
        // Gate and up are two thirds of a record.
        const int64_t hidden_bytes = args.stride * 2 / 3 / hidden, column_bytes = args.stride / 3 / columns * places;
        stages = 0;
        first[0] = 0;
        add_stage(places * hidden, LEAST_BYTES / (hidden_bytes + 1) + 1);
        add_stage(columns, LEAST_BYTES / (column_bytes + 1) + 1);
    }

    // Fetches the first rows of gate and up that a part of one token's hidden values reads.
    void fetch_hidden(const WorkerPart& part) const {
        const int64_t each = units(args.inner), row = part.begin % each * UNIT;
        const int64_t record = args.ids[args.order[part.begin / each]] * args.stride;
        fetch(args.gate_up[0].weight, record, row);
        if (args.num_gate_up == 1)
            fetch(args.gate_up[0].weight, record, args.inner + row);
        else
            fetch(args.gate_up[1].weight, record, row);
    }

    // Fetches what a part of one token's columns reads, an expert after the other, until is_due() is true.
    template <class Due>
    void fetch_columns(const WorkerPart& part, const Due& is_due) const {
        const int64_t row_bytes = code_bytes(args.down.weight);
        const int64_t begin = (part.begin - first[1]) * UNIT, end = (part.end - first[1]) * UNIT;
        for (int64_t place = 0; place < args.starts[args.num_experts]; ++place) {
            const char* rows = static_cast<const char*>(args.down.weight.planes[0]) + args.ids[args.order[place]] * args.stride;
            for (int64_t at = begin * row_bytes; at < end * row_bytes; at += 64) __builtin_prefetch(rows + at, 0, 2);
            if (is_due()) return;
        }
    }

private:
    // Bytes of a row of a matrix' first plane.
    static int64_t code_bytes(const Matrix& w) {
        switch (w.format) {
            case F32: return 4 * w.k;
            case F16: case BF16: return 2 * w.k;
            case Q8_0: case FP8_B128: return w.k;
            default: return w.k / 2;
        }
    }

    // Fetches the first lines of an expert's rows from `row` on.
    static void fetch(const Matrix& w, int64_t record, int64_t row) {
        const char* from = static_cast<const char*>(w.planes[0]) + record + row * code_bytes(w);
        for (int64_t at = 0; at < FIRST_BYTES; at += 64) __builtin_prefetch(from + at, 0, 3);
    }
};

}  // namespace ftd
