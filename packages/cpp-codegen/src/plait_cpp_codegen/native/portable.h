// exp, tanh, erf, sqrt and the parts of logarithms of floats on machines without AVX-512.
#if !(defined(__AVX512F__) && defined(__AVX512VL__))
// e^x: x = n ln2 + r, |r| <= ln2/2; e^r by a polynomial. NaN goes through every step.
template <int L, bool BELOW, bool ABOVE> INLINE vec<float, L> exp_f32(vec<float, L> x) {
  vec<float, L> c = x;
  if (!BELOW) c = at_most<L>(c, 89.0f);
  vec<float, L> n = nearest<L>(c, 1.44269504088896341f);
  vec<float, L> r = madd<L>(n, -1.42860682030941723e-6f, madd<L>(n, -0.693145751953125f, c));
  vec<float, L> p = exp_less_one<L>(r) + 1.0f;
  return ABOVE ? scaled<L>(p, n) : scaled_above<L>(p, n, x, -104.0f);
}
// x = 2^e (1 + t), 1 + t in [3/4, 3/2). Of 0 and infinity e is infinite and t 0, below 0 t is NaN.
template <int L> INLINE vec<float, L> log_parts(vec<float, L> x, vec<float, L>& e) {
  const float inf = __builtin_inff();
  vec<int32_t, L> tiny = x < 1.17549435e-38f, usual = (x > 0.0f) & (x < inf);
  vec<int32_t, L> b = bits_of<L>(pick<L>(tiny, x * 8388608.0f, x)), n = (b - 0x3f400000) >> 23;
  vec<float, L> t = float_of<L>(b - (n << 23)) - 1.0f;
  e = pick<L>(usual, __builtin_convertvector(n - (tiny & 23), vec<float, L>), pick<L>(x == 0.0f, splat<float, L>(-inf), x));
  return pick<L>(usual, t, pick<L>(x >= 0.0f, vec<float, L>{}, splat<float, L>(__builtin_nanf(""))));
}
// tanh x: an odd polynomial (Cephes' tanhf) near 0, else through e^2x.
template <int L> INLINE vec<float, L> tanh_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x);
  vec<float, L> z = x * x;
  vec<float, L> p = horner<L>(z, -5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f);
  p = madd<L>(p * z, x, x);
  vec<float, L> near = at_most<L>(a, 10.0f);  // tanh 10 rounds to 1
  vec<float, L> q = 1.0f - 2.0f * reciprocal<L>(exp_f32<L, true, true>(near + near) + 1.0f);
  return with_sign<L>(pick<L>(a < 0.625f, p, q), x);
}
// Whether a lane is above a limit, or NaN.
template <int L> INLINE bool any_above(vec<float, L> x, float limit) { return any<L>(as_mask<L>(!(x <= limit))); }
// erf x: N. Juffa's polynomials, in x^2 near 0, of log(1 - erf |x|) further out.
template <int L> INLINE vec<float, L> erf_f32(vec<float, L> x) {
  vec<float, L> a = magnitude<L>(x), z = x * x;
  vec<float, L> p = horner<L>(z, -5.96761703e-4f, 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f, -3.76125336e-1f, 1.28379166e-1f);
  p = madd<L>(p, x, x);
  if (!any_above<L>(a, 0.927734375f)) return p;
  vec<float, L> far = at_most<L>(a, 4.0f), y = far * far;  // erf 4 rounds to 1
  vec<float, L> q = horner<L>(far, -1.72853470e-5f, 3.83197126e-4f);
  q = madd<L>(q, y, horner<L>(far, -3.88396438e-3f, 2.42546219e-2f));
  q = madd<L>(q, far, -1.06777877e-1f);
  q = madd<L>(q, far, -6.34846687e-1f);
  q = madd<L>(q, far, -1.28717512e-1f);
  q = madd<L>(q, far, -far);
  // e^q in fewer steps than where that is the result: it is at most 0.19.
  vec<float, L> n = nearest<L>(q, 1.44269504088896341f), r = madd<L>(n, -0.693147180559945309f, q);
  vec<float, L> e = horner<L>(r, 1.3814517662e-3f, 8.3687560332e-3f, 4.1668391843e-2f, 1.6666520309e-1f, 4.9999993426e-1f, 1.0f, 1.0f);
  vec<float, L> tail = float_of<L>(bits_of<L>(1.0f - scaled<L>(e, n)) | (bits_of<L>(x) & (int32_t)0x80000000));
  return pick<L>(a > 0.927734375f, tail, p);
}
template <int L> INLINE vec<float, L> erf_plus_one_f32(vec<float, L> x) { return erf_f32<L>(x) + 1.0f; }
template <int L> INLINE vec<float, L> sqrt_f32(vec<float, L> x) {
  vec<float, L> r; for (int l = 0; l < L; ++l) r[l] = __builtin_sqrtf(x[l]); return r;
}
#endif
