// Programs on a GPU: their kernels, loaded and launched through the CUDA driver, which is opened where one needs it.
#include <sched.h>
void* cuda_library = nullptr;  // torch's, where it has one
char* driver_name = nullptr;   // by which the driver is opened
PyObject* take_tensors = nullptr;  // makes tensors of Python of a list of handles, which it takes over
PyObject* take_numbers = nullptr;  // gives the seed and the offset of a GPU's generator, which it moves on

struct alignas(8) LaunchAttribute { int32_t id, pad, value[16]; };  // CUlaunchAttribute, some of whose values are pointers
struct Launch { unsigned grid[3], block[3], shared; void* stream; const LaunchAttribute* attributes; unsigned count; };  // CUlaunchConfig
static_assert(sizeof(LaunchAttribute) == 72 && __builtin_offsetof(Launch, attributes) == 40 && sizeof(Launch) == 56, "as in cuda.h");
constexpr LaunchAttribute MAY_OVERLAP{6, 0, {1}};  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
constexpr unsigned OVERLAPPED = 32;                // programs of a launch: those of fewer are over before the host makes the next
struct Driver {
  int (*init)(unsigned);
  int (*device)(int*, int);
  int (*retain)(void** context, int device);
  int (*current)(void** context);
  int (*enter)(void* context);
  int (*load)(void** module, const void* image);
  int (*unload)(void* module);
  int (*find)(void** function, void* module, const char* name);
  int (*set)(void* function, int attribute, int value);
  int (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream, void** arguments, void** extra);
  int (*launch_with)(const Launch* launch, void* function, void** arguments, void** extra);  // 0 where the driver is older
  int (*wait)(void* stream);
  int (*make_event)(void** event, unsigned flags);
  int (*drop_event)(void* event);
  int (*record)(void* event, void* stream);
  int (*wait_for)(void* event);
  int (*wait_for_all)();
  int (*copy)(void* to, const void* from, size_t bytes, void* stream);
  int (*host)(void** memory, size_t bytes, unsigned flags);
  int (*free_host)(void* memory);
  int (*capturing)(void* stream, int* status);
  int (*give)(void* to, const void* from, size_t bytes, void* stream);
  int (*fill)(void* to, unsigned word, size_t count, void* stream);
  int (*explain)(int error, const char** text);
} driver;
int (*current_stream)(int32_t, void**);
int (*get_offset)(void*, int64_t*);
int (*reinterpret)(void*, int64_t, const int64_t*, const int64_t*, int64_t, void**);
constexpr int MOST_SHARED = 8;             // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int32_t ALWAYS_SHARED = 48 << 10;  // bytes that a program has without asking
constexpr unsigned WITHOUT_TIMES = 2;      // CU_EVENT_DISABLE_TIMING
constexpr int32_t UNSIGNED = 1, BYTE = 0;  // numbers, as DLPack codes their kind and torch their type
constexpr unsigned PORTABLE = 1;           // CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts, and mapped into them

