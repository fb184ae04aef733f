// Powers.
template <int L> __attribute__((noinline, cold)) static void pow_far(const float* x, const float* y, float* r) {
  for (int l = 0; l < L; ++l)
    if (!(__builtin_fabsf(x[l]) < __builtin_inff() && __builtin_fabsf(y[l]) < __builtin_inff())) r[l] = __builtin_powf(x[l], y[l]);
}
// |x| = 2^n m, m about 0.7 to 1.4, and c near 1 / m, by the first four bits of m: c has so few bits that r = m c - 1 is
// exact where products are rounded once with what is added to them. log m = log(1 + r) - log c.
struct NearInverses { double inverse[16], high[16], low[16]; };
static const NearInverses near_inverses = {
  {1.375, 1.3125, 1.3125, 1.25, 1.1875, 1.125, 1.125, 1.0625, 1.0, 1.0, 0.96875, 0.90625, 0.84375, 0.8125, 0.78125, 0.71875},
  {-0.31845373111855224124, -0.2719337154836694026, -0.2719337154836694026, -0.22314355131425145373, -0.1718502569266320279,
   -0.11778303565643000184, -0.11778303565643000184, -0.060624621816486978787, 0.0, 0.0, 0.031748698314572720847,
   0.098440072813218648662, 0.16989903679541384918, 0.20763936477828792704, 0.24686007793150110956, 0.33024168687052224413},
  {1.7625431312172662757e-14, 2.7643769993528700415e-14, 2.7643769993528700415e-14, 4.1697965845271952891e-14,
   -2.719444164949532387e-14, 4.6547297475984447325e-14, 4.6547297475984447325e-14, 5.2136206391365041336e-14, 0.0, 0.0,
   7.5803103693751614742e-15, 3.3871241029241413804e-14, -1.6376276414097502878e-14, -4.3425422595242563514e-14,
   2.468832415601158779e-14, 5.461214448992021793e-14}};
