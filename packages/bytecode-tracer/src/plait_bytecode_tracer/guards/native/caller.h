/* Calling compiled functions and modules.
 *
 * A Caller is the `__call__` of their classes. It binds arguments as Python would and tries
 * an object's guarded calls in turn; where none fits, or the arguments do not, it calls its
 * Python twin, which knows what to do. */

typedef struct {
    PyObject_HEAD
    PyObject *spec; /* owns what the rest points to */
    PyFunctionObject *function;
    PyObject *code; /* of the function, as these calls were made for it */
    PyObject *names; /* of the parameters that keywords can give, among others; interned */
    Py_ssize_t positional_only, positional, keyword_only;
    int takes_more, takes_keywords; /* *args, **kwargs */
    PyObject *calls;
} Calls;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *twin;
    PyObject *compiled_name; /* attributes: of a module, its compiled function; or NULL */
    PyObject *original_name; /* of a module, what its forward is called with */
    PyObject *calls_name;    /* of a compiled function, its Calls */
} Caller;

enum { MOST_PARAMETERS = 48 };

static PyTypeObject Calls_Type;

static Py_ssize_t find_parameter(Calls *calls, PyObject *name)
{
    Py_ssize_t end = calls->positional + calls->keyword_only;
    for (Py_ssize_t n = calls->positional_only; n < end; n++)
        if (PyTuple_GET_ITEM(calls->names, n) == name)
            return n;
    for (Py_ssize_t n = calls->positional_only; n < end; n++)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(calls->names, n), name) == 0)
            return n;
    return -1;
}

/* In all of the following, values are new references; 0 means: leave it to the twin. */

static int bind_positional(Calls *calls, PyObject *const *given, Py_ssize_t count,
                           PyObject **values)
{
    Py_ssize_t named = count < calls->positional ? count : calls->positional;
    for (Py_ssize_t n = 0; n < named; n++)
        values[n] = Py_NewRef(given[n]);
    if (!calls->takes_more)
        return count <= calls->positional;
    PyObject *rest = PyTuple_New(count - named);
    for (Py_ssize_t n = named; rest && n < count; n++)
        PyTuple_SET_ITEM(rest, n - named, Py_NewRef(given[n]));
    values[calls->positional + calls->keyword_only] = rest;
    return rest != NULL;
}

static int bind_keywords(Calls *calls, PyObject *const *given, PyObject *names, PyObject **values)
{
    PyObject *more = NULL;
    if (calls->takes_keywords) {
        more = PyDict_New();
        values[calls->positional + calls->keyword_only + calls->takes_more] = more;
        if (more == NULL)
            return 0;
    }
    for (Py_ssize_t k = 0; names && k < PyTuple_GET_SIZE(names); k++) {
        PyObject *name = PyTuple_GET_ITEM(names, k);
        Py_ssize_t n = find_parameter(calls, name);
        if (n >= 0 && values[n] == NULL)
            values[n] = Py_NewRef(given[k]);
        else if (n >= 0 || more == NULL || PyDict_SetItem(more, name, given[k]) < 0)
            return 0;
    }
    return 1;
}

static int bind_defaults(Calls *calls, PyObject **values)
{
    PyObject *defaults = calls->function->func_defaults;
    PyObject *keyword_defaults = calls->function->func_kwdefaults;
    Py_ssize_t first = calls->positional - (defaults ? PyTuple_GET_SIZE(defaults) : 0);
    for (Py_ssize_t n = 0; n < calls->positional; n++) {
        if (values[n])
            continue;
        if (n < first || defaults == NULL || first < 0)
            return 0;
        values[n] = Py_NewRef(PyTuple_GET_ITEM(defaults, n - first));
    }
    for (Py_ssize_t n = calls->positional; n < calls->positional + calls->keyword_only; n++) {
        if (values[n])
            continue;
        PyObject *name = PyTuple_GET_ITEM(calls->names, n);
        PyObject *found = keyword_defaults ? PyDict_GetItemWithError(keyword_defaults, name) : NULL;
        if (found == NULL)
            return 0;
        values[n] = Py_NewRef(found);
    }
    return 1;
}

/* Try each call; NULL without an exception where none fits. */
static PyObject *try_calls(Calls *calls, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    PyObject *places[MOST_PARAMETERS + 1] = {NULL}, **values = places + 1, *result = NULL;
    Py_ssize_t parameters = PyTuple_GET_SIZE(calls->names);
    if (calls->function->func_code != calls->code)
        return NULL;
    int bound = bind_positional(calls, given, count, values) &&
                bind_keywords(calls, given + count, names, values) &&
                bind_defaults(calls, values);
    size_t flags = (size_t)parameters | PY_VECTORCALL_ARGUMENTS_OFFSET;
    for (Py_ssize_t n = 0; bound && n < PyTuple_GET_SIZE(calls->calls); n++) {
        PyObject *call = PyTuple_GET_ITEM(calls->calls, n);
        result = guarded_call(call, values, flags, NULL);
        if (result == NULL || result != ((Guarded *)call)->miss)
            break;
        Py_CLEAR(result);
    }
    for (Py_ssize_t n = 0; n < parameters; n++)
        Py_XDECREF(values[n]);
    return result;
}