// Sets ImportError where there is no driver, or no CUDA in torch.
bool open_driver() {
  if (current_stream) return true;
  void* library = dlopen(driver_name, RTLD_NOW);
  if (!library) return PyErr_Format(PyExc_ImportError, "cannot open the CUDA driver: %s", dlerror()), false;
  auto get = [&](auto& function, const char* name) { return (*(void**)&function = dlsym(library, name)) != nullptr; };
  bool found = get(driver.init, "cuInit") && get(driver.device, "cuDeviceGet") && get(driver.retain, "cuDevicePrimaryCtxRetain")
    && get(driver.current, "cuCtxGetCurrent") && get(driver.enter, "cuCtxSetCurrent") && get(driver.load, "cuModuleLoadData")
    && get(driver.unload, "cuModuleUnload") && get(driver.find, "cuModuleGetFunction") && get(driver.set, "cuFuncSetAttribute")
    && get(driver.launch, "cuLaunchKernel") && get(driver.wait, "cuStreamSynchronize") && get(driver.wait_for_all, "cuCtxSynchronize")
    && get(driver.make_event, "cuEventCreate") && get(driver.drop_event, "cuEventDestroy_v2") && get(driver.record, "cuEventRecord")
    && get(driver.wait_for, "cuEventSynchronize") && get(driver.copy, "cuMemcpyAsync") && get(driver.host, "cuMemHostAlloc") && get(driver.free_host, "cuMemFreeHost")
    && get(driver.capturing, "cuStreamIsCapturing") && get(driver.give, "cuMemcpyHtoDAsync_v2")
    && get(driver.fill, "cuMemsetD32Async") && get(driver.explain, "cuGetErrorString");
  get(driver.launch_with, "cuLaunchKernelEx");
  void* stream = cuda_library ? dlsym(cuda_library, "aoti_torch_get_current_cuda_stream") : nullptr;
  *(void**)&get_offset = dlsym(torch_library, "aoti_torch_get_storage_offset");
  *(void**)&reinterpret = dlsym(torch_library, "aoti_torch__reinterpret_tensor");
  if (!found || !stream || !take_tensors || !get_offset || !reinterpret)
    return PyErr_Format(PyExc_ImportError, "the CUDA driver or this torch lacks functions that programs on GPUs need"), false;
  *(void**)&current_stream = stream;
  return true;
}
// Errors of kernels that have run: the context is lost, and what is called next fails, whoever calls it. Memory that cannot be
// trusted, addresses that are illegal or not aligned, asserts, instructions, and launches that failed or took too long.
bool is_lasting(int error) {
  constexpr int lasting[] = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719};
  for (int each : lasting) if (error == each) return true;
  return false;
}
int driver_error(const char* what, int error) {
  const char* text = nullptr;
  driver.explain(error, &text);
  if (!text) text = "unknown";
  if (is_lasting(error)) return python_error(device_failed, "%s: %s (CUDA error %d); %s", what, text, error, earlier_error);
  return python_error(PyExc_RuntimeError, "%s: %s (CUDA error %d)", what, text, error);
}

// A kernel: a function of its module, the threads of a program, the bytes that these share, whether it may start while the one before it
// ends, and the bytes of memory that it asks for.
struct Launchable { char* name; int32_t threads, shared, arguments, pointers, overlaps; int64_t scratch; void* module; void* function; };
constexpr int REPORTS = 64;
struct Held { void *stream, *tensor; char* data; int64_t bytes; bool stays; };
constexpr int64_t STAYS_AT_MOST = 64 << 10;
struct Gpu {
  int32_t index, checks, count;
  void* context;
  int64_t* reports;
  Held* held;
  char taken[REPORTS];
  void* checked[REPORTS];  // events behind the last kernel that writes to a report
  Launchable kernels[];
};

const Gpu& gpu_of(const Api* api) { return *(const Gpu*)api->gpu; }

// Makes the device's context that of this thread while a program runs.
struct InContext {
  void* before = nullptr;
  bool changed = false;
  explicit InContext(const Gpu* gpu) {
    if (!gpu) return;
    driver.current(&before);
    if ((changed = before != gpu->context)) driver.enter(gpu->context);
  }
  ~InContext() { if (changed) driver.enter(before); }  // none, where the thread had none
};

