// CUDA graphs: what a program launches is recorded, and launched as one from then on (replay.h).
//
// Outputs are new tensors of torch's allocator in each call, and the recording is made to write to them: no tensor that
// somebody has is written to. A recording is of one stream and of the sizes of its inputs. Where an input or output that
// kernels of the program's own alone use lies elsewhere, their arguments are changed in the recording, which takes a tenth of a
// copy's time. What calls of torch use is of a recording where it lies; what keeps lying elsewhere is copied, from or to a place
// of the recording's own. Temporaries of all recordings of a stream share a pool of memory, as these run one after another.
// A program that checks indices has two graphs: a call waits for the first, which ends with the last kernel that checks. One that
// changes inputs behind that has three: the call waits before it launches the last, which begins with the first change.
// What a program computes on the CPU is no part of a recording, and done while that is launched.
struct NodeCopy {  // CUDA_MEMCPY3D
  struct Place { size_t x, y, z, level; int32_t kind; const void* host; uint64_t device; void* array; void* reserved; size_t pitch, height; } from, to;
  size_t width, height, depth;
};
struct KernelNode { void* function; unsigned grid[3], block[3], shared; void** arguments; void** extra; };  // CUDA_KERNEL_NODE_PARAMS_v1
struct GraphDriver {
  int (*begin)(void* stream, int mode);
  int (*end)(void* stream, void** graph);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*launch)(void* executable, void* stream);
  int (*forget)(void* graph);
  int (*forget_executable)(void* executable);
  int (*nodes)(void* graph, void** nodes, size_t* count);
  int (*kind)(void* node, int* kind);
  int (*copied)(void* node, NodeCopy* copy);
  int (*ask)(void* value, int attribute, uint64_t place);
  int (*new_stream)(void** stream, unsigned flags);
  int (*state)(void* stream, int* status, uint64_t* number, void** graph, void* const** last, size_t* count);
  int (*change)(void* executable, void* node, const KernelNode* kernel);
} graph_driver;
int (*get_storage_size)(void*, int64_t*);
int (*take_error)();  // cudaGetLastError, which forgets it
// Relaxed: memory may be asked for meanwhile, in this thread and in others. CU_STREAM_NON_BLOCKING: the default stream does not wait for it.
constexpr int RELAXED = 2, NON_BLOCKING = 1, MEMORY_TYPE = 2;
constexpr int ON_DEVICE = 2, UNIFIED = 4;            // types of memory
constexpr int KERNEL = 0, COPY = 1, FILL = 2, NOTHING_TO_DO = 5;  // kinds of nodes
constexpr int WARM_UP = 2;         // calls before the first recording
constexpr int PLACES = 4;          // recordings for the same sizes, before what lies elsewhere in most of them is copied
constexpr int KEPT = 16;           // recordings that a program keeps
constexpr int RECORDED_AT_MOST = 64;
constexpr const char* NO_SHARING = "this torch shares no tensors with what is recorded";
constexpr const char* NO_SHAPE = "the memory of an output is no whole number of its elements";

// Sets ImportError where the driver is too old.
bool open_graph_driver() {
  if (graph_driver.launch) return true;
  if (!open_driver()) return false;
  void* library = dlopen(driver_name, RTLD_NOW);
  auto get = [&](auto& function, const char* name) { return (*(void**)&function = dlsym(library, name)) != nullptr; };
  *(void**)&take_error = dlsym(cuda_library, "cudaGetLastError");
  bool found = get(graph_driver.begin, "cuStreamBeginCapture_v2")
    && get(graph_driver.end, "cuStreamEndCapture") && get(graph_driver.instantiate, "cuGraphInstantiateWithFlags")
    && get(graph_driver.forget, "cuGraphDestroy") && get(graph_driver.forget_executable, "cuGraphExecDestroy")
    && get(graph_driver.nodes, "cuGraphGetNodes") && get(graph_driver.kind, "cuGraphNodeGetType")
    && get(graph_driver.copied, "cuGraphMemcpyNodeGetParams") && get(graph_driver.ask, "cuPointerGetAttribute")
    && get(graph_driver.new_stream, "cuStreamCreate") && get(graph_driver.state, "cuStreamGetCaptureInfo_v2")
    && get(graph_driver.change, "cuGraphExecKernelNodeSetParams") && find(get_storage_size, "aoti_torch_get_storage_size")
    && get(graph_driver.launch, "cuGraphLaunch");
  if (!found) PyErr_Format(PyExc_ImportError, "the CUDA driver or this torch lacks functions that CUDA graphs need");
  return found;
}

