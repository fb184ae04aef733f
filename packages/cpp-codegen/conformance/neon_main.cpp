// Runs one program, compiled into the same binary, on inputs from a file, and writes its outputs to another.
// Each tensor is its elements, one behind the other. Nothing of torch's or Python's takes part.
#include <stdio.h>
#include <stdlib.h>

static void run_serially(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
  (void)grain;
  if (begin < end) body(begin, end, context);
}
static void* allocate_block(int64_t bytes) {
  void* made = nullptr;
  return posix_memalign(&made, 64, bytes > 0 ? bytes : 1) ? nullptr : made;
}
static int64_t bytes_of(const TensorSpec& spec) {
  int64_t count = 1;
  for (int i = 0; i < spec.rank; ++i) count *= spec.sizes[i];
  return count * (spec.bits / 8);
}
int main(int count, char** names) {
  if (count != 3) return 100;
  const Signature& program = plait_signature;
  FILE* given = fopen(names[1], "rb");
  FILE* made = fopen(names[2], "wb");
  void* inputs[64];
  Output outputs[64];
  if (!given || !made || program.inputs > 64 || program.outputs > 64 || program.calls) return 101;
  for (int i = 0; i < program.inputs; ++i) {
    int64_t bytes = bytes_of(program.input_specs[i]);
    inputs[i] = allocate_block(bytes);
    if (!inputs[i] || (int64_t)fread(inputs[i], 1, bytes, given) != bytes) return 102;
  }
  Api api = {};
  api.parallel_for = run_serially;
  api.allocate = allocate_block;
  api.release = free;
  if (int code = program.run(inputs, outputs, &api, nullptr)) return code;
  for (int i = 0; i < program.outputs; ++i) {
    int64_t bytes = bytes_of(program.output_specs[i]);
    if ((int64_t)fwrite(outputs[i].data, 1, bytes, made) != bytes) return 103;
  }
  return fclose(made) ? 104 : 0;
}
