// The parts of expert_ffn that compute on vectors: activate and combine.

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

static void expert_activate_op(const void* args, const Step*, int32_t thread, int32_t num_threads) noexcept {
    const auto& a = *static_cast<const ExpertFfnArgs*>(args);
    const int64_t inner = a.inner, stride = a.num_gate_up == 1 ? 2 * inner : inner;
    int64_t begin, end;
    share(a.starts[a.num_experts], 1, thread, num_threads, &begin, &end);
    for (int64_t row = begin; row < end; ++row) {
        const float* gate = a.gate + row * stride;
        const float* up = a.num_gate_up == 1 ? gate + inner : a.up + row * stride;
        float* out = a.hidden + row * inner;
        int64_t i = 0;
        for (; i + W <= inner; i += W) store(out + i, gated(load(gate + i), load(up + i), a.clamped, a.limit, a.alpha));
        if (i < inner) {
            const int rest = static_cast<int>(inner - i);
            store_part(out + i, gated(load_part(gate + i, rest), load_part(up + i, rest), a.clamped, a.limit, a.alpha),
                       rest);
        }
        if (!a.down.exact) quantize_rows(a, out, a.hidden_codes, inner, row);
    }
}

// Columns in runs, so that one token is work for several parts.
static void expert_combine_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto& a = *static_cast<const ExpertFfnArgs*>(args);
    constexpr int64_t RUN = 512;
    const int64_t width = a.width, runs = (width + RUN - 1) / RUN;
    int64_t begin, end;
    share(step->num_tokens * runs, 1, thread, num_threads, &begin, &end);
    for (int64_t item = begin; item < end; ++item) {
        const int64_t t = item / runs, first = item % runs * RUN, last = first + RUN < width ? first + RUN : width;
        const int32_t* place = a.place + t * a.num_chosen;
        const float* weights = a.weights + t * a.num_chosen;
        float* out = a.out + t * width;
        for (int64_t i = first; i < last; i += W) {
            const int rest = last - i < W ? static_cast<int>(last - i) : W;
            vf sum = zero();
            for (int32_t k = 0; k < a.num_chosen; ++k) {
                if (place[k] < 0) continue;
                const float* from = a.rows + place[k] * width + i;
                sum = fma(set1(weights[k]), rest == W ? load(from) : load_part(from, rest), sum);
            }
            if (rest == W)
                store(out + i, sum);
            else
                store_part(out + i, sum, rest);
        }
    }
}
