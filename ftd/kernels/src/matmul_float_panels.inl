// Exact products of many tokens with AVX2. Vectors hold the same column of rows, a token's value of it is broadcast,
// so that sums need no shuffles and are stored as they lie in the output. Columns j, j + 16, j + 32 ... (lane j of
// dot_floats_scalar) are summed one lane after the other. Between lanes sums go to memory: each store costs the two
// cycles of four products on Zen 3 (a tenth of all at K = 576), the order of sums leaves no way around it.
//
// A panel holds 16 rows as floats, in the order in which they are read:
//
//   [16 lanes][steps][16 rows]     lanes as LANE_ORDER has them: neighbours add up first, as in the tree of sums
//
// The values of six tokens stay in the first cache while the panels stream from the second.

constexpr int LANE_ORDER[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};  // its own inverse

// Where columns at .. at + 15 of a panel begin that are step at / 16 of lane `lane`.
inline float* panel_step(float* panel, int64_t k, int64_t lane, int64_t at) {
    return panel + (LANE_ORDER[lane] * lane_stride(k) + at / 16) * PANEL_ROWS;
}

// Sixteen rows of floats, `stride` floats apart, become a panel; columns from `at` on, a multiple of 8.
inline void pack_floats(const float* rows, int64_t stride, int64_t at, int64_t k, float* panel) {
    for (; at + 8 <= k; at += 8)
        for (int64_t first = 0; first < PANEL_ROWS; first += 8) {
            __m256 r[8];
            for (int64_t i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(rows + (first + i) * stride + at);
            transpose8(r);
            for (int64_t i = 0; i < 8; ++i) _mm256_store_ps(panel_step(panel, k, at % 16 + i, at) + first, r[i]);
        }
    for (; at < k; ++at)
        for (int64_t r = 0; r < PANEL_ROWS; ++r) panel_step(panel, k, at % 16, at)[r] = rows[r * stride + at];
}

// Eight columns of sixteen rows of 16-bit floats, k apart, row by row into column by column.
inline void transpose_columns(const uint16_t* rows, int64_t k, __m256i columns[8]) {
    __m256i r[8], pairs[8];
    for (int64_t i = 0; i < 8; ++i) {
        const auto* low = reinterpret_cast<const __m128i*>(rows + i * k);
        const auto* high = reinterpret_cast<const __m128i*>(rows + (i + 8) * k);
        r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
    }
    for (int i = 0; i < 4; ++i) {  // rows i and i + 4 of four columns
        pairs[i] = _mm256_unpacklo_epi16(r[i], r[i + 4]);
        pairs[i + 4] = _mm256_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (int half = 0; half < 2; ++half) {
        const __m256i* four = pairs + 4 * half;
        const __m256i even0 = _mm256_unpacklo_epi16(four[0], four[2]), even1 = _mm256_unpackhi_epi16(four[0], four[2]);
        const __m256i odd0 = _mm256_unpacklo_epi16(four[1], four[3]), odd1 = _mm256_unpackhi_epi16(four[1], four[3]);
        columns[4 * half] = _mm256_unpacklo_epi16(even0, odd0);
        columns[4 * half + 1] = _mm256_unpackhi_epi16(even0, odd0);
        columns[4 * half + 2] = _mm256_unpacklo_epi16(even1, odd1);
        columns[4 * half + 3] = _mm256_unpackhi_epi16(even1, odd1);
    }
}

// Sixteen rows of 16-bit floats become a panel, up to the last eight columns. Sixteen rows ahead are fetched meanwhile.
template <int32_t FORMAT>
void pack_halves(const Matrix& w, int64_t row, float* panel) {
    const uint16_t* rows = plane_row<uint16_t>(w, 0, row, w.k);
    for (int64_t at = 0; at + 8 <= w.k; at += 8) {
        if (at % 32 == 0)
            for (int64_t r = 0; r < PANEL_ROWS; ++r)
                __builtin_prefetch(rows + (PANEL_ROWS + r) * w.k + at, 0, FETCH_LOCALITY);
        __m256i columns[8];
        transpose_columns(rows + at, w.k, columns);
        for (int64_t i = 0; i < 8; ++i) {
            float* to = panel_step(panel, w.k, at % 16 + i, at);
            const __m128i low = _mm256_castsi256_si128(columns[i]), high = _mm256_extracti128_si256(columns[i], 1);
            if constexpr (FORMAT == F16) {
                _mm256_store_ps(to, _mm256_cvtph_ps(low));
                _mm256_store_ps(to + 8, _mm256_cvtph_ps(high));
            } else {
                const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16);
                const __m256i above = _mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16);
                _mm256_store_ps(to, _mm256_castsi256_ps(wide));
                _mm256_store_ps(to + 8, _mm256_castsi256_ps(above));
            }
        }
    }
}

