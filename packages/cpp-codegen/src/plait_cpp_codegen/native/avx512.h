// exp, tanh, erf, sqrt and the parts of logarithms of floats by instructions that only AVX-512 has.
#if defined(__AVX512F__) && defined(__AVX512VL__)
// 2^(j/16), by the last four bits of j.
static const float sixteenths[16] = {1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
                                  1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f};
template <int L> INLINE vec<float, L> sixteenth(vec<int32_t, L> j) {
  if constexpr (L == 16) {
    vec<float, 16> all; memcpy(&all, sixteenths, sizeof all);
#if defined(__clang__)
    return __builtin_ia32_permvarsf512(all, j);
#else
    return __builtin_ia32_permvarsf512_mask(all, j, all, -1);
#endif
  } else if constexpr (L == 8) {
    vec<float, 8> low, high; memcpy(&low, sixteenths, sizeof low); memcpy(&high, sixteenths + 8, sizeof high);
#if defined(__clang__)
    return __builtin_ia32_vpermi2varps256(low, j, high);
#else
    return __builtin_ia32_vpermt2varps256_mask(j, low, high, -1);
#endif
  } else {
    vec<int32_t, 8> more{}; memcpy(&more, &j, sizeof j);
    const vec<float, 8> found = sixteenth<8>(more);
    vec<float, L> y; memcpy(&y, &found, sizeof y); return y;
  }
}
// e^x = 2^n e^r: x = n ln2 + r, 16 n an integer, |r| <= ln2/32. `scaled` takes what n has below the point for
// 0, and 2 to that comes from a table, at the last bits of what n is taken from. NaN goes through every step.
template <int L, bool BELOW, bool ABOVE> INLINE vec<float, L> exp_f32(vec<float, L> x) {
  vec<float, L> c = x;
  if (!BELOW) c = at_most<L>(c, 89.0f);
  const vec<float, L> shifted = madd<L>(c, 1.44269504088896341f, 786432.0f), n = shifted - 786432.0f;
  const vec<float, L> r = madd<L>(n, -1.42860682030941723e-6f, madd<L>(n, -0.693145751953125f, c));
  const vec<float, L> part = sixteenth<L>(bits_of<L>(shifted));
  const vec<float, L> p = madd<L>(horner<L>(r, 0.166670308f, 0.500016212f), r * r, r);  // e^r - 1, to 2e-9
  const vec<float, L> y = madd<L>(p, part, part);
  return ABOVE ? scaled<L>(y, n) : scaled_above<L>(y, n, x, -104.0f);
}
template <int L> INLINE vec<float, L> exponent(vec<float, L> x) {
  if constexpr (L == 16) return __builtin_ia32_getexpps512_mask(x, x, -1, 4);
  else if constexpr (L == 8) return __builtin_ia32_getexpps256_mask(x, x, -1);
  else if constexpr (L == 4) return __builtin_ia32_getexpps128_mask(x, x, -1);
  else return widened<L>(x, x, [](vec<float, 4> a, vec<float, 4>) { return exponent<4>(a); });
}
// In [3/4, 3/2); NaN where x is negative.
template <int L> INLINE vec<float, L> mantissa(vec<float, L> x) {
  if constexpr (L == 16) return __builtin_ia32_getmantps512_mask(x, 11, x, -1, 4);
  else if constexpr (L == 8) return __builtin_ia32_getmantps256_mask(x, 11, x, -1);
  else if constexpr (L == 4) return __builtin_ia32_getmantps128_mask(x, 11, x, -1);
  else return widened<L>(x, x, [](vec<float, 4> a, vec<float, 4>) { return mantissa<4>(a); });
}
// x = 2^e (1 + t), 1 + t in [3/4, 3/2). Of 0 and infinity exponents are infinite and mantissas 1.
template <int L> INLINE vec<float, L> log_parts(vec<float, L> x, vec<float, L>& e) {
  vec<float, L> m = mantissa<L>(x);
  e = exponent<L>(x) - exponent<L>(m);
  return m - 1.0f;
}

