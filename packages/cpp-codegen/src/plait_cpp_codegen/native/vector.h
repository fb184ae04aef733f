// Vectors of L lanes on GCC and Clang vector extensions, and what every kernel uses.
// Masks are int32 lanes, all bits set where true. A single lane is a vector too, so one
// text of a loop body serves the main loop and its tail.
#include <stdint.h>

// What is used of stdlib.h and string.h: to read these takes a compiler a tenth of a small program's time.
extern "C" void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__) noexcept;
extern "C" void free(void*) noexcept;
extern "C" void* memcpy(void*, const void*, __SIZE_TYPE__) noexcept;
extern "C" void* memset(void*, int, __SIZE_TYPE__) noexcept;

#define INLINE __attribute__((always_inline)) inline
#if defined(__AVX512F__)
#define WIDE true
#else
#define WIDE false
#endif

template <int N> struct Lanes { static constexpr int value = N; };
template <class T, int L> struct VecOf { typedef T type __attribute__((vector_size(sizeof(T) * L))); };
template <class T, int L> using vec = typename VecOf<T, L>::type;
template <int L> using mask = vec<int32_t, L>;

// Complex numbers: in memory pairs, in registers a vector of each part.
struct c64 { float re, im; };
struct c128 { double re, im; };
template <class T> struct PartOf { typedef void type; };
template <> struct PartOf<c64> { typedef float type; };
template <> struct PartOf<c128> { typedef double type; };
template <class T> struct IsReal { static constexpr bool value = true; };
template <> struct IsReal<c64> { static constexpr bool value = false; };
template <> struct IsReal<c128> { static constexpr bool value = false; };
template <class C, int L> struct Pairs {
  typedef vec<typename PartOf<C>::type, L> part;
  part re, im;
  struct Lane {
    Pairs& of; int l;
    INLINE operator C() const { return C{of.re[l], of.im[l]}; }
    INLINE void operator=(C x) { of.re[l] = x.re; of.im[l] = x.im; }
    INLINE void operator=(const Lane& x) { *this = C(x); }
  };
  INLINE C operator[](int l) const { return C{re[l], im[l]}; }
  INLINE Lane operator[](int l) { return Lane{*this, l}; }
};
template <class C, int L> INLINE Pairs<C, L> operator+(const Pairs<C, L>& x, const Pairs<C, L>& y) {
  return Pairs<C, L>{x.re + y.re, x.im + y.im};
}
template <int L> struct VecOf<c64, L> { typedef Pairs<c64, L> type; };
template <int L> struct VecOf<c128, L> { typedef Pairs<c128, L> type; };

template <class T, int L> INLINE vec<T, L> splat(T x) {
  if constexpr (IsReal<T>::value) return x - vec<T, L>{};
  else {
    typedef typename PartOf<T>::type P;
    return vec<T, L>{splat<P, L>(x.re), splat<P, L>(x.im)};
  }
}
template <class T> INLINE vec<T, 1> single(T x) {
  if constexpr (IsReal<T>::value) return vec<T, 1>{x};
  else return splat<T, 1>(x);
}
template <> INLINE vec<float, 1> splat<float, 1>(float x) { return vec<float, 1>{x}; }
template <> INLINE vec<double, 1> splat<double, 1>(double x) { return vec<double, 1>{x}; }

template <int L, class T> INLINE vec<T, L> spread(vec<T, 1> x) { return splat<T, L>(T(x[0])); }

// A vector of which the compiler does not see where it comes from. GCC takes conversions of bytes
// that are loaded or stored apart, lane by lane; so it converts them by one instruction.
template <class V> INLINE V opaque(V x) {
#if defined(__GNUC__) && !defined(__clang__) && defined(__SSE2__)
#if defined(__AVX512VL__)
  if constexpr (sizeof(V) >= 4 && sizeof(V) <= 64) asm("" : "+v"(x));
#elif defined(__AVX__)
  if constexpr (sizeof(V) >= 4 && sizeof(V) <= 32) asm("" : "+x"(x));
#else
  if constexpr (sizeof(V) >= 4 && sizeof(V) <= 16) asm("" : "+x"(x));
#endif
#endif
  return x;
}
// GCC takes some conversions lane by lane: of floats to and from less than 32 bits, and without
// AVX-512 those of integers to and from a quarter of their bits. They are made in two steps. Integers of 16 bits it takes
// to and from registers of 64 bytes by halves.
// Floats become narrow integers so in single lanes too: C++ says nothing of those that do not fit.
template <class R, class T, int L> INLINE vec<R, L> convert(vec<T, L> x) {
  constexpr bool to_float = (R)0.5 != (R)0, from_float = (T)0.5 != (T)0;
  constexpr bool quarter = sizeof(R) >= 4 * sizeof(T) || sizeof(T) >= 4 * sizeof(R);
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512BW__)
  constexpr bool words = !from_float && !to_float && L == 16, is_signed = T(-1) < T(0);
  if constexpr (words && sizeof(T) == 2 && sizeof(R) == 4 && is_signed) return (vec<R, L>)__builtin_ia32_pmovsxwd512_mask((vec<int16_t, L>)x, vec<int32_t, L>{}, -1);
  else if constexpr (words && sizeof(T) == 2 && sizeof(R) == 4) return (vec<R, L>)__builtin_ia32_pmovzxwd512_mask((vec<int16_t, L>)x, vec<int32_t, L>{}, -1);
  else if constexpr (words && sizeof(T) == 4 && sizeof(R) == 2) return (vec<R, L>)__builtin_ia32_pmovdw512_mask((vec<int32_t, L>)x, vec<int16_t, L>{}, -1);
  else
