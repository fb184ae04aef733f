// Elementary functions on vectors of float; see the table of measured errors in the README.
// Functions without a vector form call the C library for each lane.

template <int L> INLINE vec<int32_t, L> bits_of(vec<float, L> x) { vec<int32_t, L> r; memcpy(&r, &x, sizeof r); return r; }
template <int L> INLINE vec<float, L> float_of(vec<int32_t, L> x) { vec<float, L> r; memcpy(&r, &x, sizeof r); return r; }
template <int L> INLINE vec<float, L> at_most(vec<float, L> x, float limit) { return at_most<L, float>(x, splat<float, L>(limit)); }
template <int L> INLINE vec<float, L> at_least(vec<float, L> x, float limit) { return at_least<L, float>(x, splat<float, L>(limit)); }
template <int L> INLINE vec<float, L> pick(vec<int32_t, L> m, vec<float, L> a, vec<float, L> b) { return m ? a : b; }
template <int L> INLINE vec<float, L> magnitude(vec<float, L> x) { return float_of<L>(bits_of<L>(x) & 0x7fffffff); }
template <int L> INLINE vec<float, L> with_sign(vec<float, L> m, vec<float, L> s) {
  return float_of<L>((bits_of<L>(m) & 0x7fffffff) | (bits_of<L>(s) & (int32_t)0x80000000));
}

// a b + c, rounded once. Compilers are told to round products before they are added. Clang has one name for it
// in newer versions, the last of which have no others; GCC has one for each register.
#if defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_fma)
#define FUSED(a, b, c) __builtin_elementwise_fma(a, b, c)
#endif
#endif
#if defined(__FMA__)
#define FUSED_FLOATS(a, b, c) __builtin_ia32_vfmaddps(a, b, c)
#define FUSED_DOUBLES(a, b, c) __builtin_ia32_vfmaddpd(a, b, c)
#elif defined(__aarch64__) && !defined(__clang__)
#define FUSED_FLOATS(a, b, c) __builtin_aarch64_fmav4sf(a, b, c)
#define FUSED_DOUBLES(a, b, c) __builtin_aarch64_fmav2df(a, b, c)
#endif
template <int L, class T> INLINE vec<T, L> fused(vec<T, L> a, vec<T, L> b, vec<T, L> c) {
#ifdef FUSED
  return FUSED(a, b, c);
#else
#if defined(__AVX512F__)
  if constexpr (sizeof(T) * L == 64) {
    if constexpr (sizeof(T) == 4) return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
    else return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
  } else
#endif
#if defined(__FMA__)
  if constexpr (sizeof(T) * L == 32) {
    if constexpr (sizeof(T) == 4) return __builtin_ia32_vfmaddps256(a, b, c);
    else return __builtin_ia32_vfmaddpd256(a, b, c);
  } else if constexpr (sizeof(T) * L > 32) {
    vec<T, L / 2> x[2], y[2], z[2];
    memcpy(x, &a, sizeof a); memcpy(y, &b, sizeof b); memcpy(z, &c, sizeof c);
    for (int half = 0; half < 2; ++half) z[half] = fused<L / 2, T>(x[half], y[half], z[half]);
    memcpy(&c, z, sizeof c);
    return c;
  } else
#endif
#ifdef FUSED_FLOATS
  if constexpr (sizeof(T) * L == 16) {
    if constexpr (sizeof(T) == 4) return FUSED_FLOATS(a, b, c);
    else return FUSED_DOUBLES(a, b, c);
  } else
#endif
  {
    vec<T, L> r;
    for (int l = 0; l < L; ++l) r[l] = sizeof(T) == 4 ? __builtin_fmaf(a[l], b[l], c[l]) : __builtin_fma(a[l], b[l], c[l]);
    return r;
  }
#endif
}

// a b + c as fast as the machine has it: rounded once where it can. Numbers stand for all lanes.
template <int L, class T> INLINE vec<T, L> all_lanes(vec<T, L> x) { return x; }
template <int L, class T> INLINE vec<T, L> all_lanes(T x) { return splat<T, L>(x); }
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define MADD fused<L, T>(a, all_lanes<L, T>(b), all_lanes<L, T>(c))
#else
#define MADD a * b + c
#endif
// `horner` is the polynomial of x with these coefficients, that of the highest power first.
#define MADD_OF(Real) \
  template <int L, class B, class C> INLINE vec<Real, L> madd(vec<Real, L> a, B b, C c) { typedef Real T; return MADD; } \
  template <int L, class... C> INLINE vec<Real, L> horner(vec<Real, L> x, Real first, C... rest) { \
    vec<Real, L> p = splat<Real, L>(first); \
    ((p = madd<L>(p, x, (Real)rest)), ...); \
    return p; }
