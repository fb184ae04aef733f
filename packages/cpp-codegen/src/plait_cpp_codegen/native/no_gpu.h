// In place of gpu.h, graphs.h and replay.h, in the runtime of programs of CPUs: those take a compiler as long as all else.
struct Gpu;
struct Graphs;
struct Program;
void* cuda_library = nullptr;
char* driver_name = nullptr;
PyObject* take_tensors = nullptr;
PyObject* take_numbers = nullptr;
struct InContext { explicit InContext(const Gpu*) {} };

void give_device(Api*) {}
Gpu* open_gpu(const Signature&, PyObject*) { return (Gpu*)PyErr_Format(PyExc_ImportError, "this runtime is that of programs of CPUs"); }
void close_gpu(Gpu*) {}
PyObject* taken(Output*, int32_t) { return nullptr; }
Graphs* open_graphs(const Signature&, PyObject*, PyObject*) { return nullptr; }
void close_graphs(const Program&) {}
int run_by_graphs(const Program&, void* const*, const TensorSpec*, Output*, const int64_t*) { return PYTHON_ERROR; }
PyObject* new_stream(PyObject*, PyObject* const*, Py_ssize_t) { return PyErr_Format(PyExc_RuntimeError, "this runtime is that of programs of CPUs"); }
