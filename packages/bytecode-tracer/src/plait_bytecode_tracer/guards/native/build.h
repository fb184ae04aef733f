/* Building. */

static Node **node_list(Guarded *self, PyObject *tuple, Py_ssize_t *count)
{
    *count = PyTuple_GET_SIZE(tuple);
    Node **made = array(*count, sizeof(Node *));
    for (Py_ssize_t n = 0; made && n < *count; n++)
        made[n] = &self->nodes[number(tuple, n)];
    return made;
}

static int build_node(Guarded *self, Node *node, PyObject *spec)
{
    node->access = (int)number(spec, 0);
    node->key = PyTuple_GET_ITEM(spec, 1);
    node->index = number(spec, 2);
    node->slot = number(spec, 3);
    node->first_guard = number(spec, 4);
    node->guards_begin = number(spec, 5);
    node->guards_end = number(spec, 6);
    node->has_version = (int)number(spec, 7);
    node->children = node_list(self, PyTuple_GET_ITEM(spec, 8), &node->child_count);
    node->unsettled = node_list(self, PyTuple_GET_ITEM(spec, 9), &node->unsettled_count);
    return node->children && node->unsettled ? 0 : -1;
}

static Facts *build_facts(PyObject *spec)
{
    PyObject *shape = PyTuple_GET_ITEM(spec, 8), *strides = PyTuple_GET_ITEM(spec, 9);
    PyObject *high = PyTuple_GET_ITEM(spec, 12);
    size_t sizes = 4 * (size_t)PyTuple_GET_SIZE(shape) * sizeof(int64_t);
    Facts *facts = array(1, sizeof(Facts) + sizes);
    if (facts == NULL)
        return NULL;
    facts->is_exact = PyTuple_GET_SIZE(high) == 0;
    facts->cls = (PyTypeObject *)PyTuple_GET_ITEM(spec, 0);
    facts->dtype.code = (uint8_t)number(spec, 1);
    facts->dtype.bits = (uint8_t)number(spec, 2);
    facts->dtype.lanes = (uint16_t)number(spec, 3);
    facts->device.device_type = (int32_t)number(spec, 4);
    facts->device.device_id = (int32_t)number(spec, 5);
    facts->seen_dtype = (int32_t)number(spec, 6);
    facts->seen_device = (int32_t)number(spec, 7);
    facts->is_readable = read_tensor != NULL && facts->seen_dtype >= 0;
    facts->ndim = (int32_t)PyTuple_GET_SIZE(shape);
    facts->is_complex = (int8_t)number(spec, 10);
    facts->requires_grad = (int8_t)number(spec, 11);
    for (int32_t n = 0; n < facts->ndim; n++) {
        facts->shape[n] = (int64_t)number(shape, n);
        facts->shape[facts->ndim + n] = (int64_t)number(strides, n);
    }
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(high); n++)
        facts->shape[2 * facts->ndim + n] = (int64_t)number(high, n);
    return facts;
}

/* What a call without arguments of a builtin function runs, of a mode's tuple; or NULL. */
static PyCFunction builtin_of(PyObject *called)
{
    PyObject *function = PyTuple_GET_ITEM(called, 0);
    int is_plain = PyTuple_GET_SIZE(called) == 1 && PyCFunction_CheckExact(function) &&
                   PyCFunction_GET_FLAGS(function) == METH_NOARGS;
    return is_plain ? PyCFunction_GET_FUNCTION(function) : NULL;
}

static int build_guard(Guard *guard, PyObject *spec)
{
    guard->kind = (int)number(spec, 0);
    guard->by_holder = (int)number(spec, 1);
    guard->by_itself = (int)number(spec, 2);
    guard->expected = PyTuple_GET_ITEM(spec, 3);
    guard->second = PyTuple_GET_ITEM(spec, 4);
    guard->slots = numbers(PyTuple_GET_ITEM(spec, 5), &guard->slot_count);
    if (guard->kind == MODE)
        guard->ask = builtin_of(guard->expected);
    if (guard->kind == TENSOR)
        guard->facts = build_facts(guard->expected);
    if (guard->kind == RELATION && guard->expected != Py_None)
        guard->program = build_program(guard->expected);
    return PyErr_Occurred() ? -1 : 0;
}