// An output: its sizes and strides, where it begins in its memory, and how many elements that has.
struct Shape { int64_t rank, offset, elements; int64_t *sizes, *strides; bool whole; };
// An argument of a kernel that points into an input or, behind these, an output. What is given for a buffer that moves is no
// address while it is recorded, but its number, by which the arguments are found that point into it.
struct Moving { int32_t argument, buffer; int64_t offset; };
struct Launched { int32_t part; void* node; const Launchable* kernel; unsigned programs; uint64_t* arguments; Moving* moving; int32_t count; Launched* next; };
constexpr uint64_t NUMBER = uint64_t(1) << 62;  // which no address has
constexpr int NUMBER_SHIFT = 40;
char* as_number(int32_t buffer) { return (char*)(NUMBER | uint64_t(buffer) << NUMBER_SHIFT); }
struct Part { void *graph, *executable; };
constexpr int32_t UNDO = 3;  // of a recording's parts
// A state that numbers are drawn from: memory of the recording's own, to which it is copied before each launch.
struct Reserved { int64_t count, state[2]; void* tensor; char* data; Reserved* next; };
struct Recording {
  void* stream;
  Part parts[4];              // up to the last kernel that checks indices, up to the first that changes an input for good, and what
                              // follows; then what puts back changes before that
  int32_t last;               // of the first three: of a program that checks nothing there is one, and of one without such changes two
  int32_t at;                 // which is recorded
  bool writes;                // whether it changes inputs for good
  bool is_ready;              // else only the shapes of the outputs are known
  Launched* launched;         // which use what moves
  void* rows;                 // memory of its own for what is copied from the host's, in each launch; where it is, and where that is packed
  char *rows_at, *packed;
  Reserved *reserved, **last_reserved;  // in the order of the program
  PyObject* memory;           // which its temporaries live in
  int64_t* report;            // of indices, and the event behind what writes to it
  void* checked;
  int64_t* sizes;             // which are known when a program runs
  char **inputs, **outputs;   // where they lie
  void **input_owners, **output_owners;  // of those that are copied: tensors of the recording's own
  int64_t* input_bytes;
  Shape* shapes;
  Recording* next;
};
// Of each input and then output: what uses it, and whether it is copied.
enum : char { KERNELS, CALLS, CALLS_THAT_WRITE, ON_HOST };
struct Graphs { PyObject* python; Recording* first; char *uses, *copied; int32_t calls, recorded; char busy, closed; };

template <class T> T* zeros(int64_t count) { return (T*)calloc(count + 1, sizeof(T)); }
int64_t extent_of(int64_t rank, const int64_t* sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int64_t i = 0; i < rank; ++i) { if (!sizes[i]) return 0; last += (sizes[i] - 1) * strides[i]; }
  return last + 1;
}
bool shape_of(void* tensor, int64_t item, Shape* shape) {
  int64_t *sizes, *strides, bytes;
  if (get_rank(tensor, &shape->rank) || get_sizes(tensor, &sizes) || get_strides(tensor, &strides)
      || get_offset(tensor, &shape->offset) || get_storage_size(tensor, &bytes)) return false;
  shape->sizes = zeros<int64_t>(shape->rank); shape->strides = zeros<int64_t>(shape->rank);
  memcpy(shape->sizes, sizes, sizeof(int64_t) * shape->rank); memcpy(shape->strides, strides, sizeof(int64_t) * shape->rank);
  shape->elements = bytes / item;
  shape->whole = !shape->offset && shape->elements == extent_of(shape->rank, sizes, strides);
  return shape->elements * item == bytes;
}
// New memory of `count` elements.
int empty_row(const TensorSpec& like, int64_t count, void** tensor, char** data) {
  int64_t one = 1;
  TensorSpec row = like;
  row.rank = 1; row.sizes = &count; row.strides = &one;
  return empty_on_device(&row, tensor, data);
}
int make_output(const Shape& shape, const TensorSpec& like, Output* output) {
  TensorSpec spec = like;
  spec.rank = (int32_t)shape.rank; spec.sizes = shape.sizes; spec.strides = shape.strides;
  if (shape.whole) return empty_on_device(&spec, &output->tensor, (char**)&output->data);
  if (int code = empty_row(like, shape.elements, &output->tensor, (char**)&output->data)) return code;
  return view_of(&spec, shape.offset, &output->tensor);
}
void drop_outputs(Output* outputs, int32_t count) {
  for (int32_t i = 0; i < count; ++i) drop_tensor(outputs[i].tensor);
  memset(outputs, 0, sizeof(Output) * count);
}