#endif
  if constexpr ((L > 1 && to_float && sizeof(T) < 4) || (from_float && sizeof(R) < 4))
    return convert<R, int32_t, L>(convert<int32_t, T, L>(x));
  else if constexpr (L > 1 && quarter && WIDE && L * (sizeof(R) > sizeof(T) ? sizeof(R) : sizeof(T)) <= 64) return __builtin_convertvector(opaque(x), vec<R, L>);
  else if constexpr (L > 1 && quarter && sizeof(T) + sizeof(R) > 8) return convert<R, int32_t, L>(convert<int32_t, T, L>(x));
  else if constexpr (L > 1 && quarter) return convert<R, int16_t, L>(convert<int16_t, T, L>(x));
  else return __builtin_convertvector(x, vec<R, L>);
}

// Memory holds M; registers hold R (float for narrower floats, masks for bool).
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct f8e4m3fn { uint8_t bits; };
struct f8e5m2 { uint8_t bits; };
struct boolean { uint8_t bits; };

template <class M, int L> struct Memory {
  typedef M R;
  static INLINE vec<R, L> load(const M* p) { vec<R, L> r; memcpy(&r, p, sizeof r); return r; }
  static INLINE void store(M* p, vec<R, L> x) { memcpy(p, &x, sizeof x); }
};
template <int L> struct Memory<boolean, L> {
  typedef int32_t R;
  static INLINE mask<L> load(const boolean* p) {
    vec<uint8_t, L> b; memcpy(&b, p, sizeof b);
    return convert<int32_t, uint8_t, L>(b) != mask<L>{};
  }
  static INLINE void store(boolean* p, mask<L> x) {
    vec<uint8_t, L> b = convert<uint8_t, int32_t, L>(x & 1); memcpy(p, &b, sizeof b);
  }
};
template <int L> struct Memory<bf16, L> {
  typedef float R;
  static INLINE vec<float, L> load(const bf16* p) {
    vec<uint16_t, L> b; memcpy(&b, p, sizeof b);
    vec<uint32_t, L> w = convert<uint32_t, uint16_t, L>(b) << 16;
    vec<float, L> r; memcpy(&r, &w, sizeof r); return r;
  }
  // The bits of the nearest bfloat16, and behind them some that do not matter.
  static INLINE vec<uint32_t, L> rounded(vec<float, L> x) {
    vec<uint32_t, L> w; memcpy(&w, &x, sizeof w);
    return x == x ? w + 0x7fff + ((w >> 16) & 1) : vec<uint32_t, L>{} + 0x7fc00000;
  }
  static INLINE vec<uint16_t, L> narrow(vec<float, L> x) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    if constexpr (L == 16 && WIDE) {  // by an instruction, which takes subnormal numbers for 0
      if (__builtin_expect(!__builtin_ia32_fpclassps512_mask(x, 0x20, -1), true)) {
        vec<uint16_t, L> b; asm("vcvtneps2bf16 %1, %0" : "=v"(b) : "v"(x)); return b;
      }
    }
#endif
    return convert<uint16_t, uint32_t, L>(rounded(x) >> 16);
  }
  static INLINE void store(bf16* p, vec<float, L> x) {
    vec<uint16_t, L> b = narrow(x); memcpy(p, &b, sizeof b);
  }
};
// Not every compiler has a type of 16-bit floats. Machines without conversions for them move the
// bits, and make or take apart what is subnormal by an addition.
template <int L> struct Memory<f16, L> {
  typedef float R;
#if defined(__F16C__)
  // What has no instruction of its width is part of one of eight, or two of half its width.
  template <typename To, typename From> static INLINE vec<To, L> converted(vec<From, L> x) {
    vec<To, L> y;
    if constexpr (L < 8) {
      vec<From, 8> more{}; memcpy(&more, &x, sizeof x);
      const vec<To, 8> found = Memory<f16, 8>::template converted<To, From>(more); memcpy(&y, &found, sizeof y);
    } else if constexpr (L == 8 || (L == 16 && WIDE)) {
      if constexpr (sizeof(To) == 4) asm("vcvtph2ps %1, %0" : "=v"(y) : "v"(x));
      else asm("vcvtps2ph $0, %1, %0" : "=v"(y) : "v"(x));
    } else {
      vec<From, L / 2> parts[2]; memcpy(parts, &x, sizeof x);
      const vec<To, L / 2> found[2] = {Memory<f16, L / 2>::template converted<To, From>(parts[0]), Memory<f16, L / 2>::template converted<To, From>(parts[1])};
      memcpy(&y, found, sizeof y);
    }
    return y;
  }
  static INLINE vec<float, L> widen(vec<uint16_t, L> b) { return converted<float, uint16_t>(b); }
  static INLINE vec<uint16_t, L> narrow(vec<float, L> x) { return converted<uint16_t, float>(x); }
#else
  static INLINE vec<float, L> widen(vec<uint16_t, L> b) {
    vec<uint32_t, L> h = convert<uint32_t, uint16_t, L>(b), o = (h & 0x7fff) << 13, e = o & 0x0f800000;
    o += 0x38000000;
    o += (vec<uint32_t, L>)(e == 0x0f800000) & 0x38000000;  // infinity and NaN
    vec<uint32_t, L> small = (vec<uint32_t, L>)(e == 0), m = o + 0x00800000;
    vec<float, L> f; memcpy(&f, &m, sizeof f);
    f -= 6.103515625e-05f;  // 2^-14
    memcpy(&m, &f, sizeof m);
    o = (m & small) | (o & ~small) | (h & 0x8000) << 16;
    memcpy(&f, &o, sizeof f); return f;
  }
  static INLINE vec<uint16_t, L> narrow(vec<float, L> x) {
    vec<uint32_t, L> w; memcpy(&w, &x, sizeof w);
    vec<uint32_t, L> sign = (w >> 16) & 0x8000, a = w & 0x7fffffff;
    vec<uint32_t, L> normal = (a + 0xc8000fff + ((a >> 13) & 1)) >> 13, m;
    vec<float, L> f; memcpy(&f, &a, sizeof f);
    f += 0.5f;  // rounds at the place of the least subnormal
    memcpy(&m, &f, sizeof m);
    vec<uint32_t, L> small = (vec<uint32_t, L>)(a < 0x38800000), large = (vec<uint32_t, L>)(a >= 0x47800000);
    vec<uint32_t, L> nan = (vec<uint32_t, L>)(a > 0x7f800000);
    vec<uint32_t, L> r = ((m - 0x3f000000) & small) | (normal & ~small);
    r = (r & ~large) | (large & 0x7c00) | (nan & 0x0200);
    return convert<uint16_t, uint32_t, L>(r | sign);
  }
#endif
  static INLINE vec<float, L> load(const f16* p) {
    vec<uint16_t, L> b; memcpy(&b, p, sizeof b);
    return widen(b);
  }
  static INLINE void store(f16* p, vec<float, L> x) {
    vec<uint16_t, L> b = narrow(x); memcpy(p, &b, sizeof b);
  }
};

