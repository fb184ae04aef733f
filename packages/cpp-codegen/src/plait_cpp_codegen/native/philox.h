// Random numbers of torch's generators of GPUs, by Philox-4x32-10, as `plait_utils.philox` describes them: the word `lane` of a key of
// 64 bits and a counter of twice as many.
template <int L, class T> INLINE vec<T, L> v_philox(vec<T, L> key, vec<T, L> counter, vec<T, L> subsequence, vec<T, L> lane) {
  vec<T, L> r;
  for (int l = 0; l < L; ++l) {
    uint32_t low = (uint32_t)key[l], high = (uint32_t)((uint64_t)key[l] >> 32);
    uint32_t word[] = {(uint32_t)counter[l], (uint32_t)((uint64_t)counter[l] >> 32), (uint32_t)subsequence[l], (uint32_t)((uint64_t)subsequence[l] >> 32)};
    for (int turn = 0; turn < 10; ++turn) {
      const uint64_t left = word[0] * (uint64_t)0xD2511F53, right = word[2] * (uint64_t)0xCD9E8D57;
      word[0] = (uint32_t)(right >> 32) ^ word[1] ^ low; word[2] = (uint32_t)(left >> 32) ^ word[3] ^ high;
      word[1] = (uint32_t)right; word[3] = (uint32_t)left;
      low += 0x9E3779B9; high += 0xBB67AE85;
    }
    r[l] = word[lane[l] & 3];
  }
  return r;
}
