// rope and its table. Angles are products in double precision: at position 100,000 a float angle would be wrong by 0.004.

static void rope_table_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const RopeTableArgs*>(args);
    const int half = a->half;
    int64_t i, end;
    share(static_cast<int64_t>(step->num_tokens) * half, 16, thread, num_threads, &i, &end);
    for (; i < end; ++i) {
        const int64_t token = i / half, pair = i % half;
        const double angle = static_cast<double>(step->positions[token]) * static_cast<double>(a->inv_freq[pair]);
        float* row = a->table + token * 2 * half;
        row[pair] = static_cast<float>(::cos(angle) * static_cast<double>(a->scale));
        row[half + pair] = static_cast<float>(::sin(angle) * static_cast<double>(a->scale));
    }
}

static inline void rotate(const float* x, float* out, const float* table, int half, int i, int n) {
    const bool whole = n == W;
    const vf low = whole ? load(x + i) : load_part(x + i, n);
    const vf high = whole ? load(x + half + i) : load_part(x + half + i, n);
    const vf cosine = whole ? load(table + i) : load_part(table + i, n);
    const vf sine = whole ? load(table + half + i) : load_part(table + half + i, n);
    const vf turned_low = fma(low, cosine, sub(zero(), mul(high, sine)));
    const vf turned_high = fma(high, cosine, mul(low, sine));
    if (whole) {
        store(out + i, turned_low);
        store(out + half + i, turned_high);
    } else {
        store_part(out + i, turned_low, n);
        store_part(out + half + i, turned_high, n);
    }
}

static void rope_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const RopeArgs*>(args);
    const int half = a->half, rest = a->channels - 2 * half;
    int64_t row, end;
    share(static_cast<int64_t>(step->num_tokens) * a->heads, 1, thread, num_threads, &row, &end);
    for (; row < end; ++row) {
        const float* x = a->x + row * a->channels;
        float* out = a->out + row * a->channels;
        const float* table = a->table + row / a->heads * 2 * half;
        for (int i = 0; i < half; i += W) rotate(x, out, table, half, i, half - i < W ? half - i : W);
        if (out != x && rest > 0) memcpy(out + 2 * half, x + 2 * half, sizeof(float) * rest);
    }
}
