/* Reading values, and comparing them with what guards expect. */

/* What raised: 0 where it is an Exception, which counts as a failed guard; else -1. */
static int raised(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

static int truth_of(PyObject *result)
{
    if (result == NULL)
        return raised();
    int truth = PyObject_IsTrue(result);
    Py_DECREF(result);
    return truth < 0 ? raised() : truth;
}

/* Reading. Each returns a new reference, or NULL with an exception. */

static PyObject *call_python(Check *check, PyObject *function, PyObject *value)
{
    PyObject *small[16];
    Py_ssize_t count = check->tree->argument_count;
    PyObject **given = small;
    if (count + 2 > 16 && !(given = PyMem_Malloc((size_t)(count + 2) * sizeof(PyObject *))))
        return PyErr_NoMemory();
    given[1] = value ? value : Py_None;
    for (Py_ssize_t n = 0; n < count; n++)
        given[n + 2] = check->arguments[n];
    size_t flags = (size_t)(count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET;
    PyObject *result = PyObject_Vectorcall(function, given + 1, flags, NULL);
    if (given != small)
        PyMem_Free(given);
    return result;
}

static PyObject *read_item(Node *node, PyObject *base)
{
    PyObject *found = NULL;
    if (reads_as_dict(base)) {
        found = PyDict_GetItemWithError(base, node->key);
        if (found)
            return Py_NewRef(found);
        if (PyErr_Occurred())
            return NULL;
    }
    else if (node->index >= 0) {
        if (PyTuple_CheckExact(base) && node->index < PyTuple_GET_SIZE(base))
            return Py_NewRef(PyTuple_GET_ITEM(base, node->index));
        if (PyList_CheckExact(base) && node->index < PyList_GET_SIZE(base))
            return Py_NewRef(PyList_GET_ITEM(base, node->index));
    }
    return PyObject_GetItem(base, node->key);
}

/* What a dict holds under an object: a borrowed reference; NULL, with an exception or without. */
static PyObject *look_up(PyObject *dict, PyObject *key)
{
    PyTypeObject *type = Py_TYPE(key);
    if ((type == tensor_class || type == parameter_class) &&
        _PyType_Lookup(type, hash_name) == tensor_hash)
        return _PyDict_GetItem_KnownHash(dict, key, (Py_hash_t)(uintptr_t)key);
    return PyDict_GetItemWithError(dict, key);
}

static PyObject *read_by_key(Check *check, Node *node, PyObject *base)
{
    PyObject *key = check->held[node->index];
    if (!reads_as_dict(base)) /* others compute what they hold, or are asked by a place */
        return PyObject_GetItem(base, key);
    PyObject *found = look_up(base, key);
    if (found || PyErr_Occurred())
        return Py_XNewRef(found);
    if (strcmp(Py_TYPE(base)->tp_name, "collections.defaultdict") != 0)
        return PyObject_GetItem(base, key); /* other classes may have a value all the same */
    PyErr_SetObject(PyExc_KeyError, key); /* which a defaultdict would add */
    return NULL;
}

/* As `count` of readers.py, where the tensor is seen to hold a number as that expects it. */
static PyObject *read_counted(Node *node, PyObject *tensor)
{
    double added = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(node->key, 1));
    double limit = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(node->key, 2));
    Seen seen;
    int is_plain = Py_IS_TYPE(tensor, tensor_class) && read_tensor != NULL &&
                   read_tensor(tensor, &seen) && seen.device == CPU_DEVICE && seen.ndim == 0 &&
                   seen.data != NULL && !seen.is_negated &&
                   (seen.dtype == FLOAT32 || seen.dtype == FLOAT64);
    if (is_plain) {
        double value = seen.dtype == FLOAT32 ? *(float *)seen.data : *(double *)seen.data;
        if (-limit < value && value < limit && value == (double)(int64_t)value)
            return PyFloat_FromDouble(value + added);
    }
    return PyObject_CallOneArg(PyTuple_GET_ITEM(node->key, 0), tensor);
}

static PyObject *read_node(Check *check, Node *node, PyObject *base)
{
    switch (node->access) {
    case ARGUMENT:
        return Py_NewRef(check->arguments[node->index]);
    case CONSTANT:
        return Py_NewRef(node->key);
    case ATTRIBUTE:
        return PyObject_GetAttr(base, node->key);
    case INSTANCE_DICT:
        return PyObject_GenericGetDict(base, NULL);
    case ITEM:
        return read_item(node, base);
    case CELL:
        if (PyCell_Check(base) && PyCell_GET(base))
            return Py_NewRef(PyCell_GET(base));
        PyErr_SetString(PyExc_ValueError, "the cell is empty");
        return NULL;
    case COUNTED:
        return read_counted(node, base);
    case BY_KEY:
        return read_by_key(check, node, base);
    }
    return call_python(check, node->key, base);
}

/* Comparing. Each returns 1, 0, or -1 with an exception that is to leave the call. */

static int equal_floats(double one, double other)
{
    return memcmp(&one, &other, sizeof(double)) == 0;
}

