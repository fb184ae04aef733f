// Attention of a block of queries, keys after keys: scores, their softmax so far, and the values
// weighted by it. Lanes are queries, so that neither a maximum nor a sum goes across lanes.
//
// After Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
// "FlashAttention" (2022).
constexpr int QUERIES = 64;
constexpr int KEYS = 64;  // of a block
template <class M> struct Matrix { const M* data; int64_t row, column; };  // strides in elements

template <class T> struct AttentionScratch {
  T *queries, *scores, *sums, *keys, *values;
  AttentionScratch(Block& block, int64_t depth, int64_t width) {
    queries = (T*)block.at_least((QUERIES * (depth + width + KEYS) + KEYS * (depth + width)) * sizeof(T));
    sums = queries + QUERIES * depth;
    scores = sums + QUERIES * width;
    keys = scores + QUERIES * KEYS;
    values = keys + KEYS * depth;
  }
};

// Rows that lie next to each other as elements of T, copied where they do not.
template <class T, class M> INLINE Matrix<T> dense(Matrix<M> from, int64_t rows, int64_t columns, T* to) {
  if constexpr (sizeof(M) == sizeof(T)) if (from.column == 1) return {(const T*)from.data, from.row, 1};
  if (from.row == 1 && from.column != 1) {
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < rows; ++r) to[r * columns + c] = Memory<M, 1>::load(from.data + c * from.column + r)[0];
  } else {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) to[r * columns + c] = Memory<M, 1>::load(from.data + r * from.row + c * from.column)[0];
  }
  return {to, columns, 1};
}

// to[j][r] = (ADDED ? to[j][r] : 0) + the sum over d of a(j, d) * b[d][r], for N rows j of V vectors.
template <class T, int L, int V, int N, bool ADDED, class A>
INLINE void product_block(A a, int64_t depth, const T* b, T* to) {
  vec<T, L> sum[N][V];
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[j][v] = vec<T, L>{};
  for (int64_t d = 0; d < depth; ++d) {
    vec<T, L> with[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) with[v] = load<L>(b + d * QUERIES + v * L);
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      const vec<T, L> factor = splat<T, L>(a(j, d));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[j][v] = madd<L>(factor, with[v], sum[j][v]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < N; ++j)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      T* const place = to + j * QUERIES + v * L;
      if constexpr (ADDED) sum[j][v] += load<L>(place);
      store<L>(place, sum[j][v]);
    }
}
template <class T, int L, int V, bool ADDED, class A>
INLINE void product_columns(A a, int64_t rows, int64_t depth, const T* b, T* to) {
  constexpr int N = 6;
  int64_t j = 0;
  for (; j + N <= rows; j += N)
    product_block<T, L, V, N, ADDED>([&](int64_t n, int64_t d) { return a(j + n, d); }, depth, b, to + j * QUERIES);
  for (; j < rows; ++j)
    product_block<T, L, V, 1, ADDED>([&](int64_t n, int64_t d) { return a(j, d); }, depth, b, to + j * QUERIES);
}
// The same for all rows j and as many columns as `vectors` have.
template <class T, int L, int V, bool ADDED, class A>
INLINE void product(A a, int64_t rows, int64_t depth, int64_t vectors, const T* b, T* to) {
  int64_t v = 0;
  for (; v + V <= vectors; v += V) product_columns<T, L, V, ADDED>(a, rows, depth, b + v * L, to + v * L);
  for (; v < vectors; ++v) product_columns<T, L, 1, ADDED>(a, rows, depth, b + v * L, to + v * L);
}

// Whether no element is infinite or NaN: weights of 0 then make nothing of them.
template <class T, int L> INLINE bool is_finite(Matrix<T> x, int64_t rows, int64_t columns) {
  vec<T, L> seen[4] = {};
  T last = 0;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    for (; c + 4 * L <= columns; c += 4 * L)
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) seen[part] = madd<L>(load<L>(x.data + r * x.row + c + part * L), (T)0, seen[part]);
    for (; c + L <= columns; c += L) seen[0] += load<L>(x.data + r * x.row + c) * (T)0;
    for (; c < columns; ++c) last += x.data[r * x.row + c] * (T)0;
  }
  return all<L>(as_mask<L>(seen[0] + seen[1] + seen[2] + seen[3] == (T)0)) && last == 0;
}

// Calls f with as many lanes as there are queries in a vector of a block, one after another in the
// last: what a score loads ends with them.
template <int L, class F> INLINE void by_lanes(int64_t queries, F f) {
  int64_t r = 0;
  for (; r + L <= queries; r += L) f(Lanes<L>{}, r);
  if constexpr (L > 1) for (; r < queries; ++r) f(Lanes<1>{}, r);
}

