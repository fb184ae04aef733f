// Division as ATen divides.
template <class T> constexpr bool is_real = T(0.5) != T(0);
template <class T> INLINE T c_fmod(T a, T b) {
  if constexpr (sizeof(T) == 4) return __builtin_fmodf(a, b); else return __builtin_fmod(a, b);
}

// The type of whole numbers of the same size.
template <int Bytes> struct Bits { typedef int64_t type; };
template <> struct Bits<4> { typedef int32_t type; };

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
template <int L, class T> __attribute__((noinline, cold)) static void fmod_far(const T* a, const T* b, const typename Bits<sizeof(T)>::type* near, T* r) {
  for (int l = 0; l < L; ++l) if (!near[l]) r[l] = c_fmod(a[l], b[l]);
}
// a - q b for q = trunc(a / b): exact by one fma while q has fewer bits than T. Rounding a / b may
// have made q one too large: then the sign is wrong, and adding b is exact too. Lanes with a
// larger q, and what is not finite, are the C library's.
template <int L, class T> INLINE vec<T, L> v_fmod(vec<T, L> a, vec<T, L> b) {
  typedef vec<typename Bits<sizeof(T)>::type, L> whole;
  const T most = sizeof(T) == 4 ? T(4194304) : T(1125899906842624);  // 2^22, 2^50
  vec<T, L> ratio = a / b;
  whole near = (ratio < most) & (ratio > -most);
  vec<T, L> q = __builtin_convertvector(__builtin_convertvector(ratio, whole), vec<T, L>);
  vec<T, L> r = fused<L, T>(-q, b, a);
  r = ((r != 0) & ((r < 0) != (a < 0))) ? ((b < 0) != (a < 0) ? r - b : r + b) : r;
  r = ((ratio < 1) & (ratio > -1)) ? a : r;
  whole sign = (whole)splat<T, L>(T(-0.0));
  r = (vec<T, L>)(((whole)r & ~sign) | ((whole)a & sign));
  typename Bits<sizeof(T)>::type is_near[L];
  memcpy(is_near, &near, sizeof near);
  bool all = true;
  for (int l = 0; l < L; ++l) all &= is_near[l] != 0;
  if (__builtin_expect(!all, false)) {
    T x[L], y[L], z[L];
    memcpy(x, &a, sizeof a); memcpy(y, &b, sizeof b); memcpy(z, &r, sizeof r);
    fmod_far<L, T>(x, y, is_near, z);
    memcpy(&r, z, sizeof r);
  }
  return r;
}
#else
template <int L, class T> INLINE vec<T, L> v_fmod(vec<T, L> a, vec<T, L> b) {
  vec<T, L> r; for (int l = 0; l < L; ++l) r[l] = c_fmod(a[l], b[l]); return r;
}
#endif

// Integers: by 0 sets the error, and the least number by -1 wraps.
template <class T> INLINE T quotient(T a, T b, int32_t* error) {
  if (b == 0) { __atomic_store_n(error, DIVISION_BY_ZERO, __ATOMIC_RELAXED); return 0; }
  if (T(-1) < T(0) && b == T(-1)) return T(0 - (uint64_t)a);
  return a / b;
}
template <class T> INLINE T remainder_of(T a, T b, int32_t* error) {
  if (b == 0) { __atomic_store_n(error, DIVISION_BY_ZERO, __ATOMIC_RELAXED); return 0; }
  return T(-1) < T(0) && b == T(-1) ? T(0) : T(a % b);
}
template <int L, class T> INLINE vec<T, L> v_truncdiv(vec<T, L> a, vec<T, L> b, int32_t* error) {
  vec<T, L> r; for (int l = 0; l < L; ++l) r[l] = quotient<T>(a[l], b[l], error); return r;
}
template <int L, class T> INLINE vec<T, L> v_modulus(vec<T, L> a, vec<T, L> b, int32_t* error) {
  vec<T, L> r; for (int l = 0; l < L; ++l) r[l] = remainder_of<T>(a[l], b[l], error); return r;
}
template <int L, class T> INLINE vec<T, L> v_floordiv(vec<T, L> a, vec<T, L> b, int32_t* error) {
  vec<T, L> r;
  if constexpr (is_real<T>) {
    vec<T, L> ratio = a / b, m = v_fmod<L, T>(a, b), q = (a - m) / b;
    q = ((m != 0) & ((b < 0) != (m < 0))) ? q - 1 : q;
    vec<T, L> f = v_floor<L, T>(q);
    f = q - f > T(0.5) ? f + 1 : f;
    f = q != 0 ? f : v_copysign<L, T>(vec<T, L>{}, ratio);
    r = b == 0 ? ratio : f;
  } else
    for (int l = 0; l < L; ++l) {
      T m = remainder_of<T>(a[l], b[l], error);
      r[l] = quotient<T>(a[l], b[l], error) - ((m != 0) & ((m < 0) != (b[l] < 0)));
    }
  return r;
}
template <int L, class T> INLINE vec<T, L> v_rem(vec<T, L> a, vec<T, L> b, int32_t* error) {
  vec<T, L> r;
  if constexpr (is_real<T>) {
    vec<T, L> m = v_fmod<L, T>(a, b);
    r = ((m != 0) & ((m < 0) != (b < 0))) ? m + b : m;
  } else
    for (int l = 0; l < L; ++l) {
      T m = remainder_of<T>(a[l], b[l], error);
      r[l] = (m != 0 && (m < 0) != (b[l] < 0)) ? m + b[l] : m;
    }
  return r;
}
