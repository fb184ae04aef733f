// Logarithms, and inverse circular, hyperbolic and inverse hyperbolic functions, of floats. Polynomials interpolate at
// Chebyshev's nodes what is left of a function beside its first term.

// log(1 + t) - t for 1 + t in [3/4, 3/2).
template <int L> INLINE vec<float, L> log_rest(vec<float, L> t) {
  vec<float, L> p = horner<L>(t, -4.5074806e-2f, 1.0463022e-1f, -1.3161193e-1f, 1.4478394e-1f, -1.6647312e-1f,
                              1.9990861e-1f, -2.5000095e-1f, 3.3333451e-1f, -0.5f);
  return p * (t * t);
}
// log x: x = 2^e (1 + t). Of 0 and infinity e is infinite and t 0, so nothing is asked of x.
template <int L> INLINE vec<float, L> log_f32(vec<float, L> x) {
  vec<float, L> e, t = log_parts<L>(x, e), p = madd<L>(e, 1.42860682030941723e-6f, log_rest<L>(t)) + t;
  return madd<L>(e, 0.693145751953125f, p);
}
// log x / log b, with what rounding took from the product of t and 1 / log b, and from the sum with e.
template <int L> INLINE vec<float, L> log_of_base_f32(vec<float, L> x, float two, float two_rest, float slope, float slope_rest) {
  vec<float, L> e, t = log_parts<L>(x, e), whole = e * two, first = t * slope, sum = whole + first;
  vec<float, L> rest = madd<L>(t, slope_rest, madd<L>(t, slope, -first));
  rest = madd<L>(log_rest<L>(t), slope, madd<L>(e, two_rest, rest)) + (first - (sum - whole));
  return pick<L>(magnitude<L>(e) < 1000.0f, sum + rest, sum);
}
template <int L> INLINE vec<float, L> log2_f32(vec<float, L> x) { return log_of_base_f32<L>(x, 1.0f, 0.0f, 1.44269502f, 1.92596303e-8f); }
template <int L> INLINE vec<float, L> log10_f32(vec<float, L> x) {
  return log_of_base_f32<L>(x, 0.301025391f, 4.6050390e-6f, 0.434294492f, -1.0103050e-8f);
}
// atan (a / b) for 0 <= a <= b.
template <int L> INLINE vec<float, L> atan_of_part(vec<float, L> t) {
  vec<float, L> z = t * t;
  vec<float, L> p = horner<L>(z, 0.00148869189f, -0.00914462935f, 0.0263050012f, -0.0489605144f, 0.0703191459f, -0.089318268f,
                              0.110882618f, -0.142840043f, 0.199999496f, -0.333333343f);
  return madd<L>(p * z, t, t);
}
// Beyond 1 it is pi/2 less that of the reciprocal.
template <int L> INLINE vec<float, L> atan_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x), r = atan_of_part<L>(pick<L>(a > 1.0f, 1.0f / a, a));
  return with_sign<L>(pick<L>(a > 1.0f, 1.57079637f - (r + 4.37113883e-8f), r), x);
}
// The angle of (x, y) from the nearer axis. The slope of (0, 0) is 0, that of two infinities 1.
template <int L> INLINE vec<float, L> atan2_f32(vec<float, L> y, vec<float, L> x) {
  vec<float, L> a = magnitude<L>(y), b = magnitude<L>(x), zero{};
  vec<int32_t, L> steep = a > b, left = bits_of<L>(x) < 0;
  vec<float, L> least = pick<L>(steep, b, a), t = least / pick<L>(steep, a, b);
  t = pick<L>((a == 0.0f) & (b == 0.0f), zero, t);
  t = pick<L>((a == b) & (a == __builtin_inff()), splat<float, L>(1.0f), t);
  vec<float, L> r = atan_of_part<L>(t);
  r = float_of<L>(bits_of<L>(r) ^ ((steep ^ left) & (int32_t)0x80000000));
  vec<float, L> axis = pick<L>(steep, splat<float, L>(1.57079637f), pick<L>(left, splat<float, L>(3.14159274f), zero));
  return with_sign<L>(axis + madd<L>(axis, -2.78275e-8f, r), y);
}
// asin x near 0; beyond 1/2 pi/2 - 2 asin s, for s = sqrt((1 - |x|) / 2).
template <int L, bool COSINE> INLINE vec<float, L> arc_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x);
  vec<int32_t, L> near = a < 0.5f;
  vec<float, L> z = pick<L>(near, x * x, madd<L>(a, -0.5f, 0.5f)), s = pick<L>(near, x, sqrt_f32<L>(z));
  vec<float, L> p = horner<L>(z, 0.0336908475f, 0.0171492379f, 0.0311006624f, 0.0445994027f, 0.0750009418f, 0.166666657f);
  vec<float, L> more = p * z * s;
  if (!COSINE) {
    vec<float, L> far = 1.57079637f - (2.0f * s + madd<L>(more, 2.0f, 4.37113883e-8f));
    return pick<L>(near, s + more, with_sign<L>(far, x));
  }
  vec<float, L> sign = pick<L>(near, splat<float, L>(-1.0f), splat<float, L>(2.0f));
  sign = pick<L>((x < 0.0f) & ~near, splat<float, L>(-2.0f), sign);
  vec<float, L> axis = pick<L>(near, splat<float, L>(1.57079637f), pick<L>(x < 0.0f, splat<float, L>(3.14159274f), vec<float, L>{}));
  vec<float, L> first = s * sign, sum = axis + first, lost = first - (sum - axis);
  return sum + madd<L>(axis, -2.78275e-8f, madd<L>(more, sign, lost));
}
template <int L> INLINE vec<float, L> asin_f32(vec<float, L> x) { return arc_f32<L, false>(x); }
template <int L> INLINE vec<float, L> acos_f32(vec<float, L> x) { return arc_f32<L, true>(x); }
// e^a / 2 for a >= 0, which does not overflow before sinh and cosh do.
template <int L> INLINE vec<float, L> half_exp(vec<float, L> a) {
  vec<float, L> c = at_most<L>(a, 90.0f), n = nearest<L>(c, 1.44269504088896341f);
  vec<float, L> r = madd<L>(n, -1.42860682030941723e-6f, madd<L>(n, -0.693145751953125f, c));
  return scaled<L>(exp_less_one<L>(r) + 1.0f, n - 1.0f);
}
template <int L> INLINE vec<float, L> sinh_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x), z = x * x, e = half_exp<L>(a);
  vec<float, L> p = horner<L>(z, 2.80628024e-06f, 0.000198381022f, 0.00833333936f, 0.166666672f);
  return with_sign<L>(pick<L>(a < 1.0f, madd<L>(p * z, a, a), e - 0.25f / e), x);
}
template <int L> INLINE vec<float, L> cosh_f32(vec<float, L> x) {
  vec<float, L> e = half_exp<L>(magnitude<L>(x));
  return e + 0.25f / e;
}
// log u, u = a + s, s = sqrt(a^2 + 1); what rounding took from u counts by 1 / u = s - a.
template <int L> INLINE vec<float, L> asinh_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x), z = x * x;
  vec<float, L> p = horner<L>(z, -0.000509747944f, 0.00292944815f, -0.00798178278f, 0.0145150386f, -0.0215114206f, 0.0302278101f,
                              -0.0446285754f, 0.0749994814f, -0.166666657f);
  vec<int32_t, L> far = a > 1e9f;  // where s rounds to a
  vec<float, L> c = at_most<L>(a, 1e9f), s = sqrt_f32<L>(madd<L>(c, c, 1.0f)), u = c + s;
  vec<float, L> y = madd<L>(s - c, c - (u - s), log_f32<L>(pick<L>(far, a, u)));
  y = pick<L>(far, y + 0.693147181f, y);
  return with_sign<L>(pick<L>(a < 1.0f, madd<L>(p * z, a, a), y), x);
}
// acosh (1 + t) = sqrt(2 t) (1 + t p(t)) below 2.
template <int L> INLINE vec<float, L> acosh_f32(vec<float, L> x) {
  vec<float, L> t = x - 1.0f, one = splat<float, L>(1.0f);
  vec<int32_t, L> near = x < 2.0f, far = x > 1e9f;
  vec<float, L> s = sqrt_f32<L>(pick<L>(near, t + t, pick<L>(far, one, madd<L>(x, x, -1.0f))));
  vec<float, L> p = horner<L>(t, -3.13721139e-05f, 0.000190510778f, -0.000651261711f, 0.00188334205f, -0.00557787716f, 0.018749848f,
                              -0.0833333284f);
  vec<float, L> y = log_f32<L>(x + pick<L>(far, vec<float, L>{}, s));
  return pick<L>(near, madd<L>(p * t, s, s), pick<L>(far, y + 0.693147181f, y));
}
template <int L> INLINE vec<float, L> atanh_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x), z = x * x;
  vec<float, L> p = horner<L>(z, 0.156291649f, 0.0409162305f, 0.0975194052f, 0.1105083f, 0.142882854f, 0.199999601f, 0.333333343f);
  vec<float, L> y = 0.5f * log_f32<L>((1.0f + a) / (1.0f - a));
  return with_sign<L>(pick<L>(a < 0.5f, madd<L>(p * z, a, a), y), x);
}
