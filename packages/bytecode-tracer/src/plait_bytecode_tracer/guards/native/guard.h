/* Guards, one by one: tensors, storage, and all other kinds. */

/* `pinned`: the value is the very object that passed before. Then its sign bit is read
 * again only if it has come to lie elsewhere in memory, or `may_negate`. A tensor object
 * gets or loses the bit only by having another tensor put into it (`.data = `). */
enum { LOOSE, PINNED, QUICK }; /* quick: fail rather than let other threads run meanwhile */

/* Whether a tensor of these facts can be a negated view of the memory that it had before:
 * of the imaginary part of conjugated complex numbers, which lie two by two. */
static int negates_in_place(Facts *facts)
{
    enum { FLOAT = 2 };
    if (facts->dtype.code != FLOAT || !facts->is_exact)
        return facts->dtype.code == FLOAT;
    for (int32_t n = 0; n < facts->ndim; n++)
        if (facts->shape[n] > 1 && facts->shape[facts->ndim + n] % 2)
            return 0;
    return 1;
}

static int has_sizes(Facts *facts, DLTensor *found)
{
    int32_t count = facts->ndim;
    if (facts->is_exact) {
        int32_t n = 0; /* most often one or two: not worth a call of memcmp */
        while (n < count && found->shape[n] == facts->shape[n] &&
               found->strides[n] == facts->shape[count + n])
            n++;
        return n == count;
    }
    int64_t *low = facts->shape, *high = facts->shape + 2 * count;
    for (int32_t n = 0; n < count; n++)
        if (found->shape[n] < low[n] || found->shape[n] > high[n] ||
            found->strides[n] < low[count + n] || found->strides[n] > high[count + n])
            return 0;
    return 1;
}

static inline int check_tensor(Check *check, Facts *facts, PyObject *value, int pinned, void **data)
{
    DLTensor found;
    if (Py_TYPE(value) != facts->cls)
        return 0;
    if (exchange->describe(value, &found) != 0)
        return raised();
    if (memcmp(&found.dtype, &facts->dtype, sizeof(DLDataType)) != 0 ||
        found.ndim != facts->ndim || found.device.device_type != facts->device.device_type ||
        found.device.device_id != facts->device.device_id)
        return 0;
    if (!has_sizes(facts, &found))
        return 0;
    if (facts->requires_grad >= 0) {
        PyObject *needs = requires_grad_get(value, requires_grad_closure);
        if (needs == NULL)
            return raised();
        Py_DECREF(needs);
        if ((needs == Py_True) != facts->requires_grad)
            return 0;
    }
    int held;
    if (facts->is_complex && (held = returns_false(is_conj_method, value)) <= 0)
        return held;
    int is_known = pinned && facts->last == value && facts->last_data == found.data;
    if (pinned == QUICK ? !is_known : !is_known || facts->may_negate) {
        if (pinned == QUICK)
            return 0;
        if ((held = returns_false(is_neg_method, value)) <= 0)
            return held;
        if (check->remembers) {
            facts->last = value;
            facts->last_data = found.data;
        }
    }
    *data = found.data;
    return 1;
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

static int check_guard(Check *check, Guard *guard, Node *node, PyObject *value, int pinned)
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
        int held = check_tensor(check, guard->facts, value, pinned, &data);
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
        int held = check_guard(check, &check->tree->guards[n], NULL, NULL, 0);
        if (held <= 0) {
            check->failed = n;
            return held;
        }
    }
    return 1;
}
