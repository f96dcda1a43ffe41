// gated_delta. The columns of a state matrix never meet, so a part takes blocks of columns of a head, all tokens of a
// sequence one after the other: no result depends on where a step or a part ends. A block of a head of 128 x 128
// stays in the first cache; q and k are not normalised in memory, their norms are factors of what they meet.

constexpr int DELTA_VECTORS = 4;

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
    double total = 0.0;
    for (int i = 0; i < channels; ++i) total += static_cast<double>(x[i]) * x[i];
    return static_cast<float>(1.0 / sqrt(total + 1e-6));
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
    for (int64_t t = first; t < last; ++t) {
        const DeltaToken token = delta_token(a, t, head);
        const float* v = a->qkv + t * (values + width) + values + head * columns;
        float* out = a->out + t * width + head * columns;
        int c = begin;
        for (; c + DELTA_VECTORS * W <= end; c += DELTA_VECTORS * W)
            delta_columns<DELTA_VECTORS, false>(a, token, v + c, out + c, state + c, W);
        for (; c + W <= end; c += W) delta_columns<1, false>(a, token, v + c, out + c, state + c, W);
        if (c < end) delta_columns<1, true>(a, token, v + c, out + c, state + c, end - c);
    }
}

static void gated_delta_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const GatedDeltaArgs*>(args);
    const int width = 64;
    const int64_t sequences = step->num_sequences, blocks = (a->value_channels + width - 1) / width;
    int64_t item, item_end;
    share(sequences * a->value_heads * blocks, 1, thread, num_threads, &item, &item_end);
    for (; item < item_end; ++item) {
        const int64_t place = item / sequences;
        const int begin = static_cast<int>(place % blocks) * width;
        const int end = begin + width < a->value_channels ? begin + width : a->value_channels;
        delta_block(a, step, item % sequences, place / blocks, begin, end);
    }
}