MADD_OF(float)
MADD_OF(double)
#undef MADD_OF
#undef MADD

// What AVX-512 does in one instruction, for any number of lanes: a tail computes as its loop does.
#if defined(__AVX512F__) && defined(__AVX512VL__)
template <int L, class F> INLINE vec<float, L> widened(vec<float, L> x, vec<float, L> y, F f) {
  vec<float, 4> a{1, 1, 1, 1}, b{1, 1, 1, 1}; vec<float, L> r;
  memcpy(&a, &x, sizeof x); memcpy(&b, &y, sizeof y);
  a = f(a, b);
  memcpy(&r, &a, sizeof r); return r;
}
// p * 2^n for integers n, rounded once.
template <int L> INLINE vec<float, L> scaled(vec<float, L> p, vec<float, L> n) {
  if constexpr (L == 16) return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
  else if constexpr (L == 8) return __builtin_ia32_scalefps256_mask(p, n, p, -1);
  else if constexpr (L == 4) return __builtin_ia32_scalefps128_mask(p, n, p, -1);
  else return widened<L>(p, n, [](vec<float, 4> a, vec<float, 4> b) { return scaled<4>(a, b); });
}
// The same, but 0 where x is below a limit: nothing is computed there, which where results are
// subnormal takes some processors a hundred times as long.
template <int L> INLINE vec<float, L> scaled_above(vec<float, L> p, vec<float, L> n, vec<float, L> x, float limit) {
  const vec<float, L> zero{}, least = splat<float, L>(limit);
  if constexpr (L == 16) return __builtin_ia32_scalefps512_mask(p, n, zero, __builtin_ia32_cmpps512_mask(x, least, 5, -1, 4), 4);
  else if constexpr (L == 8) return __builtin_ia32_scalefps256_mask(p, n, zero, __builtin_ia32_cmpps256_mask(x, least, 5, -1));
  else if constexpr (L == 4) return __builtin_ia32_scalefps128_mask(p, n, zero, __builtin_ia32_cmpps128_mask(x, least, 5, -1));
  else return pick<L>(x < limit, zero, scaled<L>(p, pick<L>(x < limit, zero, n)));
}
// 1 / d for d between 1 and 2^126: an estimate of 14 bits and one step of Newton's.
template <int L> INLINE vec<float, L> reciprocal(vec<float, L> d) {
  vec<float, L> y;
  if constexpr (L == 16) y = __builtin_ia32_rcp14ps512_mask(d, d, -1);
  else if constexpr (L == 8) y = __builtin_ia32_rcp14ps256_mask(d, d, -1);
  else if constexpr (L == 4) y = __builtin_ia32_rcp14ps128_mask(d, d, -1);
  else return widened<L>(d, d, [](vec<float, 4> a, vec<float, 4>) { return reciprocal<4>(a); });
  return madd<L>(y, madd<L>(-d, y, 1.0f), y);
}
#else
// In two steps, so that results below the normal range round once.
template <int L> INLINE vec<float, L> scaled(vec<float, L> p, vec<float, L> n) {
  vec<int32_t, L> k = __builtin_convertvector(n, vec<int32_t, L>), half = k >> 1;
  p = p * float_of<L>((half + 127) << 23);
  return p * float_of<L>((k - half + 127) << 23);
}
template <int L> INLINE vec<float, L> scaled_above(vec<float, L> p, vec<float, L> n, vec<float, L> x, float limit) {
  const vec<float, L> zero{};
  return pick<L>(x < limit, zero, scaled<L>(p, pick<L>(x < limit, zero, n)));
}
template <int L> INLINE vec<float, L> reciprocal(vec<float, L> d) { return 1.0f / d; }
#endif
// x / s for 0 <= x <= s, where s is at least 1 and the same in many vectors: by its reciprocal and an exact
// remainder, which rounds correctly (P. Markstein: IA-64 and Elementary Functions, 2000) but for subnormal results.
template <int L> INLINE vec<float, L> share_of(vec<float, L> x, vec<float, L> s) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  const vec<float, L> r = 1.0f / s, q = x * r;
  return fused<L, float>(fused<L, float>(-q, s, x), r, q);
#else
  return x / s;
#endif
}
// The nearest integer to x times a factor, for |x factor| < 2^22.
template <int L> INLINE vec<float, L> nearest(vec<float, L> x, float factor = 1.0f) { return madd<L>(x, factor, 12582912.0f) - 12582912.0f; }

