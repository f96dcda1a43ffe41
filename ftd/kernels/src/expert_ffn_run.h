// The ops of expert_ffn; only _expert_ffn_cy includes this.
#pragma once
#include <cstring>

#include "expert_ffn.h"

namespace ftd {

// Quantises one row of K values as row `row` of `out`.
inline void quantize_rows(const ExpertFfnArgs& a, const float* x, const Activations& out, int64_t k, int64_t row) {
    Step step = {};
    step.num_tokens = 1;
    const QuantizeArgs args = {x, k, ROWS_TOKENS, rows_from(out, row)};
    a.quantize(&args, &step, 0, 1);
}

// One part does it all: a counting sort of T * K small numbers. Pairs of one expert keep their order; those of a
// negative expert, which somebody else computes, have no place.
inline void expert_sort_op(const void* args, const Step* step, int32_t thread, int32_t) noexcept {
    if (thread != 0) return;
    const ExpertFfnArgs& a = *static_cast<const ExpertFfnArgs*>(args);
    const int64_t pairs = static_cast<int64_t>(step->num_tokens) * a.num_chosen;
    std::memset(a.starts, 0, (a.num_experts + 1) * sizeof(int32_t));
    for (int64_t i = 0; i < pairs; ++i)
        if (a.ids[i] >= 0) ++a.starts[a.ids[i]];
    int32_t at = 0, named = 0;
    for (int32_t e = 0; e < a.num_experts; ++e) {
        const int32_t count = a.starts[e];
        if (count) a.named[++named] = e;
        if (a.uses) a.uses[e] += count;
        a.starts[e] = at;
        at += count;
    }
    a.named[0] = named;
    if (a.uses) a.uses[a.num_experts] += named;
    for (int64_t i = 0; i < pairs; ++i) {
        a.place[i] = -1;
        if (a.ids[i] < 0) continue;
        const int32_t place = a.starts[a.ids[i]]++;
        a.order[place] = static_cast<int32_t>(i);
        a.place[i] = place;
    }
    for (int32_t e = a.num_experts; e > 0; --e) a.starts[e] = a.starts[e - 1];
    a.starts[0] = 0;
}

// Up to 16 rows of one expert, from place `begin` on, in an order of their own. Tile `index` is where their records lie.
struct RowTile {
    int64_t begin, count, index;
    bool has_records;
    int64_t width;  // of the records
};

// Calls `tile` for this part's share of the tiles of all named experts.
template <class Tile>
inline void for_each_tile(const ExpertFfnArgs& a, int32_t thread, int32_t num_threads, const Tile& tile) {
    int64_t total = 0, begin, end, first = 0;
    const auto rows_of = [&](int32_t i) { return a.starts[a.named[i] + 1] - a.starts[a.named[i]]; };
    for (int32_t i = 1; i <= a.named[0]; ++i) total += (rows_of(i) + TILE_WIDTH - 1) / TILE_WIDTH;
    share(total, 1, thread, num_threads, &begin, &end);
    for (int32_t i = 1; i <= a.named[0] && first < end; ++i) {
        const int64_t rows = rows_of(i), tiles = (rows + TILE_WIDTH - 1) / TILE_WIDTH;
        for (int64_t t = begin > first ? begin - first : 0; t < tiles && first + t < end; ++t) {
            const int64_t at = TILE_WIDTH * t, rest = rows - at;
            tile({a.starts[a.named[i]] + at, rest < TILE_WIDTH ? rest : TILE_WIDTH, first + t, rows >= LEAST_SPLIT,
                  split_width(rows)});
        }
        first += tiles;
    }
}

// Of several tokens: records of the experts' rows, or the rows as floats where they are too few.
inline void gather_tiles(const ExpertFfnArgs& a, int32_t thread, int32_t num_threads) {
    for_each_tile(a, thread, num_threads, [&](const RowTile& tile) {
        TokenRows rows = {{}, tile.count, tile.width, a.bfloats != nullptr};
        for (int64_t i = 0; i < tile.count; ++i) {
            const int64_t from = a.order[tile.begin + i] / a.num_chosen * a.width;
            rows.at[i] = a.bfloats ? static_cast<const void*>(a.bfloats + from) : a.x + from;
        }
        if (tile.has_records)
            return a.records(rows, a.width, split_records(a.row_codes) + tile.index * tile_bytes(a, a.width));
        for (int64_t i = 0; i < tile.count; ++i) {
            float* to = a.rows + (tile.begin + i) * a.width;
            if (!a.bfloats) {
                std::memcpy(to, rows.at[i], a.width * sizeof(float));
                continue;
            }
            const auto* from = static_cast<const uint16_t*>(rows.at[i]);
            for (int64_t j = 0; j < a.width; ++j) to[j] = bfloat_to_float(from[j]);
        }
    });
}

inline void expert_gather_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const ExpertFfnArgs& a = *static_cast<const ExpertFfnArgs*>(args);
    bool needs_codes = false;
    for (int32_t i = 0; i < a.num_gate_up; ++i) needs_codes = needs_codes || !a.gate_up[i].exact;
    if (step->num_tokens == 1) {
        const QuantizeArgs once = {a.x, a.width, ROWS_TOKENS, a.row_codes};
        if (needs_codes) a.quantize(&once, step, thread, num_threads);
        return;
    }
    if (a.tile_parts) return gather_tiles(a, thread, num_threads);
    int64_t begin, end;
    share(a.starts[a.num_experts], 1, thread, num_threads, &begin, &end);
    for (int64_t row = begin; row < end; ++row) {
        float* to = a.rows + row * a.width;
        std::memcpy(to, a.x + a.order[row] / a.num_chosen * a.width, a.width * sizeof(float));
        if (needs_codes) quantize_rows(a, to, a.row_codes, a.width, row);
    }
}