static int build_tree(Guarded *self, PyObject *nodes, PyObject *guards, PyObject *roots)
{
    self->nodes = array(PyTuple_GET_SIZE(nodes), sizeof(Node));
    self->guards = array(PyTuple_GET_SIZE(guards), sizeof(Guard));
    if (self->nodes == NULL || self->guards == NULL)
        return -1;
    self->node_count = PyTuple_GET_SIZE(nodes);
    self->guard_count = PyTuple_GET_SIZE(guards);
    for (Py_ssize_t n = 0; n < self->node_count; n++)
        if (build_node(self, &self->nodes[n], PyTuple_GET_ITEM(nodes, n)) < 0)
            return -1;
    for (Py_ssize_t n = 0; n < self->guard_count; n++)
        if (build_guard(&self->guards[n], PyTuple_GET_ITEM(guards, n)) < 0)
            return -1;
    self->roots = node_list(self, roots, &self->root_count);
    self->loose = array(self->root_count, sizeof(Node *));
    self->patience = TRUST;
    return self->roots && self->loose ? 0 : -1;
}

static PyTypeObject Guarded_Type;

/* guarded(tree, call): see flatten.py. */
static PyObject *guarded_new(PyObject *module, PyObject *spec)
{
    PyObject *nodes, *guards, *roots, *graph, *inputs, *body, *reads, *miss, *failed;
    Guarded *self = PyObject_GC_New(Guarded, &Guarded_Type);
    if (self == NULL)
        return NULL;
    size_t head = offsetof(Guarded, vectorcall);
    memset((char *)self + head, 0, sizeof(Guarded) - head);
    self->vectorcall = guarded_call;
    self->spec = Py_NewRef(spec);
    PyObject_GC_Track(self);
    if (!PyArg_ParseTuple(spec, "O!O!O!nnnnOO!OnO!OO", &PyTuple_Type, &nodes, &PyTuple_Type,
                          &guards, &PyTuple_Type, &roots, &self->mode_count, &self->last_begin,
                          &self->argument_count, &self->slot_count, &graph, &PyTuple_Type,
                          &inputs, &body, &self->direct, &PyTuple_Type, &reads, &miss, &failed) ||
        build_tree(self, nodes, guards, roots) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->graph = graph == Py_None ? NULL : graph;
    self->body = body == Py_None ? NULL : body;
    self->miss = miss;
    self->failed = failed == Py_None ? NULL : failed;
    self->inputs = numbers(inputs, &self->input_count);
    self->reads = numbers(reads, &self->read_count);
    if (self->inputs == NULL || self->reads == NULL || PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    self->in_order = 1;
    for (Py_ssize_t n = 0; n < self->input_count; n++)
        self->in_order &= self->inputs[n] == n;
    return (PyObject *)self;
}

static int guarded_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((Guarded *)object)->pinned);
    Py_VISIT(((Guarded *)object)->spec);
    return 0;
}

/* No tp_clear: what the spec refers to breaks its own cycles, as it does for a tuple. */
static void guarded_dealloc(PyObject *object)
{
    Guarded *self = (Guarded *)object;
    PyObject_GC_UnTrack(object);
    for (Py_ssize_t n = 0; n < self->node_count; n++) {
        PyMem_Free(self->nodes[n].children);
        PyMem_Free(self->nodes[n].unsettled);
        forget_watched(&self->nodes[n]);
    }
    for (Py_ssize_t n = 0; n < self->guard_count; n++) {
        PyMem_Free(self->guards[n].facts);
        free_program(self->guards[n].program);
        PyMem_Free(self->guards[n].slots);
        PyMem_Free(self->guards[n].last_data);
    }
    forget_short_way(self);
    void *arrays[] = {self->nodes, self->guards, self->roots, self->spare,   self->inputs,
                      self->reads, self->steps,  self->loose, self->standing};
    for (size_t n = 0; n < sizeof(arrays) / sizeof(arrays[0]); n++)
        PyMem_Free(arrays[n]);
    Py_XDECREF(self->spec);
    PyObject_GC_Del(object);
}

static PyMethodDef guarded_methods[] = {
    {"check", (PyCFunction)(void (*)(void))guarded_check, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject Guarded_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "plait_guards.Guarded",
    .tp_basicsize = sizeof(Guarded),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Guarded, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = guarded_traverse,
    .tp_dealloc = guarded_dealloc,
    .tp_methods = guarded_methods,
};
