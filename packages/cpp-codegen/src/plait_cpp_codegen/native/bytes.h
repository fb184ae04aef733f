// Products of bytes, four to a lane: sum + a0 * b0 + ... + a3 * b3, unsigned by signed, exact but for what int32 loses.
template <int L> INLINE vec<int32_t, L> add_bytes(vec<uint8_t, 4 * L> a, vec<int8_t, 4 * L> b, vec<int32_t, L> sum) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  if constexpr (L == 16 || L == 8 || L == 4) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); return sum;
  }
#elif defined(__AVXVNNI__)
  if constexpr (L == 8 || L == 4) {
    asm("{vex} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b)); return sum;
  }
#endif
  vec<uint32_t, L> x; vec<int32_t, L> y;
  memcpy(&x, &a, sizeof x); memcpy(&y, &b, sizeof y);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  sum += (vec<int32_t, L>)(x & 0xff) * (y << 24 >> 24) + (vec<int32_t, L>)(x >> 8 & 0xff) * (y << 16 >> 24);
  return sum + (vec<int32_t, L>)(x >> 16 & 0xff) * (y << 8 >> 24) + (vec<int32_t, L>)(x >> 24) * (y >> 24);
#else
  sum += (vec<int32_t, L>)(x >> 24) * (y >> 24) + (vec<int32_t, L>)(x >> 16 & 0xff) * (y << 8 >> 24);
  return sum + (vec<int32_t, L>)(x >> 8 & 0xff) * (y << 16 >> 24) + (vec<int32_t, L>)(x & 0xff) * (y << 24 >> 24);
#endif
}
// N bytes of memory, and zeros behind them.
template <class T, int L, int N> INLINE vec<T, L> bytes_at(const void* p) {
  vec<T, L> x{}; memcpy(&x, p, N); return x;
}
