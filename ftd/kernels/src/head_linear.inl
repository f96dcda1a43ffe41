// head_linear: items of work are blocks of rows of one head's matrix, or of the transposed product whole heads. A row of
// weights is made floats once whatever the number of tokens. Each output is one chain in rising order of K.
#include "dot_block.inl"

struct HeadShape {
    int64_t rows, columns;    // of W_h
    int64_t x_head, out_head; // floats of a head
};

static HeadShape head_shape(const HeadLinearArgs* a) {
    const int64_t rows = a->rows, columns = a->weight.k;
    const int64_t k = a->transposed ? rows : columns, n = a->transposed ? columns : rows;
    return {rows, columns, k + a->tail, n + a->tail};
}

// One row as floats, the same bits as dequantize_row: that one is compiled for any machine, this for the one at hand.
static void float_row(const Matrix& w, int64_t row, float* out) {
    const int64_t k = w.k;
    if (w.format == F16) {
        const auto* from = reinterpret_cast<const Half*>(plane_row<uint16_t>(w, 0, row, k));
        int64_t i = 0;
        for (; i + W <= k; i += W) store(out + i, load(from + i));
        if (i < k) store_part(out + i, load_part(from + i, static_cast<int>(k - i)), static_cast<int>(k - i));
    } else if (w.format == BF16) {
        const uint16_t* from = plane_row<uint16_t>(w, 0, row, k);
        for (int64_t i = 0; i < k; ++i) out[i] = bits_to_float(static_cast<uint32_t>(from[i]) << 16);
    } else if (w.format == Q8_0) {
        const int8_t* codes = plane_row<int8_t>(w, 0, row, k);
        const uint16_t* scales = plane_row<uint16_t>(w, 1, row, k / 32);
        for (int64_t b = 0; b < k / 32; ++b) {
            const float scale = half_to_float(scales[b]);
            for (int j = 0; j < 32; ++j) out[32 * b + j] = static_cast<float>(codes[32 * b + j]) * scale;
        }
    } else {
        dequantize_row(w, row, out);
    }
}

// Rows [first, first + count) of a head as floats: where they lie, or in scratch.
static const float* head_rows(const HeadLinearArgs* a, int64_t head, int64_t first, int64_t count, float* floats) {
    const Matrix& w = a->weight;
    const int64_t row = head * (w.n / a->heads) + a->first + first;
    if (w.format == F32) return plane_row<float>(w, 0, row, w.k);
    for (int64_t i = 0; i < count; ++i) float_row(w, row + i, floats + i * w.k);
    return floats;
}

static void add_rows(const float* matrix, int64_t count, int64_t columns, const float* factors, float* out) {
    int64_t c = 0;
    for (; c + W <= columns; c += W) {
        vf sums = load(out + c);
        for (int64_t r = 0; r < count; ++r) sums = fma(set1(factors[r]), load(matrix + r * columns + c), sums);
        store(out + c, sums);
    }
    if (c == columns) return;
    const int rest = static_cast<int>(columns - c);
    vf sums = load_part(out + c, rest);
    for (int64_t r = 0; r < count; ++r) sums = fma(set1(factors[r]), load_part(matrix + r * columns + c, rest), sums);
    store_part(out + c, sums, rest);
}

static void transposed_head(const HeadLinearArgs* a, const Step* step, const HeadShape& s, int64_t head, float* floats) {
    const int64_t x_row = a->heads * s.x_head, out_row = a->heads * s.out_head;
    const float* x = a->x + head * s.x_head;
    float* out = a->out + head * s.out_head;
    for (int64_t t = 0; t < step->num_tokens; ++t) memset(out + t * out_row, 0, sizeof(float) * s.columns);
    for (int64_t first = 0; first < s.rows; first += HEAD_LINEAR_ROWS) {
        const int64_t count = s.rows - first < HEAD_LINEAR_ROWS ? s.rows - first : HEAD_LINEAR_ROWS;
        const float* matrix = head_rows(a, head, first, count, floats);
        for (int64_t t = 0; t < step->num_tokens; ++t)
            add_rows(matrix, count, s.columns, x + t * x_row + first, out + t * out_row);
    }
}

static void copy_tails(const HeadLinearArgs* a, const Step* step, const HeadShape& s, int32_t thread, int32_t num_threads) {
    const int64_t tail = a->tail, half = tail / 2;
    int64_t item, end;
    share(static_cast<int64_t>(step->num_tokens) * a->heads, 1, thread, num_threads, &item, &end);
    for (; item < end; ++item) {
        const float* from = a->x + (item + 1) * s.x_head - tail;
        float* to = a->out + (item + 1) * s.out_head - tail;
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
    const HeadShape s = head_shape(a);
    float* floats = a->scratch + thread * head_linear_scratch_floats(s.columns);
    const int64_t blocks = a->transposed ? 1 : (s.rows + HEAD_LINEAR_ROWS - 1) / HEAD_LINEAR_ROWS;
    int64_t item, end;
    share(a->heads * blocks, 1, thread, num_threads, &item, &end);
    for (; item < end; ++item) {
        const int64_t head = item / blocks, first = item % blocks * HEAD_LINEAR_ROWS;
        if (a->transposed) {
            transposed_head(a, step, s, head, floats);
            continue;
        }
        const int64_t count = s.rows - first < HEAD_LINEAR_ROWS ? s.rows - first : HEAD_LINEAR_ROWS;
        const float* matrix = head_rows(a, head, first, count, floats);
        dot_tile(step->num_tokens, a->x + head * s.x_head, a->heads * s.x_head, count, matrix, s.columns,
                 static_cast<int>(s.columns), 1.0f, a->out + head * s.out_head + first, a->heads * s.out_head, 1);
    }
    if (a->tail > 0) copy_tails(a, step, s, thread, num_threads);
}
