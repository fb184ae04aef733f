#include <dlfcn.h>
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace {
// A caching allocator: freed blocks wait in lists by size, up to a bound.
struct Header { int64_t bytes; int64_t bucket; };
constexpr int BUCKETS = 512;
constexpr int64_t ALIGNMENT = 64, HUGE_PAGE = 2 << 20;
struct FreeBlock { FreeBlock* next; };
std::mutex cache_lock;
FreeBlock* cache[BUCKETS];
int64_t cached_bytes = 0, cache_limit = int64_t(2) << 30;

// Sizes are rounded up to an eighth of a power of two, so a block fits what asks for it later.
int64_t bucket_of(int64_t bytes, int64_t* rounded) {
  if (bytes < 512) { int64_t units = (bytes + 63) / 64; if (units < 1) units = 1; *rounded = units * 64; return units; }
  int shift = 63 - __builtin_clzll((unsigned long long)bytes) - 3;
  int64_t units = (bytes + (int64_t(1) << shift) - 1) >> shift;
  if (units == 16) { units = 8; ++shift; }
  *rounded = units << shift;
  return 16 + (shift - 6) * 8 + (units - 8);
}
void* allocate(int64_t bytes) {
  int64_t rounded, bucket = bucket_of(bytes, &rounded);
  if (bucket < BUCKETS) {
    std::lock_guard<std::mutex> hold(cache_lock);
    if (FreeBlock* block = cache[bucket]) { cache[bucket] = block->next; cached_bytes -= rounded; return block; }
  }
  bool huge = rounded >= 2 * HUGE_PAGE;
  int64_t alignment = huge ? HUGE_PAGE : ALIGNMENT;
  char* raw = nullptr;
  if (posix_memalign((void**)&raw, alignment, rounded + alignment)) return nullptr;
  if (huge) madvise(raw, rounded + alignment, MADV_HUGEPAGE);
  Header* header = (Header*)(raw + alignment - sizeof(Header));
  header->bytes = rounded; header->bucket = bucket | (int64_t(huge) << 32);
  return raw + alignment;
}
void release(void* data) {
  if (!data) return;
  Header* header = (Header*)((char*)data - sizeof(Header));
  bool huge = header->bucket >> 32;
  int64_t bucket = header->bucket & 0xffffffff, bytes = header->bytes;
  if (bucket < BUCKETS) {
    std::lock_guard<std::mutex> hold(cache_lock);
    if (cached_bytes + bytes <= cache_limit) {
      FreeBlock* block = (FreeBlock*)data;
      block->next = cache[bucket]; cache[bucket] = block; cached_bytes += bytes;
      return;
    }
  }
  free((char*)data - (huge ? HUGE_PAGE : ALIGNMENT));
}
int64_t trim() {
  std::lock_guard<std::mutex> hold(cache_lock);
  int64_t freed = cached_bytes;
  for (FreeBlock*& list : cache)
    while (FreeBlock* block = list) {
      list = block->next;
      bool huge = ((Header*)((char*)block - sizeof(Header)))->bucket >> 32;
      free((char*)block - (huge ? HUGE_PAGE : ALIGNMENT));
    }
  cached_bytes = 0;
  return freed;
}
