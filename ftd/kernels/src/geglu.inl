// geglu, over rows * width items as one run.

// gelu(g) = g / (1 + exp(-2u)), u = sqrt(2/pi) * (g + 0.044715 g^3), which has the sign of g. At |g| = 16 the exponential
// is 0 in float32 already, so g is cut to that range where it is cubed and nothing overflows; NaN passes the cut.
static inline vf gelu_gated(vf gate, vf up) {
    const vf cut = min(set1(16.0f), max(set1(-16.0f), gate));
    const vf cubic = fma(mul(cut, cut), set1(0.044715f), set1(1.0f));
    const vf twice = mul(mul(cut, set1(1.5957691216057308f)), cubic);
    const vf decay = exp(min(twice, sub(zero(), twice)));
    const vf numerator = add(max(gate, zero()), mul(min(gate, zero()), decay));
    return mul(div(numerator, add(set1(1.0f), decay)), up);
}

static void geglu_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const GegluArgs*>(args);
    int64_t i, end;
    share(static_cast<int64_t>(num_rows(step, a->rows)) * a->width, 256, thread, num_threads, &i, &end);
    for (; i + W <= end; i += W) store(a->out + i, gelu_gated(load(a->gate + i), load(a->up + i)));
    if (i < end) {
        const int rest = static_cast<int>(end - i);
        store_part(a->out + i, gelu_gated(load_part(a->gate + i, rest), load_part(a->up + i, rest)), rest);
    }
}
