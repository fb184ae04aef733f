// Launches recordings, in calls of programs that have one that fits, or make one (graphs.h).
//
// Of a program with a part on the host `plait_run` runs again: it computes on the CPU, packs what the device reads there, and instead of
// its steps on the device graphs are launched, behind one copy of what was packed for them to the recording's memory. So inputs that both
// change are changed in the order of the program, after all that can fail, and nothing waits for the device: a copy has read its source
// when it returns, and comes to its turn on the stream between the graphs of this call and the one before.
//
// What a recording copies to places of its own, and these, may be where others of the stream have temporaries.
pthread_mutex_t replay_lock = PTHREAD_MUTEX_INITIALIZER;
struct OneByOne {
  OneByOne() { pthread_mutex_lock(&replay_lock); }
  ~OneByOne() { pthread_mutex_unlock(&replay_lock); }
};
constexpr int64_t AT_ONCE = 32 << 10;  // bytes that the driver reads of pages before it returns, without waiting for the stream
// A launch of a recording: how many of its parts are launched, and what is packed since.
struct Replay { const Program& program; Recording& it; void* const* inputs; Output* outputs; int32_t launched; bool checked; int64_t begin, end; };

// After an error behind so many parts: inputs are put back where that is to be done and known how.
int stopped(const Recording& it, int32_t launched, int code) {
  if (it.writes && launched > it.last) return half_written(code);
  if (!it.parts[UNDO].executable || !launched) return code;
  const bool is_saved = launched > (it.last < 2 ? it.last : 1);  // what all changes have overwritten
  return is_saved && !graph_driver.launch(it.parts[UNDO].executable, it.stream) ? code : half_written(code);
}
// Copies what the next part reads.
int copy_packed(Replay& of) {
  const Recording& it = of.it;
  for (; of.begin < of.end; of.begin += AT_ONCE) {
    const int64_t left = of.end - of.begin;
    if (int error = driver.give(it.rows_at + of.begin, it.packed + of.begin, left < AT_ONCE ? left : AT_ONCE, it.stream)) return driver_error("a copy", error);
  }
  of.begin = of.end;
  return 0;
}
int launch_parts(Replay& of, int32_t end) {
  Recording& it = of.it;
  if (int code = copy_packed(of)) return stopped(it, of.launched, code);
  for (; of.launched < end; ++of.launched) {
    void* executable = it.parts[of.launched].executable;
    if (int error = executable ? graph_driver.launch(executable, it.stream) : 0) return stopped(it, of.launched, driver_error("a recorded program", error));
    if (int error = !of.launched && it.report ? driver.record(it.checked, it.stream) : 0) return stopped(it, 1, driver_error("a recorded program", error));
  }
  return 0;
}
// Launches what comes before the first change for good, and waits for its kernels that check indices.
int check_parts(Replay& of) {
  const int32_t end = of.it.last < 2 ? of.it.last + 1 : 2;
  if (int code = launch_parts(of, end)) return code;
  of.checked = true;
  int code = read_report(gpu_of(&of.program.api), of.it.report, of.it.checked);
  return code ? stopped(of.it, end, code) : 0;
}
// Launches what is left, and copies results that are to be copied.
int finish_parts(Replay& of) {
  Recording& it = of.it;
  const Signature& signature = *of.program.signature;
  int code = launch_parts(of, it.last + 1);
  if (code) return code;
  for (int32_t i = 0; i < signature.outputs && !code; ++i)
    if (it.output_owners[i]) code = copy_on_device(&of.program.api, of.outputs[i].data, it.outputs[i], it.shapes[i].elements * (signature.output_specs[i].bits / 8), it.stream);
  return code ? stopped(it, it.last + 1, code) : 0;
}

// What a program calls while its part on the host runs. Its memory on the device is the recording's.
Replay& replay_of(const Api* api) { return *(Replay*)api->recording; }
void* replayed_stream(const Api* api) { return replay_of(api).it.stream; }
int replayed_empty(const TensorSpec*, void**, char** data) { return *data = as_number(0), 0; }
int replayed_hold(const Api*, const TensorSpec*, void*, void**, char** data) { return *data = as_number(0), 0; }
int replayed_output(const TensorSpec*, Output* output, char** data) { return *data = (char*)output->data, 0; }
int replayed_room(const Api*, int32_t, int64_t, void**, char**) { return 0; }
int replayed_rows(const Api* api, int64_t, void**, char** data) { return *data = replay_of(api).it.rows_at, 0; }
int replayed_give(const Api* api, const Given* given, int32_t count, void* const* from, char* to, int64_t bytes, void*) {
  Replay& of = replay_of(api);
  const int64_t at = to - of.it.rows_at;
  for (int32_t i = 0; i < count; ++i) memcpy(of.it.packed + at + given[i].offset, from[given[i].from], given[i].bytes);
  of.end = at + bytes;  // behind what was packed before
  return 0;
}
int64_t* replayed_report(const Api* api) { return replay_of(api).it.report; }
int replayed_check(const Api* api, int64_t*) { return check_parts(replay_of(api)); }
int replayed_end(const Api* api) { return finish_parts(replay_of(api)); }
int run_on_host(Replay& of) {
  Api api = of.program.api;
  api.stream = replayed_stream; api.empty = replayed_empty; api.hold = replayed_hold; api.output = replayed_output; api.view = recorded_view;
  api.room = replayed_room; api.rows = replayed_rows; api.give = replayed_give;
  api.open_report = replayed_report; api.check = replayed_check; api.close_report = recorded_close;
  api.end = replayed_end; api.on_device = 0; api.recording = &of;
  return of.program.signature->run(of.inputs, of.outputs, &api, of.it.sizes);
}

