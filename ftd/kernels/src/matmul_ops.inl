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

template <int32_t FORMAT>
void integer_range(const Product& p, const Activations& x, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                   int64_t num_tokens, char* scratch) {
    if (num_tokens == 1)
        vector_rows<FORMAT>(p, x, begin, end);
    else
        tile_range<FORMAT>(p, x, begin, end, t0, t1, scratch);
}

inline void product_range(const Product& p, const MatmulArgs& a, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                          int64_t num_tokens, char* scratch) {
    if (p.exact && num_tokens == 1) return exact_vector(p, a.x, begin, end, scratch);
    if (p.exact) return float_range(p, a.x, begin, end, t0, t1, scratch);
    const Activations& x = a.activations;
    switch (p.weight.format) {
        case Q8_0: return integer_range<Q8_0>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case Q4_0: return integer_range<Q4_0>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case Q4_1: return integer_range<Q4_1>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case Q5_0: return integer_range<Q5_0>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case Q5_1: return integer_range<Q5_1>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case Q4_K: return integer_range<Q4_K>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case Q5_K: return integer_range<Q5_K>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case Q6_K: return integer_range<Q6_K>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case MXFP4: return integer_range<MXFP4>(p, x, begin, end, t0, t1, num_tokens, scratch);
        case NVFP4: return integer_range<NVFP4>(p, x, begin, end, t0, t1, num_tokens, scratch);
        default: return;
    }
}

// The row tiles of all products form one line that the parts share; few tiles and many tokens are shared by tokens too.
inline void matmul_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const MatmulArgs& a = *static_cast<const MatmulArgs*>(args);
    const int64_t num_tokens = num_rows(step, a.rows);
    if (num_tokens == 0) return;
    char* scratch = a.scratch + thread * a.scratch_stride;
    const int64_t grain = num_tokens == 1 ? 8 : TILE_ROWS, token_tiles = (num_tokens + TOKEN_GRAIN - 1) / TOKEN_GRAIN;
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
            const Product& p = a.products[i];
            const int64_t n = p.weight.n, count = (n + grain - 1) / grain;
            const int64_t first = begin > at ? begin - at : 0, last = end - at < count ? end - at : count;
            if (first < last)
                product_range(p, a, first * grain, last * grain < n ? last * grain : n, t0, t1, num_tokens, scratch);
            at += count;
        }
    }
}
