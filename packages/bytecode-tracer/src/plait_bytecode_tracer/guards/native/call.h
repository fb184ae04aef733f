/* Guarded calls: check, then the graph and what follows. */

/* Buffers of one check and the call that follows, in this order: a free place, what the slots
 * hold, where their tensors' data is; a free place, inputs of the graph, unless they are what
 * the slots hold; a free place, the arguments, what the body reads. Between calls slots are NULL. */

static size_t buffer_words(Guarded *tree)
{
    size_t inputs = tree->in_order ? 0 : (size_t)tree->input_count + 1;
    size_t given = (size_t)(tree->argument_count + tree->read_count) + 1;
    return 2 * (size_t)tree->slot_count + 1 + inputs + given;
}

/* Begin a check. One uses what the tree remembers, others meanwhile do without. */
static int begin(Check *check, Guarded *tree, PyObject *const *arguments)
{
    void **buffers = tree->spare;
    tree->spare = NULL;
    if (buffers == NULL && !(buffers = PyMem_Calloc(buffer_words(tree), sizeof(void *)))) {
        PyErr_NoMemory();
        return -1;
    }
    PyObject **held = (PyObject **)buffers + 1;
    void **data = buffers + 1 + tree->slot_count;
    *check = (Check){tree, arguments, held, data, buffers, !tree->busy, 0, -1};
    tree->busy = 1;
    return 0;
}

/* The check is over, the values of slots from `first` on are not needed. */
static inline void finish(Check *check, Py_ssize_t first)
{
    for (Py_ssize_t n = first; n < check->tree->slot_count; n++)
        Py_CLEAR(check->held[n]);
    if (check->remembers)
        check->tree->busy = 0;
}

static inline void give_back(Check *check)
{
    if (check->tree->spare == NULL)
        check->tree->spare = check->buffers;
    else
        PyMem_Free(check->buffers);
}

/* Calling. */

static inline void drop_all(PyObject **values, Py_ssize_t count)
{
    for (Py_ssize_t n = 0; n < count; n++)
        Py_CLEAR(values[n]);
}

static PyObject *call_graph(Guarded *self, PyObject **inputs)
{
    if (self->graph == NULL)
        return PyTuple_New(0);
    size_t flags = (size_t)self->input_count | PY_VECTORCALL_ARGUMENTS_OFFSET;
    return PyObject_Vectorcall(self->graph, inputs, flags, NULL);
}

/* `given`: the arguments, then what the body reads; one free place before them. */
static PyObject *after_graph(Guarded *self, PyObject *out, PyObject **given)
{
    if (self->body) {
        Py_ssize_t count = self->argument_count + self->read_count + 1;
        given[-1] = out;
        return PyObject_Vectorcall(self->body, given - 1, (size_t)count, NULL);
    }
    if (PyTuple_CheckExact(out) && self->direct < PyTuple_GET_SIZE(out))
        return Py_NewRef(PyTuple_GET_ITEM(out, self->direct));
    return PySequence_GetItem(out, self->direct);
}

static PyObject *take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
#endif
}

/* The graph has raised, and nothing of the call has been done. `given` as above. */
static PyObject *after_failure(Guarded *self, PyObject **given)
{
    if (self->failed == NULL)
        return NULL;
    PyObject *error = take_exception();
    if (error == NULL)
        return NULL;
    given[-1] = error;
    PyObject *result =
        PyObject_Vectorcall(self->failed, given - 1, (size_t)self->argument_count + 1, NULL);
    Py_DECREF(error);
    return result;
}

/* The graph and what follows it, with the values that the check has read. */
static PyObject *run_graph(Guarded *self, Check *check)
{
    PyObject **inputs = check->held, **given = (PyObject **)check->data + self->slot_count + 1;
    Py_ssize_t kept = self->input_count;
    if (!self->in_order) {
        inputs = given;
        given += self->input_count + 1;
        for (Py_ssize_t n = 0; n < self->input_count; n++)
            inputs[n] = Py_NewRef(check->held[self->inputs[n]]);
        kept = 0;
    }
    PyObject **reads = given + self->argument_count;
    for (Py_ssize_t n = 0; n < self->read_count; n++)
        reads[n] = Py_NewRef(check->held[self->reads[n]]);
    finish(check, kept);
    PyObject *result = NULL, *out = call_graph(self, inputs);
    drop_all(inputs, self->input_count);
    memcpy(given, check->arguments, (size_t)self->argument_count * sizeof(PyObject *));
    if (out) {
        result = after_graph(self, out, given);
        Py_DECREF(out);
    } else
        result = after_failure(self, given);
    drop_all(reads, self->read_count);
    return result;
}

static int wrong_call(Guarded *self, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) == self->argument_count &&
        (names == NULL || PyTuple_GET_SIZE(names) == 0))
        return 0;
    PyErr_Format(PyExc_TypeError, "a guarded call takes %zd positional arguments",
                 self->argument_count);
    return 1;
}

static PyObject *guarded_call(PyObject *object, PyObject *const *arguments, size_t flags,
                              PyObject *names)
{
    Guarded *self = (Guarded *)object;
    Check check;
    if (wrong_call(self, flags, names) || begin(&check, self, arguments) < 0)
        return NULL;
    int held = run_check(&check);
    if (held <= 0) {
        finish(&check, 0);
        give_back(&check);
        return held < 0 ? NULL : Py_NewRef(self->miss);
    }
    Py_INCREF(object); /* the graph may drop the last reference to this */
    PyObject *result = run_graph(self, &check);
    give_back(&check);
    Py_DECREF(object);
    return result;
}

/* check(*arguments): the number of the guard that fails, or what every slot holds. */
static PyObject *guarded_check(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Guarded *self = (Guarded *)object;
    Check check;
    if (wrong_call(self, (size_t)count, NULL) || begin(&check, self, arguments) < 0)
        return NULL;
    check.wants_number = 1;
    int held = run_check(&check);
    PyObject *result = NULL;
    if (held == 0)
        result = PyLong_FromSsize_t(check.failed);
    else if (held > 0 && (result = PyTuple_New(self->slot_count)))
        for (Py_ssize_t n = 0; n < self->slot_count; n++)
            PyTuple_SET_ITEM(result, n, Py_NewRef(check.held[n]));
    finish(&check, 0);
    give_back(&check);
    return result;
}
