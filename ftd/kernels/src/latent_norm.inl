// latent_norm; a row is one part's work.

static void latent_norm_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const LatentNormArgs*>(args);
    const int latent = a->latent, tail = a->width - latent, half = tail / 2;
    int64_t row, end;
    share(step->num_tokens, 1, thread, num_threads, &row, &end);
    for (; row < end; ++row) {
        const float* x = a->x + row * a->width;
        float* out = a->out + row * a->width;
        vf sums = zero();
        int i = 0;
        for (; i + W <= latent; i += W) sums = fma(load(x + i), load(x + i), sums);
        if (i < latent) {
            const vf value = load_part(x + i, latent - i);
            sums = fma(value, value, sums);
        }
        const vf factor = set1(1.0f / sqrtf(sum(sums) / static_cast<float>(latent) + a->eps));
        for (i = 0; i + W <= latent; i += W) store(out + i, mul(mul(load(x + i), factor), load(a->weight + i)));
        if (i < latent) {
            const int rest = latent - i;
            store_part(out + i, mul(mul(load_part(x + i, rest), factor), load_part(a->weight + i, rest)), rest);
        }
        if (!a->interleaved) {
            memcpy(out + latent, x + latent, sizeof(float) * tail);
            continue;
        }
        for (int j = 0; j < half; ++j) {
            out[latent + j] = x[latent + 2 * j];
            out[latent + half + j] = x[latent + 2 * j + 1];
        }
    }
}
