// A GPU for tests, made of the host's memory: the driver's functions that the native runtime finds, and in front
// of torch's C functions those that name a device or give memory.
//
// What is launched waits in its stream's queue. It runs at once, or, where calls are lazy, when somebody waits for it. A kernel's
// image is a shared library, in which `NAME` runs one program of kernel NAME and `NAME_arguments` says how many arguments it has.
// Memory that goes back is filled with ones in its turn on the stream, and is used again by that stream alone.
//
// There are two GPUs: tensors are on the one that tests name. What mixes up their contexts, streams or memory is misuse.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
enum { KERNEL, COPY, FILL, OPERATOR = 0 };  // kinds of nodes: an operator of torch is a kernel of its own
enum { OVERLAPS = 6 };  // an attribute of launches
enum { INVALID = 1, NO_CONTEXT = 201, IN_CAPTURE = 900, NOT_IN_CAPTURE = 901, FAILED = 719 };
using Work = std::function<void()>;
using Handle = std::shared_ptr<void>;
struct Module { void* library; bool loaded; void* context; };
struct Kernel { void (*run)(void**, int64_t); int arguments; Module* module; };
struct Node { int kind; Kernel* kernel; unsigned programs; std::vector<uint64_t> arguments; Work work; };
struct Graph { std::vector<std::shared_ptr<Node>> nodes; };
struct Executable { std::map<void*, Node> changed; std::vector<void*> order; };
struct Stream { std::deque<Work> queue; uint64_t begun = 0; Graph* graph = nullptr; void* last = nullptr; int device = 0; };
struct Event { Stream* stream; uint64_t end; };
struct alignas(8) Attribute { int id, pad, value[16]; };
struct Launch { unsigned grid[3], block[3], shared; void* stream; const Attribute* attributes; unsigned count; };
struct Block { void* data; int64_t bytes; Stream* stream; bool pooled; };

std::recursive_mutex lock;
Stream default_streams[2];
Stream& default_stream = default_streams[0];
const int second_device = default_streams[1].device = 1;
std::vector<Stream*> streams = {&default_streams[0], &default_streams[1]};
std::map<std::pair<Stream*, int64_t>, std::vector<void*>> free_memory;
std::map<void*, size_t> host_memory;
std::set<void*> on_host;  // where tensors begin that tests say are the CPU's
int contexts[2];
int tensors_on = 0;  // a GPU
thread_local void* context = nullptr;
thread_local Stream* current = &default_stream;
thread_local bool pooled = false;
bool lazy = false;
std::atomic<int> calls{0}, failure{FAILED}, failing{0}, failing_memory{0}, failing_wait{0}, misused{0}, overlapping{0};
std::atomic<int> blocks{0}, views{0}, modules{0}, events{0}, graphs{0}, executables{0};

template <class F> F* torchs(const char* name) {
  static void* library = dlopen(TORCH, RTLD_NOW | RTLD_NOLOAD);
  return (F*)dlsym(library, name);
}
using Status = int;
auto delete_handle = torchs<Status(void*)>("aoti_torch_delete_tensor_object");
auto new_handle = torchs<Status(void*, void**)>("aoti_torch_new_tensor_handle");
auto copy_tensor = torchs<Status(void*, void*, int32_t)>("aoti_torch_copy_");
auto from_blob = torchs<Status(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, void**, int32_t, const uint8_t*, int64_t,
                               void (*)(void*, void*), void*)>("torch_from_blob");

