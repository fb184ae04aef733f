// Kernels of the programs in mock_gpu_*.py and mock_given_cases.py, as mock_gpu.cpp runs them: program `at`, with places of the arguments.
#include <stdint.h>
#define PROGRAM(name, count) extern "C" const int name##_arguments = count; extern "C" void name(void** a, int64_t at)
static float* f(void** a, int n) { return *(float**)a[n]; }
static double* d(void** a, int n) { return *(double**)a[n]; }
static int64_t* l(void** a, int n) { return *(int64_t**)a[n]; }

PROGRAM(twice, 2) { for (int64_t i = 1024 * at; i < 1024 * (at + 1); ++i) f(a, 1)[i] = 2 * f(a, 0)[i]; }
PROGRAM(keep, 2) { for (int64_t i = 1024 * at; i < 1024 * (at + 1); ++i) f(a, 1)[i] = f(a, 0)[i]; }
PROGRAM(grow, 1) { for (int64_t i = 1024 * at; i < 1024 * (at + 1); ++i) f(a, 0)[i] = 2 * f(a, 0)[i] + 1; }
PROGRAM(sum, 3) { for (int64_t i = 1024 * at; i < 1024 * (at + 1); ++i) f(a, 2)[i] = f(a, 0)[i] + f(a, 1)[i]; }
PROGRAM(spread, 2) { for (int64_t i = 0; i < 1024; ++i) f(a, 1)[1024 * at + i] = f(a, 0)[(1024 * at + i) % 4096]; }
PROGRAM(more, 1) { for (int64_t i = 0; i < 1024; ++i) f(a, 0)[i] += 1; }
PROGRAM(first, 2) { for (int64_t i = 0; i < 8; ++i) f(a, 1)[i] = f(a, 0)[1024 * i]; (void)at; }
PROGRAM(halve, 1) { for (int64_t i = 0; i < 16; ++i) f(a, 0)[16 * at + i] /= 2; }
// By way of memory of its own, whose place is behind the arguments: of two programs' 4096 bytes, each its own.
PROGRAM(through, 3) {
  float* own = f(a, 2) + 1024 * at;
  for (int64_t start = 1024 * at; start < 4096; start += 2048) {
    for (int64_t i = 0; i < 1024; ++i) own[i] = 3 * f(a, 0)[start + i];
    for (int64_t i = 0; i < 1024; ++i) f(a, 1)[start + i] = own[i];
  }
}
// Of rows at indices, sums; a report of indices that are out of range is behind the size.
PROGRAM(taken, 5) {
  const int64_t size = (int64_t)l(a, 3), index = l(a, 1)[at], row = index < 0 ? index + size : index;
  int64_t* report = l(a, 4);
  f(a, 2)[at] = 0;
  if (row < 0 || row >= size) { report[1] = index; report[2] = size; report[0] = 1; return; }
  for (int64_t i = 0; i < 16; ++i) f(a, 2)[at] += f(a, 0)[16 * row + i];
}
// Times a number of the call's, and what the host has in two places.
PROGRAM(scaled, 4) { for (int64_t i = 0; i < 8; ++i) f(a, 3)[i] = f(a, 0)[i] * (float)*d(a, 1) + f(a, 2)[1]; (void)at; }
PROGRAM(rows, 2) { for (int64_t i = 0; i < 16; ++i) f(a, 1)[16 * at + i] = f(a, 0)[at]; }
PROGRAM(same, 2) { for (int64_t i = 0; i < 2; ++i) l(a, 1)[i] = l(a, 0)[i]; (void)at; }
PROGRAM(both, 3) { for (int64_t i = 0; i < 4; ++i) l(a, 2)[i] = l(a, i / 2)[i % 2]; (void)at; }
// By what the host has counted.
PROGRAM(shifted, 2) { for (int64_t i = 0; i < 1024; ++i) f(a, 0)[i] += f(a, 1)[1]; (void)at; }
PROGRAM(ends, 2) { for (int64_t i = 0; i < 8; ++i) f(a, 0)[i] += f(a, 1)[0] - f(a, 1)[255]; (void)at; }
