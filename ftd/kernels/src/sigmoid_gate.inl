// sigmoid_gate, over rows * width items as one run.

// Neither exponential overflows, and one of them is 1. min returns its second operand for NaN, which stays NaN.
static inline vf opened(vf x, vf gate) {
    const vf p = exp(min(zero(), gate)), m = exp(min(zero(), sub(zero(), gate)));
    return mul(x, div(p, add(p, m)));
}

static void sigmoid_gate_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const SigmoidGateArgs*>(args);
    int64_t i, end;
    share(static_cast<int64_t>(num_rows(step, a->rows)) * a->width, 256, thread, num_threads, &i, &end);
    for (; i + W <= end; i += W) store(a->out + i, opened(load(a->x + i), load(a->gate + i)));
    if (i < end) {
        const int rest = static_cast<int>(end - i);
        store_part(a->out + i, opened(load_part(a->x + i, rest), load_part(a->gate + i, rest)), rest);
    }
}
