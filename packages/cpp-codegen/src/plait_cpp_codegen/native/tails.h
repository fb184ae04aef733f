// erfc x beyond 1/2 is e^(-x^2) f / (1 + 2 x), and 2 less that below 0: f is smooth up to where results vanish, c and t
// times a polynomial (Chebyshev's interpolation) in t = (x - k) / (x + k). e^(-x^2) is 2^n (1 + p); the square is that
// of x's first half, exactly, and what is left of it.
// f / (1 + 2 a) (1 + p), for f = c + t g, by sums with what rounding took from f, from 1 + 2 a and from the quotient.
template <int L, class T> INLINE vec<T, L> tail(vec<T, L> a, vec<T, L> t, vec<T, L> g, T c, T c_rest, vec<T, L> p) {
  vec<T, L> f = madd<L>(t, g, c), more = madd<L>(t, g, c - f) + c_rest;
  vec<T, L> wide = T(1) + (a + a), over = T(1) - (wide - (a + a)), inverse = T(1) / wide, q = f * inverse;
  vec<T, L> rest = (madd<L>(-q, wide, f) + madd<L>(-q, over, more)) * inverse;
  return q + madd<L>(p, q + rest, rest);
}
template <int L> INLINE vec<float, L> erfc_f32(vec<float, L> x) {
  vec<float, L> a = at_most<L>(magnitude<L>(x), 10.5f), t = (a - 3.0f) / (a + 3.0f), z = x * x;
  vec<float, L> near = horner<L>(z, -5.96761703e-4f, 4.99119423e-3f, -2.67681349e-2f, 1.12819925e-1f, -3.76125336e-1f, 1.28379166e-1f);
  vec<float, L> g = horner<L>(t, -5.52905956e-4f, 1.81445945e-3f, 2.40415218e-3f, -2.37508491e-2f, 6.83357492e-2f, -1.19276069e-1f,
                              1.29642755e-1f, -4.75621708e-2f, -1.35621056e-1f);
  vec<float, L> first = float_of<L>(bits_of<L>(a) & -4096), square = -first * first, rest = (first - a) * (first + a);
  vec<float, L> n = nearest<L>(square, 1.44269504088896341f);
  vec<float, L> r = madd<L>(n, -1.42860682030941723e-6f, madd<L>(n, -0.693145751953125f, square)) + rest;
  vec<float, L> y = tail<L, float>(a, t, g, 1.25300801f, 4.90998495e-8f, exp_less_one<L>(r));
  y = scaled_above<L>(y, n, -a, -10.1f);
  return pick<L>(!(a >= 0.5f), 1.0f - madd<L>(near, x, x), pick<L>(x < 0.0f, 2.0f - y, y));
}
template <int L> INLINE vec<double, L> erfc_f64(vec<double, L> x) {
  vec<double, L> a = at_most<L, double>(magnitude<L>(x), splat<double, L>(28.0)), t = (a - 4.0) / (a + 4.0), u = t * t;
  vec<double, L> g = horner<L>(u, -1.0584315800092537891e-8, 1.059705976280164594e-7, -8.2289292993215682398e-7, 5.7088551994032163426e-6,
                               -2.4399065923152382183e-5, -1.9925669365832711627e-4, 5.0319699726714143206e-3, 3.7167515538446416091e-2,
                               9.3732834998275466389e-2, 6.8097054254695044272e-2, -1.3962111684056253471e-1);
  vec<double, L> h = horner<L>(u, -1.2307439672359532113e-8, 6.7247410287273141974e-8, 2.9930534208115294707e-7, -1.1224574222263631316e-5,
                               1.5062243555384029214e-4, -7.5777343482624993474e-4, -1.6197734040218659846e-2, -6.633036581344970344e-2,
                               -1.0103906603626015776e-1, 1.5379652102619126759e-2);
  vec<double, L> first = double_of<L>(bits_of<L>(a) & -134217728), square = -first * first, rest = (first - a) * (first + a);
  vec<double, L> n = nearest<L>(square, 1.44269504088896340736);
  vec<double, L> r = madd<L>(n, -1.90821492927058770002e-10, madd<L>(n, -6.93147180369123816490e-01, square)) + rest;
  vec<double, L> y = tail<L, double>(a, t, madd<L>(h, t, g), 1.2329951186255525553, -4.4115135626240291447e-17, exp_remainder<L>(r, r));
  y = scaled_above<L>(y, n, -a, -27.3);
  return choose<L>(!(a >= 0.5), 1.0 - erf_near<L>(x), choose<L>(x < 0.0, 2.0 - y, y));
}
BOTH(erfc, erfc_f32<L>(x), erfc_f64<L>(x))