// Floats of 8 bits: as halves, what is subnormal is made by an addition. What is too large becomes
// an infinity where there are five bits of exponent, else F8E4M3FN_OVERFLOW, as torch has it.
template <int L> struct Memory<f8e4m3fn, L> {
  typedef float R;
  static INLINE vec<float, L> widen(vec<uint8_t, L> b) {
    vec<uint32_t, L> w = convert<uint32_t, uint8_t, L>(b), m = w & 0x7f, o = (m << 20) + 0x3c000000;
    vec<uint32_t, L> small = (vec<uint32_t, L>)(m < 8), s = (m << 20) + 0x3c800000;
    vec<float, L> f; memcpy(&f, &s, sizeof f);
    f -= 0.015625f;  // 2^-6
    memcpy(&s, &f, sizeof s);
    o = (s & small) | (o & ~small) | ((vec<uint32_t, L>)(m == 0x7f) & 0x7fc00000) | (w & 0x80) << 24;
    memcpy(&f, &o, sizeof f); return f;
  }
  static INLINE vec<uint8_t, L> narrow(vec<float, L> x) {
    vec<uint32_t, L> w; memcpy(&w, &x, sizeof w);
    vec<uint32_t, L> a = w & 0x7fffffff, normal = (a + 0xc407ffff + ((a >> 20) & 1)) >> 20, m;
    vec<float, L> f; memcpy(&f, &a, sizeof f);
    f += 16384.0f;  // rounds at the place of the least subnormal
    memcpy(&m, &f, sizeof m);
    vec<uint32_t, L> small = (vec<uint32_t, L>)(a < 0x3c800000), nan = (vec<uint32_t, L>)(a > 0x7f800000);
    vec<uint32_t, L> r = ((m - 0x46800000) & small) | (normal & ~small);
    vec<uint32_t, L> large = (vec<uint32_t, L>)(r > F8E4M3FN_OVERFLOW);
    r = (r & ~large) | (large & F8E4M3FN_OVERFLOW) | (nan & 0x7f);
    return convert<uint8_t, uint32_t, L>(r | w >> 31 << 7);
  }
  static INLINE vec<float, L> load(const f8e4m3fn* p) { vec<uint8_t, L> b; memcpy(&b, p, sizeof b); return widen(b); }
  static INLINE void store(f8e4m3fn* p, vec<float, L> x) { vec<uint8_t, L> b = narrow(x); memcpy(p, &b, sizeof b); }
};
template <int L> struct Memory<f8e5m2, L> {
  typedef float R;
  static INLINE vec<float, L> widen(vec<uint8_t, L> b) {
    return Memory<f16, L>::widen(convert<uint16_t, uint8_t, L>(b) << 8);
  }
  static INLINE vec<uint8_t, L> narrow(vec<float, L> x) {
    vec<uint32_t, L> w; memcpy(&w, &x, sizeof w);
    vec<uint32_t, L> a = w & 0x7fffffff, normal = (a + 0xc80fffff + ((a >> 21) & 1)) >> 21, m;
    vec<float, L> f; memcpy(&f, &a, sizeof f);
    f += 128.0f;  // rounds at the place of the least subnormal
    memcpy(&m, &f, sizeof m);
    vec<uint32_t, L> small = (vec<uint32_t, L>)(a < 0x38800000), large = (vec<uint32_t, L>)(a >= 0x47800000);
    vec<uint32_t, L> nan = (vec<uint32_t, L>)(a > 0x7f800000);
    vec<uint32_t, L> r = ((m - 0x43000000) & small) | (normal & ~small);
    return convert<uint8_t, uint32_t, L>((r & ~large) | (large & 0x7c) | (nan & 0x7f) | w >> 31 << 7);
  }
  static INLINE vec<float, L> load(const f8e5m2* p) { vec<uint8_t, L> b; memcpy(&b, p, sizeof b); return widen(b); }
  static INLINE void store(f8e5m2* p, vec<float, L> x) { vec<uint8_t, L> b = narrow(x); memcpy(p, &b, sizeof b); }
};

