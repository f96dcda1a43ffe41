// position_embedding; a row is one part's work.

static void position_embedding_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const PositionEmbeddingArgs*>(args);
    const int width = a->width;
    int64_t token, end;
    share(step->num_tokens, 1, thread, num_threads, &token, &end);
    for (; token < end; ++token) {
        const float* x = a->x + token * width;
        const float* row = a->table + static_cast<int64_t>(step->positions[token]) * width;
        float* out = a->out + token * width;
        int i = 0;
        for (; i + W <= width; i += W) store(out + i, add(load(x + i), load(row + i)));
        if (i < width) store_part(out + i, add(load_part(x + i, width - i), load_part(row + i, width - i)), width - i);
    }
}