int launch_recording(Replay& of) {
  const Program& program = of.program;
  const Signature& signature = *program.signature;
  const Api* api = &program.api;
  Recording& it = of.it;
  for (Reserved* each = it.reserved; each; each = each->next)
    if (int code = take_state(api, each->count, each->state)) return code;
  OneByOne holding;
  int code = 0;
  for (Reserved* each = it.reserved; each && !code; each = each->next)
    if (each->data) code = give_state(each->state, each->data, it.stream);
  for (int32_t i = 0; i < signature.inputs && !code; ++i)
    if (it.input_owners[i]) code = copy_on_device(api, it.inputs[i], of.inputs[i], it.input_bytes[i], it.stream);
  if (code) return code;
  if (int error = move(program, it, of.inputs, of.outputs)) return driver_error("the arguments of a recorded kernel", error);
  if (signature.host_part) return run_on_host(of);
  const bool reads = it.report && (it.last == 2 || it.parts[UNDO].executable);  // while nothing else runs in the pool's memory
  if (reads) code = check_parts(of);
  return code ? code : finish_parts(of);
}
// Without the GIL, for which others may wait that hold the lock.
int replay(const Program& program, Recording& it, void* const* inputs, Output* outputs) {
  Replay of{program, it, inputs, outputs, 0, false, 0, 0};
  int code = launch_recording(of);
  if (!it.report) return code;
  if (!code && !of.checked) code = read_report(gpu_of(&program.api), it.report, it.checked);
  if (code) {  // kernels that nothing has waited for may still write to it
    driver.wait(it.stream);
    memset(it.report, 0, sizeof(int64_t) * 3 * program.signature->check_count);
  }
  return code;
}

struct WithoutGil {
  void* thread = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(thread); }
};
// A call of a program that may be recorded. While one thread is in here, others launch kernels one by one.
int run_by_graphs(const Program& program, void* const* inputs, const TensorSpec* specs, Output* outputs, const int64_t* sizes) {
  const Signature& signature = *program.signature;
  Graphs& graphs = *program.graphs;
  if ((graphs.closed && !graphs.first) || __atomic_exchange_n(&graphs.busy, 1, __ATOMIC_ACQUIRE)) return run(program, inputs, outputs, sizes);
  struct Turn { Graphs& graphs; ~Turn() { __atomic_store_n(&graphs.busy, 0, __ATOMIC_RELEASE); } } turn{graphs};
  const Recording* known = graphs.first;
  while (known && !is_for(*known, signature, sizes)) known = known->next;
  void* stream;
  bool by_user, made;
  {
    WithoutGil free_for_others;
    InContext here((const Gpu*)program.api.gpu);
    stream = stream_of(&program.api);
    int status = 0;
    by_user = driver.capturing(stream, &status) || status;  // who records what this program launches, too
    made = known && !by_user;
    for (int32_t i = 0; i < signature.outputs && made; ++i) made = !make_output(known->shapes[i], signature.output_specs[i], &outputs[i]);
    for (Recording* it = graphs.first; it && made; it = it->next)
      if (fits(*it, program, stream, sizes, inputs, outputs)) return replay(program, *it, inputs, outputs);
  }
  Recording* recording = made && !graphs.closed ? record(program, stream, inputs, specs, outputs, sizes) : nullptr;
  if (recording) {
    WithoutGil free_for_others;
    InContext here((const Gpu*)program.api.gpu);
    return replay(program, *recording, inputs, outputs);
  }
  drop_outputs(outputs, signature.outputs);
  PyErr_Clear();
  int code = run(program, inputs, outputs, sizes);
  if (!code && !known && !by_user && !graphs.closed && ++graphs.calls > WARM_UP) learn(program, outputs, sizes);
  return code;
}

// Of a program that was loaded with an object of Python that keeps its graphs, and a byte for each input and output: what uses it.
Graphs* open_graphs(const Signature& signature, PyObject* python, PyObject* uses) {
  char* bytes; Py_ssize_t count, all = signature.inputs + signature.outputs;
  if (!open_graph_driver() || PyBytes_AsStringAndSize(uses, &bytes, &count)) return nullptr;
  if (count != all) return PyErr_Format(PyExc_ValueError, "this program has %zd inputs and outputs, not %zd", all, count), nullptr;
  Graphs* graphs = zeros<Graphs>(0);
  graphs->copied = zeros<char>(all);
  graphs->uses = zeros<char>(all);
  memcpy(graphs->uses, bytes, all);
  Py_IncRef(graphs->python = python);
  return graphs;
}
void close_graphs(const Program& program) {
  if (!program.graphs) return;
  forget(program, [](const Recording&) { return true; });
  Py_DecRef(program.graphs->python);
  free(program.graphs->copied); free(program.graphs->uses); free(program.graphs);
}
// A stream that waits for no other: a number, which torch takes for an external stream. It is never destroyed.
PyObject* new_stream(PyObject*, PyObject* const*, Py_ssize_t) {
  if (!open_graph_driver()) return nullptr;
  void* stream = nullptr;
  if (int error = graph_driver.new_stream(&stream, NON_BLOCKING)) { driver_error("a stream", error); return nullptr; }
  return PyLong_FromLongLong((long long)(intptr_t)stream);
}