// Even and odd elements of two vectors, and back: where the compiler can, by shuffles.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES
#endif
#endif
template <int L, class V> INLINE void apart(V low, V high, V& even, V& odd) {
#ifdef SHUFFLES
  if constexpr (L == 16) {
    even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    odd = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return;
  } else if constexpr (L == 8) {
    even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
    odd = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15);
    return;
  } else if constexpr (L == 4) {
    even = __builtin_shufflevector(low, high, 0, 2, 4, 6); odd = __builtin_shufflevector(low, high, 1, 3, 5, 7);
    return;
  }
#endif
  for (int l = 0; l < L; ++l) {
    even[l] = 2 * l < L ? low[2 * l] : high[2 * l - L];
    odd[l] = 2 * l + 1 < L ? low[2 * l + 1] : high[2 * l + 1 - L];
  }
}
template <int L, class V> INLINE void together(V even, V odd, V& low, V& high) {
#ifdef SHUFFLES
  if constexpr (L == 16) {
    low = __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    high = __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return;
  } else if constexpr (L == 8) {
    low = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
    high = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
    return;
  } else if constexpr (L == 4) {
    low = __builtin_shufflevector(even, odd, 0, 4, 1, 5); high = __builtin_shufflevector(even, odd, 2, 6, 3, 7);
    return;
  }
#endif
  for (int l = 0; l < L; ++l) {
    if (2 * l < L) low[2 * l] = even[l]; else high[2 * l - L] = even[l];
    if (2 * l + 1 < L) low[2 * l + 1] = odd[l]; else high[2 * l + 1 - L] = odd[l];
  }
}
template <class C, int L> struct ComplexMemory {
  typedef C R;
  typedef typename Pairs<C, L>::part part;
  static INLINE vec<C, L> load(const C* p) {
    part low, high; vec<C, L> r;
    memcpy(&low, p, sizeof low); memcpy(&high, (const char*)p + sizeof low, sizeof high);
    apart<L>(low, high, r.re, r.im); return r;
  }
  static INLINE void store(C* p, vec<C, L> x) {
    part low, high;
    together<L>(x.re, x.im, low, high);
    memcpy(p, &low, sizeof low); memcpy((char*)p + sizeof low, &high, sizeof high);
  }
};
template <int L> struct Memory<c64, L> : ComplexMemory<c64, L> {};
template <int L> struct Memory<c128, L> : ComplexMemory<c128, L> {};

