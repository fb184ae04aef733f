// log |gamma(x)|; floats by way of doubles, of which half the bits are enough (NARROW). Polynomials are Chebyshev's
// interpolations, their quotients as near to the function as can be.
template <int L, bool NARROW> INLINE Pair<L> log_of_right(vec<double, L> x) {
  if constexpr (NARROW) return {log_wide<L>(x), vec<double, L>{}}; else return log_pair<L>(x);
}
// sin(pi f) for |f| <= 1/2.
template <int L, bool NARROW> INLINE vec<double, L> sine_of_turn(vec<double, L> f) {
  if constexpr (NARROW)
    return f * horner<L>(f * f, -7.0283038552030959896e-3, 8.2050350201472475149e-2, -5.9925218653158298044e-1, 2.5501633179384269082,
                         -5.1677127645930000195, 3.1415926535361320314);
  else
    return f * horner<L>(f * f, 7.6978267682241906454e-7, -2.1903497074626017191e-5, 4.6629981618983938014e-4, -7.3704305059169434047e-3,
                         8.214588657310289502e-2, -5.9926452931894468132e-1, 2.5501640398773004745, -5.1677127800499696077, 3.1415926535897932378);
}
// log gamma(1 + y) = y (y - 1) (1/2 + p / q) for 1 + y in [0.7, 3).
template <int L, bool NARROW> INLINE void gamma_quotient(vec<double, L> y, vec<double, L>& p, vec<double, L>& q) {
  if constexpr (NARROW) {
    p = horner<L>(y, -0.015065922610566280703, -0.12644998529275917391, -0.25143249332944553322, -0.07985684492526340502, 0.07721566495913303772);
    q = horner<L>(y, -5.847680025979597145e-5, 0.032708091407362541316, 0.41443909333269310569, 1.5341076200605668137, 2.1419814835650532991, 1.0);
  } else {
    p = horner<L>(y, -3.2917879228066411192e-5, -1.6882395267199649585e-3, -2.4417470358659029949e-2, -1.4738209645535321391e-1,
                  -4.2668737146168628693e-1, -5.9701900494541865101e-1, -3.2384611700683256205e-1, 4.7969824209350355064e-2, 7.7215664901532859555e-2);
    q = horner<L>(y, 6.6868313701694991895e-5, 3.9086466506499735866e-3, 6.8293700271107600893e-2, 5.2785931297975956415e-1,
                  2.1162958375333925003, 4.7096076393285300542, 5.8543156056988426717, 3.7974314293071621391, 1.0);
  }
}
// Stirling's series in 1 / x^2.
template <int L, bool NARROW> INLINE vec<double, L> stirling(vec<double, L> z) {
  if constexpr (NARROW) return horner<L>(z, 7.6988031495473394386e-4, -2.7775331430474989817e-3, 8.3333332956605737653e-2);
  else
    return horner<L>(z, 4.2983942813254639805e-3, -1.844999505256759049e-3, 8.404447851602168407e-4, -5.9522574180226424542e-4,
                     7.9365073733698475934e-4, -2.7777777776807644965e-3, 8.3333333333333305877e-2);
}
// From -0.3 to 6 steps lead to [0.7, 3): up from x below 0.7, as gamma(x) = gamma(1 + x) / x, and down from above. `factor`
// is what they leave to take the logarithm of. Beyond it is Stirling's (x - 1/2) (log x - 1) + ....
template <int L, bool NARROW> INLINE vec<double, L> lgamma_right(vec<double, L> x) {
  const double inf = __builtin_inf();
  vec<int64_t, L> far = x >= 6.0, low = x < 0.7;
  vec<double, L> y = choose<L>(low, x, x - 1.0), factor = choose<L>(low, magnitude<L>(x), splat<double, L>(1.0)), p, q;
  for (int step = 0; step < 3; ++step) {
    vec<int64_t, L> high = y >= 2.0;
    factor = choose<L>(high, factor * y, factor);
    y = choose<L>(high, y - 1.0, y);
  }
  gamma_quotient<L, NARROW>(y, p, q);
  vec<double, L> inverse = 1.0 / choose<L>(far, x, q), roots = y * (y - 1.0);
  Pair<L> log = log_of_right<L, NARROW>(choose<L>(far, x, factor));
  vec<double, L> near = madd<L>(roots, p * inverse, 0.5 * roots), wide = x - 0.5, less = log.high - 1.0, product = wide * less;
  near = choose<L>(low, (near - log.low) - log.high, (near + log.low) + log.high);
  vec<double, L> series = madd<L>(inverse, stirling<L, NARROW>(inverse * inverse), 4.1893853320467274178e-1);
  if (!NARROW) series = madd<L>(wide, log.low + ((log.high - less) - 1.0), series) + madd<L>(wide, less, -product);
  series = choose<L>(product < inf, product + series, splat<double, L>(inf));
  return choose<L>(x == 0.0, splat<double, L>(inf), choose<L>(far, series, near));
}
// Further left by reflection, gamma(-a) gamma(a) = -pi / (a sin(pi a)): infinite where a is whole.
template <int L, bool NARROW> __attribute__((noinline)) static void lgamma_left(const double* from, double* to) {
  vec<double, L> x, right; memcpy(&x, from, sizeof x); memcpy(&right, to, sizeof right);
  vec<double, L> a = -x, rounded = (a + 4503599627370496.0) - 4503599627370496.0;  // 2^52, from where on all are whole
  vec<double, L> turn = choose<L>(a < 4503599627370496.0, a - rounded, splat<double, L>(0.0));
  Pair<L> log = log_of_right<L, NARROW>(a * magnitude<L>(sine_of_turn<L, NARROW>(turn)));
  vec<double, L> y = (1.1447298858494001741 - log.high) - log.low - right;
  y = choose<L>(turn == 0.0, splat<double, L>(__builtin_inf()), y);
  y = choose<L>(x <= -0.3, y, right);
  memcpy(to, &y, sizeof y);
}
template <int L, bool NARROW> INLINE vec<double, L> lgamma_f64(vec<double, L> x) {
  vec<int64_t, L> left = x <= -0.3;
  vec<double, L> y = lgamma_right<L, NARROW>(choose<L>(left, -x, x));
  if (__builtin_expect(any<L>(as_mask<L>(left)), false)) {
    double from[L], to[L];
    memcpy(from, &x, sizeof from); memcpy(to, &y, sizeof to);
    lgamma_left<L, NARROW>(from, to);
    memcpy(&y, to, sizeof to);
  }
  return y;
}
template <int L, class T> INLINE vec<T, L> v_lgamma(vec<T, L> x) {
  if constexpr (sizeof(T) == 8) return lgamma_f64<L, false>(x);
  else if constexpr (L > DOUBLES) {
    vec<float, L / 2> parts[2]; memcpy(parts, &x, sizeof x);
    for (int i = 0; i < 2; ++i) parts[i] = v_lgamma<L / 2, float>(parts[i]);
    memcpy(&x, parts, sizeof x); return x;
  } else return convert<float, double, L>(lgamma_f64<L, true>(convert<double, float, L>(x)));
}
