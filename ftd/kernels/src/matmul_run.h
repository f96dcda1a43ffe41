// The ops quantize and matmul for each instruction set; only _matmul_cy.pyx includes this.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <utility>

#include "matmul_ahead.h"
#include "matmul_block.h"
#include "quantize_scalar.h"

namespace ftd {

namespace scalar {

constexpr int64_t TILE_ROWS = 8, TOKEN_GRAIN = 1;

inline void quantize_block(const float* x, const Activations& out, int64_t t, int64_t b) {
    quantize_block_scalar(x, out, t, b);
}

template <int32_t FORMAT>
void tile_range(const Product& p, const Activations& x, int64_t begin, int64_t end, int64_t t0, int64_t t1, char*) {
    for (int64_t row = begin; row < end; ++row)
        for (int64_t t = t0; t < t1; ++t) store_product(p, t, row, dot_row_scalar<FORMAT>(p.weight, row, x, t));
}

template <int32_t FORMAT>
void vector_rows(const Product& p, const Activations& x, int64_t begin, int64_t end, const Matrix*, int64_t) {
    tile_range<FORMAT>(p, x, begin, end, 0, 1, nullptr);
}

inline void float_range(const Product& p, const float* x, int64_t begin, int64_t end, int64_t t0, int64_t t1,
                        char* scratch) {
    auto* values = reinterpret_cast<float*>(scratch);
    for (int64_t row = begin; row < end; ++row) {
        dequantize_row(p.weight, row, values);
        for (int64_t t = t0; t < t1; ++t)
            store_product(p, t, row, dot_floats_scalar(values, x + t * p.weight.k, p.weight.k));
    }
}

inline void exact_vector(const Product& p, const float* x, int64_t begin, int64_t end, const Matrix*, int64_t,
                         char* scratch) {
    float_range(p, x, begin, end, 0, 1, scratch);
}

#include "matmul_ops.inl"

}  // namespace scalar

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
namespace avx2 {
#define FTD_VNNI 0
#include "matmul_codes.inl"
#include "matmul_pair_scales.inl"
#include "matmul_vector.inl"
#include "matmul_rows.inl"
#include "matmul_tile.inl"
#include "matmul_float.inl"
#include "matmul_float_vector.inl"
#include "quantize.inl"
#include "matmul_ops.inl"
#undef FTD_VNNI
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace avx512 {
#define FTD_VNNI 1
#include "matmul_codes.inl"
#include "matmul_vector512.inl"
#include "matmul_rows.inl"
#include "matmul_tile.inl"
#include "matmul_float.inl"
#include "matmul_float_vector.inl"
#include "quantize.inl"
#include "matmul_ops.inl"
#undef FTD_VNNI
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8,amx-bf16")
namespace amx {
using avx512::exact_vector;
using avx512::float_range;
using avx512::quantize_block;
using avx512::vector_rows;
#include "matmul_amx_tokens.inl"
#include "matmul_amx.inl"
#include "matmul_ops.inl"
#include "matmul_amx_split.inl"
}  // namespace amx
#pragma GCC pop_options
#endif

inline OpFn quantize_select(int32_t isa) {
#if defined(__x86_64__)
    if (isa >= ISA_AMX) return amx::quantize_tiles_op;
    if (isa >= ISA_AVX512) return avx512::quantize_op;
    if (isa >= ISA_AVX2) return avx2::quantize_op;
#endif
    return scalar::quantize_op;
}

inline OpFn matmul_select(int32_t isa) {
#if defined(__x86_64__)
    if (isa >= ISA_AMX) return amx::matmul_op;
    if (isa >= ISA_AVX512) return avx512::matmul_op;
    if (isa >= ISA_AVX2) return avx2::matmul_op;
#endif
    return scalar::matmul_op;
}

// The same for weights of which takes_split(w, isa).
inline OpFn split_select() {
#if defined(__x86_64__)
    return amx::split_op;
#else
    return nullptr;
#endif
}

// parts: bfloat16 that x consists of, 1 or 2.
inline OpFn split_matmul_select(int32_t parts) {
#if defined(__x86_64__)
    return parts == 1 ? amx::split_matmul_op<1> : amx::split_matmul_op<2>;
#else
    return nullptr;
#endif
}

inline RecordsFn records_select(int32_t parts) {
#if defined(__x86_64__)
    return parts == 1 ? amx::split_rows<1> : amx::split_rows<2>;
#else
    return nullptr;
#endif
}

#if defined(__x86_64__)
#define FTD_OF_MATMUL(isa, name) ((isa) >= ISA_AVX512 ? avx512::name : (isa) >= ISA_AVX2 ? avx2::name : scalar::name)
#else
#define FTD_OF_MATMUL(isa, name) ((void)(isa), scalar::name)
#endif
inline VectorFn vector_select(int32_t isa) { return FTD_OF_MATMUL(isa, vector_range); }
inline BlockFn block_select(int32_t isa) { return FTD_OF_MATMUL(isa, quantize_one); }
#undef FTD_OF_MATMUL

}  // namespace ftd
