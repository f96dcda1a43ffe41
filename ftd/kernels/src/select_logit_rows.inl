// select_logit_rows: one copy a row.

static void select_logit_rows_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const SelectLogitRowsArgs*>(args);
    int64_t row, end;
    share(step->num_logits, 1, thread, num_threads, &row, &end);
    for (; row < end; ++row)
        memcpy(a->out + row * a->width, a->x + static_cast<int64_t>(step->logit_rows[row]) * a->width,
               sizeof(float) * a->width);
}
