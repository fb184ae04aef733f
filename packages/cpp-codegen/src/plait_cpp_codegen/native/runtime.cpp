// The native runtime: loads compiled programs and calls them from Python.
//
// It declares by hand the few functions of CPython's stable ABI that it uses, so it builds
// without Python's headers, and one binary serves every Python 3.11 and newer. Tensors come
// and go through the DLPack exchange table that torch.Tensor publishes; torch's C functions
// are looked up by name when the runtime is set up.
#include <atomic>
#include <dlfcn.h>
#include <mutex>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern "C" {
typedef ssize_t Py_ssize_t;
struct PyObject { Py_ssize_t refcount; void* type; };
typedef PyObject* (*PyCFunction)(PyObject*, PyObject*);
typedef PyObject* (*FastCall)(PyObject*, PyObject* const*, Py_ssize_t);
struct PyMethodDef { const char* name; PyCFunction method; int flags; const char* doc; };
struct PyModuleDef {
  PyObject base; PyObject* (*init)(); Py_ssize_t index; PyObject* copy;
  const char* name; const char* doc; Py_ssize_t size; PyMethodDef* methods;
  void* slots; void* traverse; void* clear; void* free;
};
PyObject* PyModule_Create2(PyModuleDef*, int);
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(long long);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyErr_Occurred();
void Py_DecRef(PyObject*);
void Py_IncRef(PyObject*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
extern PyObject *PyExc_RuntimeError, *PyExc_IndexError, *PyExc_TypeError, *PyExc_ImportError, *PyExc_ValueError;
extern PyObject _Py_NoneStruct;

struct DLDevice { int32_t type; int32_t id; };
struct DLDataType { uint8_t code; uint8_t bits; uint16_t lanes; };
struct DLTensor { void* data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t* shape; int64_t* strides; uint64_t byte_offset; };
struct DLVersion { uint32_t major, minor; };
struct DLManaged { DLVersion version; void* context; void (*deleter)(DLManaged*); uint64_t flags; DLTensor tensor; };
struct DLExchange {
  DLVersion version; void* previous;
  void* allocator; void* from_object; int (*to_object)(DLManaged*, void**);
  int (*view)(void*, DLTensor*); void* stream;
};
}

struct Api {
  void (*parallel_for)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*);
  void* (*allocate)(int64_t);
  void (*release)(void*);
  void* (*tensor)(void*, int64_t, const int64_t*, const int64_t*, int32_t);
  void (*delete_tensor)(void*);
  int (*adopt)(void*, int64_t, const int64_t*, const int64_t*, int32_t, void**, void**);
};
struct TensorSpec { int32_t code, bits, rank, scalar_type; const int64_t* sizes; const int64_t* strides; };
struct Output { void* data; void* block; void* tensor; };
struct Signature {
  int32_t inputs, outputs, functions;
  const TensorSpec* input_specs; const TensorSpec* output_specs;
  const char* const* function_names; void** function_table;
  int (*run)(void* const* inputs, Output* outputs, const Api* api, const char** failed);
};

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

// torch's C functions.
void* torch_library = nullptr;
DLExchange* exchange = nullptr;
int (*torch_parallel_for)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*);
int (*create_tensor)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, void**);
int (*delete_tensor_object)(void*);
int (*get_data)(void*, void**);
int (*get_rank)(void*, int64_t*);
int (*get_sizes)(void*, int64_t**);
int (*get_strides)(void*, int64_t**);
int (*get_dtype)(void*, int32_t*);
int (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**);
int (*copy_tensor)(void*, void*, int32_t);
const char* (*exception_what)();

void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
  if (torch_parallel_for(begin, end, grain, body, context)) body(begin, end, context);
}
void* make_tensor(void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t scalar_type) {
  void* tensor = nullptr;
  return create_tensor(data, rank, sizes, strides, 0, scalar_type, 0, -1, &tensor) ? nullptr : tensor;
}
void drop_tensor(void* tensor) { if (tensor) delete_tensor_object(tensor); }

