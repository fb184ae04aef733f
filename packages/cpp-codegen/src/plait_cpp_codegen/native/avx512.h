// log, tanh, erf and sqrt of floats by instructions that only AVX-512 has.
#if defined(__AVX512F__) && defined(__AVX512VL__)
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
// log x: x = 2^e m, log m by a polynomial in m - 1. Of 0 and infinity the exponents are infinite and the
// mantissas 1, so nothing is asked of x.
template <int L> INLINE vec<float, L> log_f32(vec<float, L> x) {
  vec<float, L> m = mantissa<L>(x), e = exponent<L>(x) - exponent<L>(m), t = m - 1.0f;
  vec<float, L> p = horner<L>(t, -4.5074806e-2f, 1.0463022e-1f, -1.3161193e-1f, 1.4478394e-1f, -1.6647312e-1f,
                              1.9990861e-1f, -2.5000095e-1f, 3.3333451e-1f, -0.5f);
  p = madd<L>(p, t * t, e * 1.42860682030941723e-6f) + t;
  return madd<L>(e, 0.693145751953125f, p);
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
