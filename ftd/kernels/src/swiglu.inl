// swiglu, over rows * width items as one run.

// exp of minus the absolute value never overflows: silu(g) = g * (g < 0 ? e : 1) / (1 + e).
static inline vf gated(vf gate, vf up) {
    const vf decay = exp(min(gate, sub(zero(), gate)));
    const vf numerator = add(max(gate, zero()), mul(min(gate, zero()), decay));
    return mul(div(numerator, add(set1(1.0f), decay)), up);
}

static void swiglu_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const SwigluArgs*>(args);
    int64_t i, end;
    share(static_cast<int64_t>(num_rows(step, a->rows)) * a->width, 256, thread, num_threads, &i, &end);
    for (; i + W <= end; i += W) store(a->out + i, gated(load(a->gate + i), load(a->up + i)));
    if (i < end) {
        const int rest = static_cast<int>(end - i);
        store_part(a->out + i, gated(load_part(a->gate + i, rest), load_part(a->up + i, rest)), rest);
    }
}
