/* Guarded calls: check, then the graph and what follows. */

/* Begin a check: take the tree's own buffers, or others while they are in use. */
static int begin(Check *check, Guarded *tree, PyObject *const *arguments)
{
    *check = (Check){tree, arguments, tree->held, tree->data, 1, 0, -1};
    if (!tree->busy) {
        tree->busy = 1;
        return 0;
    }
    size_t count = (size_t)tree->slot_count + 1;
    check->remembers = 0;
    check->held = PyMem_Calloc(count, sizeof(PyObject *));
    check->data = PyMem_Calloc(count, sizeof(void *));
    if (check->held && check->data)
        return 0;
    PyMem_Free(check->held);
    PyMem_Free(check->data);
    PyErr_NoMemory();
    return -1;
}

static void finish(Check *check)
{
    Guarded *tree = check->tree;
    for (Py_ssize_t n = 0; n < tree->slot_count; n++)
        Py_CLEAR(check->held[n]);
    if (check->remembers) {
        tree->busy = 0;
        return;
    }
    PyMem_Free(check->held);
    PyMem_Free(check->data);
}

/* Calling. */

static void drop_all(PyObject **values, Py_ssize_t count)
{
    for (Py_ssize_t n = 0; n < count; n++)
        Py_DECREF(values[n]);
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
    if (self->failed == NULL || !PyErr_ExceptionMatches(PyExc_Exception))
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
static PyObject *run_graph(Guarded *self, Check *check, PyObject **places)
{
    PyObject **inputs = places + 1;
    PyObject **given = inputs + self->input_count + 1;
    PyObject **reads = given + self->argument_count;
    for (Py_ssize_t n = 0; n < self->input_count; n++)
        inputs[n] = Py_NewRef(check->held[self->inputs[n]]);
    for (Py_ssize_t n = 0; n < self->argument_count; n++)
        given[n] = check->arguments[n];
    for (Py_ssize_t n = 0; n < self->read_count; n++)
        reads[n] = Py_NewRef(check->held[self->reads[n]]);
    finish(check);
    PyObject *result = NULL, *out = call_graph(self, inputs);
    drop_all(inputs, self->input_count);
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
        finish(&check);
        return held < 0 ? NULL : Py_NewRef(self->miss);
    }
    PyObject *small[64], **places = small;
    size_t count = (size_t)(self->input_count + self->argument_count + self->read_count + 2);
    if (count > 64 && !(places = PyMem_Malloc(count * sizeof(PyObject *)))) {
        finish(&check);
        return PyErr_NoMemory();
    }
    Py_INCREF(object); /* the graph may drop the last reference to this */
    PyObject *result = run_graph(self, &check, places);
    Py_DECREF(object);
    if (places != small)
        PyMem_Free(places);
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
    finish(&check);
    return result;
}
