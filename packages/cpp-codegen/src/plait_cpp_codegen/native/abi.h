// What compiled programs and the native runtime know of each other. Both begin with this text,
// so a binary depends on neither torch's headers nor torch's version.
#include <stdint.h>

#ifdef __clang__
#define UNOPTIMIZED __attribute__((optnone, noinline))
#else
#define UNOPTIMIZED __attribute__((optimize("O0")))
#endif

// A tensor's element type, as DLPack codes it and as torch numbers it, its layout, and where it is: 0 for the CPU, one
// more than its number for a GPU.
struct TensorSpec { int32_t code, bits, rank, scalar_type; const int64_t* sizes; const int64_t* strides; int32_t device; };
// An output: where its elements are, and the block or the tensor that they live in.
struct Output { void* data; void* block; void* tensor; };

// A call of a dispatcher op, with all that is known of it before it runs.
struct ExternCall {
  int32_t index;                   // among the program's external calls
  int32_t arguments, returns;      // how many the schema has
  const char* name;
  const char* overload;
  const int64_t* encoded;          // the arguments, each as a tag and what the tag asks for;
                                   // 0 where only Python can make the call
  const char* const* strings;
  const char* kinds;               // of the returns, a letter each: t(ensor), l(ist of tensors)
  int32_t tensors, results;        // how many go in, and come out (of an out variant, none)
  const TensorSpec *tensor_specs, *result_specs;
  int32_t size_count;              // of those that are known only when the program runs
  const int64_t* sizes;
  int32_t lent, graded;            // whether results may be arguments, which the call has written to; whether gradients are on meanwhile
  void** kept;                     // where its tensors are kept for the next call, one by one; 0 where they are not
};
// The tags of encoded arguments.
enum : int64_t { NOTHING, TENSOR, BITS, PRESENT, LIST, STRING };
// Where a result goes: its data pointer and its owner. No place: the result is discarded.
struct Place { char** data; void** owner; };

// What a program copies to the device of the host's memory: which of what it has there, to where behind a place, and how much.
struct Given { int32_t from, offset, bytes; };

struct Api {
  void (*parallel_for)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context);
  void* (*allocate)(int64_t bytes);
  void (*release)(void* block);
  // A handle of a tensor over memory that it does not own.
  void* (*tensor)(void* data, const TensorSpec* spec);
  void (*delete_tensor)(void* tensor);
  // The same, of one that is kept for the next call: mostly that is given the same memory.
  void* (*kept_tensor)(void* data, const TensorSpec* spec, void** kept);
  void (*keep_tensor)(void* tensor, void** kept);
  // Takes over the results of an external call, whose inputs are at `data`.
  int (*adopt)(const ExternCall* call, void* const* data, void** results, const Place* places);
  // Makes an external call through the dispatcher or, where that fails, from Python.
  int (*call)(const Api* api, const ExternCall* call, void* const* data, const Place* places);
  void* python;                    // the callable that makes external calls from Python
  uint64_t torch_version;          // that the calls' schemas are of
  // Of programs on a GPU: its current stream, memory of torch's and views of it, kernels, copies, and what waits for the kernels that
  // report indices out of range and tells of these.
  void* (*stream)(const Api* api);
  int (*empty)(const TensorSpec* spec, void** tensor, char** data);
  int (*hold)(const Api* api, const TensorSpec* spec, void* stream, void** held, char** data);  // for temporaries, until it is left
  void (*leave)(const Api* api, void* held);
  int (*output)(const TensorSpec* spec, Output* output, char** data);
  int (*view)(const TensorSpec* spec, int64_t offset, void** tensor);  // of a tensor, which it replaces
  // Memory that a kernel asks for, to be given to its launch behind the program's arguments; none where it asks for none.
  int (*room)(const Api* api, int32_t kernel, int64_t programs, void** tensor, char** data);
  int (*launch)(const Api* api, int32_t kernel, int64_t programs, void** arguments, void* stream);
  int (*copy)(const Api* api, void* to, const void* from, int64_t bytes, void* stream);
  // What kernels report indices to, three numbers for each place that checks one: of one call, until it is closed.
  int64_t* (*open_report)(const Api* api);
  int (*mark)(const Api* api, int64_t* report, void* stream);  // behind the last kernel that writes to it before a check
  int (*check)(const Api* api, int64_t* report);
  void (*close_report)(const Api* api, int64_t* report, void* stream, int code);
  // Before the first step that changes an input: nothing is allocated or checked from then on. Where a step fails all the same, what
  // makes of its error one after which nothing is run in place of the program.
  int (*begin_writes)(const Api* api, void* stream);
  int (*half_written)(int code);
  // Whether what puts inputs back is launched though nothing has failed: while a program is recorded.
  int (*begin_undo)(const Api* api, void* stream);
  // The seed and the offset of the GPU's default generator, which it moves on by `count`, as a call gives them on the device.
  int (*reserve)(const Api* api, const ExternCall* call, int64_t count, void* const* data, const Place* place, void* stream);
  // Waits for all that was launched, in programs that say so; `what` is named by the error of what has failed.
  int (*finish)(const Api* api, const char* what, void* stream);
  // New memory of the device for what is copied there of the host's; and such copies, of so many bytes, which are read at once.
  int (*rows)(const Api* api, int64_t bytes, void** tensor, char** data);
  int (*give)(const Api* api, const Given* given, int32_t count, void* const* from, char* to, int64_t bytes, void* stream);
  // Before a program returns that has a part on the host: what of it was recorded is launched by then.
  int (*end)(const Api* api);
  // Which steps such a program does: while it is recorded, and when that is launched, those of one place.
  int32_t on_host, on_device;
  void *gpu, *recording;           // the runtime's; and, while a program is recorded, what is kept of it
};
// How many arguments of 8 bytes a kernel of a GPU is given, the first of which are pointers to buffers; whether it waits by itself.
struct DeviceKernel { int32_t arguments, pointers, overlaps; };
// What `plait_run` and the functions above return, beside 0; the first two are of kernels.
enum : int { INDEX_OUT_OF_RANGE = 1, DIVISION_BY_ZERO, OUT_OF_MEMORY, PYTHON_ERROR, NO_MEMORY_FOR_OUTPUT };
// From this bit on, `plait_run` says how many calls had drawn random numbers when it failed.
enum : int { DRAWN = 8 };

// A size of an input, or a stride.
struct SizePlace { int32_t input, dim, is_stride; };

struct Signature {
  int32_t inputs, outputs, functions, calls;
  uint64_t torch_version;
  const TensorSpec* input_specs; const TensorSpec* output_specs;
  const char* const* function_names; void** function_table;  // 0 where torch lacks the function
  int (*run)(void* const* inputs, Output* outputs, const Api* api, const int64_t* sizes);
  // Of a program for many sizes: how many these are and which sizes of inputs; how many sizes and strides the inputs
  // and then the outputs have, the sizes of each before its strides, and what computes them.
  int32_t size_count, number_count;
  const SizePlace* size_places;
  void (*describe)(const int64_t* sizes, int64_t* numbers);
  // Of a program on a GPU: where it is, as in TensorSpec, how many places check an index, the kernels that it launches, and
  // where tensors are kept; and whether it has a part on the host: kernels that run there, or copies from there.
  int32_t device, kernel_count, check_count, kept_count;
  const DeviceKernel* kernels;
  void** kept;
  int32_t host_part;
};