Stream* stream_at(void* handle) { return handle ? (Stream*)handle : &default_stream; }
void run_next(Stream& stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  ++stream.begun;
  work();
}
void drain(Stream& stream, uint64_t end = ~0ull) {
  std::lock_guard<std::recursive_mutex> held(lock);
  while (!stream.queue.empty() && stream.begun < end) run_next(stream);
}
void enqueue(Stream& stream, Work work) {
  std::lock_guard<std::recursive_mutex> held(lock);
  stream.queue.push_back(std::move(work));
  if (!lazy) drain(stream);
}
void run_kernel(const Kernel& kernel, unsigned programs, std::vector<uint64_t>& values) {
  if (!kernel.module->loaded) { ++misused; return; }
  std::vector<void*> places;
  for (uint64_t& value : values) places.push_back(&value);
  for (unsigned i = 0; i < programs; ++i) kernel.run(places.data(), i);
}
void enqueue(Stream& stream, const Node& node) {
  enqueue(stream, [node = Node(node)]() mutable { node.kernel ? run_kernel(*node.kernel, node.programs, node.arguments) : node.work(); });
}
// Launches what a node says, or records it.
void submit(Stream& stream, Node node) {
  if (node.kernel || node.kind == COPY) misused += context != &contexts[stream.device];  // operators of torch care for themselves
  if (node.kernel) misused += context != node.kernel->module->context;
  if (!stream.graph) return enqueue(stream, node);
  stream.graph->nodes.push_back(std::make_shared<Node>(std::move(node)));
  stream.last = stream.graph->nodes.back().get();
}
// Whether a function of the driver fails: where a test says so, and where the thread has no context.
int called(bool needs_context = true) {
  ++calls;
  if (failing && !--failing) return failure;
  return needs_context && context != &contexts[0] && context != &contexts[1] ? NO_CONTEXT : 0;
}
#define CALLED(...) if (int error = called(__VA_ARGS__)) return error
std::vector<uint64_t> values_of(const Kernel& kernel, void** arguments) {
  std::vector<uint64_t> values;
  for (int i = 0; i < kernel.arguments; ++i) values.push_back(*(uint64_t*)arguments[i]);
  return values;
}
}  // namespace

