// gated_delta. The columns of a state matrix never meet, so a part takes columns of a head, all tokens of a sequence one
// after the other: no result depends on where a step or a part ends. A block of columns of a 128 x 128 head stays in
// the first cache for a run of tokens; q and k are not normalised in memory, their norms are factors of what they meet.

constexpr int DELTA_VECTORS = 4;  // of a block of columns
constexpr int DELTA_RUN = 64;     // tokens whose scalars are computed at once

// One token of one head: the scalars that all its columns share.
struct DeltaToken {
    const float* q;
    const float* k;
    float q_factor;  // 1 / |q| / sqrt(Ck)
    float k_factor;  // 1 / |k|
    float decay;     // what is kept of the state
    float beta;      // share of the correction
};

static float inverse_norm(const float* x, int channels) {
    vf even = zero(), odd = zero();
    int i = 0;
    for (; i + 2 * W <= channels; i += 2 * W) {
        even = fma(load(x + i), load(x + i), even);
        odd = fma(load(x + i + W), load(x + i + W), odd);
    }
    for (; i < channels; i += W) {
        const vf value = i + W <= channels ? load(x + i) : load_part(x + i, channels - i);
        even = fma(value, value, even);
    }
    return 1.0f / sqrtf(sum(add(even, odd)) + 1e-6f);
}

static DeltaToken delta_token(const GatedDeltaArgs* a, int64_t token, int64_t head) {
    const int channels = a->key_channels;
    const int64_t keys = static_cast<int64_t>(a->key_heads) * channels;
    const float* row = a->qkv + token * (2 * keys + static_cast<int64_t>(a->value_heads) * a->value_channels);
    const int64_t key_head = a->tiled ? head % a->key_heads : head / (a->value_heads / a->key_heads);
    DeltaToken r;
    r.q = row + key_head * channels;
    r.k = row + keys + key_head * channels;
    r.q_factor = inverse_norm(r.q, channels) / sqrtf(static_cast<float>(channels));
    r.k_factor = inverse_norm(r.k, channels);
    const double x = static_cast<double>(a->a[token * a->value_heads + head]) + a->bias[head];
    const double softplus = x > 20.0 ? x : log1p(::exp(x));
    r.decay = static_cast<float>(::exp(a->decay[head] * softplus));
    r.beta = static_cast<float>(1.0 / (1.0 + ::exp(-static_cast<double>(a->b[token * a->value_heads + head]))));
    return r;
}

template <int N, bool PART>
static void delta_columns(const GatedDeltaArgs* a, const DeltaToken& token, const float* v, float* out, float* state,
                          int rest) {
    const auto read = [rest](const float* from) { return PART ? load_part(from, rest) : load(from); };
    const int rows = a->key_channels;
    const int64_t stride = a->value_channels;
    vf even[N], odd[N], mixed[N];
    for (int n = 0; n < N; ++n) even[n] = odd[n] = mixed[n] = zero();
    int i = 0;
    for (; i + 1 < rows; i += 2) {
        const vf k0 = set1(token.k[i]), k1 = set1(token.k[i + 1]);
        for (int n = 0; n < N; ++n) {
            even[n] = fma(read(state + i * stride + n * W), k0, even[n]);
            odd[n] = fma(read(state + (i + 1) * stride + n * W), k1, odd[n]);
        }
    }
    if (i < rows)
        for (int n = 0; n < N; ++n) even[n] = fma(read(state + i * stride + n * W), set1(token.k[i]), even[n]);
    const vf decay = set1(token.decay), known = set1(token.decay * token.k_factor);
    const vf correction = set1(token.beta * token.k_factor);
    for (int n = 0; n < N; ++n)
        even[n] = mul(sub(read(v + n * W), mul(add(even[n], odd[n]), known)), correction);
    for (i = 0; i < rows; ++i) {
        const vf k = set1(token.k[i]), q = set1(token.q[i]);
        float* row = state + i * stride;
        for (int n = 0; n < N; ++n) {
            const vf value = fma(k, even[n], mul(read(row + n * W), decay));
            if (PART)
                store_part(row + n * W, value, rest);
            else
                store(row + n * W, value);
            mixed[n] = fma(value, q, mixed[n]);
        }
    }
    for (int n = 0; n < N; ++n) {
        const vf value = mul(mixed[n], set1(token.q_factor));
        if (PART)
            store_part(out + n * W, value, rest);
        else
            store(out + n * W, value);
    }
}

static void delta_block(const GatedDeltaArgs* a, const Step* step, int64_t b, int64_t head, int begin, int end) {
    const int64_t first = step->q_start[b], last = step->q_start[b + 1];
    if (first == last) return;
    const int64_t rows = a->key_channels, columns = a->value_channels, width = a->value_heads * columns;
    const int64_t values = 2 * a->key_heads * rows;  // where the value heads start in a row of qkv
    float* state = a->state + (step->state_index[b] * a->value_heads + head) * rows * columns;
    if (step->positions[first] == 0)
        for (int64_t i = 0; i < rows; ++i)
            memset(state + i * columns + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    DeltaToken tokens[DELTA_RUN];
    for (int64_t start = first; start < last; start += DELTA_RUN) {
        const int count = static_cast<int>(last - start < DELTA_RUN ? last - start : DELTA_RUN);
        for (int t = 0; t < count; ++t) tokens[t] = delta_token(a, start + t, head);
        const float* v = a->qkv + start * (values + width) + values + head * columns;
        float* out = a->out + start * width + head * columns;
        int c = begin;
        for (; c + DELTA_VECTORS * W <= end; c += DELTA_VECTORS * W)
            for (int t = 0; t < count; ++t)
                delta_columns<DELTA_VECTORS, false>(a, tokens[t], v + t * (values + width) + c, out + t * width + c,
                                                    state + c, W);
        for (; c + W <= end; c += W)
            for (int t = 0; t < count; ++t)
                delta_columns<1, false>(a, tokens[t], v + t * (values + width) + c, out + t * width + c, state + c, W);
        if (c < end)
            for (int t = 0; t < count; ++t)
                delta_columns<1, true>(a, tokens[t], v + t * (values + width) + c, out + t * width + c, state + c,
                                       end - c);
    }
}

static void gated_delta_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const GatedDeltaArgs*>(args);
    // Whole heads where there are enough of them for all parts.
    const int64_t sequences = step->num_sequences;
    const int width = sequences * a->value_heads >= 4 * num_threads ? a->value_channels : 64;
    const int64_t blocks = (a->value_channels + width - 1) / width;
    int64_t item, item_end;
    share(sequences * a->value_heads * blocks, 1, thread, num_threads, &item, &item_end);
    for (; item < item_end; ++item) {
        const int64_t place = item / sequences;
        const int begin = static_cast<int>(place % blocks) * width;
        const int end = begin + width < a->value_channels ? begin + width : a->value_channels;
        delta_block(a, step, item % sequences, place / blocks, begin, end);
    }
}
