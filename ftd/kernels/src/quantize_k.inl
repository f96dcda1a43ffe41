// quantize_k: LANES sub-blocks side by side, so that every sum runs over a sub-block in the order of the definition
// while the compiler works on many sums at once. No product is contracted with a sum (-ffp-contract=off).

constexpr int LANES = 16;
using Lanes = float[LANES];

// To the nearest integer, ties to even, for |value| <= 2^22; what is larger is clipped after it anyway.
static inline float nearest(float value) { return (value + 12582912.0f) - 12582912.0f; }

static inline float clip(float value, float low, float high) {
    value = value < low ? low : value;
    return value > high ? high : value;
}

// scale and offset of LANES sub-blocks of 32 with x = scale * code + offset, and their codes 0 .. top.
static void fit_scale_and_offset(
    const Lanes* x, float top, float first, int32_t tries, float* scale, float* offset, Lanes* codes
) noexcept {
    alignas(64) Lanes w[32], tried[32];
    alignas(64) Lanes low, high, sum_w, sum_x, error, inverse, won_inverse, won_offset;
    for (int l = 0; l < LANES; l++) {
        low[l] = high[l] = x[0][l];
        sum_w[l] = x[0][l] * x[0][l];
    }
    for (int i = 1; i < 32; i++) {
        for (int l = 0; l < LANES; l++) {
            low[l] = x[i][l] < low[l] ? x[i][l] : low[l];
            high[l] = x[i][l] > high[l] ? x[i][l] : high[l];
            sum_w[l] += x[i][l] * x[i][l];
        }
    }
    for (int l = 0; l < LANES; l++) {
        low[l] = low[l] > 0.0f ? 0.0f : low[l];
        sum_x[l] = sqrtf(sum_w[l] / 32.0f);
    }
    for (int i = 0; i < 32; i++) {
        for (int l = 0; l < LANES; l++) w[i][l] = sum_x[l] + fabsf(x[i][l]);
    }
    for (int l = 0; l < LANES; l++) {
        sum_w[l] = sum_x[l] = error[l] = 0.0f;
        inverse[l] = won_inverse[l] = top / (high[l] - low[l]);
        scale[l] = 1.0f / inverse[l];
        offset[l] = won_offset[l] = low[l];
    }
    for (int i = 0; i < 32; i++) {
        for (int l = 0; l < LANES; l++) {
            sum_w[l] += w[i][l];
            sum_x[l] += w[i][l] * x[i][l];
            const float code = clip(nearest(inverse[l] * (x[i][l] - low[l])), 0.0f, top);
            const float difference = scale[l] * code + low[l] - x[i][l];
            error[l] += w[i][l] * (difference * difference);
        }
    }
    for (int32_t number = 0; number < tries; number++) {
        const float factor = first + 0.1f * static_cast<float>(number) + top;
        alignas(64) Lanes sum_l = {}, sum_l2 = {}, sum_xl = {}, new_scale, new_offset, new_error = {};
        alignas(64) Lanes determinant;
        for (int l = 0; l < LANES; l++) inverse[l] = factor / (high[l] - offset[l]);
        for (int i = 0; i < 32; i++) {
            for (int l = 0; l < LANES; l++) {
                const float code = clip(nearest(inverse[l] * (x[i][l] - offset[l])), 0.0f, top);
                const float weighted = w[i][l] * code;
                tried[i][l] = code;
                sum_l[l] += weighted;
                sum_l2[l] += weighted * code;
                sum_xl[l] += weighted * x[i][l];
            }
        }
        for (int l = 0; l < LANES; l++) {
            determinant[l] = sum_w[l] * sum_l2[l] - sum_l[l] * sum_l[l];
            const float s = (sum_w[l] * sum_xl[l] - sum_x[l] * sum_l[l]) / determinant[l];
            const float o = (sum_l2[l] * sum_x[l] - sum_l[l] * sum_xl[l]) / determinant[l];
            const float alone = sum_xl[l] / sum_l2[l];
            new_scale[l] = o > 0.0f ? alone : s;
            new_offset[l] = o > 0.0f ? 0.0f : o;
        }
        for (int i = 0; i < 32; i++) {
            for (int l = 0; l < LANES; l++) {
                const float difference = new_scale[l] * tried[i][l] + new_offset[l] - x[i][l];
                new_error[l] += w[i][l] * (difference * difference);
            }
        }
        for (int l = 0; l < LANES; l++) {
            const bool better = determinant[l] > 0.0f && new_error[l] < error[l];
            won_inverse[l] = better ? inverse[l] : won_inverse[l];
            won_offset[l] = better ? offset[l] : won_offset[l];
            error[l] = better ? new_error[l] : error[l];
            scale[l] = better ? new_scale[l] : scale[l];
            offset[l] = better ? new_offset[l] : offset[l];
        }
    }
    for (int l = 0; l < LANES; l++) {
        if (high[l] != low[l]) continue;
        scale[l] = won_inverse[l] = 0.0f;
        offset[l] = won_offset[l] = low[l];
    }
    for (int i = 0; i < 32; i++) {
        for (int l = 0; l < LANES; l++) {
            codes[i][l] = clip(nearest(won_inverse[l] * (x[i][l] - won_offset[l])), 0.0f, top);
        }
    }
}

