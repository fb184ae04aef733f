/* Guards, one by one: tensors, storage, and all other kinds. */

static int has_sizes(Facts *facts, const int64_t *shape, const int64_t *strides)
{
    int32_t count = facts->ndim;
    if (facts->is_exact) {
        int32_t n = 0; /* most often one or two: not worth a call of memcmp */
        while (n < count && shape[n] == facts->shape[n] && strides[n] == facts->shape[count + n])
            n++;
        return n == count;
    }
    int64_t *low = facts->shape, *high = facts->shape + 2 * count;
    for (int32_t n = 0; n < count; n++)
        if (shape[n] < low[n] || shape[n] > high[n] || strides[n] < low[count + n] ||
            strides[n] > high[count + n])
            return 0;
    return 1;
}

static inline int matches(Facts *facts, Seen *seen)
{
    return seen->dtype == facts->seen_dtype && seen->device == facts->seen_device &&
           seen->ndim == facts->ndim && !seen->is_negated && !seen->is_conjugated &&
           (facts->requires_grad < 0 || seen->requires_grad == facts->requires_grad) &&
           has_sizes(facts, seen->shape, seen->strides);
}

/* By what torch offers to C: a call for each fact, in which other threads may run. */
static int check_by_calls(Facts *facts, PyObject *value, void **data)
{
    DLTensor found;
    if (exchange->describe(value, &found) != 0)
        return raised();
    if (memcmp(&found.dtype, &facts->dtype, sizeof(DLDataType)) != 0 ||
        found.ndim != facts->ndim || found.device.device_type != facts->device.device_type ||
        found.device.device_id != facts->device.device_id ||
        !has_sizes(facts, found.shape, found.strides))
        return 0;
    *data = found.data;
    if (facts->requires_grad >= 0) {
        PyObject *needs = requires_grad_get(value, requires_grad_closure);
        if (needs == NULL)
            return raised();
        Py_DECREF(needs);
        if ((needs == Py_True) != facts->requires_grad)
            return 0;
    }
    int held = facts->is_complex ? returns_false(is_conj_method, value) : 1;
    return held > 0 ? returns_false(is_neg_method, value) : held;
}

static inline int check_tensor(Facts *facts, PyObject *value, void **data)
{
    Seen seen;
    if (Py_TYPE(value) != facts->cls)
        return 0;
    if (!facts->is_readable || !read_tensor(value, &seen))
        return check_by_calls(facts, value, data);
    *data = seen.data;
    return matches(facts, &seen);
}

/* What the guard's slots hold: addresses to compare with later ones, never followed. */
static void remember_all(Guard *guard, void **held)
{
    if (guard->last_data == NULL) {
        size_t count = (size_t)guard->slot_count;
        guard->last_data = PyMem_Malloc((count ? count : 1) * sizeof(void *));
    }
    for (Py_ssize_t n = 0; guard->last_data && n < guard->slot_count; n++)
        guard->last_data[n] = held[guard->slots[n]];
}

/* Tensors of the same metadata in the same places share memory as they did before. */
static int check_storage(Check *check, Guard *guard)
{
    int same = guard->by_itself && guard->last_data != NULL;
    for (Py_ssize_t n = 0; same && n < guard->slot_count; n++)
        same = guard->last_data[n] == check->data[guard->slots[n]];
    if (same && check->remembers)
        return 1;
    PyObject *tensors = PyTuple_New(guard->slot_count);
    if (tensors == NULL)
        return raised();
    for (Py_ssize_t n = 0; n < guard->slot_count; n++)
        PyTuple_SET_ITEM(tensors, n, Py_NewRef(check->held[guard->slots[n]]));
    PyObject *pattern = PyObject_CallOneArg(storage_pattern, tensors);
    Py_DECREF(tensors);
    if (pattern == NULL)
        return raised();
    int held = equal_constants(pattern, guard->expected);
    Py_DECREF(pattern);
    if (held <= 0 || !check->remembers)
        return held;
    remember_all(guard, check->data);
    return 1;
}

static int compare_addresses(const void *one, const void *other)
{
    uintptr_t first = (uintptr_t) * (PyObject *const *)one;
    uintptr_t second = (uintptr_t) * (PyObject *const *)other;
    return (first > second) - (first < second);
}