template <int L> INLINE bool any(mask<L> m) {
#if defined(__AVX512F__)
  if constexpr (L == 16) return __builtin_ia32_cmpd512_mask(m, mask<L>{}, 4, -1);  // 4: unequal
#if defined(__AVX512VL__)
  if constexpr (L == 8) return __builtin_ia32_cmpd256_mask(m, mask<L>{}, 4, -1);
  if constexpr (L == 4) return __builtin_ia32_cmpd128_mask(m, mask<L>{}, 4, -1);
#endif
#endif
  int32_t r = 0; for (int l = 0; l < L; ++l) r |= m[l]; return r;
}
// A comparison's result as a mask.
template <int L, class C> INLINE mask<L> as_mask(C c) {
  if constexpr (sizeof(C) == 4 * L) return (mask<L>)c;
  else return __builtin_convertvector(c, mask<L>);
}
// Products of integers of 64 bits that have 32: machines have no instruction for all 64, or a slow one.
template <int L> INLINE vec<int64_t, L> product_of_words(vec<int64_t, L> a, vec<int64_t, L> b) {
#if defined(__AVX512F__)
  constexpr int own = 8;
#elif defined(__AVX2__)
  constexpr int own = 4;
#else
  constexpr int own = 1;
#endif
#if defined(__AVX2__)
  if constexpr (L == own) {
    vec<int64_t, L> product; asm("vpmuludq %2, %1, %0" : "=v"(product) : "v"(a), "v"(b)); return product;
  }
#endif
  if constexpr (L > own && own > 1) {
    vec<int64_t, L / 2> x[2], y[2]; memcpy(x, &a, sizeof x); memcpy(y, &b, sizeof y);
    x[0] = product_of_words<L / 2>(x[0], y[0]); x[1] = product_of_words<L / 2>(x[1], y[1]);
    memcpy(&a, x, sizeof a); return a;
  } else return a * b;
}
template <int L, class M> INLINE auto load(const M* p) { return Memory<M, L>::load(p); }
// The same, and asks for what lies a page further.
template <int L, class M> INLINE auto load_ahead(const M* p) {
  __builtin_prefetch((const char*)p + 4096);
  return load<L>(p);
}
template <int L, class M, class V> INLINE void store(M* p, V x) { Memory<M, L>::store(p, x); }
// The same past the caches, by whole vectors in their places: what will not be found there again need not be
// read in order to be overwritten. At the end `stored_past` lets all others see it.
template <int L, class M, class V> INLINE void store_past(M* p, V x) {
#if defined(__AVX__)
  constexpr int bytes = L * sizeof(M);
  if constexpr (bytes == 32 || (bytes == 64 && WIDE)) {
    if (__builtin_expect(((uintptr_t)p & (bytes - 1)) == 0, true)) {
      vec<float, bytes / 4> line; Memory<M, L>::store((M*)&line, x);
#if defined(__clang__)
      __builtin_nontemporal_store(line, (vec<float, bytes / 4>*)p);
#else
      if constexpr (bytes == 32) __builtin_ia32_movntps256((float*)p, line);
      else __builtin_ia32_movntps512((float*)p, line);
#endif
      return;
    }
  }
#endif
  store<L>(p, x);
}
INLINE void stored_past() {
#if defined(__AVX__)
  __builtin_ia32_sfence();
#endif
}
template <int L, class M> INLINE auto load_uniform(const M* p) {
  return spread<L, typename Memory<M, 1>::R>(Memory<M, 1>::load(p));
}
// Elements at any offsets: `offset(l)` is that of lane l.
template <int L, class M, class F> INLINE auto gather(const M* p, F offset) {
  vec<typename Memory<M, 1>::R, L> r;
  for (int l = 0; l < L; ++l) r[l] = Memory<M, 1>::load(p + offset(l))[0];
  return r;
}
// Every second element: nothing behind the last of them is read.
template <int Bytes> struct Word {};
template <> struct Word<1> { typedef int8_t type; };
template <> struct Word<2> { typedef int16_t type; };
template <> struct Word<4> { typedef int32_t type; };
template <> struct Word<8> { typedef int64_t type; };
#if defined(__clang__)
template <class T, T... l> struct Numbers {};
template <class V, int... l> INLINE V every_second(V low, V high, Numbers<int, l...>) {
  constexpr int L = sizeof...(l);
  return __builtin_shufflevector(low, high, 2 * l + (2 * l >= L)...);
}
#endif
template <int L, class M> INLINE auto load_second(const M* p) {
  if constexpr (L == 1 || sizeof(M) > 8) return gather<L>(p, [&](int64_t l) { return 2 * l; });
  else {
    typedef vec<typename Word<sizeof(M)>::type, L> words;
    words low, high; memcpy(&low, p, sizeof low); memcpy(&high, p + (L - 1), sizeof high);
#if defined(__clang__)
    const words found = every_second(low, high, __make_integer_seq<Numbers, int, L>{});
#else
    words from; for (int l = 0; l < L; ++l) from[l] = 2 * l + (2 * l >= L);
    const words found = __builtin_shuffle(low, high, from);
#endif
    M elements[L]; memcpy(elements, &found, sizeof elements);
    return Memory<M, L>::load(elements);
  }
}
// Elements at offsets that a vector of O holds.
template <int L, class O, class M> INLINE auto gather_at(const M* p, vec<O, L> offsets) {
  typedef typename Memory<M, 1>::R R;
#if defined(__AVX512F__) && defined(__AVX512VL__)
  if constexpr (!IsReal<R>::value) return gather<L>(p, [&](int l) { return offsets[l]; });
  else if constexpr (L == 16 && sizeof(O) == 4 && sizeof(R) == sizeof(M) && sizeof(M) == 4)
    return (vec<R, L>)__builtin_ia32_gathersiv16sf(vec<float, 16>{}, p, (vec<int, 16>)offsets, -1, 4);
  else if constexpr (L == 8 && sizeof(O) == 4 && sizeof(R) == sizeof(M) && sizeof(M) == 4)
    return (vec<R, L>)__builtin_ia32_gather3siv8sf(vec<float, 8>{}, p, (vec<int, 8>)offsets, -1, 4);
  else if constexpr (L == 8 && sizeof(O) == 4 && sizeof(R) == sizeof(M) && sizeof(M) == 8)
    return (vec<R, L>)__builtin_ia32_gathersiv8df(vec<double, 8>{}, p, (vec<int, 8>)offsets, -1, 8);
  else if constexpr (L == 8 && sizeof(O) == 8 && sizeof(R) == sizeof(M) && sizeof(M) == 4)
    return (vec<R, L>)__builtin_ia32_gatherdiv16sf(vec<float, 8>{}, p, (vec<long long, 8>)offsets, -1, 4);
  else if constexpr (L == 8 && sizeof(O) == 8 && sizeof(R) == sizeof(M) && sizeof(M) == 8)
    return (vec<R, L>)__builtin_ia32_gatherdiv8df(vec<double, 8>{}, p, (vec<long long, 8>)offsets, -1, 8);
  else
#endif
  {
    O at[L]; memcpy(at, &offsets, sizeof at);
    vec<R, L> r;
    for (int l = 0; l < L; ++l) r[l] = Memory<M, 1>::load(p + at[l])[0];
    return r;
  }
}
#if defined(__AVX2__)
// Lanes by number, each of which is one of the vector's.
template <int L, class V> INLINE V permuted(V x, vec<int32_t, L> from) {
  if constexpr (L == 8) return (V)__builtin_ia32_permvarsf256((vec<float, 8>)x, (vec<int, 8>)from);
#if defined(__AVX512F__) && defined(__clang__)
  else return (V)__builtin_ia32_permvarsf512((vec<float, 16>)x, (vec<int, 16>)from);
#elif defined(__AVX512F__)
  else return (V)__builtin_ia32_permvarsf512_mask((vec<float, 16>)x, (vec<int, 16>)from, vec<float, 16>{}, -1);
#endif
}
#endif
// The same where neighbours are likely to lie within one vector of memory, as what follows from
// positions does: that is loaded and permuted. `behind` is the offset behind the last element.
template <int L, class M> INLINE auto gather_near(const M* p, int64_t start, vec<int32_t, L> offsets, int64_t behind) {
#if defined(__AVX2__)
  if constexpr (sizeof(M) == 4 && sizeof(typename Memory<M, 1>::R) == 4 && (L == 8 || (L == 16 && WIDE))) {
    const int64_t first = start + offsets[0];
    const vec<int32_t, L> from = offsets - offsets[0];
    if (!any<L>(as_mask<L>((vec<uint32_t, L>)from >= (uint32_t)L)) && first + L <= behind)
      return permuted<L>(Memory<M, L>::load(p + first), from);
  }
#endif
  return gather_at<L, int32_t>(p + start, offsets);
}
template <int L, class M, class V, class F> INLINE void scatter(M* p, F offset, V x) {
  typedef typename Memory<M, 1>::R R;
  for (int l = 0; l < L; ++l) Memory<M, 1>::store(p + offset(l), single<R>(x[l]));
}

