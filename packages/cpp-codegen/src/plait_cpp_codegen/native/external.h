// External calls: torch's C functions, its dispatcher, and Python where these do not reach.
void* torch_library = nullptr;
DLExchange* exchange = nullptr;
PyObject* out_of_memory = nullptr;  // the errors of memory, and of GPUs that cannot be used any more
PyObject* device_failed = nullptr;
PyObject* inputs_half_written = nullptr;
const char* earlier_error = "";     // what is said where that may be of a kernel that ran before
int (*torch_parallel_for)(int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*);
int (*create_tensor)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, void**);
int (*create_owning_tensor)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, void**, int32_t, const uint8_t*, int64_t, void (*)(void*, void*), void*);
int (*delete_tensor_object)(void*);
int (*get_data)(void*, void**);
int (*get_rank)(void*, int64_t*);
int (*get_sizes)(void*, int64_t**);
int (*get_strides)(void*, int64_t**);
int (*get_dtype)(void*, int32_t*);
int (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**);
int (*copy_tensor)(void*, void*, int32_t);
int (*call_dispatcher)(const char*, const char*, uint64_t*, uint64_t);
int (*new_list)(size_t, void**);
int (*list_append)(void*, uint64_t);
int (*list_size)(void*, size_t*);
int (*list_item)(void*, size_t, uint64_t*);
int (*delete_list)(void*);
int (*new_string)(const char*, size_t, void**);
int (*new_handle)(void*, void**);  // another handle of one tensor; where it is missing, a tensor on the same memory stands in
int (*new_value)(uint64_t**);
void* (*new_memory)(size_t);  // C++'s operator new, before torch 2.13: linking its library takes a tenth of the build
int (*set_grad_mode)(bool);
bool (*get_grad_mode)();

constexpr int32_t STRIDED = 0, COMPLEX = 5;
// Where a tensor is, in torch's numbers (no index for the CPU) and in DLPack's.
int32_t type_of(const TensorSpec& spec) { return spec.device ? 1 : 0; }
int32_t index_of(const TensorSpec& spec) { return spec.device - 1; }
DLDevice place_of(const TensorSpec& spec) { return spec.device ? DLDevice{2, spec.device - 1} : DLDevice{1, 0}; }
bool is_there(const DLDevice& device, const TensorSpec& spec) {
  return spec.device ? device.type == 2 && device.id == spec.device - 1 : device.type == 1;
}
bool matches(const DLTensor& t, const TensorSpec& spec) {
  if (!is_there(t.device, spec) || t.dtype.code != spec.code || t.dtype.bits != spec.bits || t.ndim != spec.rank) return false;
  bool empty = false;
  for (int i = 0; i < spec.rank; ++i) { if (t.shape[i] != spec.sizes[i]) return false; empty |= spec.sizes[i] == 0; }
  if (!empty && t.strides)
    for (int i = 0; i < spec.rank; ++i) if (spec.sizes[i] > 1 && t.strides[i] != spec.strides[i]) return false;
  return true;
}
// Kernels of GPUs read 16 bytes at a time; torch's allocator gives no memory that begins elsewhere.
bool is_aligned(const void* data, const TensorSpec& spec) { return !spec.device || !((uintptr_t)data & 15); }

