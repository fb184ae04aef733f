// A program that runs again and again, for one row after the other, without Python in between.
#include <time.h>
// Where an input is for the next run, and how much further for each run behind it.
struct RepeatedInput { char* at; int64_t step; };
// Where a result of all runs goes; or that of the last, where the results of the others are the input `next` of the run behind them.
struct RepeatedResult { char* to; int64_t step, bytes, next; };
// An input that is copied before each run.
struct CopiedInput { char* to; int64_t step, bytes, input; };
struct Repetition {
  int64_t runs, copied;
  const RepeatedInput* inputs; const RepeatedResult* results; const CopiedInput* copies;
};
const int64_t LONGEST_WITHOUT_SIGNALS = 50000000;  // nanoseconds

int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// How many runs it was: fewer than were asked for where they took long, so that Python sees signals. What the last one hands on is
// there then. `code` says how one failed.
int64_t repeat(const Program& program, const Repetition& asked, int& code) {
  const Signature& signature = *program.signature;
  RepeatedInput* next = (RepeatedInput*)__builtin_alloca(sizeof(RepeatedInput) * (signature.inputs + 1));
  memcpy(next, asked.inputs, sizeof(RepeatedInput) * signature.inputs);
  void** inputs = (void**)__builtin_alloca(sizeof(void*) * (signature.inputs + 1));
  const size_t bytes = sizeof(Output) * (signature.outputs + 1);
  Output *outputs = (Output*)__builtin_alloca(bytes), *last = (Output*)__builtin_alloca(bytes);
  memset(last, 0, bytes);
  const int64_t end = nanoseconds() + LONGEST_WITHOUT_SIGNALS;
  int64_t done = 0;
  while (done < asked.runs && (!done || nanoseconds() < end)) {
    memset(outputs, 0, bytes);
    for (int i = 0; i < signature.inputs; ++i) { inputs[i] = next[i].at; next[i].at += next[i].step; }
    for (int64_t i = 0; i < asked.copied; ++i) {
      const CopiedInput& copy = asked.copies[i];
      memcpy(copy.to + done * copy.step, inputs[copy.input], copy.bytes);
    }
    code = signature.run(inputs, outputs, &program.api, nullptr);
    for (int i = 0; i < signature.outputs; ++i) {
      const RepeatedResult& result = asked.results[i];
      discard(last[i]);
      last[i] = outputs[i];
      if (code) continue;
      if (result.next >= 0) next[result.next].at = (char*)outputs[i].data;
      else memcpy(result.to + done * result.step, outputs[i].data, result.bytes);
    }
    if (code) break;
    ++done;
  }
  for (int i = 0; i < signature.outputs; ++i) {
    const RepeatedResult& result = asked.results[i];
    if (!code && result.next >= 0) memcpy(result.to, last[i].data, result.bytes);
    discard(last[i]);
  }
  return done;
}

// Whether elements lie side by side, in whatever order.
bool is_dense(const TensorSpec& spec) {
  int64_t count = 1;
  for (int i = 0; i < spec.rank; ++i) count *= spec.sizes[i];
  return bytes_of(spec) == count * (spec.bits / 8);
}
bool are_alike(const TensorSpec& one, const TensorSpec& other) {
  if (one.code != other.code || one.bits != other.bits || one.rank != other.rank || one.device != other.device) return false;
  for (int i = 0; i < one.rank; ++i)
    if (one.sizes[i] != other.sizes[i] || (one.sizes[i] > 1 && one.strides[i] != other.strides[i])) return false;
  return true;
}
// Whether a tensor is as described, and where it begins.
bool is_found(PyObject* tensor, const TensorSpec& spec, char*& data) {
  DLTensor found;
  if (exchange->view(tensor, &found)) return PyErr_Clear(), false;
  data = (char*)found.data + found.byte_offset;
  return matches(found, spec);
}

// The program; numbers: how many runs and how many inputs to copy, the steps in bytes of inputs, of each result its step and the input
// that it becomes or -1, of each copy its step and input; then the tensors of the first run's inputs, results and copies. -1 where
// it is no such program, one of them lies otherwise than the program has it, or a run failed.
PyObject* repeat_program(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  PyObject* self = count > 1 ? PyCFunction_GetSelf(arguments[0]) : nullptr;
  const Program* program = self ? (const Program*)PyCapsule_GetPointer(self, "plait.program") : nullptr;
  if (!program) return PyErr_Clear(), PyLong_FromLongLong(-1);
  const Signature& signature = *program->signature;
  if (signature.device || signature.size_count) return PyLong_FromLongLong(-1);
  char* given = nullptr;
  Py_ssize_t bytes = 0;
  if (PyBytes_AsStringAndSize(arguments[1], &given, &bytes)) return nullptr;
  const int64_t *numbers = (const int64_t*)given, copied = bytes > 8 ? numbers[1] : -1;
  const int64_t tensors = signature.inputs + signature.outputs + copied;
  if (copied < 0 || count != 2 + tensors || bytes != 8 * (2 + signature.inputs + 2 * (signature.outputs + copied)))
    return PyErr_Format(PyExc_ValueError, "repeat takes as many tensors and numbers as its program has inputs and results");
  RepeatedInput* inputs = (RepeatedInput*)__builtin_alloca(sizeof(RepeatedInput) * (signature.inputs + 1));
  RepeatedResult* results = (RepeatedResult*)__builtin_alloca(sizeof(RepeatedResult) * (signature.outputs + 1));
  CopiedInput* copies = (CopiedInput*)__builtin_alloca(sizeof(CopiedInput) * (copied + 1));
  PyObject* const* tensor = arguments + 2;
  const int64_t* number = numbers + 2;
  bool fits = true;
  for (int i = 0; i < signature.inputs; ++i) {
    inputs[i].step = *number++;
    fits = fits && is_found(*tensor++, signature.input_specs[i], inputs[i].at);
  }
  for (int i = 0; i < signature.outputs; ++i) {
    const TensorSpec& spec = signature.output_specs[i];
    results[i].step = *number++; results[i].next = *number++; results[i].bytes = bytes_of(spec);
    const int64_t next = results[i].next;
    fits = fits && is_dense(spec) && is_found(*tensor++, spec, results[i].to)
      && next < signature.inputs && (next < 0 || are_alike(spec, signature.input_specs[next]));
  }
  for (int64_t i = 0; i < copied; ++i) {
    copies[i].step = *number++; copies[i].input = *number++;
    fits = fits && copies[i].input >= 0 && copies[i].input < signature.inputs;
    if (!fits) break;
    const TensorSpec& spec = signature.input_specs[copies[i].input];
    copies[i].bytes = bytes_of(spec);
    fits = is_dense(spec) && is_found(*tensor++, spec, copies[i].to);
  }
  if (!fits) return PyLong_FromLongLong(-1);
  int64_t done;
  int code = 0;
  {
    BelowModes below(signature.calls > 0);
    if (!below.good) return nullptr;
    void* thread = PyEval_SaveThread();
    done = repeat(*program, {numbers[0], copied, inputs, results, copies}, code);
    PyEval_RestoreThread(thread);
  }
  if (PyErr_Occurred()) {  // of a call that Python has made
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
    PyErr_Clear();
  }
  return PyLong_FromLongLong(code ? -1 : done);
}
