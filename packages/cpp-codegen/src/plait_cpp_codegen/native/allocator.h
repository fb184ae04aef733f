#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace {
// A caching allocator: freed blocks wait in lists by size, up to a bound. Small ones come from
// malloc; huge ones are mappings of their own, on huge pages, which serve requests of neighbouring
// sizes too: a step's largest values are rarely alive at once, but rarely of one size.
struct Header { int64_t bytes; int64_t bucket; };
constexpr int BUCKETS = 512, NEIGHBOURS = 2;
constexpr int64_t ALIGNMENT = 64, PAGE = 4096, HUGE_PAGE = 2 << 20, HUGE_FROM = 2 * HUGE_PAGE;
struct FreeBlock { FreeBlock* next; };
pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;
struct Hold {
  Hold() { pthread_mutex_lock(&cache_lock); }
  ~Hold() { pthread_mutex_unlock(&cache_lock); }
};
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
Header* header_of(void* data) { return (Header*)((char*)data - sizeof(Header)); }
void* finished(char* data, int64_t bytes, int64_t bucket) { *header_of(data) = {bytes, bucket}; return data; }

// A huge block's header lies in the page before it, which belongs to no huge page: its mapping
// begins there. What is reserved around the place for alignment is given back.
char* place_huge(char* raw) {
  return (char*)(((uintptr_t)raw + PAGE + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
}
void cut_slack(char* raw, int64_t reserved, char* begin, int64_t length) {
  if (begin > raw) munmap(raw, begin - raw);
  if (raw + reserved > begin + length) munmap(begin + length, raw + reserved - (begin + length));
}
char* map_huge(int64_t bytes) {
  int64_t length = PAGE + bytes, reserved = length + HUGE_PAGE;
  char* raw = (char*)mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* data = place_huge(raw);
  cut_slack(raw, reserved, data - PAGE, length);
  madvise(data - PAGE, length, MADV_HUGEPAGE);
  return data;
}
// The block with more bytes, elsewhere if need be: pages move, and nothing is copied.
char* grow_huge(char* data, int64_t from, int64_t to) {
  char* begin = data - PAGE;
  if (mremap(begin, PAGE + from, PAGE + to, 0) != MAP_FAILED) return data;
  int64_t length = PAGE + to, reserved = length + HUGE_PAGE;
  char* raw = (char*)mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* moved = place_huge(raw);
  if (mremap(begin, PAGE + from, length, MREMAP_MAYMOVE | MREMAP_FIXED, moved - PAGE) == MAP_FAILED) {
    munmap(raw, reserved);
    return nullptr;
  }
  cut_slack(raw, reserved, moved - PAGE, length);
  return moved;
}
void free_block(void* data) {
  int64_t bytes = header_of(data)->bytes;
  if (bytes >= HUGE_FROM) munmap((char*)data - PAGE, PAGE + bytes);
  else free((char*)data - ALIGNMENT);
}

// The lock is held in these two.
void* take(int64_t bucket) {
  if (bucket < 0 || bucket >= BUCKETS || !cache[bucket]) return nullptr;
  FreeBlock* block = cache[bucket];
  cache[bucket] = block->next; cached_bytes -= header_of(block)->bytes;
  return block;
}
bool keep(void* data) {
  Header* header = header_of(data);
  if (header->bucket >= BUCKETS || cached_bytes + header->bytes > cache_limit) return false;
  FreeBlock* block = (FreeBlock*)data;
  block->next = cache[header->bucket]; cache[header->bucket] = block; cached_bytes += header->bytes;
  return true;
}

#ifdef __SANITIZE_ADDRESS__
#define CHECKED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CHECKED 1
#endif
#endif
#ifdef CHECKED
// Under AddressSanitizer each block is malloc's own: what lies around it is watched, and it itself once it is freed.
void* new_block(int64_t bytes) {
  void* made = nullptr;
  return posix_memalign(&made, ALIGNMENT, bytes > 0 ? bytes : 1) ? nullptr : made;
}
void release(void* data) { free(data); }
#else
void* new_block(int64_t bytes) {
  int64_t rounded, bucket = bucket_of(bytes, &rounded);
  bool huge = rounded >= HUGE_FROM;
  void* smaller = nullptr;
  {
    Hold hold;
    for (int64_t near = 0; near <= (huge ? NEIGHBOURS : 0); ++near)
      if (void* block = take(bucket + near)) return block;
    for (int64_t near = 1; huge && near <= NEIGHBOURS && !smaller; ++near) smaller = take(bucket - near);
    if (smaller && header_of(smaller)->bytes < HUGE_FROM) { keep(smaller); smaller = nullptr; }
  }
  if (smaller) {
    if (char* grown = grow_huge((char*)smaller, header_of(smaller)->bytes, rounded)) return finished(grown, rounded, bucket);
    free_block(smaller);
  }
  if (huge) {
    char* data = map_huge(rounded);
    return data ? finished(data, rounded, bucket) : nullptr;
  }
  char* raw = nullptr;
  if (posix_memalign((void**)&raw, ALIGNMENT, rounded + ALIGNMENT)) return nullptr;
  return finished(raw + ALIGNMENT, rounded, bucket);
}
void release(void* data) {
  if (!data) return;
  {
    Hold hold;
    if (keep(data)) return;
  }
  free_block(data);
}
#endif
int64_t trim() {
  Hold hold;
  int64_t freed = cached_bytes;
  for (int64_t bucket = 0; bucket < BUCKETS; ++bucket)
    while (void* block = take(bucket)) free_block(block);
  return freed;
}
// How much memory the last request of this thread that got none was for.
thread_local int64_t wanted_bytes = 0;
// What is kept for reuse is given back before a request gets nothing.
void* allocate(int64_t bytes) {
  void* made = new_block(bytes);
  if (!made && trim()) made = new_block(bytes);
  if (!made) wanted_bytes = bytes;
  return made;
}