/* The Calls of an object; `first` becomes what its forward is called with. */
static PyObject *find_calls(Caller *self, PyObject *object, PyObject **first)
{
    PyObject *compiled = Py_NewRef(object);
    if (self->compiled_name) {
        *first = PyObject_GetAttr(object, self->original_name);
        Py_SETREF(compiled, *first ? PyObject_GetAttr(object, self->compiled_name) : NULL);
    }
    PyObject *calls = compiled ? PyObject_GetAttr(compiled, self->calls_name) : NULL;
    Py_XDECREF(compiled);
    if (calls && Py_IS_TYPE(calls, &Calls_Type))
        return calls;
    Py_XDECREF(calls);
    return NULL;
}

/* The calls that a result of the class Step stands for. */
static PyObject *go_on(PyObject *step)
{
    PyObject *result = PyObject_CallOneArg(run_steps, step);
    Py_DECREF(step);
    return result;
}

static PyObject *caller_call(PyObject *object, PyObject *const *arguments, size_t flags,
                             PyObject *names)
{
    Caller *self = (Caller *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    Py_ssize_t all = count + (names ? PyTuple_GET_SIZE(names) : 0);
    PyObject *given[MOST_PARAMETERS], *first = NULL, *result = NULL;
    if (count >= 1 && all <= MOST_PARAMETERS) {
        PyObject *calls = find_calls(self, arguments[0], &first);
        if (calls && first) {
            memcpy(given, arguments, (size_t)all * sizeof(PyObject *));
            given[0] = first;
            result = try_calls((Calls *)calls, given, count, names);
        }
        else if (calls)
            result = try_calls((Calls *)calls, arguments + 1, count - 1, names);
        Py_XDECREF(calls);
        Py_XDECREF(first);
        if (result)
            return Py_TYPE(result) == step_class ? go_on(result) : result;
        if (PyErr_Occurred() && !(calls == NULL && raised() == 0))
            return NULL;
    }
    return PyObject_Vectorcall(self->twin, arguments, flags, names);
}

static void calls_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((Calls *)object)->spec);
    PyObject_GC_Del(object);
}

static int calls_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Calls *)object)->spec);
    return 0;
}

static PyTypeObject Calls_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "plait_guards.Calls",
    .tp_basicsize = sizeof(Calls),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = calls_traverse,
    .tp_dealloc = calls_dealloc,
};

/* calls(function, its code, names, numbers of parameters by kind, *args, **kwargs, calls) */
static PyObject *calls_new(PyObject *module, PyObject *spec)
{
    PyObject *function, *code, *names, *calls;
    Py_ssize_t positional_only, positional, keyword_only;
    int more, keywords;
    if (!PyArg_ParseTuple(spec, "O!OO!nnnppO!", &PyFunction_Type, &function, &code, &PyTuple_Type,
                          &names, &positional_only, &positional, &keyword_only, &more, &keywords,
                          &PyTuple_Type, &calls))
        return NULL;
    if (PyTuple_GET_SIZE(names) > MOST_PARAMETERS)
        Py_RETURN_NONE;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(calls); n++)
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(calls, n), &Guarded_Type))
            Py_RETURN_NONE;
    Calls *self = PyObject_GC_New(Calls, &Calls_Type);
    if (self == NULL)
        return NULL;
    self->spec = Py_NewRef(spec);
    self->function = (PyFunctionObject *)function;
    self->code = code;
    self->names = names;
    self->positional_only = positional_only;
    self->positional = positional;
    self->keyword_only = keyword_only;
    self->takes_more = more;
    self->takes_keywords = keywords;
    self->calls = calls;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* Whoever inspects a Caller (its signature, name, documentation) finds the twin's. */
static PyObject *caller_attribute(PyObject *object, PyObject *name)
{
    return PyObject_GetAttr(((Caller *)object)->twin, name);
}

static PyObject *caller_get(PyObject *object, PyObject *instance, PyObject *owner)
{
    return instance ? PyMethod_New(object, instance) : Py_NewRef(object);
}

static int caller_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Caller *)object)->twin);
    return 0;
}

static void caller_dealloc(PyObject *object)
{
    Caller *self = (Caller *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->twin);
    Py_XDECREF(self->compiled_name);
    Py_XDECREF(self->original_name);
    Py_XDECREF(self->calls_name);
    PyObject_GC_Del(object);
}

static PyTypeObject Caller_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "plait_guards.Caller",
    .tp_basicsize = sizeof(Caller),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Caller, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_getattro = caller_attribute,
    .tp_descr_get = caller_get,
    .tp_traverse = caller_traverse,
    .tp_dealloc = caller_dealloc,
};

/* caller(twin, name of calls[, name of compiled, name of original]) */
static PyObject *caller_new(PyObject *module, PyObject *arguments)
{
    PyObject *twin, *calls, *compiled = NULL, *original = NULL;
    if (!PyArg_ParseTuple(arguments, "OU|UU", &twin, &calls, &compiled, &original))
        return NULL;
    Caller *self = PyObject_GC_New(Caller, &Caller_Type);
    if (self == NULL)
        return NULL;
    self->vectorcall = caller_call;
    self->twin = Py_NewRef(twin);
    self->calls_name = Py_NewRef(calls);
    self->compiled_name = Py_XNewRef(compiled);
    self->original_name = Py_XNewRef(original);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}