// Takes over a result of an external call; copies it where it lies otherwise than planned.
int adopt(void* tensor, int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t scalar_type, void** owner, void** data) {
  int64_t actual_rank; int64_t *actual_sizes, *actual_strides; int32_t actual_type;
  if (get_rank(tensor, &actual_rank) || get_sizes(tensor, &actual_sizes) || get_strides(tensor, &actual_strides) || get_dtype(tensor, &actual_type)) return 1;
  if (actual_rank != rank || actual_type != scalar_type) return 1;
  bool same = true;
  for (int64_t i = 0; i < rank; ++i) {
    if (actual_sizes[i] != sizes[i]) return 1;
    if (sizes[i] > 1 && actual_strides[i] != strides[i]) same = false;
  }
  if (!same) {
    void* planned = nullptr;
    if (empty_strided(rank, sizes, strides, scalar_type, 0, -1, &planned)) return 1;
    if (copy_tensor(planned, tensor, 0)) { delete_tensor_object(planned); return 1; }
    delete_tensor_object(tensor);
    tensor = planned;
  }
  *owner = tensor;
  return get_data(tensor, data);
}
const Api api = {parallel_for, allocate, release, make_tensor, drop_tensor, adopt};

struct Program { const Signature* signature; void* library; };

bool matches(const DLTensor& t, const TensorSpec& spec) {
  if (t.device.type != 1 || t.dtype.code != spec.code || t.dtype.bits != spec.bits || t.ndim != spec.rank) return false;
  bool empty = false;
  for (int i = 0; i < spec.rank; ++i) { if (t.shape[i] != spec.sizes[i]) return false; empty |= spec.sizes[i] == 0; }
  if (!empty && t.strides)
    for (int i = 0; i < spec.rank; ++i) if (spec.sizes[i] > 1 && t.strides[i] != spec.strides[i]) return false;
  return true;
}
struct OutputManaged { DLManaged managed; Output output; };
void delete_output(DLManaged* managed) {
  Output& output = ((OutputManaged*)managed->context)->output;
  if (output.tensor) delete_tensor_object(output.tensor); else release(output.block);
  free(managed->context);
}
void discard(Output& output) { if (output.tensor) delete_tensor_object(output.tensor); else release(output.block); }

PyObject* wrap(const Output& output, const TensorSpec& spec) {
  OutputManaged* made = (OutputManaged*)calloc(1, sizeof(OutputManaged));
  made->output = output;
  DLManaged& managed = made->managed;
  managed.version = exchange->version;
  managed.context = made; managed.deleter = delete_output;
  managed.tensor = {output.data, {1, 0}, spec.rank, {(uint8_t)spec.code, (uint8_t)spec.bits, 1}, (int64_t*)spec.sizes, (int64_t*)spec.strides, 0};
  void* object = nullptr;
  if (exchange->to_object(&managed, &object)) return nullptr;
  return (PyObject*)object;
}

PyObject* call_program(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const Program* program = (const Program*)PyCapsule_GetPointer(self, "plait.program");
  if (!program) return nullptr;
  const Signature& signature = *program->signature;
  if (count != signature.inputs)
    return PyErr_Format(PyExc_TypeError, "this program takes %d tensors, not %zd", signature.inputs, count);
  void** inputs = (void**)__builtin_alloca(sizeof(void*) * (count + 1));
  for (Py_ssize_t i = 0; i < count; ++i) {
    DLTensor tensor;
    if (exchange->view(arguments[i], &tensor)) return nullptr;
    if (!matches(tensor, signature.input_specs[i]))
      return PyErr_Format(PyExc_ValueError, "input %zd of this program has another dtype, shape, strides or device than it was compiled for", i);
    inputs[i] = (char*)tensor.data + tensor.byte_offset;
  }
  Output* outputs = (Output*)__builtin_alloca(sizeof(Output) * (signature.outputs + 1));
  memset(outputs, 0, sizeof(Output) * signature.outputs);
  const char* failed = nullptr;
  void* thread = PyEval_SaveThread();
  int code = signature.run(inputs, outputs, &api, &failed);
  PyEval_RestoreThread(thread);
  if (code) {
    for (int i = 0; i < signature.outputs; ++i) discard(outputs[i]);
    if (code == 1) return PyErr_Format(PyExc_IndexError, "index out of range in self");
    if (code == 2) return PyErr_Format(PyExc_RuntimeError, "%s failed: %s", failed, exception_what ? exception_what() : "see torch's message above");
    return PyErr_Format(PyExc_RuntimeError, "out of memory in a compiled program");
  }
  PyObject* result = PyTuple_New(signature.outputs);
  for (int i = 0; i < signature.outputs; ++i) {
    PyObject* tensor = result ? wrap(outputs[i], signature.output_specs[i]) : nullptr;
    if (!tensor) {
      for (int j = i + 1; j < signature.outputs; ++j) discard(outputs[j]);
      if (result) Py_DecRef(result);
      return nullptr;
    }
    PyTuple_SetItem(result, i, tensor);
  }
  return result;
}
PyMethodDef call_definition = {"program", (PyCFunction)(void*)call_program, 0x80, "Runs a compiled program on its input tensors."};