Recording* new_recording(const Signature& signature, void* stream, const int64_t* sizes) {
  Recording* it = zeros<Recording>(0);
  it->stream = stream;
  it->last_reserved = &it->reserved;
  it->sizes = zeros<int64_t>(signature.size_count);
  if (signature.size_count) memcpy(it->sizes, sizes, sizeof(int64_t) * signature.size_count);
  it->inputs = zeros<char*>(signature.inputs); it->outputs = zeros<char*>(signature.outputs);
  it->input_owners = zeros<void*>(signature.inputs); it->output_owners = zeros<void*>(signature.outputs);
  it->input_bytes = zeros<int64_t>(signature.inputs); it->shapes = zeros<Shape>(signature.outputs);
  return it;
}
void forget_recording(const Signature& signature, Recording* it) {
  for (Part& part : it->parts) {
    if (part.executable) graph_driver.forget_executable(part.executable);  // when it has run
    if (part.graph) graph_driver.forget(part.graph);
  }
  while (Launched* each = it->launched) { it->launched = each->next; free(each->arguments); free(each->moving); free(each); }
  while (Reserved* each = it->reserved) { it->reserved = each->next; drop_tensor(each->tensor); free(each); }
  drop_tensor(it->rows);
  free(it->packed);
  for (int32_t i = 0; i < signature.inputs; ++i) drop_tensor(it->input_owners[i]);
  for (int32_t i = 0; i < signature.outputs; ++i) { drop_tensor(it->output_owners[i]); free(it->shapes[i].sizes); free(it->shapes[i].strides); }
  if (it->report) driver.free_host(it->report);
  if (it->checked) driver.drop_event(it->checked);
  if (it->memory) Py_DecRef(it->memory);
  free(it->sizes); free(it->inputs); free(it->outputs); free(it->input_owners); free(it->output_owners); free(it->input_bytes); free(it->shapes);
  free(it);
}
bool is_for(const Recording& it, const Signature& signature, const int64_t* sizes) {
  return !signature.size_count || !memcmp(it.sizes, sizes, sizeof(int64_t) * signature.size_count);
}
bool fits(const Recording& it, const Program& program, void* stream, const int64_t* sizes, void* const* inputs, const Output* outputs) {
  const Signature& signature = *program.signature;
  if (!it.is_ready || it.stream != stream || !is_for(it, signature, sizes)) return false;
  auto stays = [&](int32_t which) { const char use = program.graphs->uses[which]; return use != KERNELS && use != ON_HOST; };
  for (int32_t i = 0; i < signature.inputs; ++i)
    if (stays(i) && !it.input_owners[i] && it.inputs[i] != inputs[i]) return false;
  for (int32_t i = 0; i < signature.outputs; ++i)
    if (stays(signature.inputs + i) && !it.output_owners[i] && it.outputs[i] != outputs[i].data) return false;
  return true;
}
// Forgets the recordings that `which` names.
template <class Which> void forget(const Program& program, Which which) {
  InContext here((const Gpu*)program.api.gpu);
  for (Recording** at = &program.graphs->first; *at;) {
    Recording* it = *at;
    if (!which(*it)) { at = &it->next; continue; }
    *at = it->next;
    forget_recording(*program.signature, it);
  }
}
void keep(const Program& program, Recording* it) {
  it->next = program.graphs->first;
  program.graphs->first = it;
  int kept = 0;
  forget(program, [&](const Recording&) { return ++kept > KEPT; });
}

