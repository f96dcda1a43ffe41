// The parts of expert_ffn that compute on vectors: gate_up and columns of one token, activate and combine.

static inline vf gated(vf gate, vf up, bool clamped, float limit, float alpha) {
    vf slope = gate;
    if (clamped) {
        gate = min(gate, set1(limit));
        up = add(max(min(up, set1(limit)), set1(-limit)), set1(1.0f));
        slope = mul(gate, set1(alpha));
    }
    // exp of minus the absolute value never overflows: sigmoid(s) = (s < 0 ? e : 1) / (1 + e).
    const vf decay = exp(min(slope, sub(zero(), slope)));
    const vf numerator = add(max(gate, zero()), mul(min(gate, zero()), decay));
    return mul(div(numerator, add(set1(1.0f), decay)), up);
}

// hidden [begin, end) of one row.
static void activate(const ExpertFfnArgs& a, int64_t row, int64_t begin, int64_t end) {
    const int64_t inner = a.inner;
    const float* gate = a.gate + row * (a.num_gate_up == 1 ? 2 * inner : inner);
    const float* up = a.num_gate_up == 1 ? gate + inner : a.up + row * inner;
    float* out = a.hidden + row * inner;
    int64_t i = begin;
    for (; i + W <= end; i += W) store(out + i, gated(load(gate + i), load(up + i), a.clamped, a.limit, a.alpha));
    if (i < end) {
        const int rest = static_cast<int>(end - i);
        store_part(out + i, gated(load_part(gate + i, rest), load_part(up + i, rest), a.clamped, a.limit, a.alpha), rest);
    }
}

static inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

// gate or up of the expert at one place: a matrix and its first row.
struct Run {
    Product product;
    int64_t first;
};

static Run run_of(const ExpertFfnArgs& a, int64_t place, bool is_up) {
    const int64_t record = a.ids[a.order[place]] * a.stride;
    if (a.num_gate_up == 1) return {of_expert(a.gate_up[0], record, a.gate + place * 2 * a.inner), is_up ? a.inner : 0};
    return {of_expert(a.gate_up[is_up], record, (is_up ? a.up : a.gate) + place * a.inner), 0};
}

// hidden [first, last) of the expert at one place; fetches what begins at value `next` of the line, if there is one.
static void gate_up_rows_of(const ExpertFfnArgs& a, int64_t place, int64_t first, int64_t last, int64_t next,
                            char* scratch) {
    const bool more = next >= 0 && next < a.starts[a.num_experts] * a.inner;
    const Run after = run_of(a, more ? next / a.inner : place, false);
    const Run gate = run_of(a, place, false), up = run_of(a, place, true);
    a.vectors(gate.product, a.x, a.row_codes, gate.first + first, gate.first + last, &up.product.weight, up.first + first,
              scratch);
    a.vectors(up.product, a.x, a.row_codes, up.first + first, up.first + last, more ? &after.product.weight : nullptr,
              more ? after.first + next % a.inner : 0, scratch);
    activate(a, place, first, last);
}

// At most so many blocks of gate before those of up.
constexpr int64_t MOST_BLOCKS = 8;

// One token: blocks of 32 hidden values of all experts in a line; a few at a time, so that the fetching of rows ahead
// seldom starts anew.
static void gate_up_one(const ExpertFfnArgs& a, int32_t thread, int32_t num_threads) {
    const int64_t blocks = (a.inner + BLOCK - 1) / BLOCK;
    int64_t item, end;
    share(a.starts[a.num_experts] * blocks, 1, thread, num_threads, &item, &end);
    while (item < end) {
        const int64_t place = item / blocks, b = item % blocks;
        const int64_t count = min_of(min_of(MOST_BLOCKS, blocks - b), end - item);
        item += count;
        gate_up_rows_of(a, place, b * BLOCK, min_of((b + count) * BLOCK, a.inner),
                        item < end ? item / blocks * a.inner + item % blocks * BLOCK : -1,
                        a.scratch + thread * a.scratch_stride);
        if (a.down.exact) continue;
        const Activations codes = rows_from(a.hidden_codes, place);
        for (int64_t i = b; i < b + count; ++i) a.block(a.hidden + place * a.inner + i * BLOCK, codes, i);
        if (b + count == blocks)
            for (int64_t i = blocks; i < codes.blocks; ++i) a.block(nullptr, codes, i);
    }
}