void close_program(PyObject* capsule) {
  free(PyCapsule_GetPointer(capsule, "plait.program"));  // the library stays: outputs may point to its tables
}

PyObject* load_program(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  const char* path = count == 1 ? PyUnicode_AsUTF8AndSize(arguments[0], nullptr) : nullptr;
  if (!path) return PyErr_Format(PyExc_TypeError, "load_program takes the path of a compiled program");
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return PyErr_Format(PyExc_ImportError, "cannot load a compiled program: %s", dlerror());
  const Signature* signature = (const Signature*)dlsym(library, "plait_signature");
  if (!signature) return PyErr_Format(PyExc_ImportError, "%s is not a compiled program", path);
  for (int i = 0; i < signature->functions; ++i) {
    void* function = dlsym(torch_library, signature->function_names[i]);
    if (!function) return PyErr_Format(PyExc_ImportError, "this torch has no C function %s", signature->function_names[i]);
    signature->function_table[i] = function;
  }
  Program* program = (Program*)malloc(sizeof(Program));
  *program = {signature, library};
  PyObject* capsule = PyCapsule_New(program, "plait.program", close_program);
  if (!capsule) return nullptr;
  PyObject* function = PyCFunction_NewEx(&call_definition, capsule, nullptr);
  Py_DecRef(capsule);
  return function;
}

template <class F> bool find(F& function, const char* name) { return (function = (F)dlsym(torch_library, name)) != nullptr; }

PyObject* set_up(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  const char* path = count == 2 ? PyUnicode_AsUTF8AndSize(arguments[0], nullptr) : nullptr;
  if (!path) return PyErr_Format(PyExc_TypeError, "set_up takes the path of libtorch_cpu and torch's DLPack exchange table");
  exchange = (DLExchange*)PyCapsule_GetPointer(arguments[1], "dlpack_exchange_api");
  if (!exchange) return nullptr;
  if (exchange->version.major != 1 || !exchange->view || !exchange->to_object)
    return PyErr_Format(PyExc_ImportError, "this torch publishes DLPack %d, not 1", (int)exchange->version.major);
  torch_library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!torch_library) torch_library = dlopen(path, RTLD_NOW);
  if (!torch_library) return PyErr_Format(PyExc_ImportError, "cannot open %s: %s", path, dlerror());
  bool found = find(torch_parallel_for, "torch_parallel_for") && find(create_tensor, "aoti_torch_create_tensor_from_blob")
    && find(delete_tensor_object, "aoti_torch_delete_tensor_object") && find(get_data, "aoti_torch_get_data_ptr")
    && find(get_rank, "aoti_torch_get_dim") && find(get_sizes, "aoti_torch_get_sizes") && find(get_strides, "aoti_torch_get_strides")
    && find(get_dtype, "aoti_torch_get_dtype") && find(empty_strided, "aoti_torch_empty_strided") && find(copy_tensor, "aoti_torch_copy_");
  if (!found) return PyErr_Format(PyExc_ImportError, "this torch lacks C functions that compiled programs need: %s", dlerror());
  find(exception_what, "torch_exception_get_what_without_backtrace");
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}
PyObject* set_cache_limit(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  long long limit = count == 1 ? PyLong_AsLongLong(arguments[0]) : -1;
  if (limit < 0) return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_ValueError, "the limit is a number of bytes");
  { std::lock_guard<std::mutex> hold(cache_lock); cache_limit = limit; }
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}
PyObject* trim_cache(PyObject*, PyObject* const*, Py_ssize_t) { return PyLong_FromLongLong(trim()); }

PyMethodDef methods[] = {
  {"set_up", (PyCFunction)(void*)set_up, 0x80, "Connects the runtime to torch."},
  {"load_program", (PyCFunction)(void*)load_program, 0x80, "A callable of a compiled program's file."},
  {"set_cache_limit", (PyCFunction)(void*)set_cache_limit, 0x80, "Bounds the memory kept for reuse, in bytes."},
  {"trim_cache", (PyCFunction)(void*)trim_cache, 0x80, "Gives back memory kept for reuse; returns the bytes."},
  {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {{1, nullptr}, nullptr, 0, nullptr, "plait_native_runtime", "plait's native runtime.", -1, methods, nullptr, nullptr, nullptr, nullptr};
}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_plait_native_runtime() { return PyModule_Create2(&definition, 3); }