/* No two of the values are one object. */
static int check_distinct(Check *check, Guard *guard)
{
    size_t count = (size_t)guard->slot_count;
    int same = guard->last_data != NULL;
    for (size_t n = 0; same && n < count; n++)
        same = guard->last_data[n] == check->held[guard->slots[n]];
    if (same && check->remembers)
        return 1;
    PyObject **found = PyMem_Malloc((count ? count : 1) * sizeof(PyObject *));
    if (found == NULL) {
        PyErr_NoMemory();
        return raised();
    }
    for (size_t n = 0; n < count; n++)
        found[n] = check->held[guard->slots[n]];
    qsort(found, count, sizeof(PyObject *), compare_addresses);
    int held = 1;
    for (size_t n = 1; held && n < count; n++)
        held = found[n - 1] != found[n];
    PyMem_Free(found);
    if (held && check->remembers)
        remember_all(guard, (void **)check->held);
    return held;
}

/* A function of Python is true of the values. */
static int check_function_of(Check *check, Guard *guard)
{
    size_t count = (size_t)guard->slot_count;
    PyObject **given = PyMem_Malloc((count + 1) * sizeof(PyObject *));
    if (given == NULL) {
        PyErr_NoMemory();
        return raised();
    }
    for (size_t n = 0; n < count; n++)
        given[n + 1] = check->held[guard->slots[n]];
    size_t flags = count | PY_VECTORCALL_ARGUMENTS_OFFSET;
    PyObject *result = PyObject_Vectorcall(guard->expected, given + 1, flags, NULL);
    PyMem_Free(given);
    return truth_of(result);
}

/* What a mode's function returns: a tuple of it and what it is called with. */
static PyObject *ask(Guard *guard)
{
    PyObject *function = PyTuple_GET_ITEM(guard->expected, 0);
    if (guard->ask)
        return guard->ask(PyCFunction_GET_SELF(function), NULL);
    Py_ssize_t count = PyTuple_GET_SIZE(guard->expected) - 1;
    PyObject *const *given = &PyTuple_GET_ITEM(guard->expected, 1);
    return PyObject_Vectorcall(function, given, (size_t)count, NULL);
}

static int check_guard(Check *check, Guard *guard, Node *node, PyObject *value)
{
    void *data = NULL;
    switch (guard->kind) {
    case IDENTITY:
        return value == guard->expected;
    case TYPE:
        return (PyObject *)Py_TYPE(value) == guard->expected;
    case EQUAL:
        return equal_constants(value, guard->expected);
    case LENGTH:
        return check_length(value, guard->expected);
    case KEYS:
        return check_keys(value, guard->expected);
    case LACKS:
        return check_contains(value, guard->expected, 0);
    case HAS:
        return check_contains(value, guard->expected, 1);
    case NO_ATTRIBUTE:
        return check_no_attribute(value, guard->expected);
    case CLASS_ATTRIBUTE:
        return check_class_attribute(value, guard->expected, guard->second);
    case METHOD:
        return check_method(value, guard->expected, guard->second);
    case FUNCTION:
        return check_function(value, guard->expected);
    case TENSOR: {
        int held = check_tensor(guard->facts, value, &data);
        if (node->slot >= 0)
            check->data[node->slot] = data;
        return held;
    }
    case ARRAY:
        return check_array(value, guard->expected);
    case SAME_OBJECT:
        return check->held[guard->slots[0]] == check->held[guard->slots[1]];
    case STORAGE_PATTERN:
        return check_storage(check, guard);
    case RELATION:
        return check_relation(check, guard);
    case DISTINCT:
        return check_distinct(check, guard);
    case CONTAINS:
        return check_has(value, check->held[guard->slots[0]], guard->expected == Py_True);
    case ATTRIBUTE_IS:
        return check_attribute(value, guard->expected, guard->second);
    case HOLDS:
        return check_function_of(check, guard);
    case MODE: {
        PyObject *now = ask(guard);
        if (now == NULL)
            return raised();
        int held = equal_constants(now, guard->second);
        Py_DECREF(now);
        return held;
    }
    }
    return truth_of(call_python(check, guard->expected, value));
}

static int check_numbered(Check *check, Py_ssize_t begin, Py_ssize_t end)
{
    for (Py_ssize_t n = begin; n < end; n++) {
        int held = check_guard(check, &check->tree->guards[n], NULL, NULL);
        if (held <= 0) {
            check->failed = n;
            return held;
        }
    }
    return 1;
}
