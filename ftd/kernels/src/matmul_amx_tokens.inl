// Quantised activations as AMX reads them: 16 tokens of a block make one record of
//   [16][16] dwords   row j < 8: values 4j .. 4j + 3 of q of each token; rows 8 .. 15: z, four times, of each token
//   d [16], X [16]    floats
// Against codes that are repeated, [c | c], one tile product then gives J = sum (c - offset) * (q + z). The records of
// AMX_BLOCKS blocks lie in order of block % 4, so that each partial sum reads one run of them.

constexpr int64_t AMX_LEAST_TOKENS = 32;  // below, AVX-512 is as fast

// Where block b lies among `blocks` (a multiple of 4) of a row.
inline int64_t record_place(int64_t b, int64_t blocks) {
    const int64_t first = b / AMX_BLOCKS * AMX_BLOCKS;
    const int64_t count = blocks - first < AMX_BLOCKS ? blocks - first : AMX_BLOCKS;
    return first + b % 4 * (count / 4) + (b - first) / 4;
}

// Dwords 0 .. 3 at `offset` of 16 rows (null: zeros): out[i] holds dword i of each row.
inline void gather_dwords(const char* const rows[16], int64_t offset, __m512i out[4]) {
    __m512i lane[4];
    for (int i = 0; i < 4; ++i) {
        __m128i four[4];
        for (int j = 0; j < 4; ++j) {
            const char* row = rows[4 * j + i];
            four[j] = row ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + offset)) : _mm_setzero_si128();
        }
        lane[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(four[1], four[0])),
                                     _mm256_set_m128i(four[3], four[2]), 1);
    }
    const __m512i a = _mm512_unpacklo_epi32(lane[0], lane[1]), b = _mm512_unpackhi_epi32(lane[0], lane[1]);
    const __m512i c = _mm512_unpacklo_epi32(lane[2], lane[3]), d = _mm512_unpackhi_epi32(lane[2], lane[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

// The records of blocks b .. b + 3 (b a multiple of 4) of tokens 16 * tile .. of num_tokens.
inline void write_records(const Activations& x, int64_t tile, int64_t b, int64_t num_tokens) {
    const char *q[16], *d[16], *z[16], *sum[16];
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t t = 16 * tile + i, item = t * x.blocks + b;
        const bool is_token = t < num_tokens;
        q[i] = is_token ? reinterpret_cast<const char*>(x.q + item * 32) : nullptr;
        d[i] = is_token ? reinterpret_cast<const char*>(x.d + item) : nullptr;
        z[i] = is_token ? reinterpret_cast<const char*>(x.z + item) : nullptr;
        sum[i] = is_token ? reinterpret_cast<const char*>(x.sum32 + item) : nullptr;
    }
    __m512i steps[4], zeros[4], sums[4], codes[8];
    gather_dwords(d, 0, steps);
    gather_dwords(z, 0, zeros);
    gather_dwords(sum, 0, sums);
    const __m512i low_byte = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    for (int i = 0; i < 4; ++i) {
        char* record = x.tiles + (tile * x.blocks + record_place(b + i, x.blocks)) * TOKEN_RECORD;
        gather_dwords(q, 16 * i, codes);
        gather_dwords(q, 64 + 16 * i, codes + 4);
        const __m512i zero = _mm512_shuffle_epi8(_mm512_cvtps_epi32(_mm512_castsi512_ps(zeros[i])), low_byte);
        for (int j = 0; j < 8; ++j) {
            _mm512_store_si512(record + 64 * j, codes[j]);
            _mm512_store_si512(record + 64 * (8 + j), zero);
        }
        _mm512_store_si512(record + 1024, steps[i]);
        _mm512_store_si512(record + 1088, sums[i]);
    }
}

inline void quantize_tiles_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const QuantizeArgs& a = *static_cast<const QuantizeArgs*>(args);
    const int64_t num_tokens = num_rows(step, a.rows), groups = a.out.blocks / 4;
    if (!a.out.tiles || num_tokens < AMX_LEAST_TOKENS) return avx512::quantize_op(args, step, thread, num_threads);
    int64_t begin, end;
    share((num_tokens + 15) / 16 * groups, 1, thread, num_threads, &begin, &end);
    for (int64_t i = begin; i < end; ++i) {
        const int64_t tile = i / groups, first = i % groups * 4;
        const int64_t last = 16 * tile + 16 < num_tokens ? 16 * tile + 16 : num_tokens;
        for (int64_t t = 16 * tile; t < last; ++t)
            for (int64_t b = first; b < first + 4; ++b) {
                if (32 * b < a.k)
                    avx512::quantize_block(a.x + t * a.k + 32 * b, a.out, t, b);
                else
                    clear_block(a.out, t, b);
            }
        write_records(a.out, tile, first, num_tokens);
    }
}