static void expert_hidden_part(const ExpertFfnArgs& a, int64_t begin, int64_t end, int64_t next) noexcept {
    while (begin < end) {
        const int64_t place = begin / a.inner, first = begin % a.inner;
        const int64_t last = min_of(min_of(first + MOST_BLOCKS * BLOCK, a.inner), first + end - begin);
        begin += last - first;
        gate_up_rows_of(a, place, first, last, begin < end ? begin : next, a.scratch);
    }
}

static void expert_gate_up_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto& a = *static_cast<const ExpertFfnArgs*>(args);
    if (step->num_tokens == 1)
        gate_up_one(a, thread, num_threads);
    else
        gate_up_rows(a, thread, num_threads);
}

static void activate_tiles(const ExpertFfnArgs& a, int32_t thread, int32_t num_threads) {
    for_each_tile(a, thread, num_threads, [&](const RowTile& tile) {
        TokenRows rows = {{}, tile.count, tile.width, false};
        for (int64_t i = 0; i < tile.count; ++i) {
            activate(a, tile.begin + i, 0, a.inner);
            rows.at[i] = a.hidden + (tile.begin + i) * a.inner;
        }
        if (tile.has_records)
            a.records(rows, a.inner, split_records(a.hidden_codes) + tile.index * tile_bytes(a, a.inner));
    });
}

static void expert_activate_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto& a = *static_cast<const ExpertFfnArgs*>(args);
    if (step->num_tokens == 1) return;
    if (a.tile_parts) return activate_tiles(a, thread, num_threads);
    int64_t begin, end;
    share(a.starts[a.num_experts], 1, thread, num_threads, &begin, &end);
    for (int64_t row = begin; row < end; ++row) {
        activate(a, row, 0, a.inner);
        if (!a.down.exact) quantize_rows(a, a.hidden + row * a.inner, a.hidden_codes, a.inner, row);
    }
}

// Columns [first, last) of one token's sum.
static void combine_columns(const ExpertFfnArgs& a, int64_t t, int64_t first, int64_t last) {
    const int32_t* place = a.place + t * a.num_chosen;
    const float* weights = a.weights + t * a.num_chosen;
    for (int64_t i = first; i < last; i += W) {
        const int rest = last - i < W ? static_cast<int>(last - i) : W;
        vf sum = zero();
        for (int32_t k = 0; k < a.num_chosen; ++k) {
            if (place[k] < 0) continue;
            const float* from = a.rows + place[k] * a.width + i;
            sum = fma(set1(weights[k]), rest == W ? load(from) : load_part(from, rest), sum);
        }
        if (a.out_bfloats) {
            float values[W];
            store(values, sum);
            for (int j = 0; j < rest; ++j) a.out_bfloats[t * a.width + i + j] = float_to_bfloat(values[j]);
        } else if (rest == W) {
            store(a.out + t * a.width + i, sum);
        } else {
            store_part(a.out + t * a.width + i, sum, rest);
        }
    }
}

// Columns in runs, so that one token is work for several parts.
static void expert_combine_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto& a = *static_cast<const ExpertFfnArgs*>(args);
    constexpr int64_t RUN = 512;
    const int64_t runs = (a.width + RUN - 1) / RUN;
    int64_t begin, end;
    share(step->num_tokens * runs, 1, thread, num_threads, &begin, &end);
    for (int64_t item = begin; item < end; ++item) {
        const int64_t first = item % runs * RUN;
        combine_columns(a, item / runs, first, min_of(first + RUN, a.width));
    }
}

static void expert_column_part(const ExpertFfnArgs& a, int64_t begin, int64_t end, int64_t next) noexcept {
    const int64_t places = a.starts[a.num_experts];
    for (int64_t place = 0; place < places; ++place) {
        const bool is_last = place + 1 == places;
        const Product p = down_of(a, place), after = down_of(a, is_last ? 0 : place + 1);
        a.vectors(p, a.hidden + place * a.inner, rows_from(a.hidden_codes, place), begin, end,
                  is_last && next < 0 ? nullptr : &after.weight, is_last ? next : begin, a.scratch);
    }
    combine_columns(a, 0, begin, end);
}