// Rows [row, row + 16) of W become a panel; those from `end` on, which nobody stores, repeat the last. `floats` holds
// 16 rows, an odd number of lines apart like the lanes of a panel.
inline void pack_panel(const Matrix& w, int64_t row, int64_t end, float* floats, float* panel) {
    const bool halves = (w.format == F16 || w.format == BF16) && row + PANEL_ROWS <= end && w.k % 8 == 0;
    if (halves) return w.format == F16 ? pack_halves<F16>(w, row, panel) : pack_halves<BF16>(w, row, panel);
    const int64_t stride = 16 * lane_stride(w.k);
    for (int64_t r = 0; r < PANEL_ROWS; ++r) float_row(w, row + r < end ? row + r : end - 1, floats + r * stride);
    pack_floats(floats, stride, 0, w.k, panel);
}

// A tile: sums of one panel and NT tokens.
using TileSums = float (*)[PANEL_ROWS];

template <int NT>
inline void store_sums(const __m256 (*acc)[2], TileSums to) {
#pragma GCC unroll 8
    for (int i = 0; i < NT; ++i) {
        _mm256_store_ps(to[i], acc[i][0]);
        _mm256_store_ps(to[i] + 8, acc[i][1]);
    }
}

// Adds sums of earlier lanes.
template <int NT>
inline void add_sums(const float (*from)[PANEL_ROWS], __m256 (*acc)[2]) {
#pragma GCC unroll 8
    for (int i = 0; i < NT; ++i) {
        acc[i][0] = _mm256_add_ps(_mm256_load_ps(from[i]), acc[i][0]);
        acc[i][1] = _mm256_add_ps(_mm256_load_ps(from[i] + 8), acc[i][1]);
    }
}

// Adds `steps` columns of one lane to the sums; tokens are k floats apart. What lies at `ahead` is fetched meanwhile.
template <int NT>
inline void add_lane(const float* panel, const float* x, int64_t k, int64_t steps, const float* ahead, __m256 (*acc)[2]) {
    for (const float* end = panel + steps * PANEL_ROWS; panel != end; panel += PANEL_ROWS, x += 16, ahead += 16) {
        __builtin_prefetch(ahead, 0, 3);
        const __m256 low = _mm256_load_ps(panel), high = _mm256_load_ps(panel + 8);
#pragma GCC unroll 8
        for (int i = 0; i < NT; ++i) {
            const __m256 token = _mm256_broadcast_ss(x + i * k);
            acc[i][0] = _mm256_fmadd_ps(low, token, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(high, token, acc[i][1]);
        }
    }
}

template <int NT>
inline void store_tile(const Product& p, int64_t t, int64_t row, int64_t end, const __m256 (*acc)[2]) {
    if (end - row < PANEL_ROWS) {
        alignas(32) float value[NT][PANEL_ROWS];
        store_sums<NT>(acc, value);
        for (int i = 0; i < NT; ++i)
            for (int64_t r = 0; row + r < end; ++r) store_product(p, t + i, row + r, value[i][r]);
        return;
    }
    float* out = p.out + t * p.weight.n + row;
#pragma GCC unroll 8
    for (int i = 0; i < NT; ++i, out += p.weight.n)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            __m256 value = acc[i][half];
            if (p.add)
                value = _mm256_add_ps(_mm256_loadu_ps(out + 8 * half), value);
            else if (p.bias)
                value = _mm256_add_ps(_mm256_loadu_ps(p.bias + row + 8 * half), value);
            _mm256_storeu_ps(out + 8 * half, value);
        }
}