INLINE vec<float, 16> looked_up(const float* table, vec<int32_t, 16> lanes) {
  vec<float, 16> low, high; memcpy(&low, table, sizeof low); memcpy(&high, table + 16, sizeof high);
#if defined(__clang__)
  return __builtin_ia32_vpermi2varps512(low, lanes, high);
#else
  return __builtin_ia32_vpermt2varps512_mask(lanes, low, high, -1);
#endif
}
// f(|x|) with the sign of x: by the polynomial of the piece that |x| is in, and at |x| above `end` as there.
// NaN goes through every step.
INLINE vec<float, 16> by_pieces(const Pieces& pieces, float end, vec<float, 16> x) {
  const vec<float, 16> a = at_most<16>(magnitude<16>(x), end);
  const vec<int32_t, 16> small = a < FIRST_PIECE;
  const vec<int32_t, 16> piece = small ? vec<int32_t, 16>{} : (bits_of<16>(a) >> PIECE_SHIFT) - PIECE_BASE;
  const vec<float, 16> t = a - looked_up(pieces.centre, piece);
  vec<float, 16> y = looked_up(pieces.coefficients[6], piece);
  y = madd<16>(y, t, looked_up(pieces.coefficients[5], piece));
  y = madd<16>(y, t, looked_up(pieces.coefficients[4], piece));
  y = madd<16>(y, t, looked_up(pieces.coefficients[3], piece));
  y = madd<16>(y, t, looked_up(pieces.coefficients[2], piece));
  y = madd<16>(y, t, looked_up(pieces.coefficients[1], piece));
  const vec<float, 16> first = looked_up(pieces.coefficients[0], piece);
  y = madd<16>(y, t, small ? a : first);
  return with_sign<16>(y, x);
}
// For fewer lanes in the same way, so that a tail computes as its loop does.
template <int L> INLINE vec<float, L> by_pieces(const Pieces& pieces, float end, vec<float, L> x) {
  vec<float, 16> wide{}; memcpy(&wide, &x, sizeof x);
  wide = by_pieces(pieces, end, wide);
  memcpy(&x, &wide, sizeof x); return x;
}
// They round to 1 from 9.2 and from 4 on.
template <int L> INLINE vec<float, L> tanh_f32(vec<float, L> x) { return by_pieces<L>(tanh_pieces, 9.2f, x); }
template <int L> INLINE vec<float, L> erf_f32(vec<float, L> x) { return by_pieces<L>(erf_pieces, 4.0f, x); }
// 1 + erf x = erfc -x, by the piece of erfc |x| that is nearest, which is 0 from 4.05 on: to 2e-8, and to 2e-5 of what
// is small. Two thirds of what erf takes, which is exact near 0. NaN goes through every step.
INLINE vec<float, 16> erf_plus_one_f32(vec<float, 16> x) {
  const vec<float, 16> a = at_most<16>(magnitude<16>(x), 31 * PIECE_STEP);
  const vec<float, 16> shifted = madd<16>(a, 1 / PIECE_STEP, 12582912.0f), t = madd<16>(shifted - 12582912.0f, -PIECE_STEP, a);
  const vec<int32_t, 16> piece = bits_of<16>(shifted);  // a look-up takes the last five bits
  vec<float, 16> y = looked_up(erfc_steps[4], piece);
  y = madd<16>(y, t, looked_up(erfc_steps[3], piece));
  y = madd<16>(y, t, looked_up(erfc_steps[2], piece));
  y = madd<16>(y, t, looked_up(erfc_steps[1], piece));
  y = madd<16>(y, t, looked_up(erfc_steps[0], piece));
  return x < 0.0f ? y : 2.0f - y;
}
template <int L> INLINE vec<float, L> erf_plus_one_f32(vec<float, L> x) {
  vec<float, 16> wide{}; memcpy(&wide, &x, sizeof x);
  wide = erf_plus_one_f32(wide);
  memcpy(&x, &wide, sizeof x); return x;
}

// sqrt x by an estimate of 14 bits and two steps of Newton's, the last with an exact remainder: rounded
// correctly, as all mantissas in both parities of the exponent tell, where nothing is near the ends of the range.
template <int L> INLINE vec<float, L> sqrt_f32(vec<float, L> x) {
  if constexpr (L == 16) {
    const vec<uint32_t, L> above = (vec<uint32_t, L>)bits_of<L>(x) - 0x0d800000u;  // 2^-100
    if (__builtin_expect(!any<L>((vec<int32_t, L>)(above >= 0x72000000u)), true)) {  // to infinity
      const vec<float, L> estimate = __builtin_ia32_rsqrt14ps512_mask(x, x, -1);
      const vec<float, L> s = x * estimate, half = 0.5f * estimate;
      const vec<float, L> rest = fused<L, float>(-s, half, splat<float, L>(0.5f));
      const vec<float, L> root = fused<L, float>(s, rest, s), slope = fused<L, float>(half, rest, half);
      return fused<L, float>(fused<L, float>(-root, root, x), slope, root);
    }
  }
  vec<float, L> r; for (int l = 0; l < L; ++l) r[l] = __builtin_sqrtf(x[l]); return r;
}
#endif
