// A quantised [N, K] weight as kernels see it: the format's number and a pointer to each plane.
//
// The layout of the planes is drawn in ftd/kernels/quant.py; Format and the planes are in its order.
#pragma once
#include <cstdint>
#include <cstring>

namespace ftd {

enum Format : int32_t {
    F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4, NVFP4, FP8_B128, NUM_FORMATS
};

struct Matrix {
    int32_t format;
    int64_t n, k;            // rows (outputs), columns (inputs)
    const void* planes[6];
};

template <class T>
inline const T* plane_row(const Matrix& w, int32_t plane, int64_t row, int64_t row_items) {
    return static_cast<const T*>(w.planes[plane]) + row * row_items;
}

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// IEEE half to float, exact for every value (subnormals, infinities and NaNs too).
inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    const float magnitude = bits_to_float(rest << 13) * 0x1p112f;  // moves the exponent's bias; subnormals come out right
    return bits_to_float(sign | float_to_bits(magnitude));
}

inline float bfloat_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

// OCP 8-bit float with 4 exponent bits: bias 7, no infinities, 0x7f and 0xff are NaN.
inline float e4m3_to_float(uint8_t code) {
    const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, rest = code & 0x7fu;
    if (rest == 0x7fu) return bits_to_float(sign | 0x7fc00000u);
    return bits_to_float(sign | float_to_bits(bits_to_float(rest << 20) * 0x1p120f));
}

// A power of two by its biased exponent: 2^(code - 127); 255 is NaN.
inline float e8m0_to_float(uint8_t code) {
    if (code == 0xffu) return bits_to_float(0x7fc00000u);
    return code ? bits_to_float(static_cast<uint32_t>(code) << 23) : 0x1p-127f;
}

// Twice the value of each 4-bit float with 2 exponent bits; whole numbers, so products stay exact.
constexpr int8_t E2M1_TWICE[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace ftd