template <class F> bool find(F& function, const char* name) { return (function = (F)dlsym(torch_library, name)) != nullptr; }
bool find_torch_functions() {
  find(new_value, "torch_new_stable_ivalue");
  find(new_handle, "aoti_torch_new_tensor_handle");
  new_memory = (void* (*)(size_t))dlsym(RTLD_DEFAULT, "_Znwm");  // that of a sanitizer, where there is one
  if (!new_memory && !find(new_memory, "_Znwm")) return false;
  return find(torch_parallel_for, "torch_parallel_for") && find(create_tensor, "aoti_torch_create_tensor_from_blob")
    && find(create_owning_tensor, "torch_from_blob") && find(delete_tensor_object, "aoti_torch_delete_tensor_object")
    && find(get_data, "aoti_torch_get_data_ptr") && find(get_rank, "aoti_torch_get_dim") && find(get_sizes, "aoti_torch_get_sizes")
    && find(get_strides, "aoti_torch_get_strides") && find(get_dtype, "aoti_torch_get_dtype")
    && find(empty_strided, "aoti_torch_empty_strided") && find(copy_tensor, "aoti_torch_copy_")
    && find(call_dispatcher, "torch_call_dispatcher") && find(new_list, "torch_new_list_reserve_size")
    && find(list_append, "torch_list_push_back") && find(list_size, "torch_list_size") && find(list_item, "torch_list_get_item")
    && find(delete_list, "torch_delete_list") && find(new_string, "torch_new_string_handle")
    && find(set_grad_mode, "aoti_torch_grad_mode_set_enabled") && find(get_grad_mode, "aoti_torch_grad_mode_is_enabled");
}

void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context) {
  if (torch_parallel_for(begin, end, grain, body, context)) body(begin, end, context);
}
void* make_tensor(void* data, const TensorSpec* spec) {
  void* tensor = nullptr;
  return create_tensor(data, spec->rank, spec->sizes, spec->strides, 0, spec->scalar_type, type_of(*spec), index_of(*spec), &tensor) ? nullptr : tensor;
}
void drop_tensor(void* tensor) { if (tensor) delete_tensor_object(tensor); }
void discard(const Output& output) { if (output.tensor) delete_tensor_object(output.tensor); else release(output.block); }
// On a GPU torch asks the driver for each tensor over given memory where that is, which takes as long as a launch. A kept
// tensor is that of the thread that has taken it.
void* kept_tensor(void* data, const TensorSpec* spec, void** kept) {
  if (void* tensor = __atomic_exchange_n(kept, nullptr, __ATOMIC_ACQUIRE)) {
    void* at = nullptr;
    if (!get_data(tensor, &at) && at == data) return tensor;
    drop_tensor(tensor);
  }
  return make_tensor(data, spec);
}
void keep_tensor(void* tensor, void** kept) { drop_tensor(__atomic_exchange_n(kept, tensor, __ATOMIC_RELEASE)); }

// Sets a Python exception from a thread that does not hold the GIL.
template <class... Parts> int python_error(PyObject* kind, const char* format, Parts... parts) {
  int state = PyGILState_Ensure();
  PyErr_Format(kind, format, parts...);
  PyGILState_Release(state);
  return PYTHON_ERROR;
}