EXPORT int cuInit(unsigned) { return called(false); }
EXPORT int cuDeviceGet(int* device, int number) { *device = number; return called(false); }
EXPORT int cuDevicePrimaryCtxRetain(void** given, int device) { *given = &contexts[device]; return called(false); }
EXPORT int cuCtxGetCurrent(void** given) { CALLED(false); *given = context; return 0; }
EXPORT int cuCtxSetCurrent(void* given) { CALLED(false); context = given; return 0; }
EXPORT int cuCtxSynchronize() { CALLED(); for (Stream* each : streams) drain(*each); return 0; }
EXPORT int cuGetErrorString(int, const char** text) { *text = "a failure for tests"; return 0; }
EXPORT int cuModuleLoadData(void** given, const void* image) {
  CALLED();
  const Elf64_Ehdr* head = (const Elf64_Ehdr*)image;
  char path[] = "/tmp/mock_kernel_XXXXXX";
  int file = mkstemp(path);
  const ssize_t bytes = head->e_shoff + head->e_shnum * head->e_shentsize;
  void* library = write(file, image, bytes) == bytes ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  close(file); unlink(path);
  if (!library) return INVALID;
  *given = new Module{library, true, context};
  ++modules;
  return 0;
}
EXPORT int cuModuleUnload(void* module) { CALLED(); ((Module*)module)->loaded = false; --modules; return 0; }
EXPORT int cuModuleGetFunction(void** given, void* module, const char* name) {
  CALLED();
  void* library = ((Module*)module)->library;
  int* arguments = (int*)dlsym(library, (std::string(name) + "_arguments").c_str());
  *given = arguments ? new Kernel{(void (*)(void**, int64_t))dlsym(library, name), *arguments, (Module*)module} : nullptr;
  return arguments ? 0 : INVALID;
}
EXPORT int cuFuncSetAttribute(void*, int, int) { return called(); }
EXPORT int cuLaunchKernel(void* function, unsigned programs, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream, void** arguments, void**) {
  CALLED();
  const Kernel& kernel = *(Kernel*)function;
  submit(*stream_at(stream), {KERNEL, (Kernel*)function, programs, values_of(kernel, arguments), {}});
  return 0;
}
EXPORT int cuLaunchKernelEx(const Launch* launch, void* function, void** arguments, void**) {
  for (unsigned i = 0; i < launch->count; ++i) overlapping += launch->attributes[i].id == OVERLAPS && launch->attributes[i].value[0] == 1;
  misused += (uintptr_t)launch->attributes % alignof(Attribute) != 0;
  misused += launch->block[0] != 32 || launch->block[1] * launch->block[2] * launch->grid[1] * launch->grid[2] != 1 || launch->shared != 64 << 10;
  return cuLaunchKernel(function, launch->grid[0], 1, 1, 32, 1, 1, 0, launch->stream, arguments, nullptr);
}
EXPORT int cuMemcpyAsync(void* to, const void* from, size_t bytes, void* stream) {
  CALLED();
  submit(*stream_at(stream), {COPY, nullptr, 0, {}, [=] { memmove(to, from, bytes); }});
  return 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, void* stream) {  // which reads at once, or waits for the stream
  CALLED();
  misused += bytes > 64 << 10;
  std::vector<char> read((const char*)from, (const char*)from + bytes);
  submit(*stream_at(stream), {COPY, nullptr, 0, {}, [=] { memcpy(to, read.data(), read.size()); }});
  return 0;
}
EXPORT int cuMemsetD32Async(void* to, unsigned word, size_t count, void* stream) {
  CALLED();
  submit(*stream_at(stream), {FILL, nullptr, 0, {}, [=] { for (size_t i = 0; i < count; ++i) ((unsigned*)to)[i] = word; }});
  return 0;
}
EXPORT int cuStreamSynchronize(void* stream) {
  CALLED();
  if (stream_at(stream)->graph) return IN_CAPTURE;
  if (failing_wait && !--failing_wait) return FAILED;
  return drain(*stream_at(stream)), 0;
}
EXPORT int cuEventCreate(void** event, unsigned) { CALLED(); *event = new Event{nullptr, 0}; ++events; return 0; }
EXPORT int cuEventDestroy_v2(void* event) { CALLED(); delete (Event*)event; --events; return 0; }
EXPORT int cuEventRecord(void* event, void* stream) {
  CALLED();
  std::lock_guard<std::recursive_mutex> held(lock);
  Stream& on = *stream_at(stream);
  *(Event*)event = {&on, on.begun + on.queue.size()};
  return on.graph ? IN_CAPTURE : 0;
}
EXPORT int cuEventSynchronize(void* event) {
  CALLED();
  const Event it = *(Event*)event;
  if (it.stream) drain(*it.stream, it.end);
  return 0;
}
EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  CALLED();
  std::lock_guard<std::recursive_mutex> held(lock);
  memset(*memory = malloc(bytes), 0xff, bytes);
  host_memory[*memory] = bytes;
  return 0;
}
EXPORT int cuMemFreeHost(void* memory) {  // when what was launched has run
  CALLED();
  for (Stream* each : streams) drain(*each);
  std::lock_guard<std::recursive_mutex> held(lock);
  if (!host_memory.erase(memory)) ++misused; else free(memory);
  return 0;
}
EXPORT int cuStreamCreate(void** stream, unsigned) {
  CALLED();
  std::lock_guard<std::recursive_mutex> held(lock);
  streams.push_back(new Stream);
  streams.back()->device = context == &contexts[1];
  *stream = streams.back();
  return 0;
}
EXPORT int cuStreamIsCapturing(void* stream, int* status) { CALLED(); *status = stream_at(stream)->graph != nullptr; return 0; }
EXPORT int cuStreamBeginCapture_v2(void* stream, int) {
  CALLED();
  if (stream_at(stream)->graph || !stream) return IN_CAPTURE;
  stream_at(stream)->graph = new Graph; stream_at(stream)->last = nullptr; ++graphs;
  return 0;
}
EXPORT int cuStreamEndCapture(void* stream, void** graph) {  // which ends it where it fails, too
  const int error = called();
  Graph* made = stream_at(stream)->graph;
  stream_at(stream)->graph = nullptr;
  if (made && error) { delete made; --graphs; }
  *graph = error ? nullptr : made;
  return error || made ? error : NOT_IN_CAPTURE;
}
EXPORT int cuStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* number, void** graph, void* const** last, size_t* count) {
  CALLED();
  Stream& on = *stream_at(stream);
  *status = on.graph != nullptr; *number = 1; *graph = on.graph; *last = &on.last; *count = on.graph && on.last;
  return 0;
}
EXPORT int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  CALLED();
  Executable* made = new Executable;
  for (auto& node : ((Graph*)graph)->nodes) { made->changed[node.get()] = *node; made->order.push_back(node.get()); }
  *executable = made; ++executables;
  return 0;
}
EXPORT int cuGraphLaunch(void* executable, void* stream) {
  CALLED();
  Executable& it = *(Executable*)executable;
  for (void* node : it.order) enqueue(*stream_at(stream), it.changed[node]);
  return 0;
}
EXPORT int cuGraphDestroy(void* graph) { CALLED(); delete (Graph*)graph; --graphs; return 0; }
EXPORT int cuGraphExecDestroy(void* executable) { CALLED(); delete (Executable*)executable; --executables; return 0; }
EXPORT int cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
  CALLED();
  *count = ((Graph*)graph)->nodes.size();
  for (size_t i = 0; nodes && i < *count; ++i) nodes[i] = ((Graph*)graph)->nodes[i].get();
  return 0;
}
EXPORT int cuGraphNodeGetType(void* node, int* kind) { CALLED(); *kind = ((Node*)node)->kind; return 0; }
EXPORT int cuGraphMemcpyNodeGetParams(void*, void* copy) {  // CUDA_MEMCPY3D: of memory of the GPU
  CALLED();
  ((int32_t*)copy)[8] = ((int32_t*)copy)[8 + 22] = 2;
  return 0;
}
EXPORT int cuPointerGetAttribute(void* value, int, uint64_t) { *(int*)value = 2; return called(); }
struct KernelNode { void* function; unsigned grid[3], block[3], shared; void** arguments; void** extra; };
EXPORT int cuGraphExecKernelNodeSetParams(void* executable, void* node, const KernelNode* given) {
  CALLED();
  auto found = ((Executable*)executable)->changed.find(node);
  if (found == ((Executable*)executable)->changed.end() || found->second.kernel != given->function) return INVALID;
  found->second.arguments = values_of(*found->second.kernel, given->arguments);
  return 0;
}

