// add, over rows * width items as one run.

static void add_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const AddArgs*>(args);
    const vf scale = set1(a->scale);
    int64_t i, end;
    share(static_cast<int64_t>(num_rows(step, a->rows)) * a->width, 256, thread, num_threads, &i, &end);
    for (; i + W <= end; i += W) store(a->out + i, fma(scale, load(a->y + i), load(a->x + i)));
    if (i < end) {
        const int rest = static_cast<int>(end - i);
        store_part(a->out + i, fma(scale, load_part(a->y + i, rest), load_part(a->x + i, rest)), rest);
    }
}