// What a tile works on: rows [row, end), at most 16, from token t on; columns [at, stop), of which the lanes' sums wait
// in `waiting` before the next; six rows of x at `ahead` (or null) that are wanted next.
struct PanelWork {
    const float* panel;
    int64_t row, end, t, at, stop;
    const float* ahead;
    LaneSums* waiting;
};

template <int NT>
void panel_tile(const Product& p, const float* x, const PanelWork& work) {
    const int64_t k = p.weight.k, stride = lane_stride(k);
    alignas(32) float sums[4][NT][PANEL_ROWS];  // of 1, 2, 4 and 8 lanes
    __m256 acc[NT][2];
    x += work.t * k + work.at;
    for (int n = 0; n < 16; ++n) {
#pragma GCC unroll 8
        for (int i = 0; i < NT; ++i) {
            acc[i][0] = work.at == 0 ? _mm256_setzero_ps() : _mm256_load_ps(work.waiting->of[n][i]);
            acc[i][1] = work.at == 0 ? _mm256_setzero_ps() : _mm256_load_ps(work.waiting->of[n][i] + 8);
        }
        const int lane = LANE_ORDER[n];
        const bool fetch = work.ahead && n >= 16 - PANEL_TOKENS;
        const float* ahead = fetch ? work.ahead + (n - 16 + PANEL_TOKENS) * k : x;
        const int64_t steps = (work.stop - work.at - lane + 15) / 16;
        add_lane<NT>(work.panel + (n * stride + work.at / 16) * PANEL_ROWS, x + lane, k, steps, ahead, acc);
        if (work.stop < k) {
            store_sums<NT>(acc, work.waiting->of[n]);
            continue;
        }
        int level = 0;
        for (; n >> level & 1; ++level) add_sums<NT>(sums[level], acc);
        if (n < 15) store_sums<NT>(acc, sums[level]);
    }
    if (work.stop == k) store_tile<NT>(p, work.t, work.row, work.end, acc);
}

inline void panel_tokens(const Product& p, const float* x, const PanelWork& work, int64_t tokens) {
    switch (tokens) {
        case 1: return panel_tile<1>(p, x, work);
        case 2: return panel_tile<2>(p, x, work);
        case 3: return panel_tile<3>(p, x, work);
        case 4: return panel_tile<4>(p, x, work);
        case 5: return panel_tile<5>(p, x, work);
        default: return panel_tile<PANEL_TOKENS>(p, x, work);
    }
}

// Columns that six tokens take at once: 18 KiB.
constexpr int64_t FLOAT_PIECE = 768;

// Rows [begin, end) of one exact product for tokens [t0, t1).
inline void float_range(const Product& p, const float* x, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                        char* scratch) {
    const int64_t k = p.weight.k, steps = (k + 15) / 16, pieces = (k + FLOAT_PIECE - 1) / FLOAT_PIECE;
    const int64_t panel_floats = panel_bytes(k) / 4, batch = panels_at_once(k) * PANEL_ROWS;
    auto* waiting = reinterpret_cast<LaneSums*>(scratch);
    auto* floats = reinterpret_cast<float*>(waiting + MOST_PANELS);
    float* panels = floats + panel_floats;
    for (int64_t first = begin; first < end; first += batch) {
        const int64_t last = first + batch < end ? first + batch : end;
        for (int64_t row = first; row < last; row += PANEL_ROWS)
            pack_panel(p.weight, row, last, floats, panels + (row - first) / PANEL_ROWS * panel_floats);
        for (int64_t t = t0; t < t1; t += PANEL_TOKENS)
            for (int64_t piece = 0; piece < pieces; ++piece) {
                PanelWork work{panels, first, last, t, steps * piece / pieces * 16, k, nullptr, waiting};
                if (piece + 1 < pieces) work.stop = steps * (piece + 1) / pieces * 16;
                for (; work.row < last; work.row += PANEL_ROWS, work.panel += panel_floats, ++work.waiting) {
                    if (work.row + PANEL_ROWS >= last)
                        work.ahead = work.stop < k ? x + t * k + work.stop : x + (t + PANEL_TOKENS) * k;
                    panel_tokens(p, x, work, t1 - t);
                }
            }
    }
}