/* As `same_constant` of exact.py. */
static int equal_constants(PyObject *value, PyObject *expected)
{
    PyTypeObject *type = Py_TYPE(expected);
    if (value == expected)
        return 1;
    if (Py_TYPE(value) != type)
        return 0;
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type) {
        int same = PyObject_RichCompareBool(value, expected, Py_EQ);
        return same < 0 ? raised() : same;
    }
    if (type == &PyBool_Type || expected == Py_None)
        return 0;
    if (type == &PyFloat_Type)
        return equal_floats(PyFloat_AS_DOUBLE(value), PyFloat_AS_DOUBLE(expected));
    if (type == &PyTuple_Type) {
        Py_ssize_t count = PyTuple_GET_SIZE(expected);
        if (PyTuple_GET_SIZE(value) != count)
            return 0;
        for (Py_ssize_t n = 0; n < count; n++) {
            PyObject *one = PyTuple_GET_ITEM(value, n), *other = PyTuple_GET_ITEM(expected, n);
            int same = equal_constants(one, other);
            if (same <= 0)
                return same;
        }
        return 1;
    }
    PyObject *pair[3] = {NULL, value, expected};
    size_t flags = 2 | PY_VECTORCALL_ARGUMENTS_OFFSET;
    return truth_of(PyObject_Vectorcall(same_constant, pair + 1, flags, NULL));
}

static int check_length(PyObject *value, PyObject *expected)
{
    Py_ssize_t size = reads_as_dict(value) ? PyDict_GET_SIZE(value) : PyObject_Size(value);
    if (size < 0)
        return raised();
    return size == PyLong_AsSsize_t(expected);
}

static int check_keys(PyObject *value, PyObject *expected)
{
    if (!is_dict(value)) {
        PyObject *pair[3] = {NULL, value, expected};
        size_t flags = 2 | PY_VECTORCALL_ARGUMENTS_OFFSET;
        return truth_of(PyObject_Vectorcall(same_order, pair + 1, flags, NULL));
    }
    if (PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(expected))
        return 0;
    Py_ssize_t place = 0, n = 0;
    PyObject *key, *item;
    while (PyDict_Next(value, &place, &key, &item)) {
        if (n >= PyTuple_GET_SIZE(expected))
            return 0;
        Py_INCREF(key);
        int same = equal_constants(key, PyTuple_GET_ITEM(expected, n++));
        Py_DECREF(key);
        if (same <= 0)
            return same;
    }
    return n == PyTuple_GET_SIZE(expected);
}

static int check_contains(PyObject *value, PyObject *key, int wanted)
{
    int found = is_dict(value) ? PyDict_Contains(value, key) : PySequence_Contains(value, key);
    return found < 0 ? raised() : found == wanted;
}

/* Of an object that another slot holds. */
static int check_has(PyObject *value, PyObject *key, int wanted)
{
    PySequenceMethods *methods = Py_TYPE(value)->tp_as_sequence;
    if (!PyDict_Check(value) || !methods ||
        methods->sq_contains != PyDict_Type.tp_as_sequence->sq_contains)
        return check_contains(value, key, wanted);
    int found = look_up(value, key) != NULL;
    return !found && PyErr_Occurred() ? raised() : found == wanted;
}

static int check_attribute(PyObject *value, PyObject *name, PyObject *expected)
{
    PyObject *found = PyObject_GetAttr(value, name);
    if (found == NULL)
        return raised();
    Py_DECREF(found); /* a singleton, or not what is expected */
    return found == expected;
}

static int check_no_attribute(PyObject *value, PyObject *name)
{
    PyObject *found = NULL;
#if PY_VERSION_HEX < 0x030D0000
    int has = _PyObject_LookupAttr(value, name, &found);
#else
    int has = PyObject_GetOptionalAttr(value, name, &found);
#endif
    Py_XDECREF(found);
    return has < 0 ? raised() : !has;
}

static int check_class_attribute(PyObject *value, PyObject *name, PyObject *expected)
{
    if (!PyType_Check(value))
        return 0;
    PyObject *found = _PyType_Lookup((PyTypeObject *)value, name);
    return found == expected || (found == NULL && expected == absent);
}

static int check_method(PyObject *value, PyObject *function, PyObject *owner)
{
    return Py_IS_TYPE(value, &PyMethod_Type) && PyMethod_GET_FUNCTION(value) == function &&
           PyMethod_GET_SELF(value) == owner;
}

static int is_or_none(PyObject *found, PyObject *expected)
{
    return found == expected || (found == NULL && expected == Py_None);
}

static int check_function(PyObject *value, PyObject *parts)
{
    return PyFunction_Check(value) &&
           PyFunction_GET_CODE(value) == PyTuple_GET_ITEM(parts, 0) &&
           is_or_none(PyFunction_GET_DEFAULTS(value), PyTuple_GET_ITEM(parts, 1)) &&
           is_or_none(PyFunction_GET_KW_DEFAULTS(value), PyTuple_GET_ITEM(parts, 2));
}

/* As `array_format` of kinds.py. */
static int check_array(PyObject *value, PyObject *format)
{
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_FULL_RO) < 0)
        return raised();
    const char *found = view.format ? view.format : "B";
    int held = !view.readonly && PyUnicode_CompareWithASCIIString(format, found) == 0;
    PyBuffer_Release(&view);
    return held;
}

static int returns_false(PyCFunction method, PyObject *tensor)
{
    PyObject *result = method(tensor, NULL);
    if (result == NULL)
        return raised();
    Py_DECREF(result);
    return result == Py_False;
}
