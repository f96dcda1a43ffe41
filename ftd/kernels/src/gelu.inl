// gelu, over rows * width items as one run.

// 1 - erf(z) for z >= 0 is t * exp(-z^2 + poly(t)) with t = 1 / (1 + z / 2): the Chebyshev fit of Numerical Recipes
// (erfcc), whose error is 1.2e-7 of the value everywhere. At |x| = 14 the exponential is 0 in float32; NaN passes the cut.
static inline vf gelu_of(vf x) {
    const vf cut = min(set1(14.0f), max(set1(-14.0f), x));
    const vf z = mul(max(cut, sub(zero(), cut)), set1(0.70710678118654752f));
    const vf t = div(set1(1.0f), fma(set1(0.5f), z, set1(1.0f)));
    vf poly = set1(0.17087277f);
    poly = fma(poly, t, set1(-0.82215223f));
    poly = fma(poly, t, set1(1.48851587f));
    poly = fma(poly, t, set1(-1.13520398f));
    poly = fma(poly, t, set1(0.27886807f));
    poly = fma(poly, t, set1(-0.18628806f));
    poly = fma(poly, t, set1(0.09678418f));
    poly = fma(poly, t, set1(0.37409196f));
    poly = fma(poly, t, set1(1.00002368f));
    poly = fma(poly, t, set1(-1.26551223f));
    // half of it is the probability beyond |x|: x >= 0 loses it, x < 0 has nothing else
    const vf tail = mul(mul(t, set1(0.5f)), exp(sub(poly, mul(z, z))));
    return fma(max(x, zero()), sub(set1(1.0f), tail), mul(min(cut, zero()), tail));
}

static void gelu_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const GeluArgs*>(args);
    int64_t i, end;
    share(static_cast<int64_t>(num_rows(step, a->rows)) * a->width, 256, thread, num_threads, &i, &end);
    for (; i + W <= end; i += W) store(a->out + i, gelu_of(load(a->x + i)));
    if (i < end) {
        const int rest = static_cast<int>(end - i);
        store_part(a->out + i, gelu_of(load_part(a->x + i, rest)), rest);
    }
}