template <int L> INLINE vec<float, L> round_bf16(vec<float, L> x) {
  vec<uint32_t, L> w = Memory<bf16, L>::rounded(x) & 0xffff0000;
  vec<float, L> r; memcpy(&r, &w, sizeof r); return r;
}
template <int L> INLINE vec<float, L> round_f16(vec<float, L> x) {
  return Memory<f16, L>::widen(Memory<f16, L>::narrow(x));
}
template <class M, int L> INLINE vec<float, L> round_f8(vec<float, L> x) {
  return Memory<M, L>::widen(Memory<M, L>::narrow(x));
}

// Where GCC knows the lanes of a mask of AVX-512 before it runs, it takes those of one for all. So
// it does not see numbers that differ by lane.
template <class V> INLINE V hidden(V x) {
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
  if constexpr (sizeof(V) > 64) asm("" : "+m"(x));
  else if constexpr (sizeof(V) >= 16) asm("" : "+v"(x));
#endif
  return x;
}
template <int L, class T> INLINE vec<T, L> iota() {
  vec<T, L> r; for (int l = 0; l < L; ++l) r[l] = l; return hidden(r);
}
// True in the first n lanes; n may be negative, or more than there are.
template <int L> INLINE mask<L> first_lanes(int64_t n) {
  mask<L> lane; for (int l = 0; l < L; ++l) lane[l] = l;
  return (mask<L>)(hidden(lane) < (int32_t)(n < 0 ? 0 : n > L ? L : n));
}
template <int L> INLINE bool all(mask<L> m) {
  return !any<L>(~m);
}

