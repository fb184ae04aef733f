// Powers.
template <int L> __attribute__((noinline, cold)) static void pow_far(const float* x, const float* y, float* r) {
  for (int l = 0; l < L; ++l)
    if (!(__builtin_fabsf(x[l]) < __builtin_inff() && __builtin_fabsf(y[l]) < __builtin_inff())) r[l] = __builtin_powf(x[l], y[l]);
}
// log2 |x| of floats, in double: |x| = 2^e m, m in [sqrt(1/2), sqrt(2)); the series of artanh in
// (m - 1) / (m + 1), of which the next term is below 1e-14 of the sum.
template <int L> INLINE vec<double, L> log2_wide(vec<float, L> x) {
  typedef vec<int64_t, L> whole;
  whole b = (whole)convert<double, float, L>(x) & 0x7fffffffffffffff;
  whole e = (b - 0x3fe6a09e667f3bcd) >> 52;
  vec<double, L> m = (vec<double, L>)(b - (e << 52));
  vec<double, L> s = (m - 1.0) / (m + 1.0), z = s * s;
  vec<double, L> p = horner<L>(z, 2.0 / 15, 2.0 / 13, 2.0 / 11, 2.0 / 9, 2.0 / 7, 2.0 / 5, 2.0 / 3);
  p = madd<L>(p * z, s, s + s);
  return madd<L>(p, 1.4426950408889634, convert<double, int32_t, L>(convert<int32_t, int64_t, L>(e)));
}
// 2^t in float, from double: Taylor's series of e^(f ln2), |f| <= 1/2, to 2e-10.
template <int L> INLINE vec<float, L> exp2_narrow(vec<double, L> t) {
  typedef vec<int64_t, L> whole;
  t = t < 1000.0 ? t : splat<double, L>(1000.0);
  t = t > -1000.0 ? t : splat<double, L>(-1000.0);
  vec<double, L> shifted = t + 6755399441055744.0;  // its last bits are the nearest integer's
  vec<double, L> f = (t - (shifted - 6755399441055744.0)) * 0.6931471805599453;
  vec<double, L> p = horner<L>(f, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0);
  return convert<float, double, L>((vec<double, L>)((whole)p + ((whole)shifted << 52)));
}
// |x|^y = 2^(y log2 |x|), a register of doubles at a time.
template <int L> INLINE vec<float, L> pow_positive(vec<float, L> x, vec<float, L> y) {
#if defined(__AVX512F__)
  constexpr int most = 8;
#else
  constexpr int most = 4;
#endif
  if constexpr (L > most) {
    vec<float, L / 2> a[2], b[2];
    memcpy(a, &x, sizeof x); memcpy(b, &y, sizeof y);
    for (int half = 0; half < 2; ++half) a[half] = pow_positive<L / 2>(a[half], b[half]);
    memcpy(&x, a, sizeof x);
    return x;
  } else
    return exp2_narrow<L>(convert<double, float, L>(y) * log2_wide<L>(x));
}
// What is not finite is the C library's.
template <int L, class T> INLINE vec<T, L> v_pow(vec<T, L> x, vec<T, L> y) {
  if constexpr (sizeof(T) == 8) {
    vec<T, L> r; for (int l = 0; l < L; ++l) r[l] = __builtin_pow(x[l], y[l]); return r;
  } else {
    const float inf = __builtin_inff();
    vec<float, L> size = magnitude<L>(y), large = splat<float, L>(0x1p24f);
    vec<int32_t, L> n = convert<int32_t, float, L>(size < large ? size : large);  // even from 2^24 on
    vec<int32_t, L> is_whole = (convert<float, int32_t, L>(n) == size) | (size >= large);
    vec<int32_t, L> odd = -(n & 1) & is_whole, negative = bits_of<L>(x) >> 31;
    vec<float, L> r = pow_positive<L>(x, y);
    r = x == 0.0f ? (y > 0.0f ? splat<float, L>(0.0f) : splat<float, L>(inf)) : r;
    r = (x < 0.0f) & ~is_whole ? splat<float, L>(__builtin_nanf("")) : r;
    r = float_of<L>(bits_of<L>(r) ^ (odd & negative & (int32_t)0x80000000));
    r = y == 0.0f ? splat<float, L>(1.0f) : r;
    if (__builtin_expect(any<L>(as_mask<L>(~((magnitude<L>(x) < inf) & (size < inf)))), false)) {
      float a[L], b[L], c[L];
      memcpy(a, &x, sizeof x); memcpy(b, &y, sizeof y); memcpy(c, &r, sizeof r);
      pow_far<L>(a, b, c);
      memcpy(&r, c, sizeof r);
    }
    return r;
  }
}
template <int L, class T> INLINE vec<T, L> v_power(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r;
  for (int l = 0; l < L; ++l) {
    T base = a[l], exponent = b[l], result = 1;
    if (exponent < 0) { r[l] = base == 1 ? 1 : base == T(-1) ? (exponent % 2 ? T(-1) : T(1)) : 0; continue; }
    for (; exponent; exponent /= 2) { if (exponent % 2) result *= base; base *= base; }
    r[l] = result;
  }
  return r;
}