inline Product of_expert(const Product& first, int64_t bytes, float* out) {
    Product p = first;
    for (const void*& plane : p.weight.planes)
        if (plane) plane = static_cast<const char*>(plane) + bytes;
    if (p.bias) p.bias = reinterpret_cast<const float*>(reinterpret_cast<const char*>(p.bias) + bytes);
    p.out = out;
    return p;
}

// One call of matmul for each named expert, of rows of K values that have `codes`; which share of an expert a part takes
// moves on from expert to expert, so that matrices of few tiles keep all parts busy.
template <class Fill>
inline void for_each_expert(const ExpertFfnArgs& a, int64_t k, const Activations& codes, int32_t thread,
                            int32_t num_threads, const Fill& fill) {
    int64_t tile = 0;
    for (int32_t i = 0; i < a.named[0]; ++i) {
        const int32_t e = a.named[1 + i];
        Product products[2];
        MatmulArgs call = {};
        Step step = {};
        call.products = products;
        call.rows = ROWS_TOKENS;
        call.scratch = a.scratch + thread * a.scratch_stride;
        call.scratch_stride = 0;
        step.num_tokens = a.starts[e + 1] - a.starts[e];
        fill(e, static_cast<int64_t>(a.starts[e]), products, &call);
        const bool by_tiles = a.tile_parts && step.num_tokens >= LEAST_SPLIT;
        if (by_tiles)
            call.activations.q = reinterpret_cast<int8_t*>(split_records(codes) + tile * tile_bytes(a, k));
        else if (!a.tile_parts)
            call.activations = rows_from(codes, a.starts[e]);
        tile += (step.num_tokens + TILE_WIDTH - 1) / TILE_WIDTH;
        (by_tiles ? a.tiles : a.matmul)(&call, &step, (thread + i) % num_threads, num_threads);
    }
}

// Several tokens.
inline void gate_up_rows(const ExpertFfnArgs& a, int32_t thread, int32_t num_threads) {
    const auto fill = [&](int32_t e, int64_t row, Product* products, MatmulArgs* call) {
        call->num_products = a.num_gate_up;
        call->x = a.rows + row * a.width;
        const int64_t stride = a.num_gate_up == 1 ? 2 * a.inner : a.inner;
        products[0] = of_expert(a.gate_up[0], e * a.stride, a.gate + row * stride);
        if (a.num_gate_up == 2) products[1] = of_expert(a.gate_up[1], e * a.stride, a.up + row * stride);
    };
    for_each_expert(a, a.width, a.row_codes, thread, num_threads, fill);
}

// down of the expert at one place.
inline Product down_of(const ExpertFfnArgs& a, int64_t place) {
    return of_expert(a.down, a.ids[a.order[place]] * a.stride, a.rows + place * a.width);
}

// One token: tiles of eight rows of its experts, in a line.
inline void down_one(const ExpertFfnArgs& a, int32_t thread, int32_t num_threads) {
    const int64_t tiles = (a.width + 7) / 8;
    int64_t begin, end;
    share(a.starts[a.num_experts] * tiles, 1, thread, num_threads, &begin, &end);
    while (begin < end) {
        const int64_t place = begin / tiles, first = begin % tiles;
        const int64_t last = first + end - begin < tiles ? first + end - begin : tiles;
        begin += last - first;
        const bool more = begin < end;
        const Product p = down_of(a, place), next = more ? down_of(a, place + 1) : p;
        a.vectors(p, a.hidden + place * a.inner, rows_from(a.hidden_codes, place), 8 * first,
                  8 * last < a.width ? 8 * last : a.width, more ? &next.weight : nullptr, 0,
                  a.scratch + thread * a.scratch_stride);
    }
}

inline void expert_down_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const ExpertFfnArgs& a = *static_cast<const ExpertFfnArgs*>(args);
    if (step->num_tokens == 1) return down_one(a, thread, num_threads);
    const auto fill = [&](int32_t e, int64_t row, Product* products, MatmulArgs* call) {
        call->num_products = 1;
        call->x = a.hidden + row * a.inner;
        products[0] = of_expert(a.down, e * a.stride, a.rows + row * a.width);
    };
    for_each_expert(a, a.inner, a.hidden_codes, thread, num_threads, fill);
}

}  // namespace ftd

#define FTD_BODY "expert_ffn.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline OpFn expert_gate_up_select(int32_t isa) { return FTD_SELECT(isa, expert_gate_up_op); }
inline OpFn expert_activate_select(int32_t isa) { return FTD_SELECT(isa, expert_activate_op); }
inline OpFn expert_combine_select(int32_t isa) { return FTD_SELECT(isa, expert_combine_op); }
inline PartFn expert_hidden_select(int32_t isa) { return FTD_SELECT(isa, expert_hidden_part); }
inline PartFn expert_column_select(int32_t isa) { return FTD_SELECT(isa, expert_column_part); }

}  // namespace ftd
