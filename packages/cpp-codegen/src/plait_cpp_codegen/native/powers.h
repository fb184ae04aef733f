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
// Sums of two doubles, of which the second is what rounding took from the first. They need products
// that are rounded once, with what is added to them: elsewhere the C library computes powers.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
template <int L> struct Pair { vec<double, L> high, low; };
template <int L> INLINE Pair<L> ordered_sum(vec<double, L> a, vec<double, L> b) {  // |a| >= |b|, or a is 0
  vec<double, L> high = a + b;
  return {high, b - (high - a)};
}
template <int L> INLINE Pair<L> pair_product(Pair<L> a, Pair<L> b) {
  vec<double, L> high = a.high * b.high, low = madd<L>(a.high, b.high, -high);
  return ordered_sum<L>(high, madd<L>(a.high, b.low, madd<L>(a.low, b.high, low)));
}
// log2 |x| to 2^-64 of it: x = 2^e m, m in [sqrt(1/2), sqrt(2)), log m = 2 artanh s, s = (m - 1) / (m + 1).
template <int L> INLINE Pair<L> log2_pair(vec<double, L> x) {
  vec<double, L> size = magnitude<L>(x);
  vec<int64_t, L> tiny = size < 2.2250738585072014e-308;
  vec<int64_t, L> b = bits_of<L>(choose<L>(tiny, size * 18014398509481984.0, size));
  vec<double, L> m = double_of<L>((b & 0x000fffffffffffff) | 0x3fe0000000000000);
  vec<int64_t, L> low = m < 0.70710678118654752440;
  m = choose<L>(low, m + m, m);
  vec<double, L> n = number_of<L>(((b >> 52) & 0x7ff) - 1022 - (tiny & 54) + low);
  vec<double, L> f = m - 1.0, above = m + 1.0, lost = m - (above - 1.0), inverse = 1.0 / above, near = f * inverse;
  Pair<L> s = {near, madd<L>(-near, lost, madd<L>(-near, above, f)) * inverse};
  Pair<L> z = pair_product<L>(s, s);
  // artanh s = s + s z / 3 + s z^2 (1/5 + ...), where what is left out is below 2^-65 of it; the terms of even and of
  // odd powers are summed side by side.
  vec<double, L> w = z.high * z.high;
  vec<double, L> p = horner<L>(w, 1.0 / 23, 1.0 / 19, 1.0 / 15, 1.0 / 11, 1.0 / 7);
  vec<double, L> q = madd<L>(p, z.high, horner<L>(w, 1.0 / 21, 1.0 / 17, 1.0 / 13, 1.0 / 9, 1.0 / 5));
  Pair<L> third = {splat<double, L>(3.33333333333333314830e-01), splat<double, L>(1.85037170770859413132e-17)};
  Pair<L> part = pair_product<L>(z, third);
  part = ordered_sum<L>(part.high, madd<L>(w, q, part.low));
  part = pair_product<L>(s, part);
  Pair<L> sum = ordered_sum<L>(s.high, part.high);
  sum = ordered_sum<L>(sum.high, sum.low + (part.low + s.low));
  Pair<L> twice = {splat<double, L>(2.88539008177792677400e+00), splat<double, L>(4.0710547481862066e-17)};  // 2 / ln 2
  Pair<L> bits = pair_product<L>(sum, twice), whole = ordered_sum<L>(n, bits.high);
  return ordered_sum<L>(whole.high, whole.low + bits.low);
}
template <int L> INLINE vec<double, L> pow_positive(vec<double, L> x, vec<double, L> y) {
  Pair<L> bits = log2_pair<L>(x);
  vec<double, L> high = y * bits.high, low = madd<L>(y, bits.low, madd<L>(y, bits.high, -high));
  vec<int64_t, L> over = high > 1025.0, under = high < -1080.0;
  high = choose<L>(over, splat<double, L>(1025.0), choose<L>(under, splat<double, L>(-1080.0), high));
  low = choose<L>(over | under, splat<double, L>(0.0), low);
  vec<double, L> n = nearest<L>(high), r = ((high - n) + low) * 0.693147180559945309417;
  return scaled<L>(exp_remainder<L>(r, r) + 1.0, n);
}
#define OWN_POWERS 1
#endif
// The same with signs, and where nothing is positive; what is not finite is the C library's.
template <int L> INLINE vec<double, L> pow_f64(vec<double, L> x, vec<double, L> y) {
#if defined(OWN_POWERS)
  const double inf = __builtin_inf(), whole_from = 4503599627370496.0;  // 2^52
  vec<double, L> size = magnitude<L>(y);
  vec<int64_t, L> far = size >= whole_from, even = size >= 2 * whole_from;
  vec<double, L> shifted = size + whole_from;  // its last bits are the nearest integer's
  vec<int64_t, L> is_whole = far | ((shifted - whole_from) == size);
  vec<int64_t, L> last = far ? bits_of<L>(size) : bits_of<L>(shifted);
  vec<int64_t, L> odd = -(last & 1) & is_whole & ~even, negative = bits_of<L>(x) >> 63;
  vec<double, L> r = pow_positive<L>(x, y);
  r = choose<L>(x == 0.0, choose<L>(y > 0.0, splat<double, L>(0.0), splat<double, L>(inf)), r);
  r = choose<L>((x < 0.0) & ~is_whole, splat<double, L>(__builtin_nan("")), r);
  r = double_of<L>(bits_of<L>(r) ^ (odd & negative & INT64_MIN));
  r = choose<L>(y == 0.0, splat<double, L>(1.0), r);
  vec<int64_t, L> finite = (magnitude<L>(x) < inf) & (size < inf);
  if (__builtin_expect(any<L>(as_mask<L>(~finite)), false)) {
    for (int l = 0; l < L; ++l) if (!finite[l]) r[l] = __builtin_pow(x[l], y[l]);
  }
  return r;
#else
  vec<double, L> r; for (int l = 0; l < L; ++l) r[l] = __builtin_pow(x[l], y[l]); return r;
#endif
}
// Of floats, by way of doubles; what is not finite is the C library's.
template <int L, class T> INLINE vec<T, L> v_pow(vec<T, L> x, vec<T, L> y) {
  if constexpr (sizeof(T) == 8) return pow_f64<L>(x, y);
  else {
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
