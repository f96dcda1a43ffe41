// One row of any format as floats: the exact values of quant.py's table, the same bits as GGUF's definition.
//
// Products and sums are rounded one by one (no fused multiply-add): that is how the formats define a value.
#pragma once
#include "matrix.h"

namespace ftd {

// The 32 codes of a block: low nibbles, then high nibbles.
inline void unpack4(const uint8_t* codes, uint8_t* out) {
    for (int j = 0; j < 16; ++j) {
        out[j] = codes[j] & 15;
        out[j + 16] = codes[j] >> 4;
    }
}

// Adds bit 4 from the block's 32 high bits.
inline void add_high1(const uint8_t* high, uint8_t* out) {
    uint32_t bits;
    std::memcpy(&bits, high, 4);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<uint8_t>(out[j] | ((bits >> j) & 1) << 4);
}

// Adds bits 4-5 from the block's 8 high bytes.
inline void add_high2(const uint8_t* high, uint8_t* out) {
    for (int j = 0; j < 8; ++j)
        for (int part = 0; part < 4; ++part)
            out[j + 8 * part] = static_cast<uint8_t>(out[j + 8 * part] | ((high[j] >> (2 * part)) & 3) << 4);
}

inline void dequantize_simple_row(const Matrix& w, int64_t row, float* out) {
    const int64_t k = w.k, blocks = k / 32;
    const bool wide = w.format == Q5_0 || w.format == Q5_1, has_mins = w.format == Q4_1 || w.format == Q5_1;
    const uint8_t* codes = plane_row<uint8_t>(w, 0, row, k / 2);
    const uint8_t* high = wide ? plane_row<uint8_t>(w, 1, row, k / 8) : nullptr;
    const uint16_t* scales = plane_row<uint16_t>(w, wide ? 2 : 1, row, blocks);
    const uint16_t* mins = has_mins ? plane_row<uint16_t>(w, wide ? 3 : 2, row, blocks) : nullptr;
    const int offset = has_mins ? 0 : wide ? 16 : 8;
    for (int64_t b = 0; b < blocks; ++b) {
        uint8_t c[32];
        unpack4(codes + 16 * b, c);
        if (wide) add_high1(high + 4 * b, c);
        const float d = half_to_float(scales[b]), m = mins ? half_to_float(mins[b]) : 0.0f;
        if (mins)
            for (int j = 0; j < 32; ++j) out[32 * b + j] = static_cast<float>(c[j]) * d + m;
        else
            for (int j = 0; j < 32; ++j) out[32 * b + j] = static_cast<float>(c[j] - offset) * d;
    }
}

inline void dequantize_super_row(const Matrix& w, int64_t row, float* out) {
    const int64_t k = w.k, blocks = k / 32;
    const bool wide = w.format == Q5_K;
    const uint8_t* codes = plane_row<uint8_t>(w, 0, row, k / 2);
    const uint8_t* high = wide ? plane_row<uint8_t>(w, 1, row, k / 8) : nullptr;
    const uint8_t* scales = plane_row<uint8_t>(w, wide ? 2 : 1, row, blocks);
    const uint8_t* mins = plane_row<uint8_t>(w, wide ? 3 : 2, row, blocks);
    const uint16_t* d = plane_row<uint16_t>(w, wide ? 4 : 3, row, k / 256);
    const uint16_t* dmin = plane_row<uint16_t>(w, wide ? 5 : 4, row, k / 256);
    for (int64_t b = 0; b < blocks; ++b) {
        uint8_t c[32];
        unpack4(codes + 16 * b, c);
        if (wide) add_high1(high + 4 * b, c);
        const float scale = half_to_float(d[b / 8]) * static_cast<float>(scales[b]);
        const float minimum = half_to_float(dmin[b / 8]) * static_cast<float>(mins[b]);
        for (int j = 0; j < 32; ++j) out[32 * b + j] = static_cast<float>(c[j]) * scale - minimum;
    }
}

inline void dequantize_q6_k_row(const Matrix& w, int64_t row, float* out) {
    const int64_t k = w.k;
    const uint8_t* codes = plane_row<uint8_t>(w, 0, row, k / 2);
    const uint8_t* high = plane_row<uint8_t>(w, 1, row, k / 4);
    const int8_t* scales = plane_row<int8_t>(w, 2, row, k / 16);
    const uint16_t* d = plane_row<uint16_t>(w, 3, row, k / 256);
    for (int64_t b = 0; b < k / 32; ++b) {
        uint8_t c[32];
        unpack4(codes + 16 * b, c);
        add_high2(high + 8 * b, c);
        for (int j = 0; j < 32; ++j) {
            const float scale = half_to_float(d[b / 8]) * static_cast<float>(scales[2 * b + j / 16]);
            out[32 * b + j] = static_cast<float>(c[j] - 32) * scale;
        }
    }
}

inline void dequantize_fp4_row(const Matrix& w, int64_t row, float* out) {
    const int64_t k = w.k;
    const int64_t group = w.format == MXFP4 ? 32 : 16;
    const uint8_t* codes = plane_row<uint8_t>(w, 0, row, k / 2);
    const uint8_t* scales = plane_row<uint8_t>(w, 1, row, k / group);
    const float global = w.format == NVFP4 ? *static_cast<const float*>(w.planes[2]) : 1.0f;
    for (int64_t i = 0; i < k; ++i) {
        const int64_t b = i / 32, j = i % 32;
        // nvfp4 may end in half a block of 16 values: its 8 bytes then hold values j and j + 8.
        const int64_t half = k - 32 * b < 32 ? 8 : 16;
        const uint8_t byte = codes[16 * b + j % half];
        const float value = 0.5f * static_cast<float>(E2M1_TWICE[j < half ? byte & 15 : byte >> 4]);
        const uint8_t s = scales[i / group];
        out[i] = w.format == MXFP4 ? value * e8m0_to_float(s) : value * e4m3_to_float(s) * global;
    }
}

inline void dequantize_row(const Matrix& w, int64_t row, float* out) {
    const int64_t k = w.k;
    switch (w.format) {
        case F32: std::memcpy(out, plane_row<float>(w, 0, row, k), static_cast<size_t>(k) * 4); return;
        case F16:
            for (int64_t i = 0; i < k; ++i) out[i] = half_to_float(plane_row<uint16_t>(w, 0, row, k)[i]);
            return;
        case BF16:
            for (int64_t i = 0; i < k; ++i) out[i] = bfloat_to_float(plane_row<uint16_t>(w, 0, row, k)[i]);
            return;
        case Q8_0:
            for (int64_t i = 0; i < k; ++i)
                out[i] = static_cast<float>(plane_row<int8_t>(w, 0, row, k)[i]) *
                         half_to_float(plane_row<uint16_t>(w, 1, row, k / 32)[i / 32]);
            return;
        case Q4_0: case Q4_1: case Q5_0: case Q5_1: return dequantize_simple_row(w, row, out);
        case Q4_K: case Q5_K: return dequantize_super_row(w, row, out);
        case Q6_K: return dequantize_q6_k_row(w, row, out);
        case MXFP4: case NVFP4: return dequantize_fp4_row(w, row, out);
        case FP8_B128: {
            const uint8_t* codes = plane_row<uint8_t>(w, 0, row, k);
            const float* scales = plane_row<float>(w, 1, row / 128, (k + 127) / 128);
            for (int64_t i = 0; i < k; ++i) out[i] = e4m3_to_float(codes[i]) * scales[i / 128];
            return;
        }
        default: return;
    }
}

}  // namespace ftd