// Chooses a where m holds, else b. The mask is brought to the width of the elements.
template <class T, int L> INLINE vec<T, L> select(mask<L> m, vec<T, L> a, vec<T, L> b) {
  if constexpr (!IsReal<T>::value) {
    typedef typename PartOf<T>::type P;
    return vec<T, L>{select<P, L>(m, a.re, b.re), select<P, L>(m, a.im, b.im)};
  } else if constexpr (sizeof(T) == 4) return m ? a : b;
  else if constexpr (sizeof(T) == 8) return convert<int64_t, int32_t, L>(m) ? a : b;
  else if constexpr (sizeof(T) == 2) return convert<int16_t, int32_t, L>(m) ? a : b;
  else return convert<int8_t, int32_t, L>(m) ? a : b;
}
// `value(lanes, lane)` is only evaluated where m holds.
template <int L, class T, class F, class M> INLINE vec<T, L> guarded(M m, F value, vec<T, L> other) {
  if constexpr (L == 1 || sizeof(M) == sizeof(mask<1>))  // all lanes share the condition
    return m[0] ? static_cast<vec<T, L>>(value(Lanes<L>{}, 0)) : other;
  else {
    if (all<L>(m)) return value(Lanes<L>{}, 0);
    vec<T, L> r = other;
    if (any<L>(m)) for (int l = 0; l < L; ++l) if (m[l]) r[l] = value(Lanes<1>{}, l)[0];
    return r;
  }
}

INLINE int64_t floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - ((a % b != 0) & ((a < 0) != (b < 0))); }
INLINE int64_t floormod(int64_t a, int64_t b) { return a - floordiv(a, b) * b; }

// The larger or the smaller; b where they are equal, NaN where one is. The instructions of AVX-512
// give b where either is NaN; where a mask says so, they keep another value.
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__GNUC__) && !defined(__clang__)
#define NATIVE_EXTREME(name, kept, where) \
  if constexpr (T(0.5) != T(0) && sizeof(T) == 4 && L == 16) \
    return __builtin_ia32_##name##ps512_mask(a, b, kept, where(__builtin_ia32_cmpps512_mask(a, a, 7, -1, 4)), 4); \
  else if constexpr (T(0.5) != T(0) && sizeof(T) == 4 && L == 8) \
    return __builtin_ia32_##name##ps256_mask(a, b, kept, where(__builtin_ia32_cmpps256_mask(a, a, 7, -1))); \
  else if constexpr (T(0.5) != T(0) && sizeof(T) == 8 && L == 8) \
    return __builtin_ia32_##name##pd512_mask(a, b, kept, where(__builtin_ia32_cmppd512_mask(a, a, 7, -1, 4)), 4); \
  else