// `score(lanes, query, key, product)` gives scores, `allows(lanes, query, key)` where a mask lets
// them be something else than -inf. Both take positions from 0; `queries` are rows of this block.
template <class T, int L, int V, bool MASKED, bool ZEROS, class Q, class K, class W, class O, class Score, class Allows>
INLINE void attend(Matrix<Q> query, int64_t first, int64_t queries, Matrix<K> key, int64_t keys, Matrix<W> value,
                   int64_t depth, int64_t width, O* out, int64_t out_row, AttentionScratch<T> at, Score score, Allows allows) {
  const T least = -__builtin_inf();
  const int64_t vectors = (queries + L - 1) / L;
  vec<T, L> most[QUERIES / L], total[QUERIES / L];
  for (int v = 0; v < vectors; ++v) most[v] = splat<T, L>(least), total[v] = vec<T, L>{};
  memset(at.sums, 0, QUERIES * width * sizeof(T));
  if (queries < QUERIES) memset(at.queries, 0, QUERIES * depth * sizeof(T));
  for (int64_t r = 0; r < queries; ++r)
    for (int64_t d = 0; d < depth; ++d)
      at.queries[d * QUERIES + r] = Memory<Q, 1>::load(query.data + (first + r) * query.row + d * query.column)[0];
  for (int64_t begin = 0; begin < keys; begin += KEYS) {
    const int64_t count = keys - begin < KEYS ? keys - begin : KEYS;
    const Matrix<T> weighted = dense<T>(Matrix<W>{value.data + begin * value.row, value.row, value.column}, count, width, at.values);
    if constexpr (MASKED) {
      bool some = false;
      for (int64_t j = 0; j < count && !some; ++j)
        by_lanes<L>(queries, [&](auto lanes, int64_t r) {
          some |= any<decltype(lanes)::value>(allows(lanes, first + r, begin + j));
        });
      if (!some && is_finite<T, L>(weighted, count, width)) continue;
    }
    const Matrix<T> near = dense<T>(Matrix<K>{key.data + begin * key.row, key.row, key.column}, count, depth, at.keys);
    product<T, L, V, false>([&](int64_t j, int64_t d) { return near.data[j * near.row + d]; }, count, depth, vectors, at.queries, at.scores);
    for (int64_t j = 0; j < count; ++j)
      by_lanes<L>(queries, [&](auto lanes, int64_t r) {
        constexpr int N = decltype(lanes)::value;
        T* const place = at.scores + j * QUERIES + r;
        store<N>(place, score(lanes, first + r, begin + j, load<N>(place)));
      });
    for (int v = 0; v < vectors; ++v) {
      vec<T, L> top = most[v];
      for (int64_t j = 0; j < count; ++j) top = maximum<L, T>(top, load<L>(at.scores + j * QUERIES + v * L));
      const vec<T, L> from = select<T, L>(as_mask<L>(top == least), vec<T, L>{}, top);
      const vec<T, L> scale = v_exp<L, T>(most[v] - from);
      vec<T, L> sum{};  // of a block alone: one sum over all keys would round in one direction
      for (int64_t j = 0; j < count; ++j) {
        T* const place = at.scores + j * QUERIES + v * L;
        const vec<T, L> weight = v_exp<L, T>(load<L>(place) - from);
        store<L>(place, weight);
        sum += weight;
      }
      if (any<L>(as_mask<L>(scale != (T)1)))
        for (int64_t e = 0; e < width; ++e) {
          T* const place = at.sums + e * QUERIES + v * L;
          store<L>(place, load<L>(place) * scale);
        }
      most[v] = top, total[v] = madd<L>(total[v], scale, sum);
    }
    product<T, L, V, true>([&](int64_t e, int64_t j) { return weighted.data[j * weighted.row + e]; }, width, count, vectors, at.scores, at.sums);
  }
  for (int v = 0; v < vectors; ++v)
    for (int64_t e = 0; e < width; ++e) {
      T* const place = at.sums + e * QUERIES + v * L;
      const vec<T, L> sum = load<L>(place);
      vec<T, L> mean = sum / total[v];
      if constexpr (ZEROS) mean = select<T, L>(as_mask<L>(total[v] == (T)0), sum, mean);
      store<L>(place, mean);
    }
  for (int64_t r = 0; r < queries; ++r)
    for (int64_t e = 0; e < width; ++e)
      Memory<O, 1>::store(out + (first + r) * out_row + e, vec<typename Memory<O, 1>::R, 1>{at.sums[e * QUERIES + r]});
}
