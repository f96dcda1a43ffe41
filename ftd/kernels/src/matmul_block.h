// One block of any integer-coded format in plain C++: the definition that the SIMD versions must equal bit for bit.
#pragma once
#include "dequantize_row.h"
#include "matmul.h"

namespace ftd {

constexpr int FETCH_LOCALITY = 2;  // into the second cache: eight rows ahead of wide matrices are more than the first holds

// What the codes of a format mean. GROUP values share a scale.
template <int32_t FORMAT>
struct Codes {
    static constexpr bool FP4 = FORMAT == MXFP4 || FORMAT == NVFP4;
    static constexpr bool MINS = FORMAT == Q4_1 || FORMAT == Q5_1 || FORMAT == Q4_K || FORMAT == Q5_K;
    static constexpr bool HIGH1 = FORMAT == Q5_0 || FORMAT == Q5_1 || FORMAT == Q5_K;
    static constexpr int GROUP = FORMAT == Q6_K || FORMAT == NVFP4 ? 16 : 32;
    static constexpr int GROUPS = 32 / GROUP;
    static constexpr int BITS = FORMAT == Q8_0 ? 8 : FORMAT == Q6_K ? 6 : HIGH1 || FP4 ? 5 : 4;
    static constexpr int OFFSET = FORMAT == Q4_0 ? 8 : FORMAT == Q5_0 ? 16 : FORMAT == Q6_K ? 32 : FP4 ? 12 : 0;
    static constexpr int SCALES_PLANE = HIGH1 || FORMAT == Q6_K ? 2 : 1;
};

// Codes of 4-bit floats as whole numbers of half units, moved up by 12.
constexpr int8_t E2M1_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

struct ScaleTable {
    float value[256];
};

// Half of each power-of-two scale: codes count half units.
constexpr ScaleTable make_e8m0_half() {
    ScaleTable table{};
    float power = 0x1p-128f;
    for (int code = 0; code < 255; ++code) {
        table.value[code] = power;
        if (code < 254) power *= 2.0f;
    }
    table.value[255] = __builtin_nanf("");
    return table;
}
inline constexpr ScaleTable E8M0_HALF = make_e8m0_half();

constexpr ScaleTable make_e4m3() {
    ScaleTable table{};
    for (int code = 0; code < 128; ++code) {
        const int exponent = code >> 3, mantissa = code & 7;
        float value = (exponent ? 8 + mantissa : mantissa) * 0x1p-9f;
        for (int i = 1; i < exponent; ++i) value *= 2.0f;
        table.value[code] = value;
        table.value[code + 128] = -value;
    }
    table.value[127] = table.value[255] = __builtin_nanf("");
    return table;
}
inline constexpr ScaleTable E4M3 = make_e4m3();

// Codes of block b of a row as whole numbers (q8_0 signed, the others moved up by OFFSET).
template <int32_t FORMAT>
inline void block_codes(const Matrix& w, int64_t row, int64_t b, int16_t* out) {
    if constexpr (FORMAT == Q8_0) {
        const int8_t* codes = plane_row<int8_t>(w, 0, row, w.k) + 32 * b;
        for (int j = 0; j < 32; ++j) out[j] = codes[j];
    } else {
        uint8_t c[32];
        unpack4(plane_row<uint8_t>(w, 0, row, w.k / 2) + 16 * b, c);
        if constexpr (Codes<FORMAT>::HIGH1) add_high1(plane_row<uint8_t>(w, 1, row, w.k / 8) + 4 * b, c);
        if constexpr (FORMAT == Q6_K) add_high2(plane_row<uint8_t>(w, 1, row, w.k / 4) + 8 * b, c);
        for (int j = 0; j < 32; ++j) out[j] = Codes<FORMAT>::FP4 ? E2M1_CODES[c[j] & 15] : static_cast<int16_t>(c[j]);
    }
}

// Scale of group g (of 16 or 32 values) of a row, and the minimum of block g where there are minimums.
template <int32_t FORMAT>
inline void group_scale(const Matrix& w, int64_t row, int64_t g, float* scale, float* minimum) {
    constexpr int PLANE = Codes<FORMAT>::SCALES_PLANE;
    *minimum = 0.0f;
    if constexpr (FORMAT == Q4_K || FORMAT == Q5_K) {
        *scale = half_to_float(plane_row<uint16_t>(w, PLANE + 2, row, w.k / 256)[g / 8]) *
                 static_cast<float>(plane_row<uint8_t>(w, PLANE, row, w.k / 32)[g]);
        *minimum = -(half_to_float(plane_row<uint16_t>(w, PLANE + 3, row, w.k / 256)[g / 8]) *
                     static_cast<float>(plane_row<uint8_t>(w, PLANE + 1, row, w.k / 32)[g]));
    } else if constexpr (FORMAT == Q6_K) {
        *scale = half_to_float(plane_row<uint16_t>(w, 3, row, w.k / 256)[g / 16]) *
                 static_cast<float>(plane_row<int8_t>(w, 2, row, w.k / 16)[g]);
    } else if constexpr (FORMAT == MXFP4) {
        *scale = E8M0_HALF.value[plane_row<uint8_t>(w, 1, row, w.k / 32)[g]];
    } else if constexpr (FORMAT == NVFP4) {
        *scale = E4M3.value[plane_row<uint8_t>(w, 1, row, w.k / 16)[g]] *
                 (0.5f * *static_cast<const float*>(w.planes[2]));
    } else {
        *scale = half_to_float(plane_row<uint16_t>(w, PLANE, row, w.k / 32)[g]);
        if constexpr (Codes<FORMAT>::MINS)
            *minimum = half_to_float(plane_row<uint16_t>(w, PLANE + 1, row, w.k / 32)[g]);
    }
}

// Where value j of block b lies in a row of Activations.q.
inline int64_t q_place(int64_t b, int64_t j) { return b / 4 * 128 + j / 16 * 64 + b % 4 * 16 + j % 16; }

template <int32_t FORMAT>
inline float dot_row_scalar(const Matrix& w, int64_t row, const Activations& x, int64_t t) {
    using C = Codes<FORMAT>;
    const int8_t* q = x.q + t * x.blocks * 32;
    float part[4] = {};
    for (int64_t b = 0; b < w.k / 32; ++b) {
        int16_t codes[32];
        block_codes<FORMAT>(w, row, b, codes);
        const int64_t i = t * x.blocks + b;
        const int32_t z = static_cast<int32_t>(x.z[i]);
        for (int g = 0; g < C::GROUPS; ++g) {
            int32_t dot = 0;
            for (int j = g * C::GROUP; j < (g + 1) * C::GROUP; ++j)
                dot += (codes[j] - C::OFFSET) * (q[q_place(b, j)] + z);
            float s, m;
            group_scale<FORMAT>(w, row, b * C::GROUPS + g, &s, &m);
            part[b % 4] = __builtin_fmaf(s, static_cast<float>(dot) * x.d[i], part[b % 4]);
            if constexpr (C::MINS) part[b % 4] = __builtin_fmaf(m, x.sum32[i], part[b % 4]);
        }
    }
    return part[0] + part[1] + part[2] + part[3];
}

inline void store_product(const Product& p, int64_t t, int64_t row, float value) {
    float* out = p.out + t * p.weight.n + row;
    *out = p.add ? *out + value : p.bias ? p.bias[row] + value : value;
}

// Sum order of the exact products: 16 interleaved partial sums, then a tree.
inline float dot_floats_scalar(const float* a, const float* b, int64_t k) {
    float lane[16] = {};
    int64_t i = 0;
    for (; i + 16 <= k; i += 16)
        for (int j = 0; j < 16; ++j) lane[j] = __builtin_fmaf(a[i + j], b[i + j], lane[j]);
    for (int j = 0; i + j < k; ++j) lane[j] = __builtin_fmaf(a[i + j], b[i + j], lane[j]);
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0];
}

}  // namespace ftd