// torch's functions.
namespace {
void give_back(void*, void* of) {
  Block* block = (Block*)of;
  --blocks;
  void* data = block->data; int64_t bytes = block->bytes;
  std::lock_guard<std::recursive_mutex> held(lock);
  if (!block->pooled) enqueue(*block->stream, [=] { memset(data, 0xff, bytes); });  // else graphs use it, one after another
  free_memory[{block->stream, bytes}].push_back(data);
  delete block;
}
bool lacks_memory() { return failing_memory && !--failing_memory; }
Handle share(void* tensor) {
  void* handle = nullptr;
  if (!tensor) { fprintf(stderr, "an operator was given no tensor\n"); abort(); }
  new_handle(tensor, &handle);
  return Handle(handle, [](void* it) { delete_handle(it); });
}
}  // namespace
EXPORT int aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t type, int32_t device, int32_t index, void** tensor) {
  if (lacks_memory()) return 1;
  misused += device == 1 && index != tensors_on;
  int64_t last = 0, empty = device != 1;
  for (int64_t i = 0; i < rank; ++i) { last += (sizes[i] - 1) * strides[i]; empty |= !sizes[i]; }
  if (empty) return torchs<decltype(aoti_torch_empty_strided)>("aoti_torch_empty_strided")(rank, sizes, strides, type, 0, -1, tensor);
  const int64_t item = torchs<size_t(int32_t)>("aoti_torch_dtype_element_size")(type), bytes = ((last + 1) * item + 511) / 512 * 512;
  std::lock_guard<std::recursive_mutex> held(lock);
  std::vector<void*>& unused = free_memory[{current, bytes}];
  void* data = unused.empty() ? memset(aligned_alloc(512, bytes), 0xff, bytes) : unused.back();
  if (!unused.empty()) unused.pop_back();
  ++blocks;
  return from_blob(data, rank, sizes, strides, 0, type, 0, -1, tensor, 0, nullptr, 0, give_back, new Block{data, bytes, current, pooled});
}
EXPORT int torch_from_blob(void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int64_t offset, int32_t type, int32_t, int32_t, void** tensor,
                           int32_t layout, const uint8_t* more, int64_t count, void (*drop)(void*, void*), void* owner) {
  if (lacks_memory()) return 1;
  struct Owner { void (*drop)(void*, void*); void* owner; Stream* stream; };
  auto last = [](void* data, void* of) {  // the host's memory, which what was launched may still read
    const Owner it = *(Owner*)of;
    drain(*it.stream);
    it.drop(data, it.owner);
    delete (Owner*)of;
  };
  return from_blob(data, rank, sizes, strides, offset, type, 0, -1, tensor, layout, more, count, last, new Owner{drop, owner, current});
}
EXPORT int aoti_torch_create_tensor_from_blob(void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int64_t offset, int32_t type, int32_t, int32_t, void** tensor) {
  if (lacks_memory()) return 1;
  ++views;
  return from_blob(data, rank, sizes, strides, offset, type, 0, -1, tensor, 0, nullptr, 0, [](void*, void*) { --views; }, nullptr);
}
// A tensor of the GPU with the elements that another has when the stream comes to it.
EXPORT int aoti_torch_copy_(void* to, void* from, int32_t) {
  submit(*current, {OPERATOR, nullptr, 0, {}, [to = share(to), from = share(from)] { copy_tensor(to.get(), from.get(), 0); }});
  return 0;
}
EXPORT int aoti_torch_cuda_mm_out(void* out, void* left, void* right) {
  submit(*current, {OPERATOR, nullptr, 0, {}, [out = share(out), left = share(left), right = share(right)] {
    torchs<int(void*, void*, void*)>("aoti_torch_cpu_mm_out")(out.get(), left.get(), right.get());
  }});
  return 0;
}
// New memory of the GPU for a tensor like another.
namespace {
int empty_like(void* self, void** result) {
  int64_t rank, *sizes, *strides; int32_t type;
  torchs<int(void*, int64_t*)>("aoti_torch_get_dim")(self, &rank);
  torchs<int(void*, int64_t**)>("aoti_torch_get_sizes")(self, &sizes);
  torchs<int(void*, int64_t**)>("aoti_torch_get_strides")(self, &strides);
  torchs<int(void*, int32_t*)>("aoti_torch_get_dtype")(self, &type);
  return aoti_torch_empty_strided(rank, sizes, strides, type, 1, tensors_on, result);
}
}  // namespace
EXPORT int aoti_torch_cuda_cumsum(void* self, int64_t dim, int32_t*, void** result) {
  if (int error = empty_like(self, result)) return error;
  submit(*current, {OPERATOR, nullptr, 0, {}, [self = share(self), made = share(*result), dim] {
    void* sums = nullptr;
    torchs<int(void*, int64_t, int32_t*, void**)>("aoti_torch_cpu_cumsum")(self.get(), dim, nullptr, &sums);
    copy_tensor(made.get(), sums, 0);
    delete_handle(sums);
  }});
  return 0;
}
// Of operators that give a tensor.
EXPORT int torch_call_dispatcher(const char* name, const char* overload, uint64_t* stack, uint64_t version) {
  if (!current->graph) drain(*current);
  const int error = torchs<decltype(torch_call_dispatcher)>("torch_call_dispatcher")(name, overload, stack, version);
  if (error) return error;
  void *given = (void*)stack[0], *made = nullptr;
  const int failed = current->graph || empty_like(given, &made);  // operators that wait for the stream fail in a capture
  if (!failed) aoti_torch_copy_(made, given, 0);
  stack[0] = (uint64_t)made;
  delete_handle(given);
  return failed;
}
EXPORT int aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
  Stream* on = current->device == device ? current : &default_streams[device];
  *stream = on == &default_stream ? nullptr : on;
  return 0;
}
EXPORT int cudaGetLastError() { return 0; }

