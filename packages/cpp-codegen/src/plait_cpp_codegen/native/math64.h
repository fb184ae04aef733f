// Elementary functions on vectors of double; see the table of measured errors in the README.
template <int L> INLINE vec<int64_t, L> bits_of(vec<double, L> x) { return (vec<int64_t, L>)x; }
template <int L> INLINE vec<double, L> double_of(vec<int64_t, L> x) { return (vec<double, L>)x; }
template <int L> INLINE vec<double, L> choose(vec<int64_t, L> m, vec<double, L> a, vec<double, L> b) { return m ? a : b; }
template <int L> INLINE vec<double, L> magnitude(vec<double, L> x) { return double_of<L>(bits_of<L>(x) & INT64_MAX); }
template <int L> INLINE vec<double, L> with_sign(vec<double, L> m, vec<double, L> s) {
  return double_of<L>((bits_of<L>(m) & INT64_MAX) | (bits_of<L>(s) & INT64_MIN));
}
// Added to a number of less than 2^51, it leaves the nearest integer in the last bits.
#define ROUNDING 6755399441055744.0
template <int L> INLINE vec<double, L> nearest(vec<double, L> x, double factor = 1.0) { return madd<L>(x, factor, ROUNDING) - ROUNDING; }
template <int L> INLINE vec<double, L> number_of(vec<int64_t, L> n) {
  return double_of<L>(n + bits_of<1>(vec<double, 1>{ROUNDING})[0]) - ROUNDING;
}
// p * 2^n for integers n, rounded once: p is near 1.
template <int L> INLINE vec<double, L> scaled(vec<double, L> p, vec<double, L> n) {
#if defined(__AVX512F__) && defined(__AVX512VL__)
  if constexpr (L == 8) return __builtin_ia32_scalefpd512_mask(p, n, p, -1, 4);
  else if constexpr (L == 4) return __builtin_ia32_scalefpd256_mask(p, n, p, -1);
  else if constexpr (L == 2) return __builtin_ia32_scalefpd128_mask(p, n, p, -1);
  else
#endif
  {
    vec<double, L> half = nearest<L>(n, 0.5);
    const int64_t zero = bits_of<1>(vec<double, 1>{ROUNDING})[0] - 1023;
    p = p * double_of<L>((bits_of<L>(half + ROUNDING) - zero) << 52);
    return p * double_of<L>((bits_of<L>(n - half + ROUNDING) - zero) << 52);
  }
}
// The same, but 0 where x is below a limit: nothing is computed there.
template <int L> INLINE vec<double, L> scaled_above(vec<double, L> p, vec<double, L> n, vec<double, L> x, double limit) {
  const vec<double, L> zero{};
#if defined(__AVX512F__) && defined(__AVX512VL__)
  const vec<double, L> least = splat<double, L>(limit);
  if constexpr (L == 8) return __builtin_ia32_scalefpd512_mask(p, n, zero, __builtin_ia32_cmppd512_mask(x, least, 5, -1, 4), 4);
  else if constexpr (L == 4) return __builtin_ia32_scalefpd256_mask(p, n, zero, __builtin_ia32_cmppd256_mask(x, least, 5, -1));
  else if constexpr (L == 2) return __builtin_ia32_scalefpd128_mask(p, n, zero, __builtin_ia32_cmppd128_mask(x, least, 5, -1));
  else
#endif
  return choose<L>(x < limit, zero, scaled<L>(p, choose<L>(x < limit, zero, n)));
}
// start + e^r - 1 - r for |r| <= ln2/2: Taylor's series, of which the next term is below 2^-57 of e^r. The
// terms of even and of odd powers are summed side by side.
template <int L> INLINE vec<double, L> exp_remainder(vec<double, L> r, vec<double, L> start) {
  vec<double, L> z = r * r;
  vec<double, L> p = horner<L>(z, 1.0 / 479001600, 1.0 / 3628800, 1.0 / 40320, 1.0 / 720, 1.0 / 24, 0.5);
  vec<double, L> q = horner<L>(z, 1.0 / 6227020800, 1.0 / 39916800, 1.0 / 362880, 1.0 / 5040, 1.0 / 120, 1.0 / 6);
  return madd<L>(madd<L>(q, r, p), z, start);
}
template <int L> INLINE vec<double, L> exp_f64(vec<double, L> x) {
  vec<double, L> c = at_most<L, double>(x, splat<double, L>(710.0)), n = nearest<L>(c, 1.44269504088896340736);
  // x - n ln2; n times the first part of ln2 is exact
  vec<double, L> r = madd<L>(n, -1.90821492927058770002e-10, madd<L>(n, -6.93147180369123816490e-01, c));
  return scaled_above<L>(exp_remainder<L>(r, r) + 1.0, n, x, -746.0);
}
template <int L> INLINE vec<double, L> exp2_f64(vec<double, L> x) {
  vec<double, L> c = at_most<L, double>(x, splat<double, L>(1025.0));
  vec<double, L> n = nearest<L>(c), r = (c - n) * 0.693147180559945309417;
  return scaled_above<L>(exp_remainder<L>(r, r) + 1.0, n, x, -1075.0);
}
// 2^n (e^r - 1) + (2^n - 1), by halves, so that 2^n does not overflow before the result; `low` is what
// r has lost by rounding, and terms that may cancel are added first.
template <int L> INLINE vec<double, L> expm1_f64(vec<double, L> x) {
  // e^-40 - 1 rounds to -1
  vec<double, L> c = at_least<L, double>(at_most<L, double>(x, splat<double, L>(710.0)), splat<double, L>(-40.0));
  vec<double, L> n = nearest<L>(c, 1.44269504088896340736), first = madd<L>(n, -6.93147180369123816490e-01, c);
  vec<double, L> taken = n * 1.90821492927058770002e-10, r = first - taken, low = (first - r) - taken;
  vec<double, L> half = scaled<L>(splat<double, L>(1.0), n - 1.0);
  vec<double, L> y = madd<L>(half, exp_remainder<L>(r, low), madd<L>(half, r, half - 0.5));
  return choose<L>(magnitude<L>(x) < 5.55111512312578270e-17, x, y + y);  // 2^-54: x is the nearest
}
// log x: x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); the polynomial is FreeBSD's, in f / (2 + f).
template <int L> INLINE vec<double, L> log_f64(vec<double, L> x) {
  vec<int64_t, L> tiny = x < 2.2250738585072014e-308;
  vec<int64_t, L> b = bits_of<L>(choose<L>(tiny, x * 18014398509481984.0, x));
  vec<int64_t, L> e = ((b >> 52) & 0x7ff) - 1022 - (tiny & 54);
  vec<double, L> m = double_of<L>((b & 0x000fffffffffffff) | 0x3fe0000000000000);
  vec<int64_t, L> low = m < 0.70710678118654752440;
  vec<double, L> f = choose<L>(low, m + m, m) - 1.0, n = number_of<L>(e + low);
  vec<double, L> s = f / (2.0 + f), z = s * s, w = z * z;
  vec<double, L> p = horner<L>(w, 1.531383769920937332e-01, 2.222219843214978396e-01, 3.999999999940941908e-01);
  vec<double, L> q = horner<L>(w, 1.479819860511658591e-01, 1.818357216161805012e-01, 2.857142874366239149e-01, 6.666666666666735130e-01);
  vec<double, L> rest = madd<L>(p, w, q * z), square = 0.5 * f * f;
  vec<double, L> less = square - madd<L>(s, square + rest, n * 1.90821492927058770002e-10);
  vec<double, L> y = madd<L>(n, 6.93147180369123816490e-01, f - less);
  const double inf = __builtin_inf();
  y = choose<L>(x == 0.0, splat<double, L>(-inf), y);
  y = choose<L>(x == inf, x, y);
  return choose<L>((x < 0.0) | (x != x), splat<double, L>(__builtin_nan("")), y);
}
// log(1 + x) = log u + c / u, where u is 1 + x rounded and c what rounding took from it.
template <int L> INLINE vec<double, L> log1p_f64(vec<double, L> x) {
  vec<double, L> u = x + 1.0;
  vec<double, L> c = choose<L>(x < 1.0, x - (u - 1.0), 1.0 - (u - x));
  c = choose<L>((u > 0.0) & (x < 9007199254740992.0) & (x != 0.0), c / u, splat<double, L>(0.0));
  return choose<L>(x == 0.0, x, log_f64<L>(u) + c);
}
template <int L> INLINE vec<double, L> sigmoid_f64(vec<double, L> x) {
  vec<double, L> e = exp_f64<L>(-magnitude<L>(x)), r = 1.0 / (1.0 + e);
  return choose<L>(x < 0.0, e * r, r);
}
// tanh x: a quotient of polynomials (Cephes' tanh) near 0, else through e^2x.
template <int L> INLINE vec<double, L> tanh_f64(vec<double, L> x) {
  vec<double, L> a = magnitude<L>(x), z = x * x;
  vec<double, L> p = horner<L>(z, -9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3);
  vec<double, L> q = horner<L>(z, 1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3);
  vec<double, L> near = at_most<L, double>(a, splat<double, L>(20.0));  // tanh 20 rounds to 1
  vec<int64_t, L> small = a < 0.625;
  vec<double, L> e = exp_f64<L>(near + near) + 1.0;
  vec<double, L> t = choose<L>(small, p * z, splat<double, L>(-2.0)) / choose<L>(small, q, e);
  return with_sign<L>(choose<L>(small, madd<L>(t, a, a), t + 1.0), x);
}
// sin, cos and their quotient: |x| = n pi/2 + r + s in three steps, exact but for s; FreeBSD's polynomials. Far
// from 0 the C library reduces exactly.
enum Circular { SINE, COSINE, TANGENT };
template <int L, Circular WHICH> __attribute__((noinline, cold)) static void circular_far(const double* x, double* y) {
  for (int l = 0; l < L; ++l)
    if (!(__builtin_fabs(x[l]) < 1048576.0)) y[l] = WHICH == SINE ? __builtin_sin(x[l]) : WHICH == COSINE ? __builtin_cos(x[l]) : __builtin_tan(x[l]);
}
template <int L, Circular WHICH> INLINE vec<double, L> circular_f64(vec<double, L> x) {
  vec<double, L> a = magnitude<L>(x), shifted = madd<L>(a, 6.36619772367581382433e-01, ROUNDING);
  vec<int64_t, L> k = bits_of<L>(shifted);  // its last bits are n's
  vec<double, L> n = shifted - ROUNDING;
  vec<double, L> first = madd<L>(n, -1.57079632673412561417e+00, a), taken = n * 6.07710050630396597660e-11;
  vec<double, L> second = first - taken, back = first - second;
  vec<double, L> lost = back - taken;  // of rounding; both differences before are exact or nearly so
  vec<double, L> third = madd<L>(n, -2.02226624879595063154e-21, lost);
  vec<double, L> r = second + third, s = (second - r) + third;
  if (WHICH == COSINE) k = k + 1;
  vec<double, L> z = r * r, w = z * z;
  vec<double, L> p = horner<L>(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
                               -1.98412698298579493134e-04, 8.33333333332248946124e-03);
  vec<double, L> cube = z * r, bent = madd<L>(cube, p, -0.5 * s);
  vec<double, L> sine = r + madd<L>(cube, -1.66666666666666324348e-01, madd<L>(z, bent, s));
  vec<double, L> q = horner<L>(z, 2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02);
  vec<double, L> t = horner<L>(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07);
  vec<double, L> half = 0.5 * z, rest = 1.0 - half, fourth = madd<L>(z, q, w * w * t);
  vec<double, L> cosine = rest + (((1.0 - rest) - half) + madd<L>(z, fourth, -r * s));
  vec<int64_t, L> odd = (k & 1) != 0, sign = WHICH == TANGENT ? odd & INT64_MIN : (k & 2) << 62;
  if (WHICH != COSINE) sign = sign ^ (bits_of<L>(x) & INT64_MIN);
  vec<double, L> y = choose<L>(odd, cosine, sine);
  if (WHICH == TANGENT) y = y / choose<L>(odd, sine, cosine);
  y = double_of<L>(bits_of<L>(y) ^ sign);
  if (__builtin_expect(any<L>(as_mask<L>(!(a < 1048576.0))), false)) {
    double from[L], to[L];
    memcpy(from, &x, sizeof from); memcpy(to, &y, sizeof to);
    circular_far<L, WHICH>(from, to);
    memcpy(&y, to, sizeof to);
  }
  return y;
}
// erf x up to 1: Chebyshev's interpolation of erf x / x in x^2.
template <int L> INLINE vec<double, L> erf_near(vec<double, L> x) {
  vec<double, L> z = x * x, w = z * z;
  vec<double, L> p = horner<L>(w, 5.9571761477489114044e-11, 1.4659775274047435814e-8, 1.6461000484121368033e-6, 1.2055331111642710923e-4,
                               5.2239776248180144673e-3, 1.1283791670954878666e-1, 1.2837916709551257377e-1);
  vec<double, L> q = horner<L>(w, -1.137284885679167367e-9, -1.6350312701054695011e-7, -1.4925595266831181565e-5, -8.5483269808337899052e-4,
                               -2.6866170645076793248e-2, -3.7612638903183748056e-1);
  return madd<L>(madd<L>(q, z, p), x, x);
}
// Beyond 1 that of e^(x^2) erfc x in (x - 3) / (x + 3).
template <int L> INLINE vec<double, L> erf_f64(vec<double, L> x) {
  vec<double, L> a = magnitude<L>(x), near = erf_near<L>(x);
  if (!any<L>(as_mask<L>(!(a <= 1.0)))) return near;
  vec<double, L> far = at_most<L, double>(a, splat<double, L>(6.0));  // erf 6 rounds to 1
  vec<double, L> t = (far - 3.0) / (far + 3.0), u = t * t;
  vec<double, L> b = horner<L>(u, 3.3813551420429037682e-9, 2.0135111426447427972e-6, -1.2845780030775906801e-5, 4.5254345589910084013e-5,
                               7.0774646669414250803e-4, -2.4392499318915004726e-2, -1.5011593650077898545e-1, -3.2623356004303721247e-1);
  vec<double, L> c = horner<L>(u, 1.2755818949624479228e-6, -8.009780939076079326e-6, 6.406279226046039164e-5, -5.9706249649245444261e-4,
                               4.2691363569612252503e-3, 7.1665837197473070399e-2, 2.45603801712334874e-1, 1.7900115118138994522e-1);
  vec<double, L> tail = madd<L>(-exp_f64<L>(-far * far), madd<L>(b, t, c), 1.0);
  return choose<L>(a > 1.0, with_sign<L>(tail, x), near);
}
template <int L> INLINE vec<double, L> sqrt_f64(vec<double, L> x) {
  vec<double, L> r; for (int l = 0; l < L; ++l) r[l] = __builtin_sqrt(x[l]); return r;
}
#undef ROUNDING
#define BOTH(name, narrow, wide) \
  template <int L, class T> INLINE vec<T, L> v_##name(vec<T, L> x) { \
    if constexpr (sizeof(T) == 4) return narrow; else return wide; }
BOTH(exp, exp_f32<L>(x), exp_f64<L>(x))
BOTH(exp2, exp2_f32<L>(x), exp2_f64<L>(x))
BOTH(expm1, expm1_f32<L>(x), expm1_f64<L>(x))
BOTH(sqrt, sqrt_f32<L>(x), sqrt_f64<L>(x))
BOTH(log, log_f32<L>(x), log_f64<L>(x))
BOTH(log1p, log1p_f32<L>(x), log1p_f64<L>(x))
BOTH(sigmoid, sigmoid_f32<L>(x), sigmoid_f64<L>(x))
BOTH(tanh, tanh_f32<L>(x), tanh_f64<L>(x))
BOTH(sin, (circular_f32<L, false>(x)), (circular_f64<L, SINE>(x)))
BOTH(cos, (circular_f32<L, true>(x)), (circular_f64<L, COSINE>(x)))
BOTH(tan, tan_f32<L>(x), (circular_f64<L, TANGENT>(x)))
BOTH(erf, erf_f32<L>(x), erf_f64<L>(x))