// By the last four bits of j.
template <int L> INLINE vec<double, L> one_of_sixteen(const double* table, vec<int64_t, L> j) {
#if defined(__AVX512F__)
  if constexpr (L == 8) {
    vec<double, 8> low, high; memcpy(&low, table, sizeof low); memcpy(&high, table + 8, sizeof high);
#if defined(__clang__)
    return __builtin_ia32_vpermi2varpd512(low, (vec<long long, 8>)j, high);
#else
    return __builtin_ia32_vpermt2varpd512_mask((vec<long long, 8>)j, low, high, -1);
#endif
  } else if constexpr (L < 8) {
    vec<int64_t, 8> more{}; memcpy(&more, &j, sizeof j);
    const vec<double, 8> found = one_of_sixteen<8>(table, more);
    vec<double, L> y; memcpy(&y, &found, sizeof y); return y;
  } else {
    vec<int64_t, L / 2> parts[2]; memcpy(parts, &j, sizeof j);
    const vec<double, L / 2> found[2] = {one_of_sixteen<L / 2>(table, parts[0]), one_of_sixteen<L / 2>(table, parts[1])};
    vec<double, L> y; memcpy(&y, found, sizeof y); return y;
  }
#else
  return gather<L>(table, [&](int64_t l) { return j[l] & 15; });
#endif
}
#define NEAR_INVERSE_FROM 0x3fe6555555555556
// log |x| of floats, and of doubles to 2^-37 of it.
template <int L> INLINE vec<double, L> log_wide(vec<double, L> x) {
  vec<int64_t, L> b = bits_of<L>(magnitude<L>(x)), n = (b - NEAR_INVERSE_FROM) >> 52, j = (b - NEAR_INVERSE_FROM) >> 48;
  vec<double, L> r = madd<L>(double_of<L>(b - (n << 52)), one_of_sixteen<L>(near_inverses.inverse, j), -1.0);
  vec<double, L> p = horner<L>(r, -0.1254760627323801194, 0.14338607423179153652, -0.16666602041742424579, 0.19999928199329711339,
                               -0.2500000002191948532, 0.33333333357686563554, -0.5);
  vec<double, L> start = madd<L>(number_of<L>(n), 0.69314718055994530942, one_of_sixteen<L>(near_inverses.high, j));
  return start + madd<L>(p * r, r, r);
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
// |x|^y = 2^(y log |x| / log 2), a register of doubles at a time.
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
    return exp2_narrow<L>(convert<double, float, L>(y) * 1.4426950408889634 * log_wide<L>(convert<double, float, L>(x)));
}
// Sums of two doubles, of which the second is what rounding took from the first.
template <int L> struct Pair { vec<double, L> high, low; };
template <int L> INLINE Pair<L> ordered_sum(vec<double, L> a, vec<double, L> b) {  // |a| >= |b|, or a is a multiple of b's last place
  vec<double, L> high = a + b;
  return {high, b - (high - a)};
}
// They need products that are rounded once, with what is added to them: elsewhere the C library computes powers.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
// log |x| to 2^-62 of it. The sum of n log 2 and -log c is exact, of numbers that are multiples of 2^-43.
template <int L> INLINE Pair<L> log_pair(vec<double, L> x) {
  vec<double, L> size = magnitude<L>(x);
  vec<int64_t, L> tiny = size < 2.2250738585072014e-308;
  vec<int64_t, L> b = bits_of<L>(choose<L>(tiny, size * 18014398509481984.0, size));
  vec<int64_t, L> e = (b - NEAR_INVERSE_FROM) >> 52, j = (b - NEAR_INVERSE_FROM) >> 48;
  vec<double, L> r = madd<L>(double_of<L>(b - (e << 52)), one_of_sixteen<L>(near_inverses.inverse, j), -1.0);
  vec<double, L> n = number_of<L>(e - (tiny & 54)), half = -0.5 * r, square = r * half, w = r * r;
  vec<double, L> p = horner<L>(w, 0.077422490796574579788, 0.09090773433656635183, 0.11111111272208247854, 0.14285714285636225271,
                               0.20000000000000010589, 0.33333333333333333333);
  vec<double, L> q = horner<L>(w, -0.083868400911833405721, -0.099998546596570252198, -0.12500000172595212356, -0.16666666666583034986,
                               -0.25000000000000011345);
  Pair<L> start = ordered_sum<L>(madd<L>(n, 0.69314718055989033019, one_of_sixteen<L>(near_inverses.high, j)), r);
  Pair<L> sum = ordered_sum<L>(start.high, square);
  vec<double, L> rest = madd<L>(n, 5.4979230187083711747e-14, one_of_sixteen<L>(near_inverses.low, j)) + start.low;
  rest = madd<L>(madd<L>(q, r, p), w * r, rest + (madd<L>(half, r, -square) + sum.low));
  return ordered_sum<L>(sum.high, rest);
}
// e^(y log |x|), where the exponent is a sum of two, limited to where results overflow and vanish.
template <int L> INLINE vec<double, L> pow_positive(vec<double, L> x, vec<double, L> y) {
  Pair<L> log = log_pair<L>(x);
  vec<double, L> high = y * log.high, low = madd<L>(y, log.low, madd<L>(y, log.high, -high));
  vec<int64_t, L> over = high > 710.0, under = high < -746.0;
  high = choose<L>(over, splat<double, L>(710.0), choose<L>(under, splat<double, L>(-746.0), high));
  low = choose<L>(over | under, splat<double, L>(0.0), low);
  vec<double, L> n = nearest<L>(high, 1.44269504088896340736);
  vec<double, L> r = madd<L>(n, -1.90821492927058770002e-10, madd<L>(n, -6.93147180369123816490e-01, high)) + low;
  return scaled<L>(exp_remainder<L>(r, r) + 1.0, n);
}
#define OWN_POWERS 1
#else
template <int L> INLINE Pair<L> log_pair(vec<double, L> x) { return {log_f64<L>(x), vec<double, L>{}}; }
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