#define EACH_LANE(name, call) \
  template <int L, class T> INLINE vec<T, L> v_##name(vec<T, L> x) { \
    vec<T, L> r; for (int l = 0; l < L; ++l) r[l] = call(x[l]); return r; }
#define EACH_LANE2(name, call) \
  template <int L, class T> INLINE vec<T, L> v_##name(vec<T, L> x, vec<T, L> y) { \
    vec<T, L> r; for (int l = 0; l < L; ++l) r[l] = call(x[l], y[l]); return r; }
#define C_FUNCTION(name) \
  INLINE float c_##name(float x) { return __builtin_##name##f(x); } \
  INLINE double c_##name(double x) { return __builtin_##name(x); } \
  EACH_LANE(name, c_##name)
#define C_FUNCTION2(name) \
  INLINE float c_##name(float x, float y) { return __builtin_##name##f(x, y); } \
  INLINE double c_##name(double x, double y) { return __builtin_##name(x, y); } \
  EACH_LANE2(name, c_##name)
C_FUNCTION(floor)
C_FUNCTION(ceil)
C_FUNCTION(trunc)
C_FUNCTION2(copysign)
INLINE float c_round(float x) { return __builtin_rintf(x); }
INLINE double c_round(double x) { return __builtin_rint(x); }
EACH_LANE(round, c_round)

// A sum of e^(x - before), for a maximum that has grown.
INLINE double scaled_to(double sum, double before, double now) { return now > before ? sum * __builtin_exp(before - now) : sum; }

// e^r - 1 for |r| <= ln2/2, to 3e-9 of e^r.
template <int L> INLINE vec<float, L> exp_less_one(vec<float, L> r) {
  vec<float, L> p = horner<L>(r, 1.3814517662e-3f, 8.3687560332e-3f, 4.1668391843e-2f, 1.6666520309e-1f, 4.9999993426e-1f);
  return madd<L>(p, r * r, r);
}
// e^x. Where x is known to be at most 89 (BELOW) or at least -104 (ABOVE), that need not be looked at.
template <int L, bool BELOW = false, bool ABOVE = false> INLINE vec<float, L> exp_f32(vec<float, L> x);
// 2^x: by the nearest integer and a polynomial; the difference of x and the nearest integer is exact.
template <int L> INLINE vec<float, L> exp2_f32(vec<float, L> x) {
  vec<float, L> c = at_most<L>(x, 129.0f);
  vec<float, L> n = nearest<L>(c), r = (c - n) * 0.693147180559945309f;
  return scaled_above<L>(exp_less_one<L>(r) + 1.0f, n, x, -150.0f);
}
// e^x - 1 = 2^n (e^r - 1) + (2^n - 1), by halves, so that 2^n does not overflow before the result.
template <int L> INLINE vec<float, L> expm1_f32(vec<float, L> x) {
  vec<float, L> c = at_least<L>(at_most<L>(x, 89.0f), -20.0f);  // e^-20 - 1 rounds to -1
  vec<float, L> n = nearest<L>(c, 1.44269504088896341f);
  vec<float, L> r = madd<L>(n, -1.42860682030941723e-6f, madd<L>(n, -0.693145751953125f, c));
  vec<float, L> half = scaled<L>(splat<float, L>(1.0f), n - 1.0f);
  vec<float, L> p = exp_less_one<L>(r);
  vec<float, L> y = madd<L>(half, p, half - 0.5f);
  return pick<L>(magnitude<L>(x) < 2.98023224e-8f, x, y + y);  // 2^-25: x itself is the nearest
}
template <int L> INLINE vec<float, L> log_f32(vec<float, L> x);
// log(1 + x) = log u + c / u, where u is 1 + x rounded and c what rounding took from it.
template <int L> INLINE vec<float, L> log1p_f32(vec<float, L> x) {
  vec<float, L> u = x + 1.0f;
  vec<float, L> c = pick<L>(x < 1.0f, x - (u - 1.0f), 1.0f - (u - x));
  c = pick<L>((u > 0.0f) & (x < 16777216.0f) & (x != 0.0f), c / u, splat<float, L>(0.0f));
  return pick<L>(x == 0.0f, x, log_f32<L>(u) + c);
}
// sigmoid x = 1 / (1 + e^-x), without the overflow of e^-x far below 0.
template <int L> INLINE vec<float, L> sigmoid_f32(vec<float, L> x) {
  vec<float, L> e = exp_f32<L, true>(-magnitude<L>(x));
  vec<float, L> r = reciprocal<L>(1.0f + e);
  return pick<L>(x < 0.0f, e * r, r);
}
// sin and cos: |x| = n pi + r, with n a half more than an integer for cos, and a polynomial of r in [-pi/2, pi/2].
// The first step is exact but for small numbers, whose cosine is hardly changed. Far from 0 the C library reduces.
template <int L, bool COSINE> __attribute__((noinline, cold)) static void circular_far(const float* x, float* y) {
  for (int l = 0; l < L; ++l)
    if (!(__builtin_fabsf(x[l]) < 8192.0f)) y[l] = (float)(COSINE ? __builtin_cos((double)x[l]) : __builtin_sin((double)x[l]));
}
template <int L, bool COSINE> INLINE vec<float, L> circular_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x);
  vec<float, L> shifted = COSINE ? madd<L>(a, 0.318309886183790672f, -0.5f) + 12582912.0f : madd<L>(a, 0.318309886183790672f, 12582912.0f);
  vec<int32_t, L> sign = (bits_of<L>(shifted) + (COSINE ? 1 : 0)) << 31;  // of the last bit of n
  vec<float, L> n = shifted - 12582912.0f;
  if (COSINE) n = n + 0.5f;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  vec<float, L> r = madd<L>(n, 3.43024902251176e-15f, madd<L>(n, 8.74227766e-8f, madd<L>(n, -3.14159274f, a)));
#else  // in steps whose products are exact, but for the last
  vec<float, L> r = a - n * 3.140625f - n * 9.67502593994140625e-4f - n * 1.5099067240953445e-7f - n * 5.126688136514179e-12f;
#endif
  if (!COSINE) sign = sign ^ (bits_of<L>(x) & (int32_t)0x80000000);
  vec<float, L> z = r * r;
  vec<float, L> p = horner<L>(z, 2.6060959e-6f, -1.98097769e-4f, 8.33306927e-3f, -1.66666597e-1f);
  vec<float, L> y = float_of<L>(bits_of<L>(madd<L>(p * z, r, r)) ^ sign);
  if (__builtin_expect(any<L>(as_mask<L>(!(a < 8192.0f))), false)) {
    float from[L], to[L];
    memcpy(from, &x, sizeof from); memcpy(to, &y, sizeof to);
    circular_far<L, COSINE>(from, to);
    memcpy(&y, to, sizeof to);
  }
  return y;
}
// tan x: |x| = n pi/2 + r + s; t is tan r by Cephes' polynomial, of which odd n have -1/t. What rounding took
// from t counts twice there, where the quotient is just below 1, so it is put back.
template <int L> __attribute__((noinline, cold)) static void tan_far(const float* x, float* y) {
  for (int l = 0; l < L; ++l) if (!(__builtin_fabsf(x[l]) < 8192.0f)) y[l] = (float)__builtin_tan((double)x[l]);
}
template <int L> INLINE vec<float, L> tan_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x), shifted = madd<L>(a, 0.636619772367581343f, 12582912.0f);
  vec<int32_t, L> k = bits_of<L>(shifted);  // its last bits are n's
  vec<float, L> n = shifted - 12582912.0f;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  vec<float, L> first = madd<L>(n, -1.57079637f, a), second = n * 4.37113883e-8f, r = first + second;
  vec<float, L> s = madd<L>(n, 1.71512451125588e-15f, madd<L>(n, 4.37113883e-8f, first - r));
#else  // in steps whose products are exact, but for the last
  vec<float, L> first = a - n * 1.5703125f - n * 4.837512969970703125e-4f, taken = n * 7.549533620476723e-8f, r = first - taken;
  vec<float, L> s = ((first - r) - taken) - n * 2.5633440682570896e-12f;
#endif
  vec<float, L> z = r * r;
  vec<float, L> p = horner<L>(z, 9.38540185543e-3f, 3.11992232697e-3f, 2.44301354525e-2f, 5.34112807005e-2f, 1.33387994085e-1f, 3.33331568548e-1f);
  vec<float, L> more = madd<L>(p * z, r, s), t = r + more, lost = more - (t - r), q = -1.0f / t;
  vec<float, L> y = float_of<L>(bits_of<L>((k & 1) != 0 ? madd<L>(q * lost, q, q) : t) ^ (bits_of<L>(x) & (int32_t)0x80000000));
  if (__builtin_expect(any<L>(as_mask<L>(!(a < 8192.0f))), false)) {
    float from[L], to[L];
    memcpy(from, &x, sizeof from); memcpy(to, &y, sizeof to);
    tan_far<L>(from, to);
    memcpy(&y, to, sizeof to);
  }
  return y;
}
