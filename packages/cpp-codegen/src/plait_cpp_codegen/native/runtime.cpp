// Loads compiled programs and calls them from Python.
int64_t stride_of(const DLTensor& t, int dim) {
  if (t.strides) return t.strides[dim];
  int64_t step = 1;
  for (int i = t.ndim - 1; i > dim; --i) step *= t.shape[i] > 1 ? t.shape[i] : 1;
  return step;
}
// A float may be given for a tensor of one f64 without dimensions.
bool is_number(PyObject* given, const TensorSpec& spec) {
  return given->type == (void*)&PyFloat_Type && !spec.device && spec.rank == 0 && spec.code == 2 && spec.bits == 64;
}
struct OutputManaged { DLManaged managed; Output output; int64_t numbers[]; };
void delete_output(DLManaged* managed) {
  discard(((OutputManaged*)managed->context)->output);
  free(managed->context);
}
// `open` says that the sizes and strides are those of this call alone.
PyObject* wrap(const Output& output, TensorSpec spec, bool open) {
  size_t bytes = open ? sizeof(int64_t) * spec.rank : 0;
  OutputManaged* made = (OutputManaged*)calloc(1, sizeof(OutputManaged) + 2 * bytes);
  made->output = output;
  if (open) {
    memcpy(made->numbers, spec.sizes, bytes);
    memcpy(made->numbers + spec.rank, spec.strides, bytes);
    spec.sizes = made->numbers; spec.strides = made->numbers + spec.rank;
  }
  DLManaged& managed = made->managed;
  managed.version = exchange->version;
  managed.context = made; managed.deleter = delete_output;
  managed.tensor = {output.data, {1, 0}, spec.rank, {(uint8_t)spec.code, (uint8_t)spec.bits, 1}, (int64_t*)spec.sizes, (int64_t*)spec.strides, 0};
  void* object = nullptr;
  if (exchange->to_object(&managed, &object)) return nullptr;
  return (PyObject*)object;
}

// The sizes of one call of a program for many, and what its inputs and outputs are for them.
struct OpenCall {
  const Signature& signature;
  int64_t *sizes = nullptr, *numbers = nullptr;
  int64_t used = 0;
  explicit OpenCall(const Signature& of) : signature(of) {}
  // Whether the inputs have the sizes that are needed; else an exception is set.
  bool describe(PyObject* const* inputs) {
    for (int i = 0; i < signature.size_count; ++i) {
      const SizePlace& place = signature.size_places[i];
      DLTensor tensor;
      if (exchange->view(inputs[place.input], &tensor)) return false;
      if (tensor.ndim != signature.input_specs[place.input].rank)
        return PyErr_Format(PyExc_ValueError, "input %d of this program has another rank than it was compiled for", place.input);
      sizes[i] = place.is_stride ? stride_of(tensor, place.dim) : tensor.shape[place.dim];
    }
    signature.describe(sizes, numbers);
    return true;
  }
  // The next tensor's description, with the sizes of this call.
  TensorSpec next(TensorSpec spec) {
    if (!signature.size_count) return spec;
    spec.sizes = numbers + used; spec.strides = numbers + used + spec.rank;
    used += 2 * spec.rank;
    return spec;
  }
};

// Notes at the exception that is set how many random operators had run (see `plait_utils.draws`).
void tell_draws(int count) {
  PyObject *kind, *error, *trace;
  PyErr_Fetch(&kind, &error, &trace);
  PyErr_NormalizeException(&kind, &error, &trace);
  PyObject* number = PyLong_FromLongLong(count);
  if (!number || !error || PyObject_SetAttrString(error, "plait_draws", number)) PyErr_Clear();
  if (number) Py_DecRef(number);
  PyErr_Restore(kind, error, trace);
}

// What runs where memory does not lie as the kernels need it.
PyObject* call_otherwise(const Program& program, PyObject* const* arguments, Py_ssize_t count) {
  PyObject* given = PyTuple_New(count);
  for (Py_ssize_t i = 0; given && i < count; ++i) { Py_IncRef(arguments[i]); PyTuple_SetItem(given, i, arguments[i]); }
  PyObject* result = given ? PyObject_CallObject(program.otherwise, given) : nullptr;
  if (given) Py_DecRef(given);
  return result;
}

