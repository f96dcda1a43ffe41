// The SPMD functions of quantize and matmul; included once for each instruction set, after its kernels.

inline void quantize_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const QuantizeArgs& a = *static_cast<const QuantizeArgs*>(args);
    const int64_t blocks = a.out.blocks;
    int64_t begin, end;
    share(num_rows(step, a.rows) * blocks, 4, thread, num_threads, &begin, &end);
    for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / blocks, b = i % blocks;
        if (32 * b < a.k)
            quantize_block(a.x + t * a.k + 32 * b, a.out, t, b);
        else
            clear_block(a.out, t, b);
    }
}

inline void quantize_one(const float* x, const Activations& out, int64_t b) noexcept {
    if (x)
        quantize_block(x, out, 0, b);
    else
        clear_block(out, 0, b);
}

inline void product_range(const Product& p, const MatmulArgs& a, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                          char* scratch) {
    if (p.exact) return float_range(p, a.x, begin, end, t0, t1, scratch);
    const Activations& x = a.activations;
    switch (p.weight.format) {
        case Q8_0: return tile_range<Q8_0>(p, x, begin, end, t0, t1, scratch);
        case Q4_0: return tile_range<Q4_0>(p, x, begin, end, t0, t1, scratch);
        case Q4_1: return tile_range<Q4_1>(p, x, begin, end, t0, t1, scratch);
        case Q5_0: return tile_range<Q5_0>(p, x, begin, end, t0, t1, scratch);
        case Q5_1: return tile_range<Q5_1>(p, x, begin, end, t0, t1, scratch);
        case Q4_K: return tile_range<Q4_K>(p, x, begin, end, t0, t1, scratch);
        case Q5_K: return tile_range<Q5_K>(p, x, begin, end, t0, t1, scratch);
        case Q6_K: return tile_range<Q6_K>(p, x, begin, end, t0, t1, scratch);
        case MXFP4: return tile_range<MXFP4>(p, x, begin, end, t0, t1, scratch);
        case NVFP4: return tile_range<NVFP4>(p, x, begin, end, t0, t1, scratch);
        default: return;
    }
}

// One row of x: a VectorFn.
inline void vector_range(const Product& p, const float* x, const Activations& codes, int64_t begin, int64_t end,
                         const Matrix* next, int64_t next_row, char* scratch) noexcept {
    if (p.exact) return exact_vector(p, x, begin, end, next, next_row, scratch);
    switch (p.weight.format) {
        case Q8_0: return vector_rows<Q8_0>(p, codes, begin, end, next, next_row);
        case Q4_0: return vector_rows<Q4_0>(p, codes, begin, end, next, next_row);
        case Q4_1: return vector_rows<Q4_1>(p, codes, begin, end, next, next_row);
        case Q5_0: return vector_rows<Q5_0>(p, codes, begin, end, next, next_row);
        case Q5_1: return vector_rows<Q5_1>(p, codes, begin, end, next, next_row);
        case Q4_K: return vector_rows<Q4_K>(p, codes, begin, end, next, next_row);
        case Q5_K: return vector_rows<Q5_K>(p, codes, begin, end, next, next_row);
        case Q6_K: return vector_rows<Q6_K>(p, codes, begin, end, next, next_row);
        case MXFP4: return vector_rows<MXFP4>(p, codes, begin, end, next, next_row);
        case NVFP4: return vector_rows<NVFP4>(p, codes, begin, end, next, next_row);
        default: return;
    }
}

// Shares out the row tiles, `grain` rows each, of all products: they form one line; few tiles and many tokens are shared by
// tokens too. Calls range(product, the next or null, begin, end, t0, t1) for what is this part's.
template <class Range>
void for_each_range(const MatmulArgs& a, int64_t num_tokens, int64_t grain, int32_t thread, int32_t num_threads,
                    const Range& range) {
    const int64_t token_tiles = (num_tokens + TOKEN_GRAIN - 1) / TOKEN_GRAIN;
    int64_t tiles = 0, slices = 1;
    for (int32_t i = 0; i < a.num_products; ++i) tiles += (a.products[i].weight.n + grain - 1) / grain;
    while (tiles * slices < 3 * num_threads && num_tokens / slices >= 32) slices *= 2;
    int64_t begin, end;
    share(tiles * slices, 1, thread, num_threads, &begin, &end);
    for (int64_t slice = begin / tiles; slice * tiles < end; ++slice) {
        const int64_t t0 = token_tiles * slice / slices * TOKEN_GRAIN;
        const int64_t t1 = slice + 1 < slices ? token_tiles * (slice + 1) / slices * TOKEN_GRAIN : num_tokens;
        int64_t at = slice * tiles;  // first tile of the product, in the line
        for (int32_t i = 0; i < a.num_products; ++i) {
            const int64_t n = a.products[i].weight.n, count = (n + grain - 1) / grain;
            const int64_t first = begin > at ? begin - at : 0, last = end - at < count ? end - at : count;
            const Product* after = i + 1 < a.num_products ? &a.products[i + 1] : nullptr;
            const int64_t stop = last * grain < n ? last * grain : n;
            if (first < last) range(a.products[i], after, first * grain, stop, t0, t1);
            at += count;
        }
    }
}

inline void matmul_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const MatmulArgs& a = *static_cast<const MatmulArgs*>(args);
    const int64_t num_tokens = num_rows(step, a.rows), grain = num_tokens == 1 ? 8 : TILE_ROWS;
    if (num_tokens == 0) return;
    char* scratch = a.scratch + thread * a.scratch_stride;
    const auto range = [&](const Product& p, const Product* after, int64_t begin, int64_t end, int64_t t0, int64_t t1) {
        if (num_tokens > 1) return product_range(p, a, begin, end, t0, t1, scratch);
        vector_range(p, a.x, a.activations, begin, end, after ? &after->weight : nullptr, 0, scratch);
    };
    for_each_range(a, num_tokens, grain, thread, num_threads, range);
}
