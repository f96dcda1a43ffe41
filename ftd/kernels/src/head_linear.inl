// head_linear: items of work are blocks of rows of one head's matrix, read once whatever the number of tokens.
#include "dot_block.inl"

static void copy_tails(const HeadLinearArgs* a, const Step* step, int64_t rows, int32_t thread, int32_t num_threads) {
    const int64_t k = a->weight.k, tail = a->tail, half = tail / 2;
    int64_t item, end;
    share(static_cast<int64_t>(step->num_tokens) * a->heads, 1, thread, num_threads, &item, &end);
    for (; item < end; ++item) {
        const float* from = a->x + item * (k + tail) + k;
        float* to = a->out + item * (rows + tail) + rows;
        if (!a->interleaved) {
            memcpy(to, from, sizeof(float) * tail);
            continue;
        }
        for (int64_t i = 0; i < half; ++i) {
            to[i] = from[2 * i];
            to[half + i] = from[2 * i + 1];
        }
    }
}

static void head_linear_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const HeadLinearArgs*>(args);
    const Matrix& w = a->weight;
    const int64_t rows = w.n / a->heads, k = w.k, blocks = (rows + HEAD_LINEAR_ROWS - 1) / HEAD_LINEAR_ROWS;
    const int64_t x_head = k + a->tail, out_head = rows + a->tail;
    float* floats = a->scratch + thread * head_linear_scratch_floats(k);
    int64_t item, end;
    share(a->heads * blocks, 1, thread, num_threads, &item, &end);
    for (; item < end; ++item) {
        const int64_t head = item / blocks, first = item % blocks * HEAD_LINEAR_ROWS;
        const int64_t count = rows - first < HEAD_LINEAR_ROWS ? rows - first : HEAD_LINEAR_ROWS;
        const int64_t row = head * rows + first;
        const float* matrix = floats;
        if (w.format == F32)
            matrix = plane_row<float>(w, 0, row, k);
        else
            for (int64_t i = 0; i < count; ++i) dequantize_row(w, row + i, floats + i * k);
        dot_tile(step->num_tokens, a->x + head * x_head, a->heads * x_head, count, matrix, k, static_cast<int>(k), 1.0f,
                 a->out + head * out_head + first, a->heads * out_head, 1);
    }
    if (a->tail > 0) copy_tails(a, step, rows, thread, num_threads);
}