void* stream_of(const Api* api) {
  void* stream = nullptr;
  current_stream(gpu_of(api).index, &stream);
  return stream;
}
int empty_on_device(const TensorSpec* spec, void** tensor, char** data) {
  *data = nullptr;
  if (int code = new_tensor(*spec, tensor)) return code;
  if (!get_data(*tensor, (void**)data)) return 0;
  wanted_bytes = bytes_of(*spec);
  return OUT_OF_MEMORY;
}
void drop_held(Held* it) { if (it) { drop_tensor(it->tensor); free(it); } }
// Small temporaries lie where those of the call before lay, if that was on the same stream: what it launched is over when they are
// written. Not those of a user's graph that is recorded: it may be launched on any stream, at any time.
int hold_on_device(const Api* api, const TensorSpec* spec, void* stream, void** held, char** data) {
  Gpu& gpu = *(Gpu*)api->gpu;
  const int64_t bytes = bytes_of(*spec);
  int status = 0;
  const bool stays = bytes <= STAYS_AT_MOST && !driver.capturing(stream, &status) && !status;
  Held* it = stays ? __atomic_exchange_n(&gpu.held, nullptr, __ATOMIC_ACQUIRE) : nullptr;
  if (it && (it->stream != stream || it->bytes < bytes)) { drop_held(it); it = nullptr; }
  if (!it) {
    void* tensor = nullptr;
    if (int code = empty_on_device(spec, &tensor, data)) { drop_tensor(tensor); return code; }
    it = (Held*)malloc(sizeof(Held));
    if (!it) { drop_tensor(tensor); return OUT_OF_MEMORY; }
    *it = {stream, tensor, *data, bytes, stays};
  }
  *data = it->data;
  *held = it;
  return 0;
}
void leave_on_device(const Api* api, void* held) {
  Held* it = (Held*)held;
  Gpu& gpu = *(Gpu*)api->gpu;
  drop_held(it && it->stays ? __atomic_exchange_n(&gpu.held, it, __ATOMIC_ACQ_REL) : it);
}
int output_on_device(const TensorSpec* spec, Output* output, char** data) { return empty_on_device(spec, &output->tensor, data); }
int view_of(const TensorSpec* spec, int64_t offset, void** tensor) {
  int64_t start;
  void* view = nullptr;
  if (get_offset(*tensor, &start) || reinterpret(*tensor, spec->rank, spec->sizes, spec->strides, start + offset, &view))
    return python_error(PyExc_RuntimeError, "an output is no view of its memory");
  delete_tensor_object(*tensor);
  *tensor = view;
  return 0;
}
// New memory of the device: a row of bytes.
int row_on_device(const Api* api, int64_t bytes, void** tensor, char** data) {
  const int64_t step = 1;
  const TensorSpec row{UNSIGNED, 8, 1, BYTE, &bytes, &step, gpu_of(api).index + 1};
  return empty_on_device(&row, tensor, data);
}
// For the programs of one launch of a kernel, where it asks for memory.
int room_on_device(const Api* api, int32_t number, int64_t programs, void** tensor, char** data) {
  const Launchable& it = gpu_of(api).kernels[number];
  return !it.scratch || programs <= 0 ? 0 : row_on_device(api, it.scratch * programs, tensor, data);
}
// Memory for the programs of one launch, torch's of the current stream: what uses it later waits for the kernel. Its place is the first
// of the two arguments behind those of the program's, where the program has given it none.
struct Scratch {
  void* tensor = nullptr;
  char* data = nullptr;
  int code = 0;
  Scratch(const Api* api, int32_t number, int64_t programs, void** arguments) {
    const Launchable& it = gpu_of(api).kernels[number];
    if (*(void**)arguments[it.arguments - 2]) return;
    code = room_on_device(api, number, programs, &tensor, &data);
    arguments[it.arguments - 2] = &data;
  }
  ~Scratch() { drop_tensor(tensor); }
  Scratch(const Scratch&) = delete;
};
int launch_in(const Scratch& scratch, const Launchable& it, int64_t programs, void** arguments, void* stream) {
  if (scratch.code || programs <= 0) return scratch.code;
  if (programs > 0x7fffffff) return python_error(PyExc_RuntimeError, "%s: %lld programs are more than one launch takes", it.name, (long long)programs);
  const unsigned grid = (unsigned)programs, block = (unsigned)it.threads, shared = (unsigned)it.shared;
  const Launch overlapping{{grid, 1, 1}, {block, 1, 1}, shared, stream, &MAY_OVERLAP, 1};
  int error = it.overlaps && grid >= OVERLAPPED && driver.launch_with ? driver.launch_with(&overlapping, it.function, arguments, nullptr)
    : driver.launch(it.function, grid, 1, 1, block, 1, 1, shared, stream, arguments, nullptr);
  return error ? driver_error(it.name, error) : 0;
}
int launch_kernel(const Api* api, int32_t number, int64_t programs, void** arguments, void* stream) {
  const Launchable& it = gpu_of(api).kernels[number];
  const Scratch scratch(api, number, programs, arguments);
  return launch_in(scratch, it, programs, arguments, stream);
}
int copy_on_device(const Api*, void* to, const void* from, int64_t bytes, void* stream) {
  int error = bytes > 0 && to != from ? driver.copy(to, from, bytes, stream) : 0;
  return error ? driver_error("a copy", error) : 0;
}
// Not while a user's graph is recorded, in which nothing runs.
int finish_on_device(const Api*, const char* what, void* stream) {
  int status = 0;
  int error = driver.capturing(stream, &status);
  if (!error && status) return 0;
  if (!error) error = driver.wait(stream);
  if (!error) return 0;
  const char* text = nullptr;
  driver.explain(error, &text);
  return python_error(is_lasting(error) ? device_failed : PyExc_RuntimeError, "%s failed: %s (CUDA error %d)", what, text ? text : "unknown", error);
}
// The state that so many numbers are drawn from, which the generator is moved on by.
int take_state(const Api* api, int64_t count, int64_t state[2]) {
  int held = PyGILState_Ensure();
  PyObject* arguments = PyTuple_New(2);
  bool good = arguments && !PyTuple_SetItem(arguments, 0, PyLong_FromLongLong(gpu_of(api).index))
    && !PyTuple_SetItem(arguments, 1, PyLong_FromLongLong(count));
  PyObject* taken = good ? PyObject_CallObject(take_numbers, arguments) : nullptr;
  for (int i = 0; i < 2 && taken; ++i) state[i] = PyLong_AsLongLong(PyTuple_GetItem(taken, i));
  good = taken && !PyErr_Occurred();
  if (arguments) Py_DecRef(arguments);
  if (taken) Py_DecRef(taken);
  PyGILState_Release(held);
  return good ? 0 : PYTHON_ERROR;
}
// To the device's memory. What lies in pages is read at once, however long the stream takes to come to it.
int give_state(const int64_t state[2], char* to, void* stream) {
  int error = driver.give(to, state, 2 * sizeof(int64_t), stream);
  return error ? driver_error("a copy", error) : 0;
}
// Where a user's graph is recorded, only operators of torch can draw from its generator: the call is one.
int reserve_state(const Api* api, const ExternCall* call, int64_t count, void* const* data, const Place* place, void* stream) {
  int status = 0;
  if (driver.capturing(stream, &status) || status) return call_external(api, call, data, place);
  int64_t state[2];
  if (!place->data) return take_state(api, count, state);
  if (int code = empty_on_device(call->result_specs, place->owner, place->data)) return code;
  if (int code = take_state(api, count, state)) return code;
  return give_state(state, *place->data, stream);
}
// Where a user's graph is recorded, which would read the host's memory when it is launched, words are told one by one: it keeps them.
int give_from_host(const Api*, const Given* given, int32_t count, void* const* from, char* to, int64_t bytes, void* stream) {
  constexpr int WORD = 4;
  char* packed = (char*)__builtin_alloca(bytes + WORD);
  memset(packed, 0, bytes + WORD);
  for (int32_t i = 0; i < count; ++i) memcpy(packed + given[i].offset, from[given[i].from], given[i].bytes);
  int status = 0, error = driver.capturing(stream, &status);
  if (!error && !status && bytes) error = driver.give(to, packed, bytes, stream);
  for (int64_t at = 0; status && at < bytes && !error; at += WORD) error = driver.fill(to + at, *(unsigned*)(packed + at), 1, stream);
  return error ? driver_error("a copy", error) : 0;
}
int end_on_device(const Api*) { return 0; }
int begin_writes_on_device(const Api*, void*) { return 0; }
int begin_undo_on_device(const Api*, void*) { return 0; }
// Of an error behind a step that has changed an input: whoever runs eager's operators then would change it again. May be told twice.
int half_written(int code) {
  int held = PyGILState_Ensure();
  PyObject *kind, *error, *trace;
  PyErr_Fetch(&kind, &error, &trace);
  PyErr_NormalizeException(&kind, &error, &trace);
  if (kind == device_failed || kind == inputs_half_written) {
    PyErr_Restore(kind, error, trace);
  } else {
    PyObject* text = error ? PyObject_CallMethod(error, "__str__", nullptr) : nullptr;
    const char* said = text ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
    PyErr_Format(inputs_half_written, "%s, after inputs were changed", said ? said : "out of memory");
    PyObject* const taken[] = {kind, error, trace, text};
    for (PyObject* each : taken) if (each) Py_DecRef(each);
  }
  PyGILState_Release(held);
  (void)code;
  return PYTHON_ERROR;
}
// A report of its own for each of the calls that run at once.
int64_t* report_at(const Gpu& gpu, int slot) { return gpu.reports + 3 * gpu.checks * slot; }
int slot_of(const Gpu& gpu, const int64_t* report) { return (int)((report - gpu.reports) / (3 * gpu.checks)); }
int64_t* open_report(const Api* api) {
  Gpu& gpu = *(Gpu*)api->gpu;
  for (int slot = 0;; slot = (slot + 1) % REPORTS) {
    if (!__atomic_exchange_n(&gpu.taken[slot], 1, __ATOMIC_ACQUIRE)) return report_at(gpu, slot);
    if (slot == REPORTS - 1) sched_yield();
  }
}
// Behind the last kernel that writes to a report before it is read: what waits for that need not wait for the kernels that follow.
int mark_report(const Api* api, int64_t* report, void* stream) {
  Gpu& gpu = *(Gpu*)api->gpu;
  void*& event = gpu.checked[slot_of(gpu, report)];
  int error = event ? 0 : driver.make_event(&event, WITHOUT_TIMES);
  if (!error) error = driver.record(event, stream);
  return error ? driver_error("a compiled program", error) : 0;
}
// What is in a report, when the kernels before an event have written to it.
int read_report(const Gpu& gpu, int64_t* report, void* event) {
  if (int error = driver.wait_for(event)) return driver_error("a compiled program", error);
  int code = 0;
  for (int32_t i = 0; i < gpu.checks; ++i) {
    volatile int64_t* place = report + 3 * i;
    if (!place[0]) continue;
    if (!code) code = python_error(PyExc_IndexError, "index %lld is out of bounds for dimension with size %lld", (long long)place[1], (long long)place[2]);
    place[0] = 0;
  }
  return code;
}
int check_report(const Api* api, int64_t* report) { return read_report(gpu_of(api), report, gpu_of(api).checked[slot_of(gpu_of(api), report)]); }
void close_report(const Api* api, int64_t* report, void* stream, int code) {
  Gpu& gpu = *(Gpu*)api->gpu;
  if (code) {  // kernels that nothing has waited for may still write to it
    driver.wait(stream);
    memset(report, 0, sizeof(int64_t) * 3 * gpu.checks);
  }
  __atomic_store_n(&gpu.taken[slot_of(gpu, report)], 0, __ATOMIC_RELEASE);
}