// Records no more, and tells Python why: `error`, or the exception that is set.
void refuse(Graphs& graphs, const char* error) {
  PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
  if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "%s", error ? error : "unknown");
  PyErr_Fetch(&kind, &value, &trace);
  PyErr_NormalizeException(&kind, &value, &trace);
  PyObject* told = PyObject_CallMethod(graphs.python, "refused", "O", value ? value : kind);
  if (told) Py_DecRef(told); else PyErr_Clear();
  if (kind) Py_DecRef(kind);
  if (value) Py_DecRef(value);
  if (trace) Py_DecRef(trace);
  graphs.closed = 1;
}
bool is_on_device(const NodeCopy::Place& place) {
  int kind = place.kind;
  if (kind == UNIFIED && graph_driver.ask(&kind, MEMORY_TYPE, place.device)) return false;
  return kind == ON_DEVICE;
}
// What of a graph cannot be done again, or 0.
const char* unfit(void* graph) {
  size_t count = 0;
  if (graph_driver.nodes(graph, nullptr, &count)) return "what was recorded cannot be read";
  if (!count) return nullptr;
  void** nodes = zeros<void*>(count);
  const char* found = graph_driver.nodes(graph, nodes, &count) ? "what was recorded cannot be read" : nullptr;
  for (size_t i = 0; i < count && !found; ++i) {
    int kind = -1;
    graph_driver.kind(nodes[i], &kind);
    if (kind == KERNEL || kind == FILL || kind == NOTHING_TO_DO) continue;
    NodeCopy copy;
    if (kind != COPY || graph_driver.copied(nodes[i], &copy)) { found = "an operator of torch does what graphs cannot hold"; break; }
    if (!is_on_device(copy.from) || !is_on_device(copy.to)) found = "an operator of torch copies from or to the host's memory";
  }
  free(nodes);
  return found;
}

// What a program calls while it is recorded.
int recorded_output(const TensorSpec* spec, Output* output, char** data) {
  if (!output->data) return empty_on_device(spec, &output->tensor, data);
  *data = (char*)output->data;
  return 0;
}
int recorded_view(const TensorSpec*, int64_t, void**) { return 0; }
int recorded_call(const Api* api, const ExternCall* call, void* const* data, const Place* places) { return call_by(api, call, data, places, false); }
int64_t* recorded_report(const Api* api) { return ((Recording*)api->recording)->report; }
int recorded_launch(const Api* api, int32_t number, int64_t programs, void** arguments, void* stream) {
  const Launchable& kernel = gpu_of(api).kernels[number];
  const Scratch scratch(api, number, programs, arguments);  // of the recording's pool, as temporaries are
  if (int code = launch_in(scratch, kernel, programs, arguments, stream)) return code;
  if (programs <= 0) return 0;
  Recording* it = (Recording*)api->recording;
  Launched* made = zeros<Launched>(0);
  *made = {it->at, nullptr, &kernel, (unsigned)programs, zeros<uint64_t>(kernel.arguments), zeros<Moving>(kernel.pointers), 0, it->launched};
  it->launched = made;
  for (int32_t i = 0; i < kernel.arguments; ++i) made->arguments[i] = *(uint64_t*)arguments[i];
  for (int32_t i = 0; i < kernel.pointers; ++i) {
    const uint64_t place = made->arguments[i];
    if (place >> 62 != 1) continue;
    const int32_t buffer = (int32_t)((place & ~NUMBER) >> NUMBER_SHIFT);
    made->moving[made->count++] = {i, buffer, (int64_t)(place - (uint64_t)as_number(buffer))};
  }
  int status; uint64_t capture; void* graph; void* const* last; size_t count = 0;
  if (graph_driver.state(stream, &status, &capture, &graph, &last, &count) || count != 1)
    return python_error(PyExc_RuntimeError, "the driver does not tell which kernel it has recorded");
  made->node = last[0];
  return 0;
}
int recorded_reserve(const Api* api, const ExternCall* call, int64_t count, void* const*, const Place* place, void*) {
  Recording* it = (Recording*)api->recording;
  Reserved* made = zeros<Reserved>(0);
  made->count = count;
  *it->last_reserved = made;
  it->last_reserved = &made->next;
  if (!place->data) return 0;
  if (int code = empty_on_device(call->result_specs, &made->tensor, &made->data)) return code;
  if (!new_handle || new_handle(made->tensor, place->owner)) return python_error(PyExc_RuntimeError, "%s", NO_SHARING);
  *place->data = made->data;
  return 0;
}
// From the start of a recording to its end: no temporary of its own lies there, before or after what reads it.
int recorded_rows(const Api* api, int64_t bytes, void**, char** data) {
  Recording* it = (Recording*)api->recording;
  if (int code = row_on_device(api, bytes, &it->rows, &it->rows_at)) return code;
  it->packed = zeros<char>(bytes);
  *data = it->rows_at;
  return 0;
}
int recorded_give(const Api*, const Given*, int32_t, void* const*, char*, int64_t, void*) { return 0; }
// Where a part ends, and the next begins. No memory moves between the two.
int next_part(Recording* it, int32_t part, void* stream) {
  int error = graph_driver.end(stream, &it->parts[it->at].graph);
  if (!error) error = graph_driver.begin(stream, RELAXED);
  it->at = part;
  if (part != UNDO) it->last = part;
  return error ? driver_error("a recorded program", error) : 0;
}
int recorded_mark(const Api* api, int64_t*, void* stream) {
  Recording* it = (Recording*)api->recording;
  if (it->last) return python_error(PyExc_RuntimeError, "it checks indices more than once");
  return next_part(it, it->last + 1, stream);
}
int recorded_writes(const Api* api, void* stream) {
  Recording* it = (Recording*)api->recording;
  it->writes = true;
  return it->last ? next_part(it, it->last + 1, stream) : 0;
}
int recorded_undo(const Api* api, void* stream) { return !next_part((Recording*)api->recording, UNDO, stream); }
int recorded_check(const Api*, int64_t*) { return 0; }
void recorded_close(const Api*, int64_t*, void*, int) {}

