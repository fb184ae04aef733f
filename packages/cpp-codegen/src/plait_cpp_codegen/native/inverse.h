// Inverse circular, hyperbolic and inverse hyperbolic functions, and logarithms to other bases, of doubles.
#if defined(__AVX512F__)
constexpr int DOUBLES = 8;  // so many are a register
#else
constexpr int DOUBLES = 4;
#endif
// atan |x|: |x| as the angle of one of five slopes, and the rest by FreeBSD's polynomial.
template <int L> INLINE vec<double, L> atan_magnitude(vec<double, L> a) {
  vec<double, L> c = splat<double, L>(1.5), high = splat<double, L>(9.82793723247329054082e-01), low = splat<double, L>(1.39033110312309984516e-17);
#define ANGLE(limit, slope, angle, rest) \
  c = choose<L>(a < limit, splat<double, L>(slope), c); \
  high = choose<L>(a < limit, splat<double, L>(angle), high); \
  low = choose<L>(a < limit, splat<double, L>(rest), low);
  ANGLE(1.1875, 1.0, 7.85398163397448278999e-01, 3.06161699786838301793e-17)
  ANGLE(0.6875, 0.5, 4.63647609000806093515e-01, 2.26987774529616870924e-17)
  ANGLE(0.4375, 0.0, 0.0, 0.0)
#undef ANGLE
  vec<int64_t, L> steep = a >= 2.4375;
  high = choose<L>(steep, splat<double, L>(1.57079632679489655800), high);
  low = choose<L>(steep, splat<double, L>(6.12323399573676603587e-17), low);
  vec<double, L> t = choose<L>(steep, splat<double, L>(-1.0), a - c) / choose<L>(steep, a, madd<L>(c, a, 1.0));
  vec<double, L> z = t * t, w = z * z;
  vec<double, L> p = horner<L>(w, 1.62858201153657823623e-02, 4.97687799461593236017e-02, 6.66107313738753120669e-02, 9.09088713343650656196e-02,
                               1.42857142725034663711e-01, 3.33333333333329318027e-01);
  vec<double, L> q = horner<L>(w, -3.65315727442169155270e-02, -5.83357013379057348645e-02, -7.69187620504482999495e-02,
                               -1.11111104054623557880e-01, -1.99999999998764832476e-01);
  return high - (madd<L>(t, madd<L>(p, z, q * w), -low) - t);
}
template <int L> INLINE vec<double, L> atan_f64(vec<double, L> x) { return with_sign<L>(atan_magnitude<L>(magnitude<L>(x)), x); }
// The angle of (x, y), pi less where x is negative. The slope of (0, 0) is 0, that of two infinities 1.
template <int L> INLINE vec<double, L> atan2_f64(vec<double, L> y, vec<double, L> x) {
  const double inf = __builtin_inf();
  vec<double, L> a = magnitude<L>(y), b = magnitude<L>(x), slope = a / b;
  slope = choose<L>((a == 0.0) & (b == b), a, slope);
  slope = choose<L>((a == inf) & (b == inf), splat<double, L>(1.0), slope);
  vec<double, L> angle = atan_magnitude<L>(slope);
  angle = choose<L>(bits_of<L>(x) < 0, 3.1415926535897931160 - (angle - 1.2246467991473531772e-16), angle);
  return with_sign<L>(angle, y);
}
// asin x = x + x r near 0, r a quotient of polynomials (FreeBSD's) in x^2; beyond 1/2 pi/2 - 2 asin s, for
// s = sqrt((1 - |x|) / 2) with what rounding took from it.
template <int L, bool COSINE> INLINE vec<double, L> arc_f64(vec<double, L> x) {
  vec<double, L> a = magnitude<L>(x);
  vec<int64_t, L> near = a < 0.5;
  vec<double, L> z = choose<L>(near, x * x, madd<L>(a, -0.5, 0.5)), s = sqrt_f64<L>(z);
  vec<double, L> p = horner<L>(z, 3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02,
                               2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01);
  vec<double, L> r = z * p / horner<L>(z, 7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471, -2.40339491173441421878, 1.0);
  vec<double, L> lost = choose<L>(s > 0.0, madd<L>(-s, s, z) / (s + s), splat<double, L>(0.0)), more = madd<L>(r, s, lost);
  const double half = 1.57079632679489655800, rest = 6.12323399573676603587e-17;
  if (COSINE) {
    vec<double, L> angle = 2.0 * (s + more);
    vec<double, L> obtuse = (half - s - (more - rest)) * 2.0;
    return choose<L>(near, half - (x - (rest - x * r)), choose<L>(x < 0.0, obtuse, angle));
  }
  vec<double, L> far = (half - 2.0 * s) - (2.0 * more - rest);
  return choose<L>(near, madd<L>(x, r, x), with_sign<L>(far, x));
}
template <int L> INLINE vec<double, L> asin_f64(vec<double, L> x) { return arc_f64<L, false>(x); }
template <int L> INLINE vec<double, L> acos_f64(vec<double, L> x) { return arc_f64<L, true>(x); }
// Where e^x is too large, the C library has results that are not.
template <int L, bool COSINE> __attribute__((noinline, cold)) static void hyperbolic_far(const double* x, double* y) {
  for (int l = 0; l < L; ++l)
    if (!(__builtin_fabs(x[l]) <= 709.0)) y[l] = COSINE ? __builtin_cosh(x[l]) : __builtin_sinh(x[l]);
}
template <int L, bool COSINE> INLINE vec<double, L> hyperbolic_f64(vec<double, L> x) {
  vec<double, L> a = magnitude<L>(x), y;
  if (COSINE) {
    vec<double, L> e = exp_f64<L>(a);
    y = madd<L>(e, 0.5, 0.5 / e);
  } else {
    vec<double, L> e = expm1_f64<L>(a);
    y = with_sign<L>(0.5 * (e + e / (e + 1.0)), x);
  }
  if (__builtin_expect(any<L>(as_mask<L>(!(a <= 709.0))), false)) {
    double from[L], to[L];
    memcpy(from, &x, sizeof from); memcpy(to, &y, sizeof to);
    hyperbolic_far<L, COSINE>(from, to);
    memcpy(&y, to, sizeof to);
  }
  return y;
}
template <int L> INLINE vec<double, L> sinh_f64(vec<double, L> x) { return hyperbolic_f64<L, false>(x); }
template <int L> INLINE vec<double, L> cosh_f64(vec<double, L> x) { return hyperbolic_f64<L, true>(x); }
template <int L> INLINE vec<double, L> atanh_f64(vec<double, L> x) {
  vec<double, L> a = magnitude<L>(x), twice = a + a;
  return with_sign<L>(0.5 * log1p_f64<L>(choose<L>(a < 0.5, twice + twice * a / (1.0 - a), twice / (1.0 - a))), x);
}
// log(a + sqrt(a^2 + 1)), by what this is more than 1. Far from 0 that is log(2 a), and a^2 would overflow.
template <int L> INLINE vec<double, L> asinh_f64(vec<double, L> x) {
  vec<double, L> a = magnitude<L>(x), near = at_most<L, double>(a, splat<double, L>(1e150)), z = near * near;
  vec<int64_t, L> far = a > 1e150;
  vec<double, L> y = log1p_f64<L>(choose<L>(far, a, near + z / (1.0 + sqrt_f64<L>(z + 1.0))));
  return with_sign<L>(choose<L>(far, y + 6.93147180559945309417e-01, y), x);
}
template <int L> INLINE vec<double, L> acosh_f64(vec<double, L> x) {
  vec<double, L> t = x - 1.0;
  vec<int64_t, L> far = x > 1e150;
  vec<double, L> root = sqrt_f64<L>(choose<L>(t < 0.0, t, choose<L>(far, splat<double, L>(0.0), madd<L>(t, t, t + t))));
  vec<double, L> y = log1p_f64<L>(choose<L>(far, x, t + root));
  return choose<L>(far, y + 6.93147180559945309417e-01, y);
}
// log x / log b: x = 2^n m, m in [sqrt(1/2), sqrt(2)); powers of 2 are exact. What is no number above 0 is left to log.
template <int L> INLINE vec<double, L> log_of_base_f64(vec<double, L> x, double two, double two_rest, double e) {
  vec<int64_t, L> usual = (x > 0.0) & (x < __builtin_inf()), tiny = x < 2.2250738585072014e-308;
  vec<int64_t, L> b = bits_of<L>(choose<L>(tiny, x * 18014398509481984.0, x));
  vec<double, L> m = double_of<L>((b & 0x000fffffffffffff) | 0x3fe0000000000000);
  vec<int64_t, L> low = m < 0.70710678118654752440;
  vec<double, L> n = number_of<L>(((b >> 52) & 0x7ff) - 1022 - (tiny & 54) + low);
  m = choose<L>(usual, choose<L>(low, m + m, m), x);
  n = choose<L>(usual, n, splat<double, L>(0.0));
  return madd<L>(n, two, madd<L>(log_f64<L>(m), e, n * two_rest));
}
template <int L> INLINE vec<double, L> log2_f64(vec<double, L> x) { return log_of_base_f64<L>(x, 1.0, 0.0, 1.44269504088896340736); }
template <int L> INLINE vec<double, L> log10_f64(vec<double, L> x) {
  return log_of_base_f64<L>(x, 3.01029995663611771306e-01, 3.69423907715893078616e-13, 4.34294481903251827651e-01);
}
// Squares of floats neither overflow nor lose digits as doubles; doubles are scaled before, to [1, 4).
template <int L> INLINE vec<double, L> hypot_of_floats(vec<double, L> x, vec<double, L> y) {
  const double inf = __builtin_inf();
  return choose<L>((magnitude<L>(x) == inf) | (magnitude<L>(y) == inf), splat<double, L>(inf), sqrt_f64<L>(madd<L>(x, x, y * y)));
}
template <int L> INLINE vec<double, L> hypot_f64(vec<double, L> x, vec<double, L> y) {
  const double inf = __builtin_inf();
  vec<double, L> a = magnitude<L>(x), b = magnitude<L>(y), large = choose<L>(a < b, b, a), small = choose<L>(a < b, a, b);
  vec<int64_t, L> e = bits_of<L>(large) >> 52;
  e = e < 1 ? splat<int64_t, L>(1) : e > 2045 ? splat<int64_t, L>(2045) : e;
  vec<double, L> down = double_of<L>((2046 - e) << 52);
  large = large * down;
  small = small * down;
  vec<double, L> r = sqrt_f64<L>(madd<L>(large, large, small * small)) * double_of<L>(e << 52);
  r = choose<L>((x != x) | (y != y), splat<double, L>(__builtin_nan("")), r);
  return choose<L>((a == inf) | (b == inf), splat<double, L>(inf), r);
}
BOTH(asin, asin_f32<L>(x), asin_f64<L>(x))
BOTH(acos, acos_f32<L>(x), acos_f64<L>(x))
BOTH(atan, atan_f32<L>(x), atan_f64<L>(x))
BOTH(sinh, sinh_f32<L>(x), sinh_f64<L>(x))
BOTH(cosh, cosh_f32<L>(x), cosh_f64<L>(x))
BOTH(asinh, asinh_f32<L>(x), asinh_f64<L>(x))
BOTH(acosh, acosh_f32<L>(x), acosh_f64<L>(x))
BOTH(atanh, atanh_f32<L>(x), atanh_f64<L>(x))
BOTH(log2, log2_f32<L>(x), log2_f64<L>(x))
BOTH(log10, log10_f32<L>(x), log10_f64<L>(x))
template <int L, class T> INLINE vec<T, L> v_atan2(vec<T, L> y, vec<T, L> x) {
  if constexpr (sizeof(T) == 4) return atan2_f32<L>(y, x); else return atan2_f64<L>(y, x);
}
// Floats by way of doubles, a register of these at a time.
template <int L, class T> INLINE vec<T, L> v_hypot(vec<T, L> x, vec<T, L> y) {
  if constexpr (sizeof(T) == 8) return hypot_f64<L>(x, y);
  else if constexpr (L > DOUBLES) {
    vec<float, L / 2> a[2], b[2]; memcpy(a, &x, sizeof x); memcpy(b, &y, sizeof y);
    for (int i = 0; i < 2; ++i) a[i] = v_hypot<L / 2, float>(a[i], b[i]);
    memcpy(&x, a, sizeof x); return x;
  } else return convert<float, double, L>(hypot_of_floats<L>(convert<double, float, L>(x), convert<double, float, L>(y)));
}
