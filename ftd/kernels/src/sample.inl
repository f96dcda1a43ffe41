// The two passes over the whole vocabulary.

#if defined(FTD_SIMD_SCALAR)
static inline bool any_nan(vf a) { return a != a; }
#elif defined(FTD_SIMD_AVX2)
static inline bool any_nan(__m256 a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
static inline bool any_nan(vf a) { return any_nan(a.low) || any_nan(a.high); }
#else
static inline bool any_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
#endif

static bool block_maxima(const float* x, int32_t count, float* maxima) {
    bool nan = false;
    const int32_t whole = count / SAMPLE_BLOCK;
    for (int32_t block = 0; block < whole; ++block) {
        const float* from = x + static_cast<int64_t>(block) * SAMPLE_BLOCK;
        vf top = load(from);
        vf sum_of_all = top;  // NaN if any value is, or if both infinities meet: looked at again below
        for (int i = W; i < SAMPLE_BLOCK; i += W) {
            const vf value = load(from + i);
            top = max(top, value);
            sum_of_all = add(sum_of_all, value);
        }
        if (any_nan(sum_of_all))
            for (int i = 0; i < SAMPLE_BLOCK; ++i) nan = nan || from[i] != from[i];
        maxima[block] = largest(top);
    }
    if (whole * SAMPLE_BLOCK < count) {
        float top = -INFINITY;
        for (int32_t i = whole * SAMPLE_BLOCK; i < count; ++i) {
            nan = nan || x[i] != x[i];
            top = x[i] > top ? x[i] : top;
        }
        maxima[whole] = top;
    }
    return nan;
}

static double exponentials(float* x, int32_t count, float shift, float factor) {
    const vf by = set1(factor), from = set1(shift);
    double total = 0.0;
    int32_t i = 0;
    for (; i + SAMPLE_BLOCK <= count; i += SAMPLE_BLOCK) {
        vf sums = zero();
        for (int j = 0; j < SAMPLE_BLOCK; j += W) {
            const vf value = exp(mul(sub(load(x + i + j), from), by));
            store(x + i + j, value);
            sums = add(sums, value);
        }
        total += static_cast<double>(sum(sums));
    }
    for (; i < count; ++i) {
        float lanes[W];
        store(lanes, exp(set1((x[i] - shift) * factor)));
        x[i] = lanes[0];
        total += static_cast<double>(x[i]);
    }
    return total;
}

static const SampleKernels sample_kernels = {block_maxima, exponentials};