// What cannot be launched of what was recorded, or 0.
const char* prepare(Part& part) {
  size_t count = 0;
  if (const char* found = unfit(part.graph)) return found;
  if (!graph_driver.nodes(part.graph, nullptr, &count) && !count) return nullptr;  // nothing to launch
  const char* error = nullptr;
  if (int failed = graph_driver.instantiate(&part.executable, part.graph, 0)) driver.explain(failed, &error);
  return error;
}
// Records what `it` says, on the stream that is current; false where an exception is set or `error` says why not.
bool captured(const Program& program, Recording* it, Output* made, const char** error) {
  Program recorder = program;
  Api& api = recorder.api;
  api.output = recorded_output; api.view = recorded_view; api.call = recorded_call;
  api.open_report = recorded_report; api.mark = recorded_mark; api.check = recorded_check; api.close_report = recorded_close;
  api.launch = recorded_launch; api.reserve = recorded_reserve;
  api.rows = recorded_rows; api.give = recorded_give; api.on_host = 0;
  api.begin_writes = recorded_writes; api.begin_undo = recorded_undo; api.recording = it;
  void* stream = stream_of(&program.api);
  if (int failed = graph_driver.begin(stream, RELAXED)) return driver.explain(failed, error), false;
  int code = run(recorder, (void* const*)it->inputs, made, it->sizes);
  int failed = graph_driver.end(stream, &it->parts[it->at].graph);
  if (code || failed) {
    if (take_error) take_error();  // else the next operator of torch would raise it
    if (code == OUT_OF_MEMORY || code == NO_MEMORY_FOR_OUTPUT) *error = "out of memory";
    else if (!code) driver.explain(failed, error);
    return false;
  }
  for (Part& part : it->parts) if (part.graph && !*error) *error = prepare(part);
  return !*error;
}
// Memory of the recording's own for the inputs that are copied, and for reports of indices.
bool own_memory(const Program& program, Recording* it, void* const* inputs, const TensorSpec* specs) {
  const Graphs& graphs = *program.graphs;
  for (int32_t i = 0; i < program.signature->inputs; ++i) {
    it->inputs[i] = graphs.uses[i] == KERNELS ? as_number(i) : (char*)inputs[i];
    if (!graphs.copied[i]) continue;
    int64_t extent = extent_of(specs[i].rank, specs[i].sizes, specs[i].strides);
    it->input_bytes[i] = extent * (specs[i].bits / 8);
    if (empty_row(specs[i], extent, &it->input_owners[i], &it->inputs[i])) return false;
  }
  const size_t bytes = sizeof(int64_t) * 3 * program.signature->check_count;
  if (!bytes) return true;
  if (driver.make_event(&it->checked, WITHOUT_TIMES) || driver.host((void**)&it->report, bytes, PORTABLE)) return false;
  memset(it->report, 0, bytes);
  return true;
}
// Takes over the outputs that a recording has made, all of whose memory is copied; false where that is not of the planned size.
bool own_outputs(const Program& program, Recording* it, const Output* made) {
  bool good = true;
  for (int32_t i = 0; i < program.signature->outputs; ++i) {
    it->outputs[i] = (char*)made[i].data;
    if (!(it->output_owners[i] = made[i].tensor)) continue;
    int64_t offset, bytes, item = program.signature->output_specs[i].bits / 8;
    good &= !get_data(made[i].tensor, (void**)&it->outputs[i]) && !get_offset(made[i].tensor, &offset) && !get_storage_size(made[i].tensor, &bytes)
      && bytes == it->shapes[i].elements * item;
    if (good) it->outputs[i] -= offset * item;
  }
  return good;
}
// Marks what has lain at most places, in recordings for the same sizes and now, to be copied, and forgets these recordings; false
// where that is only what the program writes to.
bool copy_what_moves(const Program& program, void* stream, const int64_t* sizes, void* const* inputs, const Output* outputs) {
  const Signature& signature = *program.signature;
  Graphs& graphs = *program.graphs;
  const Recording* alike[KEPT];
  int count = 0;
  for (Recording* it = graphs.first; it; it = it->next)
    if (it->is_ready && it->stream == stream && is_for(*it, signature, sizes)) alike[count++] = it;
  if (count < PLACES) return true;
  auto places = [&](int32_t which) {  // how many, of an input or behind these an output
    const int32_t out = which - signature.inputs;
    const void* seen[KEPT + 1] = {out < 0 ? inputs[which] : outputs[out].data};
    int different = 1;
    for (int i = 0; i < count; ++i) {
      const void* place = out < 0 ? alike[i]->inputs[which] : alike[i]->outputs[out];
      bool known = false;
      for (int j = 0; j < different; ++j) known |= seen[j] == place;
      if (!known) seen[different++] = place;
    }
    return different;
  };
  const int32_t all = signature.inputs + signature.outputs;
  int most = 1;
  auto may = [&](int32_t which) {  // what calls of torch give is copied anyway
    const bool given = which >= signature.inputs && alike[0]->output_owners[which - signature.inputs];
    return !given && !graphs.copied[which] && graphs.uses[which] == CALLS;
  };
  for (int32_t i = 0; i < all; ++i) if (may(i) && places(i) > most) most = places(i);
  if (most == 1) return false;
  for (int32_t i = 0; i < all; ++i) if (may(i) && places(i) == most) graphs.copied[i] = 1;
  forget(program, [&](const Recording& it) { return it.stream == stream && is_for(it, signature, sizes); });
  return true;
}
// Records within the pool of a stream; false where an exception is set or `error` says why not.
bool record_in_pool(const Program& program, Recording* it, void* const* inputs, const TensorSpec* specs, Output* made, const char** error) {
  it->memory = PyObject_CallMethod(program.graphs->python, "memory", "K", (unsigned long long)it->stream);
  PyObject* entered = it->memory ? PyObject_CallMethod(it->memory, "__enter__", nullptr) : nullptr;
  if (!entered) return false;
  Py_DecRef(entered);
  {
    InContext here((const Gpu*)program.api.gpu);
    if (!own_memory(program, it, inputs, specs)) *error = "out of memory";
    else it->is_ready = captured(program, it, made, error);
    if (!own_outputs(program, it, made) && it->is_ready) *error = "an operator of torch gives its results in other memory each time";
  }
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  PyObject* left = PyObject_CallMethod(it->memory, "__exit__", "OOO", &_Py_NoneStruct, &_Py_NoneStruct, &_Py_NoneStruct);
  if (left) Py_DecRef(left); else PyErr_Clear();
  PyErr_Restore(kind, value, trace);
  return it->is_ready && !*error;
}
// Makes kernels use the inputs and outputs where they lie now: an error of the driver.
int move(const Program& program, Recording& it, void* const* inputs, const Output* outputs) {
  const int32_t count = program.signature->inputs;
  for (Launched* each = it.launched; each; each = each->next) {
    bool changed = false;
    for (int32_t i = 0; i < each->count; ++i) {
      const Moving& moving = each->moving[i];
      const void* start = moving.buffer < count ? inputs[moving.buffer] : outputs[moving.buffer - count].data;
      const uint64_t place = (uint64_t)start + moving.offset;
      changed |= each->arguments[moving.argument] != place;
      each->arguments[moving.argument] = place;
    }
    if (!changed) continue;
    const Launchable& kernel = *each->kernel;
    void** arguments = (void**)__builtin_alloca(sizeof(void*) * (kernel.arguments + 1));
    for (int32_t i = 0; i < kernel.arguments; ++i) arguments[i] = &each->arguments[i];
    const KernelNode node = {kernel.function, {each->programs, 1, 1}, {(unsigned)kernel.threads, 1, 1}, (unsigned)kernel.shared, arguments, nullptr};
    if (int error = graph_driver.change(it.parts[each->part].executable, each->node, &node)) {
      for (int32_t i = 0; i < each->count; ++i) each->arguments[each->moving[i].argument] = 0;  // the next call changes them
      return error;
    }
  }
  return 0;
}
// A recording for these inputs and outputs; 0 where there is none, of which Python is told why.
Recording* record(const Program& program, void* stream, void* const* inputs, const TensorSpec* specs, const Output* outputs, const int64_t* sizes) {
  const Signature& signature = *program.signature;
  Graphs& graphs = *program.graphs;
  const char* error = nullptr;
  if (!copy_what_moves(program, stream, sizes, inputs, outputs)) error = "inputs that it writes to lie elsewhere in each call";
  else if (++graphs.recorded > RECORDED_AT_MOST) error = "it was recorded 64 times, and its inputs or outputs lie elsewhere again, or have other sizes";
  Recording* it = new_recording(signature, stream, sizes);
  Output* made = zeros<Output>(signature.outputs);
  for (int32_t i = 0; i < signature.outputs; ++i) {
    if (!shape_of(outputs[i].tensor, signature.output_specs[i].bits / 8, &it->shapes[i])) error = NO_SHAPE;
    const int32_t number = signature.inputs + i;
    if (graphs.uses[number] == KERNELS) made[i].data = as_number(number);
    else if (!graphs.copied[number]) made[i].data = outputs[i].data;
  }
  bool good = !error && record_in_pool(program, it, inputs, specs, made, &error);
  free(made);
  if (good) {
    InContext here((const Gpu*)program.api.gpu);
    if (int failed = move(program, *it, inputs, outputs)) { driver.explain(failed, &error); good = false; }
  }
  int copies = 0;
  for (int32_t i = 0; i < signature.inputs; ++i) copies += it->input_owners[i] != nullptr;
  for (int32_t i = 0; i < signature.outputs; ++i) copies += it->output_owners[i] != nullptr;
  PyObject* told = good ? PyObject_CallMethod(graphs.python, "recorded", "i", copies) : nullptr;
  if (told) { Py_DecRef(told); keep(program, it); return it; }
  refuse(graphs, error);
  it->next = graphs.first;
  graphs.first = it;
  forget(program, [&](const Recording& each) { return !each.is_ready || &each == it; });
  return nullptr;
}
// Keeps the shapes of a program's outputs for the sizes of its inputs: from then on it can be recorded for these.
void learn(const Program& program, const Output* outputs, const int64_t* sizes) {
  const Signature& signature = *program.signature;
  Recording* it = new_recording(signature, nullptr, sizes);
  keep(program, it);
  for (int32_t i = 0; i < signature.outputs; ++i)
    if (!shape_of(outputs[i].tensor, signature.output_specs[i].bits / 8, &it->shapes[i])) return refuse(*program.graphs, NO_SHAPE);
}
