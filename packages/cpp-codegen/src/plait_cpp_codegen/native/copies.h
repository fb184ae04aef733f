// Copies of whole buffers, in parallel where they are large.
struct Bytes { char* to; const char* from; int64_t count; };
constexpr int64_t COPIED_AT_ONCE = 1 << 16;

static void copy_range(int64_t begin, int64_t end, void* context) {
  const Bytes& all = *(const Bytes*)context;
  const int64_t first = begin * COPIED_AT_ONCE, last = end * COPIED_AT_ONCE;
  __builtin_memcpy(all.to + first, all.from + first, (last < all.count ? last : all.count) - first);
}
static void copy_bytes(char* to, const char* from, int64_t count, const Api& api) {
  const Bytes all = {to, from, count};
  const int64_t parts = (count + COPIED_AT_ONCE - 1) / COPIED_AT_ONCE;
  if (parts <= 1) { if (count) __builtin_memcpy(to, from, count); return; }
  api.parallel_for(0, parts, 8, copy_range, (void*)&all);
}
