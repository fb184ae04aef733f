// A compiled program, and its run below torch's modes.
struct Graphs;
struct Program { const Signature* signature; Api api; PyObject* otherwise; Graphs* graphs; };
PyObject* autocast_enabled = nullptr;  // torch's function and context manager
PyObject* autocast_off = nullptr;

// What a program says that got no memory.
void tell_memory(const Signature& signature, int code) {
  const char* use = code == OUT_OF_MEMORY ? "what it computes on the way" : "an output";
  const long long bytes = wanted_bytes;
  if (!signature.device) PyErr_Format(out_of_memory, "out of memory on the CPU: a compiled program asked for %lld bytes for %s", bytes, use);
  else PyErr_Format(out_of_memory, "out of memory on GPU %d: a compiled program asked for %lld bytes for %s", (int)(signature.device - 1), bytes, use);
}

// A program's calls are below autograd and autocast, which its graph has already gone through.
struct BelowModes {
  PyObject* guard = nullptr;
  bool grad = false, good = true;
  explicit BelowModes(bool needed) {
    if (!needed) return;
    PyObject* enabled = PyObject_CallNoArgs(autocast_enabled);
    if (enabled && PyObject_IsTrue(enabled)) {
      guard = PyObject_CallNoArgs(autocast_off);
      PyObject* entered = guard ? PyObject_CallMethod(guard, "__enter__", nullptr) : nullptr;
      if (entered) Py_DecRef(entered); else good = false;
    }
    good = good && enabled;
    if (enabled) Py_DecRef(enabled);
    if ((grad = get_grad_mode())) set_grad_mode(false);
  }
  ~BelowModes() {
    if (grad) set_grad_mode(true);
    if (!guard) return;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject* left = PyObject_CallMethod(guard, "__exit__", "OOO", &_Py_NoneStruct, &_Py_NoneStruct, &_Py_NoneStruct);
    if (left) Py_DecRef(left);
    Py_DecRef(guard);
    PyErr_Restore(kind, value, trace);
  }
};

int run(const Program& program, void* const* inputs, Output* outputs, const int64_t* sizes) {
  BelowModes below(program.signature->calls > 0);
  if (!below.good) return PYTHON_ERROR;
  void* thread = PyEval_SaveThread();
  int code;
  {
    InContext context((const Gpu*)program.api.gpu);
    code = program.signature->run(inputs, outputs, &program.api, sizes);
  }
  PyEval_RestoreThread(thread);
  return code;
}