// Bytes that a tensor's elements reach over.
int64_t bytes_of(const TensorSpec& spec) {
  int64_t last = 0;
  for (int i = 0; i < spec.rank; ++i) { if (!spec.sizes[i]) return 0; last += (spec.sizes[i] - 1) * spec.strides[i]; }
  return (last + 1) * (spec.bits / 8);
}
// A new tensor of torch's.
int new_tensor(const TensorSpec& spec, void** tensor) {
  if (!empty_strided(spec.rank, spec.sizes, spec.strides, spec.scalar_type, type_of(spec), index_of(spec), tensor)) return 0;
  wanted_bytes = bytes_of(spec);
  return OUT_OF_MEMORY;
}
bool is_empty(const TensorSpec& spec) {
  for (int i = 0; i < spec.rank; ++i) if (!spec.sizes[i]) return true;
  return false;
}
bool is_within(const void* place, const void* data, const TensorSpec& spec) {
  if (is_empty(spec)) return false;
  int64_t last = 0;
  for (int i = 0; i < spec.rank; ++i) last += (spec.sizes[i] - 1) * spec.strides[i];
  return place >= data && place < (const char*)data + (last + 1) * (spec.bits / 8);
}
// Whether a result has the planned type and sizes, and whether it lies as planned: with the planned
// strides, in memory of its own unless it was lent, and without the conjugation that a complex tensor can defer.
bool inspect(void* tensor, const TensorSpec& spec, const ExternCall& call, void* const* data, bool* as_planned) {
  int64_t rank, *sizes, *strides; int32_t type; void* place;
  if (get_rank(tensor, &rank) || get_dtype(tensor, &type) || rank != spec.rank || type != spec.scalar_type) return false;
  if (get_sizes(tensor, &sizes) || get_strides(tensor, &strides) || get_data(tensor, &place)) return false;
  bool same = spec.code != COMPLEX;
  for (int64_t i = 0; i < rank; ++i) {
    if (sizes[i] != spec.sizes[i]) return false;
    if (sizes[i] > 1 && strides[i] != spec.strides[i]) same = false;
  }
  for (int i = 0; i < call.tensors && same && !call.lent; ++i) same = !is_within(place, data[i], call.tensor_specs[i]);
  *as_planned = is_empty(spec) || (same && place && is_aligned(place, spec));
  return true;
}
constexpr int NOT_AS_PLANNED = -1;
// Makes a tensor of the planned layout with the elements of `tensor`.
int copy_as_planned(void* tensor, const TensorSpec& spec, void** made) {
  void* planned = nullptr;
  if (int code = new_tensor(spec, &planned)) return code;
  bool repeats = false;
  int64_t* sizes = (int64_t*)__builtin_alloca(sizeof(int64_t) * (spec.rank + 1));
  for (int i = 0; i < spec.rank; ++i) { bool once = !spec.strides[i] && spec.sizes[i]; sizes[i] = once ? 1 : spec.sizes[i]; repeats |= once; }
  bool copied = false;
  if (!repeats) copied = !copy_tensor(planned, tensor, 0);
  else {  // elements that lie in one place are copied once
    void *from = nullptr, *to = nullptr, *source, *target; int64_t* strides;
    if (!get_data(tensor, &source) && !get_data(planned, &target) && !get_strides(tensor, &strides)
        && !create_tensor(source, spec.rank, sizes, strides, 0, spec.scalar_type, type_of(spec), index_of(spec), &from)
        && !create_tensor(target, spec.rank, sizes, spec.strides, 0, spec.scalar_type, type_of(spec), index_of(spec), &to))
      copied = !copy_tensor(to, from, 0);
    drop_tensor(from); drop_tensor(to);
  }
  if (!copied) { drop_tensor(planned); return NOT_AS_PLANNED; }
  *made = planned;
  return 0;
}
int adopt_one(void* tensor, const TensorSpec& spec, const ExternCall& call, void* const* data, const Place& to) {
  bool as_planned;
  if (!tensor || !inspect(tensor, spec, call, data, &as_planned)) { drop_tensor(tensor); return NOT_AS_PLANNED; }
  if (!as_planned) {
    void* planned = nullptr;
    int code = copy_as_planned(tensor, spec, &planned);
    drop_tensor(tensor);
    if (code) return code;
    tensor = planned;
  }
  *to.owner = tensor;
  return get_data(tensor, (void**)to.data) ? NOT_AS_PLANNED : 0;
}
int adopt(const ExternCall* call, void* const* data, void** results, const Place* places) {
  int code = 0;
  for (int i = 0; i < call->results; ++i) {
    if (code || !places[i].data) drop_tensor(results[i]);
    else code = adopt_one(results[i], call->result_specs[i], *call, data, places[i]);
  }
  if (code != NOT_AS_PLANNED) return code;
  return python_error(PyExc_RuntimeError, "%s gave a tensor of another shape or element type than planned", call->name);
}

