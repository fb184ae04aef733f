// Products of rows and columns, summed: what lanes along the inner domain have gathered for C columns becomes
// one sum for each. Neighbours are added, then neighbouring sums, in one order beside however many columns.
template <int L, class V> INLINE V neighbours(V first, V second) {
  V even, odd;
  apart<L>(first, second, even, odd);
  return even + odd;
}
template <class T, int L, int C, int N> INLINE void store_sums(const vec<T, L> (&sums)[N], T* to) {
  if constexpr (N > 1) {
    vec<T, L> pairs[N / 2];
#pragma GCC unroll 16
    for (int n = 0; n < N / 2; ++n) pairs[n] = neighbours<L>(sums[2 * n], sums[2 * n + 1]);
    store_sums<T, L, C, N / 2>(pairs, to);
  } else if constexpr (L == C) {
    store<L>(to, sums[0]);
  } else {
    vec<T, L / 2> halves[2]; memcpy(halves, &sums[0], sizeof halves);
    const vec<T, L / 2> pairs[1] = {neighbours<L / 2>(halves[0], halves[1])};
    store_sums<T, L / 2, C, 1>(pairs, to);
  }
}
