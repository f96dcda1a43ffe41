// layer_norm; each row is one part's work. The variance is that of the shifted row: squares of a row whose mean is large
// would lose all their digits.

// The sum of x - centre.
static float sum_about(const float* x, int width, float centre) {
    const vf from = set1(centre);
    vf sums[2] = {zero(), zero()};
    int i = 0;
    for (; i + 2 * W <= width; i += 2 * W)
        for (int j = 0; j < 2; ++j) sums[j] = add(sums[j], sub(load(x + i + j * W), from));
    float rest = 0.0f;
    for (; i < width; ++i) rest += x[i] - centre;
    return sum(add(sums[0], sums[1])) + rest;
}

static float square_sum_about(const float* x, int width, float centre) {
    const vf from = set1(centre);
    vf sums = zero();
    int i = 0;
    for (; i + W <= width; i += W) {
        const vf value = sub(load(x + i), from);
        sums = fma(value, value, sums);
    }
    float rest = 0.0f;
    for (; i < width; ++i) rest += (x[i] - centre) * (x[i] - centre);
    return sum(sums) + rest;
}

static void layer_norm_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const LayerNormArgs*>(args);
    const int width = a->width;
    int64_t begin, end;
    share(num_rows(step, a->rows), 1, thread, num_threads, &begin, &end);
    for (int64_t row = begin; row < end; ++row) {
        const float* x = a->x + row * width;
        float* out = a->out + row * width;
        const float count = static_cast<float>(width);
        float mean = sum_about(x, width, 0.0f) / count;
        mean += sum_about(x, width, mean) / count;  // what rounding of a large sum lost
        const float variance = square_sum_about(x, width, mean) / count;
        const vf centre = set1(mean), factor = set1(1.0f / sqrtf(variance + a->eps));
        int i = 0;
        for (; i + W <= width; i += W)
            store(out + i, fma(mul(sub(load(x + i), centre), factor), load(a->weight + i), load(a->bias + i)));
        if (i < width) {
            const int rest = width - i;
            const vf value = mul(sub(load_part(x + i, rest), centre), factor);
            store_part(out + i, fma(value, load_part(a->weight + i, rest), load_part(a->bias + i, rest)), rest);
        }
    }
}