// scale of LANES sub-blocks of 16 with x = scale * (code - 32), and their codes 0 .. 63.
static void fit_scale(const Lanes* x, float* scale, Lanes* codes) noexcept {
    alignas(64) Lanes w[16], wx[16];
    alignas(64) Lanes largest = {}, size = {}, best, inverse, won_inverse;
    for (int i = 0; i < 16; i++) {
        for (int l = 0; l < LANES; l++) {
            const float of = fabsf(x[i][l]);
            largest[l] = of > size[l] ? x[i][l] : largest[l];
            size[l] = of > size[l] ? of : size[l];
            w[i][l] = x[i][l] * x[i][l];
            wx[i][l] = w[i][l] * x[i][l];
        }
    }
    for (int step = 0; step < 19; step++) {
        const int number = step == 0 ? 0 : step <= 9 ? step - 10 : step - 9;
        const float factor = -(32.0f + 0.1f * static_cast<float>(number));
        alignas(64) Lanes sum_lx = {}, sum_l2 = {};
        for (int l = 0; l < LANES; l++) inverse[l] = factor / largest[l];
        for (int i = 0; i < 16; i++) {
            for (int l = 0; l < LANES; l++) {
                const float code = clip(nearest(inverse[l] * x[i][l]), -32.0f, 31.0f);
                sum_lx[l] += wx[i][l] * code;
                sum_l2[l] += w[i][l] * code * code;
            }
        }
        for (int l = 0; l < LANES; l++) {
            const float ratio = sum_lx[l] / sum_l2[l];
            if (step == 0) {
                scale[l] = sum_l2[l] != 0.0f ? ratio : 0.0f;
                best[l] = scale[l] * sum_lx[l];
                won_inverse[l] = inverse[l];
                continue;
            }
            const bool better = sum_l2[l] > 0.0f && sum_lx[l] * sum_lx[l] > best[l] * sum_l2[l];
            scale[l] = better ? ratio : scale[l];
            best[l] = better ? ratio * sum_lx[l] : best[l];
            won_inverse[l] = better ? inverse[l] : won_inverse[l];
        }
    }
    for (int l = 0; l < LANES; l++) {
        if (size[l] >= 1e-15f) continue;
        scale[l] = won_inverse[l] = 0.0f;
    }
    for (int i = 0; i < 16; i++) {
        for (int l = 0; l < LANES; l++) {
            const float code = clip(nearest(won_inverse[l] * x[i][l]), -32.0f, 31.0f) + 32.0f;
            codes[i][l] = size[l] < 1e-15f ? 0.0f : code;
        }
    }
}

// Numbers 0 .. 63 of the eight sub-blocks of a block, and the f16 that they are multiplied by.
static inline Half six_bits(const float* fitted, uint8_t* numbers) noexcept {
    float largest = 0.0f;
    for (int j = 0; j < 8; j++) largest = fitted[j] > largest ? fitted[j] : largest;
    const float inverse = largest > 0.0f ? 63.0f / largest : 0.0f;
    for (int j = 0; j < 8; j++) {
        const uint8_t number = static_cast<uint8_t>(static_cast<int32_t>(nearest(inverse * fitted[j])));
        numbers[j] = number < 63 ? number : 63;
    }
    return to_half(largest / 63.0f);
}

// The codes of a block as nibbles, values j and j + 16 of 32 in a byte.
static inline void pair_nibbles(const uint8_t* codes, uint8_t* out) noexcept {
    for (int b = 0; b < 8; b++) {
        for (int j = 0; j < 16; j++) {
            out[b * 16 + j] = static_cast<uint8_t>((codes[b * 32 + j] & 15) | (codes[b * 32 + j + 16] & 15) << 4);
        }
    }
}