// The dispatcher takes and gives a stack of 64-bit slots, as stableivalue_conversions.h of
// torch's stable interface lays down; it takes over what the slots of the arguments own.
uint64_t encode(const int64_t*& at, void* const* tensors, const char* const* strings) {
  switch (*at++) {
    case TENSOR: return (uint64_t)tensors[*at++];
    case BITS: return (uint64_t)*at++;
    case PRESENT: {
      uint64_t* value = nullptr;
      if (!new_value || new_value(&value)) value = (uint64_t*)new_memory(sizeof(uint64_t));
      *value = encode(at, tensors, strings);
      return (uint64_t)value;
    }
    case LIST: {
      int64_t size = *at++; void* list = nullptr;
      new_list(size, &list);
      for (int64_t i = 0; i < size; ++i) list_append(list, encode(at, tensors, strings));
      return (uint64_t)list;
    }
    case STRING: {
      void* handle = nullptr; const char* text = strings[*at++];
      new_string(text, strlen(text), &handle);
      return (uint64_t)handle;
    }
  }
  return 0;
}
// The tensors of the returned stack, in order; false where there are more or fewer than planned.
bool unpack(const ExternCall& call, const uint64_t* stack, void** results) {
  int64_t count = 0;
  auto take = [&](uint64_t slot) {
    if (count < call.results) results[count] = (void*)slot; else drop_tensor((void*)slot);
    ++count;
  };
  for (int i = 0; i < call.returns; ++i) {
    if (call.kinds[i] == 't') { take(stack[i]); continue; }
    size_t size = 0; void* list = (void*)stack[i];
    list_size(list, &size);
    for (size_t j = 0; j < size; ++j) { uint64_t item = 0; list_item(list, j, &item); take(item); }
    delete_list(list);
  }
  return call.results == 0 || count == call.results;
}
bool is_alike(const TensorSpec& left, const TensorSpec& right) {
  size_t bytes = sizeof(int64_t) * left.rank;
  return left.rank == right.rank && left.scalar_type == right.scalar_type
    && !memcmp(left.sizes, right.sizes, bytes) && !memcmp(left.strides, right.strides, bytes);
}
// A handle of the i-th tensor of a call. Where it lies as one before it does, it is that very tensor: operators that
// change an argument ask whether their out argument is that one, and copy it there else.
void* tensor_of(const ExternCall& call, void* const* data, void* const* made, int i) {
  for (int j = 0; j < i && new_handle; ++j) {
    if (data[j] != data[i] || !is_alike(call.tensor_specs[j], call.tensor_specs[i])) continue;
    void* handle = nullptr;
    if (made[j] && !new_handle(made[j], &handle)) return handle;
  }
  if (!call.kept || call.lent || !new_handle) return make_tensor(data[i], &call.tensor_specs[i]);
  void* handle = nullptr;
  void* tensor = kept_tensor(data[i], &call.tensor_specs[i], &call.kept[i]);
  if (tensor) new_handle(tensor, &handle);
  keep_tensor(tensor, &call.kept[i]);
  return handle;
}
bool dispatch(const Api* api, const ExternCall& call, void* const* data, void** results, bool* complete) {
  void** tensors = (void**)__builtin_alloca(sizeof(void*) * (call.tensors + 1));
  bool made = true;
  for (int i = 0; i < call.tensors; ++i) made &= (tensors[i] = tensor_of(call, data, tensors, i)) != nullptr;
  if (!made) { for (int i = 0; i < call.tensors; ++i) drop_tensor(tensors[i]); return false; }
  int slots = call.arguments > call.returns ? call.arguments : call.returns;
  uint64_t* stack = (uint64_t*)__builtin_alloca(sizeof(uint64_t) * (slots + 1));
  const int64_t* at = call.encoded;
  for (int i = 0; i < call.arguments; ++i) stack[i] = encode(at, tensors, call.strings);
  if (call.graded) set_grad_mode(true);
  int failed = call_dispatcher(call.name, call.overload, stack, api->torch_version);
  if (call.graded) set_grad_mode(false);
  if (failed) return false;
  *complete = unpack(call, stack, results);
  return true;
}