#else
#define NATIVE_EXTREME(name, kept, where)
#endif
#define ORDERED(mask) mask
#define EVERYWHERE(mask) -1
template <int L, class T> INLINE vec<T, L> maximum(vec<T, L> a, vec<T, L> b) {
  NATIVE_EXTREME(max, a, ORDERED) return ((a > b) | (a != a)) ? a : b;
}
template <int L, class T> INLINE vec<T, L> minimum(vec<T, L> a, vec<T, L> b) {
  NATIVE_EXTREME(min, a, ORDERED) return ((a < b) | (a != a)) ? a : b;
}
// The same for a constant b, which is not NaN; a where they are equal, as of 0.0 and -0.0.
template <int L, class T> INLINE vec<T, L> at_least(vec<T, L> x, vec<T, L> limit) {
  const vec<T, L> a = limit, b = x;
  NATIVE_EXTREME(max, b, EVERYWHERE) return a > b ? a : b;
}
template <int L, class T> INLINE vec<T, L> at_most(vec<T, L> x, vec<T, L> limit) {
  const vec<T, L> a = limit, b = x;
  NATIVE_EXTREME(min, b, EVERYWHERE) return a < b ? a : b;
}
#undef ORDERED
#undef EVERYWHERE
#undef NATIVE_EXTREME
// The halves of a vector, where the compiler can without a way through memory.
template <int L, class T> INLINE void halves(vec<T, L> x, vec<T, L / 2>& a, vec<T, L / 2>& b) {
#ifdef SHUFFLES
  if constexpr (L == 16) {
    a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7); b = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    return;
  } else if constexpr (L == 8) {
    a = __builtin_shufflevector(x, x, 0, 1, 2, 3); b = __builtin_shufflevector(x, x, 4, 5, 6, 7);
    return;
  }
#endif
  memcpy(&a, &x, sizeof a); memcpy(&b, (const char*)&x + sizeof a, sizeof b);
}
template <int L, class T, class F> INLINE T fold(vec<T, L> x, F combine) {
  if constexpr (L == 1) return x[0];
  else {
    vec<T, L / 2> a, b;
    halves<L, T>(x, a, b);
    return fold<L / 2, T>(combine(Lanes<L / 2>{}, a, b), combine);
  }
}

// Of a kernel: buffers, where an error goes, and sizes (of functions for several sizes).
struct Arguments { void* const* p; int32_t* error; const int64_t* n; };

template <int L, class T, class F> INLINE vec<T, L> gather_index(F at) {
  vec<T, L> r; for (int64_t l = 0; l < L; ++l) r[l] = at(l); return hidden(r);
}
// Indices in [0, size); others set the error and become 0.
template <int L> INLINE vec<int64_t, L> within(vec<int64_t, L> x, int64_t size, int32_t* error) {
  vec<int64_t, L> outside = (vec<int64_t, L>)((vec<uint64_t, L>)x >= (uint64_t)size);
  if (__builtin_expect(any<L>(as_mask<L>(outside)), false)) {
    __atomic_store_n(error, INDEX_OUT_OF_RANGE, __ATOMIC_RELAXED);
    x = x & ~outside;
  }
  return x;
}
// Indices in [-size, size), negative ones from the end; others set the error and become 0.
template <int L> INLINE vec<int64_t, L> checked(vec<int64_t, L> i, int64_t size, int32_t* error) {
  return within<L>(i + ((vec<int64_t, L>)(i < 0) & size), size, error);
}
template <class R, int L, class V> INLINE vec<R, L> bitcast(V x) { vec<R, L> r; memcpy(&r, &x, sizeof r); return r; }

// The first largest or smallest value of each lane and where it was; NaN wins over all. Before any
// value, the one that any other wins over, at the first place.
template <class T, int L, bool LARGEST> struct Position {
  typedef typename Word<sizeof(T)>::type word;
  vec<T, L> best; vec<int64_t, L> place{};
  static INLINE vec<word, L> wins(vec<T, L> x, vec<T, L> over) {
    return (LARGEST ? x > over : x < over) | ((x != x) & (over == over));
  }
  INLINE void choose(vec<word, L> chosen, vec<T, L> x, vec<int64_t, L> at) {
    best = chosen ? x : best;
    place = convert<int64_t, word, L>(chosen) ? at : place;
  }
  // Values that come after all before.
  INLINE void take(vec<T, L> x, vec<int64_t, L> at) { choose(wins(x, best), x, at); }
  // What was gathered from other places, before and after.
  INLINE void join(const Position& other) {
    const vec<T, L> x = other.best;
    const vec<word, L> equal = (x == best) | ((x != x) & (best != best));
    choose(wins(x, best) | (equal & convert<word, int64_t, L>(other.place < place)), x, other.place);
  }
  INLINE Position<T, 1, LARGEST> folded() const {
    Position<T, 1, LARGEST> all{single<T>(best[0]), single<int64_t>(place[0])};
    for (int l = 1; l < L; ++l) all.join({single<T>(best[l]), single<int64_t>(place[l])});
    return all;
  }
};
// Scratch of a thread, kept between calls.
struct Block {
  void* data = 0; int64_t size = 0;
  void* at_least(int64_t bytes) {
    if (bytes > size) {
      free(data);
      data = aligned_alloc(64, (bytes + 63) / 64 * 64); size = bytes;
    }
    return data;
  }
  ~Block() { free(data); }
};
