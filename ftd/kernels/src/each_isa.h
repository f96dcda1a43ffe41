// Compiles FTD_BODY once for each instruction set, in namespaces ftd::scalar, ftd::avx2 and ftd::avx512, each with its
// own simd.inl. No flag of the compiler changes, so one binary runs anywhere; isa_select() picks at run time.
// Define FTD_BODY (a quoted file name) before including this; standard headers must come earlier, because an inline
// function that the compiler emits under a target pragma could be merged with the one everybody calls.
#ifndef FTD_BODY
#error "FTD_BODY names the file to compile"
#endif
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "op.h"

#define FTD_SIMD_SCALAR 1
namespace ftd::scalar {
#include "simd.inl"
#include FTD_BODY
}  // namespace ftd::scalar
#undef FTD_SIMD_SCALAR

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define FTD_SIMD_AVX2 1
namespace ftd::avx2 {
#include "simd.inl"
#include FTD_BODY
}  // namespace ftd::avx2
#undef FTD_SIMD_AVX2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define FTD_SIMD_AVX512 1
namespace ftd::avx512 {
#include "simd.inl"
#include FTD_BODY
}  // namespace ftd::avx512
#undef FTD_SIMD_AVX512
#pragma GCC pop_options
#endif

namespace ftd {
// The variant for an instruction set level; without x86 there is only the scalar one.
#if defined(__x86_64__)
#define FTD_SELECT(isa, name) \
    ((isa) >= ISA_AVX512 ? avx512::name : (isa) >= ISA_AVX2 ? avx2::name : scalar::name)
#else
#define FTD_SELECT(isa, name) ((void)(isa), scalar::name)
#endif
}  // namespace ftd
