// Vectors of W floats, one vocabulary for all instruction sets. Included by each_isa.h inside a namespace per set.
//
//   load store load_part store_part   part: the first n < W items; the rest reads as 0 and is not written
//   set1 zero add sub mul div fma max min      fma(a, b, c) = a * b + c, rounded once
//   sum largest   horizontal, in an order fixed by W: AVX2 gives the bits of AVX-512
//   TILE_VECTORS   how many vectors of six rows of a tile of sums fit registers, with their operands
//   exp   natural; relative error below 1.2e-7 for -87.3 <= x <= 88; 0 below that; NaN stays NaN

struct Half {
    uint16_t bits;  // IEEE binary16
};

static inline float to_float(float value) { return value; }

static inline float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

#if defined(FTD_SIMD_SCALAR)

constexpr int W = 1, TILE_VECTORS = 2;
using vf = float;

static inline float to_float(Half half) {
    const uint32_t sign = (uint32_t)(half.bits & 0x8000u) << 16, rest = half.bits & 0x7fffu;
    if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00u ? 1u << 22 : 0));
    if (rest >= 0x400u) return bits_to_float(sign | ((rest << 13) + 0x38000000u));
    return bits_to_float(sign | float_to_bits((float)rest * 0x1p-24f));  // subnormal: exact
}

static inline Half to_half(float value) {
    const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return {(uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu))};
    if (rest >= 0x477ff000u) return {(uint16_t)(sign | 0x7c00u)};  // 65520 and above round to infinity
    if (rest < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the rounded subnormal in the low bits
        return {(uint16_t)(sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000u))};
    }
    return {(uint16_t)(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13))};
}

static inline vf load(const float* from) { return *from; }
static inline vf load(const Half* from) { return to_float(*from); }
static inline void store(float* to, vf value) { *to = value; }
static inline void store(Half* to, vf value) { *to = to_half(value); }
static inline vf load_part(const float*, int) { return 0.0f; }
static inline vf load_part(const Half*, int) { return 0.0f; }
static inline void store_part(float*, vf, int) {}
static inline void store_part(Half*, vf, int) {}
static inline vf set1(float value) { return value; }
static inline vf zero() { return 0.0f; }
static inline vf add(vf a, vf b) { return a + b; }
static inline vf sub(vf a, vf b) { return a - b; }
static inline vf mul(vf a, vf b) { return a * b; }
static inline vf div(vf a, vf b) { return a / b; }
static inline vf fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf max(vf a, vf b) { return a > b ? a : b; }
static inline vf min(vf a, vf b) { return a < b ? a : b; }
static inline float sum(vf a) { return a; }
static inline float largest(vf a) { return a; }
static inline vf round_even(vf a) { return rintf(a); }
static inline vf times_power_of_two(vf a, vf power) {
    return power < -126.0f ? 0.0f : a * bits_to_float((uint32_t)((int32_t)power + 127) << 23);
}

#elif defined(FTD_SIMD_AVX2)

// A pair of registers: sums of 16 lanes have the order of AVX-512, and so its bits.
constexpr int W = 16, TILE_VECTORS = 1;
struct vf {
    __m256 low, high;
};

static inline __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
static inline vf load(const Half* from) {
    const auto* halves = (const __m128i*)from;
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
static inline void store(float* to, vf value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
}
static inline void store(Half* to, vf value) {
    auto* halves = (__m128i*)to;
    _mm_storeu_si128(halves, _mm256_cvtps_ph(value.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(value.high, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf load_part(const float* from, int n) {
    return {_mm256_maskload_ps(from, first(n)), _mm256_maskload_ps(from + 8, first(n - 8))};
}
static inline vf load_part(const Half* from, int n) {
    Half items[W] = {};
    memcpy(items, from, n * sizeof(Half));
    return load(items);
}
static inline void store_part(float* to, vf value, int n) {
    _mm256_maskstore_ps(to, first(n), value.low);
    _mm256_maskstore_ps(to + 8, first(n - 8), value.high);
}
static inline void store_part(Half* to, vf value, int n) {
    Half items[W];
    store(items, value);
    memcpy(to, items, n * sizeof(Half));
}
static inline vf set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
static inline vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline vf add(vf a, vf b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
static inline vf sub(vf a, vf b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
static inline vf mul(vf a, vf b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
static inline vf div(vf a, vf b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
static inline vf fma(vf a, vf b, vf c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
static inline vf max(vf a, vf b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
static inline vf min(vf a, vf b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
static inline float sum(vf a) {
    const __m256 halves = _mm256_add_ps(a.low, a.high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
static inline float largest(vf a) {
    const __m256 halves = _mm256_max_ps(a.low, a.high);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
static inline __m256 round_even(__m256 a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf round_even(vf a) { return {round_even(a.low), round_even(a.high)}; }
static inline __m256 times_power_of_two(__m256 a, __m256 power) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
    const __m256 factor = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    return _mm256_andnot_ps(_mm256_cmp_ps(power, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), _mm256_mul_ps(a, factor));
}
static inline vf times_power_of_two(vf a, vf power) {
    return {times_power_of_two(a.low, power.low), times_power_of_two(a.high, power.high)};
}
static inline float to_float(Half half) { return _cvtsh_ss(half.bits); }
static inline Half to_half(float value) { return {(uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)}; }

#else

constexpr int W = 16, TILE_VECTORS = 4;
using vf = __m512;

static inline __mmask16 first(int n) { return (__mmask16)((1u << n) - 1u); }
static inline vf load(const float* from) { return _mm512_loadu_ps(from); }
static inline vf load(const Half* from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)); }
static inline void store(float* to, vf value) { _mm512_storeu_ps(to, value); }
static inline void store(Half* to, vf value) {
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf load_part(const float* from, int n) { return _mm512_maskz_loadu_ps(first(n), from); }
static inline vf load_part(const Half* from, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), from)); }
static inline void store_part(float* to, vf value, int n) { _mm512_mask_storeu_ps(to, first(n), value); }
static inline void store_part(Half* to, vf value, int n) {
    _mm256_mask_storeu_epi16(to, first(n), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf set1(float value) { return _mm512_set1_ps(value); }
static inline vf zero() { return _mm512_setzero_ps(); }
static inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline float sum(vf a) { return _mm512_reduce_add_ps(a); }
static inline float largest(vf a) { return _mm512_reduce_max_ps(a); }
static inline vf round_even(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf times_power_of_two(vf a, vf power) {
    const __mmask16 kept = _mm512_cmp_ps_mask(power, set1(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(kept, a, power);
}
static inline float to_float(Half half) { return _cvtsh_ss(half.bits); }
static inline Half to_half(float value) { return {(uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)}; }

#endif

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2) / 2; ln 2 in two parts so that r is exact to the last bit,
// then the Taylor polynomial of degree 7 (its remainder is 5e-9).
static inline vf exp(vf x) {
    x = max(set1(-200.0f), x);  // minus infinity would make r NaN; max returns its second operand for NaN
    const vf power = round_even(mul(x, set1(1.44269504088896341f)));
    vf r = fma(power, set1(-0.693359375f), x);
    r = fma(power, set1(2.12194440e-4f), r);
    vf p = set1(1.0f / 5040.0f);
    p = fma(p, r, set1(1.0f / 720.0f));
    p = fma(p, r, set1(1.0f / 120.0f));
    p = fma(p, r, set1(1.0f / 24.0f));
    p = fma(p, r, set1(1.0f / 6.0f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return times_power_of_two(p, power);
}
