// rms_norm; each row is one part's work, its sum in four accumulators of W lanes.

static float square_sum(const float* x, int width) {
    vf sums[4] = {zero(), zero(), zero(), zero()};
    int i = 0;
    for (; i + 4 * W <= width; i += 4 * W)
        for (int j = 0; j < 4; ++j) {
            const vf value = load(x + i + j * W);
            sums[j] = fma(value, value, sums[j]);
        }
    for (; i + W <= width; i += W) sums[0] = fma(load(x + i), load(x + i), sums[0]);
    if (i < width) {
        const vf value = load_part(x + i, width - i);
        sums[1] = fma(value, value, sums[1]);
    }
    return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

static void rms_norm_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const RmsNormArgs*>(args);
    const int width = a->width;
    int64_t begin, end;
    share(static_cast<int64_t>(num_rows(step, a->rows)) * a->heads, 1, thread, num_threads, &begin, &end);
    for (int64_t row = begin; row < end; ++row) {
        const float* x = a->x + row * width;
        float* out = a->out + row * width;
        const vf factor = set1(1.0f / sqrtf(square_sum(x, width) / static_cast<float>(width) + a->eps));
        int i = 0;
        for (; i + W <= width; i += W) store(out + i, mul(mul(load(x + i), factor), load(a->weight + i)));
        if (i < width) {
            const int rest = width - i;
            store_part(out + i, mul(mul(load_part(x + i, rest), factor), load_part(a->weight + i, rest)), rest);
        }
    }
}
