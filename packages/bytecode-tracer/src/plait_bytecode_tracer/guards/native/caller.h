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

/* A slot of Python's (`__slots__`) in objects of a class. */
typedef struct {
    PyTypeObject *cls; /* NULL: there is none */
    Py_ssize_t offset;
} Slot;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *twin;
    PyObject *slots; /* owns what these three are of */
    Slot calls;      /* of a compiled function, its Calls */
    Slot compiled;   /* of a module, its compiled function; or none */
    Slot original;   /* of a module, what its forward is called with */
} Caller;

enum { MOST_PARAMETERS = 48 };

static PyTypeObject Calls_Type, Caller_Type;
static PyObject *call_name; /* "__call__" */

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

/* Try each of these; NULL without an exception where none fits. */
static PyObject *try_each(Calls *calls, PyObject *const *values)
{
    size_t count = (size_t)PyTuple_GET_SIZE(calls->names);
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(calls->calls); n++) {
        PyObject *call = PyTuple_GET_ITEM(calls->calls, n);
        PyObject *result = guarded_call(call, values, count, NULL);
        if (result == NULL || result != ((Guarded *)call)->miss)
            return result;
        Py_DECREF(result);
    }
    return NULL;
}

static PyObject *try_calls(Calls *calls, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t parameters = PyTuple_GET_SIZE(calls->names);
    if (calls->function->func_code != calls->code || may_be_watched(calls->code))
        return NULL;
    if (names == NULL && count == calls->positional && count == parameters)
        return try_each(calls, given); /* the caller holds them */
    PyObject *values[MOST_PARAMETERS] = {NULL};
    int bound = bind_positional(calls, given, count, values) &&
                bind_keywords(calls, given + count, names, values) &&
                bind_defaults(calls, values);
    PyObject *result = bound ? try_each(calls, values) : NULL;
    for (Py_ssize_t n = 0; n < parameters; n++)
        Py_XDECREF(values[n]);
    return result;
}

/* The calls that a result of the class Step stands for. */
static PyObject *go_on(PyObject *step)
{
    PyObject *result = PyObject_CallOneArg(run_steps, step);
    Py_DECREF(step);
    return result;
}

/* What is in a slot, borrowed; NULL where there is nothing, or no such slot. */
static inline PyObject *content(Slot *slot, PyObject *object)
{
    if (!PyObject_TypeCheck(object, slot->cls))
        return NULL;
    return *(PyObject **)((char *)object + slot->offset);
}

/* Call the object with its Calls; NULL without an exception where these do not answer.
 * `given`: one free place, where a module's first argument goes, and then the arguments. */
static PyObject *answer(Caller *self, PyObject *object, PyObject **given, Py_ssize_t count,
                        PyObject *names)
{
    PyObject *compiled = object, *first = NULL, **values = given + 1;
    if (self->compiled.cls) {
        compiled = content(&self->compiled, object);
        first = content(&self->original, object);
        if (compiled == NULL || first == NULL)
            return NULL;
        values = given;
        *values = first;
        count++;
    }
    PyObject *calls = content(&self->calls, compiled);
    if (calls == NULL || !Py_IS_TYPE(calls, &Calls_Type))
        return NULL;
    Py_INCREF(calls);
    Py_XINCREF(first);
    PyObject *result = try_calls((Calls *)calls, values, count, names);
    Py_XDECREF(first);
    Py_DECREF(calls);
    return result && Py_TYPE(result) == step_class ? go_on(result) : result;
}

static PyObject *caller_call(PyObject *object, PyObject *const *arguments, size_t flags,
                             PyObject *names)
{
    Caller *self = (Caller *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    Py_ssize_t all = count + (names ? PyTuple_GET_SIZE(names) : 0);
    PyObject *given[MOST_PARAMETERS + 1], *result = NULL;
    if (count >= 1 && all <= MOST_PARAMETERS) {
        memcpy(given + 1, arguments + 1, (size_t)(all - 1) * sizeof(PyObject *));
        result = answer(self, arguments[0], given, count - 1, names);
        if (result || PyErr_Occurred())
            return result;
    }
    return PyObject_Vectorcall(self->twin, arguments, flags, names);
}

/* `tp_call` of classes that have a Caller for `__call__`: Python's own would look it up and
 * come to `caller_call`. Python sets its own again where someone sets another `__call__`. */
static PyObject *called(PyObject *object, PyObject *arguments, PyObject *keywords)
{
    PyObject *caller = _PyType_Lookup(Py_TYPE(object), call_name);
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    PyObject *given[MOST_PARAMETERS + 1], *next = caller;
    if (caller == NULL || !Py_IS_TYPE(caller, &Caller_Type)) {
        PyErr_SetString(PyExc_SystemError, "a class lost its caller");
        return NULL;
    }
    Py_INCREF(caller);
    PyObject *result = NULL;
    if (count <= MOST_PARAMETERS && (keywords == NULL || PyDict_GET_SIZE(keywords) == 0)) {
        for (Py_ssize_t n = 0; n < count; n++)
            given[n + 1] = PyTuple_GET_ITEM(arguments, n);
        result = answer((Caller *)caller, object, given, count, NULL);
        next = ((Caller *)caller)->twin;
    }
    if (result == NULL && !PyErr_Occurred()) {
        PyObject *method = PyMethod_New(next, object);
        result = method ? PyObject_Call(method, arguments, keywords) : NULL;
        Py_XDECREF(method);
    }
    Py_DECREF(caller);
    return result;
}

/* call_quickly(class): objects of a class that has a Caller for `__call__` call it at once. */
static PyObject *call_quickly(PyObject *module, PyObject *cls)
{
    int is_mine = PyType_Check(cls) && PyType_HasFeature((PyTypeObject *)cls, Py_TPFLAGS_HEAPTYPE);
    PyObject *caller = is_mine ? _PyType_Lookup((PyTypeObject *)cls, call_name) : NULL;
    if (caller == NULL || !Py_IS_TYPE(caller, &Caller_Type)) {
        PyErr_SetString(PyExc_TypeError, "the class has no caller");
        return NULL;
    }
    ((PyTypeObject *)cls)->tp_call = called;
    Py_RETURN_NONE;
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
    Py_VISIT(((Caller *)object)->slots);
    return 0;
}

static void caller_dealloc(PyObject *object)
{
    Caller *self = (Caller *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->twin);
    Py_XDECREF(self->slots);
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

static int find_slot(Slot *slot, PyObject *member)
{
    if (member == NULL)
        return 0;
    if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) {
        PyErr_SetString(PyExc_TypeError, "not a slot of a class");
        return -1;
    }
    *slot = (Slot){PyDescr_TYPE(member), ((PyMemberDescrObject *)member)->d_member->offset};
    return 0;
}

/* caller(twin, slot of calls[, slot of the compiled function, slot of the original]): the slots
 * as their classes hold them. */
static PyObject *caller_new(PyObject *module, PyObject *arguments)
{
    PyObject *twin, *calls, *compiled = NULL, *original = NULL;
    if (!PyArg_ParseTuple(arguments, "OO|OO", &twin, &calls, &compiled, &original))
        return NULL;
    Caller *self = PyObject_GC_New(Caller, &Caller_Type);
    if (self == NULL)
        return NULL;
    self->vectorcall = caller_call;
    self->twin = Py_NewRef(twin);
    self->slots = Py_NewRef(arguments);
    self->calls = self->compiled = self->original = (Slot){NULL, 0};
    PyObject_GC_Track(self);
    if (find_slot(&self->calls, calls) < 0 || find_slot(&self->compiled, compiled) < 0 ||
        find_slot(&self->original, original) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}
