// Quantises a block of activations, eight floats at a time: the same bits as quantize_scalar.h.

inline int32_t add_all(__m256i v) {
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i two = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

inline float lowest(__m256 v) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

inline float highest(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

inline void quantize_block(const float* x, const Activations& out, int64_t t, int64_t b) {
    __m256 v[4], wrong = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        wrong = _mm256_or_ps(wrong, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
    }
    const __m256 none = _mm256_setzero_ps();  // second: what min and max give where the first is no number
    __m256 lows = none, highs = none;
    for (int i = 0; i < 4; ++i) {
        lows = _mm256_min_ps(v[i], lows);
        highs = _mm256_max_ps(v[i], highs);
    }
    float low = lowest(lows), high = highest(highs);
    widen_range(&low, &high);
    const float d = (high - low) * (1.0f / 253.0f);
    const float inverse = d >= 0x1p-126f && d < INFINITY ? 1.0f / d : 0.0f;
    const float z = std::nearbyint(0.5f * (high + low) * inverse);
    const __m256 scale = _mm256_set1_ps(inverse), zero = _mm256_set1_ps(z);
    const __m256 limit = _mm256_set1_ps(127.0f), lower = _mm256_set1_ps(-127.0f);
    __m256i code[4];
    for (int i = 0; i < 4; ++i) {
        const __m256 whole = _mm256_round_ps(_mm256_mul_ps(v[i], scale), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        code[i] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(_mm256_sub_ps(whole, zero), limit), lower));
    }
    const __m256i first = _mm256_packs_epi32(code[0], code[1]), second = _mm256_packs_epi32(code[2], code[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
    int8_t* to = out.q + t * out.blocks * 32 + q_place(b, 0);
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(q));
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 64), _mm256_extracti128_si256(q, 1));
    const int32_t sum0 = add_all(_mm256_add_epi32(code[0], code[1])), sum1 = add_all(_mm256_add_epi32(code[2], code[3]));
    const bool is_number = d < INFINITY && _mm256_testz_si256(_mm256_castps_si256(wrong), _mm256_castps_si256(wrong));
    store_block(out, t * out.blocks + b, is_number ? d : NAN, is_number ? z : 0.0f, sum0, sum1);
}