// Blocks index and index + 1 (if there are two) of q4_k or q5_k.
static void two_blocks(const QuantizeKArgs* a, int64_t index, int count) noexcept {
    alignas(64) Lanes x[32], codes[32];
    alignas(64) float scale[LANES], offset[LANES];
    const float top = a->bits == 4 ? 15.0f : 31.0f;
    const float* from = a->x + index * 256;
    for (int l = 0; l < LANES; l++) {
        for (int i = 0; i < 32; i++) x[i][l] = l < count * 8 ? from[l * 32 + i] : 0.0f;
    }
    fit_scale_and_offset(x, top, a->bits == 4 ? -1.0f : -0.5f, a->bits == 4 ? 21 : 16, scale, offset, codes);
    for (int l = 0; l < LANES; l++) offset[l] = -offset[l];
    for (int n = 0; n < count; n++) {
        const int64_t block = index + n;
        uint8_t* scales = a->scales + block * 8;
        uint8_t* mins = a->mins + block * 8;
        const Half d = six_bits(scale + n * 8, scales), dmin = six_bits(offset + n * 8, mins);
        a->d[block] = d.bits;
        a->dmin[block] = dmin.bits;
        uint8_t out[256];
        for (int j = 0; j < 8; j++) {
            const float step = to_float(d) * static_cast<float>(scales[j]);
            const float low = to_float(dmin) * static_cast<float>(mins[j]);
            for (int i = 0; i < 32; i++) {
                const int l = n * 8 + j;
                const float value = step == 0.0f ? codes[i][l] : clip(nearest((x[i][l] + low) / step), 0.0f, top);
                out[j * 32 + i] = static_cast<uint8_t>(value);
            }
        }
        pair_nibbles(out, a->codes + block * 128);
        if (a->bits == 4) continue;
        for (int byte = 0; byte < 32; byte++) {
            uint8_t bits = 0;
            for (int i = 0; i < 8; i++) bits = static_cast<uint8_t>(bits | (out[byte * 8 + i] >> 4) << i);
            a->high[block * 32 + byte] = bits;
        }
    }
}

// One block of q6_k.
static void symmetric_block(const QuantizeKArgs* a, int64_t block) noexcept {
    alignas(64) Lanes x[16], codes[16];
    alignas(64) float scale[LANES];
    const float* from = a->x + block * 256;
    for (int l = 0; l < LANES; l++) {
        for (int i = 0; i < 16; i++) x[i][l] = from[l * 16 + i];
    }
    fit_scale(x, scale, codes);
    float largest = 0.0f, size = 0.0f;
    for (int l = 0; l < LANES; l++) {
        if (fabsf(scale[l]) > size) {
            size = fabsf(scale[l]);
            largest = scale[l];
        }
    }
    auto* scales = reinterpret_cast<int8_t*>(a->scales + block * 16);
    if (size < 1e-15f) {
        memset(a->codes + block * 128, 0, 128);
        memset(a->high + block * 64, 0, 64);
        memset(scales, 0, 16);
        a->d[block] = 0;
        return;
    }
    const float inverse = -128.0f / largest;
    const Half d = to_half(1.0f / inverse);
    uint8_t out[256];
    for (int l = 0; l < LANES; l++) {
        const float number = nearest(inverse * scale[l]);
        scales[l] = static_cast<int8_t>(number < 127.0f ? number : 127.0f);
        const float step = to_float(d) * static_cast<float>(scales[l]);
        for (int i = 0; i < 16; i++) {
            const float code = clip(nearest(x[i][l] / step), -32.0f, 31.0f) + 32.0f;
            out[l * 16 + i] = static_cast<uint8_t>(step == 0.0f ? codes[i][l] : code);
        }
    }
    a->d[block] = d.bits;
    pair_nibbles(out, a->codes + block * 128);
    for (int b = 0; b < 8; b++) {
        for (int j = 0; j < 8; j++) {
            const uint8_t* at = out + b * 32 + j;
            const int bits = at[0] >> 4 | (at[8] >> 4) << 2 | (at[16] >> 4) << 4 | (at[24] >> 4) << 6;
            a->high[block * 64 + b * 8 + j] = static_cast<uint8_t>(bits);
        }
    }
}

static void quantize_k_op(const void* args, const Step*, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const QuantizeKArgs*>(args);
    int64_t i, end;
    share(a->num_blocks, 2, thread, num_threads, &i, &end);
    for (; i < end; i += 2) {
        const int count = i + 1 < end ? 2 : 1;
        if (a->bits != 6) {
            two_blocks(a, i, count);
            continue;
        }
        for (int n = 0; n < count; n++) symmetric_block(a, i + n);
    }
}