// What programs on a GPU ask for.
void give_device(Api* api) {
  api->stream = stream_of; api->empty = empty_on_device; api->output = output_on_device; api->view = view_of;
  api->hold = hold_on_device; api->leave = leave_on_device;
  api->launch = launch_kernel; api->copy = copy_on_device; api->reserve = reserve_state;
  api->open_report = open_report; api->mark = mark_report; api->check = check_report; api->close_report = close_report;
  api->finish = finish_on_device; api->room = room_on_device; api->rows = row_on_device; api->give = give_from_host;
  api->end = end_on_device; api->on_host = api->on_device = 1;
  api->begin_writes = begin_writes_on_device; api->half_written = half_written; api->begin_undo = begin_undo_on_device;
}

void close_gpu(Gpu* gpu) {
  if (!gpu) return;
  InContext here(gpu);
  driver.wait_for_all();  // its kernels may still run
  drop_held(gpu->held);
  for (int32_t i = 0; i < gpu->count; ++i) {
    if (gpu->kernels[i].module) driver.unload(gpu->kernels[i].module);
    free(gpu->kernels[i].name);
  }
  for (void* event : gpu->checked) if (event) driver.drop_event(event);
  if (gpu->reports) driver.free_host(gpu->reports);
  free(gpu);
}
bool loaded(int error, const char* name) {
  if (!error) return true;
  const char* text = nullptr;
  driver.explain(error, &text);
  PyErr_Format(PyExc_ImportError, "cannot load %s: %s (CUDA error %d)", name, text ? text : "unknown", error);
  return false;
}
// Of a tuple: the function's name, threads, shared bytes, the image, and the bytes of memory that each program asks for.
bool load_kernel(PyObject* code, const DeviceKernel& given_to, Launchable* it) {
  char* bytes; Py_ssize_t size;
  PyObject* given[5];
  for (int i = 0; i < 5; ++i) if (!code || !(given[i] = PyTuple_GetItem(code, i))) return false;
  const char* name = PyUnicode_AsUTF8AndSize(given[0], nullptr);
  if (!name || PyBytes_AsStringAndSize(given[3], &bytes, &size)) return false;
  it->name = strdup(name);
  it->arguments = given_to.arguments; it->pointers = given_to.pointers; it->overlaps = given_to.overlaps;
  it->threads = (int32_t)PyLong_AsLongLong(given[1]); it->shared = (int32_t)PyLong_AsLongLong(given[2]);
  it->scratch = PyLong_AsLongLong(given[4]);
  return loaded(driver.load(&it->module, bytes), name) && loaded(driver.find(&it->function, it->module, name), name)
    && (it->shared <= ALWAYS_SHARED || loaded(driver.set(it->function, MOST_SHARED, it->shared), name));
}
// With the kernels of a program, a tuple for each; 0 where an exception is set.
Gpu* open_gpu(const Signature& signature, PyObject* codes) {
  if (!open_driver()) return nullptr;
  const int32_t count = signature.kernel_count;
  Gpu* gpu = (Gpu*)calloc(1, sizeof(Gpu) + sizeof(Launchable) * count);
  int device = 0;
  gpu->index = signature.device - 1; gpu->count = count; gpu->checks = signature.check_count;
  bool good = loaded(driver.init(0), "the CUDA driver") && loaded(driver.device(&device, gpu->index), "the CUDA driver")
    && loaded(driver.retain(&gpu->context, device), "the CUDA driver");
  if (!good) { free(gpu); return nullptr; }
  InContext here(gpu);
  const size_t bytes = sizeof(int64_t) * 3 * gpu->checks * REPORTS;
  if (bytes && (good = loaded(driver.host((void**)&gpu->reports, bytes, PORTABLE), "pinned memory"))) memset(gpu->reports, 0, bytes);
  for (int32_t i = 0; i < count && good; ++i) good = load_kernel(PyTuple_GetItem(codes, i), signature.kernels[i], &gpu->kernels[i]);
  if (good) return gpu;
  close_gpu(gpu);
  return nullptr;
}
// The outputs of a program as a tuple of torch's tensors, which own them from then on.
PyObject* taken(Output* outputs, int32_t count) {
  PyObject* handles = PyList_New(count);
  bool good = handles != nullptr;
  for (int32_t i = 0; i < count && good; ++i) {
    PyObject* capsule = PyCapsule_New(outputs[i].tensor, nullptr, nullptr);
    good = capsule && !PyList_SetItem(handles, i, capsule);
  }
  PyObject* arguments = good ? PyTuple_New(1) : nullptr;
  if (!arguments) {
    for (int32_t i = 0; i < count; ++i) drop_tensor(outputs[i].tensor);
    if (handles) Py_DecRef(handles);
    return nullptr;
  }
  PyTuple_SetItem(arguments, 0, handles);
  PyObject* made = PyObject_CallObject(take_tensors, arguments);
  Py_DecRef(arguments);
  PyObject* result = made ? PySequence_Tuple(made) : nullptr;
  if (made) Py_DecRef(made);
  return result;
}