// DLPack's table, in which the CPU is the GPU.
struct Tensor { void* data; int32_t device[2]; };
struct Managed { uint32_t version[2]; void* context; void* deleter; uint64_t flags; Tensor tensor; };
struct Exchange { uint32_t version[2]; void *previous, *allocator; int (*from_object)(void*, Managed**); int (*to_object)(Managed*, void**); int (*view)(void*, Tensor*); void* stream; };
namespace { Exchange plain; }
EXPORT void* mock_exchange(const Exchange* given) {
  static Exchange made;
  made = plain = *given;
  made.view = [](void* object, Tensor* tensor) {
    int error = plain.view(object, tensor);
    if (!error && !on_host.count(tensor->data)) tensor->device[0] = 2, tensor->device[1] = tensors_on;
    return error;
  };
  made.from_object = [](void* object, Managed** managed) {
    int error = plain.from_object(object, managed);
    if (!error) (*managed)->tensor.device[0] = 2, (*managed)->tensor.device[1] = tensors_on;
    return error;
  };
  made.to_object = [](Managed* managed, void** object) {
    drain(*current);
    managed->tensor.device[0] = 1;
    return plain.to_object(managed, object);
  };
  return &made;
}

// What tests ask and say.
EXPORT void mock_put_on_host(void* data) { on_host.insert(data); }
EXPORT void mock_set_lazy(bool value) { lazy = value; }
EXPORT void mock_set_pooled(bool value) { pooled = value; }
EXPORT void mock_set_stream(void* stream) { current = stream_at(stream); }
EXPORT void* mock_stream() { return current; }
EXPORT void mock_set_context(bool any) { context = any ? &contexts[0] : nullptr; }
EXPORT void mock_use_context(int device) { context = device < 0 ? nullptr : &contexts[device]; }
EXPORT int mock_context() { return context == &contexts[0] ? 0 : context == &contexts[1] ? 1 : -1; }
EXPORT void mock_set_device(int device) {  // where tensors are, in each thread that says so
  tensors_on = device;
  current = &default_streams[device];
}
EXPORT void mock_fail(int at) { failing = at; failure = FAILED; }
EXPORT void mock_fail_for_now(int at) { failing = at; failure = 2; }  // CUDA_ERROR_OUT_OF_MEMORY, after which the context is as before
EXPORT void mock_fail_memory(int at) { failing_memory = at; }
EXPORT void mock_fail_wait(int at) { failing_wait = at; }
EXPORT int mock_fails() { return failing + failing_memory; }
EXPORT void mock_wait() { for (size_t i = 0; i < streams.size(); ++i) drain(*streams[i]); }
EXPORT int mock_waiting() { std::lock_guard<std::recursive_mutex> held(lock); return (int)current->queue.size(); }
EXPORT int mock_overlapping() { return overlapping; }
EXPORT int mock_misused() { return misused; }
EXPORT int mock_calls() { return calls; }
EXPORT void mock_alive(int* counts) {
  std::lock_guard<std::recursive_mutex> held(lock);
  const int now[] = {blocks, views, modules, events, graphs, executables, (int)host_memory.size()};
  memcpy(counts, now, sizeof(now));
}