PyObject* call_program(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const Program* program = (const Program*)PyCapsule_GetPointer(self, "plait.program");
  if (!program) return nullptr;
  const Signature& signature = *program->signature;
  if (count != signature.inputs)
    return PyErr_Format(PyExc_TypeError, "this program takes %d tensors, not %zd", signature.inputs, count);
  void** inputs = (void**)__builtin_alloca(sizeof(void*) * (count + 1));
  TensorSpec* specs = (TensorSpec*)__builtin_alloca(sizeof(TensorSpec) * (count + 1));
  double* numbers = (double*)__builtin_alloca(sizeof(double) * (count + 1));
  OpenCall open(signature);
  open.sizes = (int64_t*)__builtin_alloca(sizeof(int64_t) * (signature.size_count + 1));
  open.numbers = (int64_t*)__builtin_alloca(sizeof(int64_t) * (signature.number_count + 1));
  if (signature.size_count && !open.describe(arguments)) return nullptr;
  bool aligned = true;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (is_number(arguments[i], signature.input_specs[i])) {  // which has no sizes
      numbers[i] = PyFloat_AsDouble(arguments[i]);
      inputs[i] = &numbers[i];
      continue;
    }
    DLTensor tensor;
    if (exchange->view(arguments[i], &tensor)) return nullptr;
    const TensorSpec& spec = specs[i] = open.next(signature.input_specs[i]);
    if (!matches(tensor, spec))
      return PyErr_Format(PyExc_ValueError, "input %zd of this program has another dtype, shape, strides or device than it was compiled for", i);
    inputs[i] = (char*)tensor.data + tensor.byte_offset;
    aligned = aligned && is_aligned(inputs[i], spec);
  }
  if (!aligned) return call_otherwise(*program, arguments, count);
  Output* outputs = (Output*)__builtin_alloca(sizeof(Output) * (signature.outputs + 1));
  memset(outputs, 0, sizeof(Output) * signature.outputs);
  const int failure = program->graphs ? run_by_graphs(*program, inputs, specs, outputs, open.sizes) : run(*program, inputs, outputs, open.sizes);
  if (failure) {
    for (int i = 0; i < signature.outputs; ++i) discard(outputs[i]);
    const int code = failure & ((1 << DRAWN) - 1);
    if (code == INDEX_OUT_OF_RANGE) PyErr_Format(PyExc_IndexError, "index out of range in self");
    if (code == DIVISION_BY_ZERO) PyErr_Format(PyExc_RuntimeError, "ZeroDivisionError");
    if (code == OUT_OF_MEMORY || code == NO_MEMORY_FOR_OUTPUT) tell_memory(signature, code);
    tell_draws(failure >> DRAWN);
    return nullptr;
  }
  if (signature.device) return taken(outputs, signature.outputs);
  PyObject* result = PyTuple_New(signature.outputs);
  for (int i = 0; i < signature.outputs; ++i) {
    PyObject* tensor = result ? wrap(outputs[i], open.next(signature.output_specs[i]), signature.size_count > 0) : nullptr;
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

void close_program(PyObject* capsule) {  // the library stays: outputs may point to its tables
  Program* program = (Program*)PyCapsule_GetPointer(capsule, "plait.program");
  Py_DecRef((PyObject*)program->api.python);
  if (program->otherwise) Py_DecRef(program->otherwise);
  close_graphs(*program);
  close_gpu((Gpu*)program->api.gpu);
  const Signature& signature = *program->signature;
  for (int32_t i = 0; i < signature.kept_count; ++i) keep_tensor(nullptr, &signature.kept[i]);
  free(program);
}

PyObject* load_program(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  const char* path = count == 2 || count == 4 || count == 6 ? PyUnicode_AsUTF8AndSize(arguments[0], nullptr) : nullptr;
  if (!path) return PyErr_Format(PyExc_TypeError, "load_program takes the path of a compiled program and what makes its external calls from Python; and, of one on a GPU, its kernels and what runs it otherwise; and what keeps its graphs and what uses its inputs and outputs");
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return PyErr_Format(PyExc_ImportError, "cannot load a compiled program: %s", dlerror());
  const Signature* signature = (const Signature*)dlsym(library, "plait_signature");
  if (!signature) return PyErr_Format(PyExc_ImportError, "%s is not a compiled program", path);
  for (int i = 0; i < signature->functions; ++i)
    signature->function_table[i] = dlsym(signature->device && cuda_library ? cuda_library : torch_library, signature->function_names[i]);
  if (signature->device && count < 4) return PyErr_Format(PyExc_TypeError, "a program on a GPU is loaded with its kernels");
  Gpu* gpu = signature->device ? open_gpu(*signature, arguments[2]) : nullptr;
  if (signature->device && !gpu) return nullptr;
  Graphs* graphs = gpu && count == 6 ? open_graphs(*signature, arguments[4], arguments[5]) : nullptr;
  if (gpu && count == 6 && !graphs) return close_gpu(gpu), nullptr;
  Program* program = (Program*)malloc(sizeof(Program));
  Py_IncRef(arguments[1]);
  if (gpu) Py_IncRef(arguments[3]);
  *program = {signature, {parallel_for, allocate, release, make_tensor, drop_tensor, kept_tensor, keep_tensor, adopt, call_external, arguments[1], signature->torch_version},
    gpu ? arguments[3] : nullptr, graphs};
  program->api.gpu = gpu;
  give_device(&program->api);
  PyObject* capsule = PyCapsule_New(program, "plait.program", close_program);
  if (!capsule) return nullptr;
  PyObject* function = PyCFunction_NewEx(&call_definition, capsule, nullptr);
  Py_DecRef(capsule);
  return function;
}

PyObject* none() { Py_IncRef(&_Py_NoneStruct); return &_Py_NoneStruct; }
// Calls that cannot write where they are told to get their results from the C library. That gives blocks as large as
// the largest that was ever given back to it, and no larger than 32 MB, of memory that it keeps: so once gives one back.
void let_results_be_kept() {
  void* volatile block = malloc((32 << 20) - (64 << 10));
  free(block);
}
PyObject* set_up(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  const char* path = count == 12 ? PyUnicode_AsUTF8AndSize(arguments[0], nullptr) : nullptr;
  const char* cuda = path ? PyUnicode_AsUTF8AndSize(arguments[4], nullptr) : nullptr;
  const char* driver = cuda ? PyUnicode_AsUTF8AndSize(arguments[6], nullptr) : nullptr;
  if (!driver) return PyErr_Format(PyExc_TypeError, "set_up takes the path of libtorch_cpu, torch's DLPack exchange table, whether autocast is on, what turns it off, the path of libtorch_cuda, what makes tensors of handles, the name of the CUDA driver's library, what gives the state of a GPU's generator, the errors of memory, of devices and of inputs that are half written, and what is said where a device's may be another kernel's");
  exchange = (DLExchange*)PyCapsule_GetPointer(arguments[1], "dlpack_exchange_api");
  if (!exchange) return nullptr;
  if (exchange->version.major != 1 || !exchange->view || !exchange->to_object || !exchange->from_object)
    return PyErr_Format(PyExc_ImportError, "this torch publishes DLPack %d, not 1", (int)exchange->version.major);
  torch_library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!torch_library) torch_library = dlopen(path, RTLD_NOW);
  if (!torch_library) return PyErr_Format(PyExc_ImportError, "cannot open %s: %s", path, dlerror());
  if (!find_torch_functions()) return PyErr_Format(PyExc_ImportError, "this torch lacks C functions that compiled programs need: %s", dlerror());
  Py_IncRef(autocast_enabled = arguments[2]);
  Py_IncRef(autocast_off = arguments[3]);
  cuda_library = dlopen(cuda, RTLD_NOW | RTLD_NOLOAD);
  Py_IncRef(take_tensors = arguments[5]);
  Py_IncRef(take_numbers = arguments[7]);
  Py_IncRef(out_of_memory = arguments[8]);
  Py_IncRef(device_failed = arguments[9]);
  Py_IncRef(inputs_half_written = arguments[10]);
  const char* earlier = PyUnicode_AsUTF8AndSize(arguments[11], nullptr);
  if (!earlier) return nullptr;
  earlier_error = strdup(earlier);
  driver_name = strdup(driver);
  let_results_be_kept();
  return none();
}
PyObject* set_cache_limit(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  long long limit = count == 1 ? PyLong_AsLongLong(arguments[0]) : -1;
  if (limit < 0) return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_ValueError, "the limit is a number of bytes");
  { Hold hold; cache_limit = limit; }
  return none();
}
PyObject* trim_cache(PyObject*, PyObject* const*, Py_ssize_t) { return PyLong_FromLongLong(trim()); }

PyMethodDef methods[] = {
  {"set_up", (PyCFunction)(void*)set_up, 0x80, "Connects the runtime to torch."},
  {"load_program", (PyCFunction)(void*)load_program, 0x80, "A callable of a compiled program's file."},
  {"repeat", (PyCFunction)(void*)repeat_program, 0x80, "Runs a program for one row after the other; how many times, or -1."},
  {"set_cache_limit", (PyCFunction)(void*)set_cache_limit, 0x80, "Bounds the memory kept for reuse, in bytes."},
  {"new_stream", (PyCFunction)(void*)new_stream, 0x80, "A stream of the GPU that is current, as a number."},
  {"trim_cache", (PyCFunction)(void*)trim_cache, 0x80, "Gives back memory kept for reuse; returns the bytes."},
  {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {{1, nullptr}, nullptr, 0, nullptr, "plait_native_runtime", "plait's native runtime.", -1, methods, nullptr, nullptr, nullptr, nullptr};
}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_plait_native_runtime() { return PyModule_Create2(&definition, 3); }
