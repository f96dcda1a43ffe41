// causal_conv. A part takes blocks of channels of a sequence, all its tokens: the state belongs to one part.

constexpr int64_t CONV_BLOCK = 128;

// exp of minus the absolute value never overflows, as in swiglu.
static inline vf silu(vf x) {
    const vf decay = exp(min(x, sub(zero(), x)));
    return div(add(max(x, zero()), mul(min(x, zero()), decay)), add(set1(1.0f), decay));
}

static void convolve(const CausalConvArgs* a, const float* const* inputs, float* out, int64_t begin, int64_t end) {
    int64_t c = begin;
    for (; c + W <= end; c += W) {
        vf total = mul(load(a->weight + c), load(inputs[0] + c));
        for (int j = 1; j < a->taps; ++j)
            total = fma(load(a->weight + j * a->channels + c), load(inputs[j] + c), total);
        store(out + c, silu(total));
    }
    if (c < end) {
        const int rest = static_cast<int>(end - c);
        vf total = mul(load_part(a->weight + c, rest), load_part(inputs[0] + c, rest));
        for (int j = 1; j < a->taps; ++j)
            total = fma(load_part(a->weight + j * a->channels + c, rest), load_part(inputs[j] + c, rest), total);
        store_part(out + c, silu(total), rest);
    }
}

static void convolve_sequence(const CausalConvArgs* a, const Step* step, int64_t b, int64_t begin, int64_t end) {
    const int64_t first = step->q_start[b], tokens = step->q_start[b + 1] - first, kept = a->taps - 1;
    if (tokens == 0) return;
    float* state = a->state + step->state_index[b] * kept * a->channels;
    const float* x = a->x + first * a->channels;
    const size_t width = static_cast<size_t>(end - begin) * sizeof(float);
    if (step->positions[first] == 0)
        for (int64_t i = 0; i < kept; ++i) memset(state + i * a->channels + begin, 0, width);
    for (int64_t t = 0; t < tokens; ++t) {
        const float* inputs[MAX_TAPS];
        for (int64_t j = 0; j <= kept; ++j) {
            const int64_t from = t - kept + j;  // below 0: still in the state
            inputs[j] = from < 0 ? state + (from + kept) * a->channels : x + from * a->channels;
        }
        convolve(a, inputs, a->out + (first + t) * a->channels, begin, end);
    }
    for (int64_t i = 0; i < kept; ++i) {  // rising: a row moves down before it is overwritten
        const int64_t from = tokens - kept + i;
        const float* row = from < 0 ? state + (from + kept) * a->channels : x + from * a->channels;
        memcpy(state + i * a->channels + begin, row + begin, width);
    }
}

static void causal_conv_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const CausalConvArgs*>(args);
    int64_t item, end;
    const int64_t blocks = (a->channels + CONV_BLOCK - 1) / CONV_BLOCK;
    share(blocks * step->num_sequences, 1, thread, num_threads, &item, &end);
    for (; item < end; ++item) {
        const int64_t begin = item / step->num_sequences * CONV_BLOCK, rest = a->channels - begin;
        convolve_sequence(a, step, item % step->num_sequences, begin, begin + (rest < CONV_BLOCK ? rest : CONV_BLOCK));
    }
}