// From Python: the tensors go in as views of the program's memory.
struct Lent { DLManaged managed; };
void forget(DLManaged* managed) { free(managed->context); }
PyObject* lend(void* data, const TensorSpec& spec) {
  Lent* made = (Lent*)calloc(1, sizeof(Lent));
  DLManaged& managed = made->managed;
  managed.version = exchange->version; managed.context = made; managed.deleter = forget;
  managed.tensor = {data, place_of(spec), spec.rank, {(uint8_t)spec.code, (uint8_t)spec.bits, 1}, (int64_t*)spec.sizes, (int64_t*)spec.strides, 0};
  void* object = nullptr;
  return exchange->to_object(&managed, &object) ? nullptr : (PyObject*)object;
}
void release_managed(void*, void* managed) { ((DLManaged*)managed)->deleter((DLManaged*)managed); }
// A handle that keeps the memory of a Python tensor; 0 where its type is not the planned one.
bool take_object(PyObject* object, const TensorSpec& spec, void** tensor) {
  *tensor = nullptr;
  if (object == &_Py_NoneStruct) return true;
  DLManaged* managed = nullptr;
  if (exchange->from_object(object, &managed)) return false;
  const DLTensor& t = managed->tensor;
  char* data = (char*)t.data + t.byte_offset;
  bool fits = t.dtype.code == spec.code && t.dtype.bits == spec.bits && is_there(t.device, spec);
  bool made = fits && !create_owning_tensor(t.data ? data : nullptr, t.ndim, t.shape, t.strides, 0, spec.scalar_type, type_of(spec), index_of(spec), tensor, STRIDED, nullptr, 0, release_managed, managed);
  if (!made || !t.data) managed->deleter(managed);
  return true;
}
bool call_python(const Api* api, const ExternCall& call, void* const* data, void** results) {
  int state = PyGILState_Ensure();
  PyObject* arguments = PyTuple_New(call.tensors + call.size_count + 1);
  bool good = arguments && !PyTuple_SetItem(arguments, 0, PyLong_FromLongLong(call.index));
  for (int i = 0; i < call.tensors && good; ++i) {
    PyObject* tensor = lend(data[i], call.tensor_specs[i]);
    good = tensor && !PyTuple_SetItem(arguments, i + 1, tensor);
  }
  for (int i = 0; i < call.size_count && good; ++i)
    good = !PyTuple_SetItem(arguments, call.tensors + 1 + i, PyLong_FromLongLong(call.sizes[i]));
  PyObject* made = good ? PyObject_CallObject((PyObject*)api->python, arguments) : nullptr;
  if (arguments) Py_DecRef(arguments);
  for (int i = 0; i < call.results; ++i) {
    PyObject* item = made ? PyTuple_GetItem(made, i) : nullptr;
    if (!item || !take_object(item, call.result_specs[i], &results[i])) {
      for (int j = 0; j < i; ++j) drop_tensor(results[j]);
      if (made) { Py_DecRef(made); made = nullptr; }
      break;
    }
  }
  if (made) Py_DecRef(made);
  PyGILState_Release(state);
  return made != nullptr;
}
int call_by(const Api* api, const ExternCall* call, void* const* data, const Place* places, bool may_use_python) {
  void** results = (void**)__builtin_alloca(sizeof(void*) * (call->results + 1));
  memset(results, 0, sizeof(void*) * (call->results + 1));
  bool complete = true;
  // Where the dispatcher fails, Python makes the call again: it raises what eager raises.
  if (!call->encoded || !dispatch(api, *call, data, results, &complete)) {
    if (!may_use_python) return python_error(PyExc_RuntimeError, "%s cannot be called while it is recorded", call->name);
    if (!call_python(api, *call, data, results)) return PYTHON_ERROR;
  }
  if (!complete) {
    for (int i = 0; i < call->results; ++i) drop_tensor(results[i]);
    return python_error(PyExc_RuntimeError, "%s gave another number of tensors than planned", call->name);
  }
  return adopt(call, data, results, places);
}
int call_external(const Api* api, const ExternCall* call, void* const* data, const Place* places) { return call_by(api, call, data, places, true); }
