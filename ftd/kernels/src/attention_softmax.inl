// The running softmax of attention: rows of scores become weights, parts of a row's keys are merged in order.

// Softmax state of some rows: weights are exp(score - maximum), total is their sum, mixed is their sum times v.
struct State {
    float* maximum;
    float* total;
    float* mixed;  // [rows, width]
};

static inline float exp1(float x) {
    alignas(64) float lanes[W];
    store(lanes, exp(set1(x)));
    return lanes[0];
}

static void reset(const State& state, int rows, int64_t width) {
    for (int r = 0; r < rows; ++r) {
        state.maximum[r] = -INFINITY;
        state.total[r] = 0.0f;
    }
    memset(state.mixed, 0, sizeof(float) * rows * width);
}

static void scale_row(float* row, int64_t width, float factor) {
    const vf by = set1(factor);
    for (int64_t i = 0; i < width; i += W) store(row + i, mul(load(row + i), by));
}

// Turns a row of scores into weights; keys from begin to end - 1 of the tile are seen, the others weigh 0.
static void soften(float* scores, int begin, int end, float* maximum, float* total, float* mixed, int64_t width) {
    if (begin >= end) {
        for (int i = 0; i < TILE; i += W) store(scores + i, zero());
        return;
    }
    for (int i = 0; i < begin; ++i) scores[i] = -INFINITY;
    for (int i = end; i < TILE; ++i) scores[i] = -INFINITY;
    vf top = load(scores);
    for (int i = W; i < TILE; i += W) top = max(top, load(scores + i));
    const float before = *maximum, tile_top = largest(top);
    if (!(tile_top <= before)) {
        const float factor = exp1(before - tile_top);
        *maximum = tile_top;
        *total *= factor;
        scale_row(mixed, width, factor);
    }
    const vf shift = set1(*maximum);
    vf sums = zero();
    for (int i = 0; i < TILE; i += W) {
        const vf weight = exp(sub(load(scores + i), shift));
        store(scores + i, weight);
        sums = add(sums, weight);
    }
    *total += sum(sums);
}

// into = into and from together; a total of 0 means that from saw no key (its largest weighs 1, NaN stays NaN).
static void merge(float* into_maximum, float* into_total, float* into_mixed, float from_maximum, float from_total,
                  const float* from_mixed, int64_t width) {
    if (from_total == 0.0f) return;
    const float top = *into_maximum > from_maximum ? *into_maximum : from_maximum;
    const float keep = *into_maximum == top ? 1.0f : exp1(*into_maximum - top);
    const float take = from_maximum == top ? 1.0f : exp1(from_maximum - top);
    *into_maximum = top;
    *into_total = *into_total * keep + from_total * take;
    const vf kept = set1(keep), taken = set1(take);
    for (int64_t i = 0; i < width; i += W)
        store(into_mixed + i, fma(load(from_mixed + i), taken, mul(load(into_mixed + i), kept)));
}

static void write_row(const AttentionArgs* a, int64_t token, int32_t head, float maximum, float total,
                      const float* mixed) {
    float* out = a->out + (token * a->heads + head) * a->channels;
    float factor = 1.0f;
    if (a->sinks != nullptr) {
        const float top = maximum > a->sinks[head] ? maximum : a->sinks[head];
        factor = exp1(maximum - top);
        total = total * factor + exp1(a->sinks[head] - top);
    }
    const vf by = set1(total == 0.0f ? 0.0f : factor / total);
    int c = 0;
    for (; c + W <= a->channels; c += W) store(out + c, mul(load(mixed + c), by));
    if (c < a->channels) store_part(out + c, mul(load(mixed + c), by), a->channels - c);
}
