// Tiles of a matrix whose columns lie next to each other in memory, turned into rows.
template <int N> struct BitsOf;
template <> struct BitsOf<1> { typedef uint8_t type; };
template <> struct BitsOf<2> { typedef uint16_t type; };
template <> struct BitsOf<4> { typedef uint32_t type; };
template <> struct BitsOf<8> { typedef uint64_t type; };

#ifdef SHUFFLES
// The lanes of a and b in turns, from the first halves and from the second ones.
template <int L, class V> INLINE void in_turns(V a, V b, V& first, V& second) {
  if constexpr (L == 16) {
    first = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    second = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  } else if constexpr (L == 8) {
    first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  } else if constexpr (L == 4) {
    first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  } else {
    first = __builtin_shufflevector(a, b, 0, 2);
    second = __builtin_shufflevector(a, b, 1, 3);
  }
}
// L by L elements, in as many steps as 2 goes into L: each takes the k-th row and the k-th of the
// second half in turns.
template <int L, class T> INLINE void transpose_square(const T* from, int64_t stride, T* to, int64_t width) {
  vec<T, L> rows[L], next[L];
#pragma GCC unroll 16
  for (int l = 0; l < L; ++l) memcpy(&rows[l], from + l * stride, sizeof rows[l]);
#pragma GCC unroll 4
  for (int step = 1; step < L; step *= 2) {
#pragma GCC unroll 8
    for (int k = 0; k < L / 2; ++k) in_turns<L>(rows[k], rows[k + L / 2], next[2 * k], next[2 * k + 1]);
#pragma GCC unroll 16
    for (int l = 0; l < L; ++l) rows[l] = next[l];
  }
#pragma GCC unroll 16
  for (int l = 0; l < L; ++l) memcpy(to + l * width, &rows[l], sizeof rows[l]);
}
#endif
// to[r * width + c] = from[c * stride + r] for as many rows and columns.
template <int LANES, class M> static void transpose(const M* from, int64_t stride, int64_t rows, int64_t columns, M* to, int64_t width) {
  typedef typename BitsOf<sizeof(M)>::type T;
  const T* source = (const T*)from;
  T* target = (T*)to;
  int64_t c = 0;
#ifdef SHUFFLES
  constexpr int L = LANES * sizeof(T) > 64 ? 64 / sizeof(T) : LANES;
  for (; c + L <= columns; c += L) {
    int64_t r = 0;
    for (; r + L <= rows; r += L) transpose_square<L, T>(source + c * stride + r, stride, target + r * width + c, width);
    for (; r < rows; ++r)
      for (int64_t l = c; l < c + L; ++l) memcpy(target + r * width + l, source + l * stride + r, sizeof(T));
  }
#endif
  for (; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) memcpy(target + r * width + c, source + c * stride + r, sizeof(T));
}
