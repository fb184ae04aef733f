/* The short way.
 *
 * When a tree has passed, what must still be checked is mostly a few words here and there:
 * that an object's dict is the same, a dict's version, that a dict of hooks is empty, a
 * class, a tensor. The short way is a list of these. Its objects are borrowed: each is held
 * by a constant, an argument, or something that a step before it has just found unchanged,
 * and no step lets other code run. Where an object is known by its address, it is pinned, so
 * that no other can have taken its place: immutable constants are held, others have a weak
 * reference that must still be alive, and what can have none has no short way. Roots that cannot be checked so are visited first.
 * Where the short way fails, nothing is said yet: the tree is checked in full. */

enum StepKind {
    ARGUMENT_IS,
    DICT_OF,
    DICT_VERSION,
    CLASS_VERSION,
    TYPE_OF,
    DICT_LENGTH,
    LIST_LENGTH,
    LIST_ITEM,
    CELL_CONTENT,
    FUNCTION_OF,
    TENSOR_OF,
    STILL_ALIVE,
    KEEP
};

typedef struct Step {
    uint8_t kind;
    int32_t slot;
    PyObject *object;
    void *other;
    uint64_t number;
} Step;

static inline PyObject *dict_of(PyObject *object)
{
#if PY_VERSION_HEX < 0x030D0000
    PyObject **place = _PyObject_GetDictPtr(object);
    return place ? *place : NULL;
#else
    PyObject *found = PyObject_GenericGetDict(object, NULL);
    if (found == NULL)
        PyErr_Clear();
    Py_XDECREF(found); /* the object holds it */
    return found;
#endif
}

static inline int is_current(Step *step)
{
#if PY_VERSION_HEX < 0x030C0000
    return ((PyDictObject *)step->object)->ma_version_tag == step->number;
#else
    Watched *watched = step->other;
    return watched->dict == step->object && watched->version == step->number;
#endif
}

static int take_step(Check *check, Step *step)
{
    PyObject *object = step->object;
    switch (step->kind) {
    case ARGUMENT_IS:
        return check->arguments[step->number] == object;
    case DICT_OF:
        return dict_of(object) == step->other;
    case DICT_VERSION:
        return is_current(step);
    case CLASS_VERSION:
        return class_version(object) == step->number;
    case TYPE_OF:
        return (void *)Py_TYPE(object) == step->other;
    case DICT_LENGTH:
        return (uint64_t)PyDict_GET_SIZE(object) == step->number;
    case LIST_LENGTH:
        return (uint64_t)PyList_GET_SIZE(object) == step->number;
    case LIST_ITEM: {
        PyObject *list = step->other;
        return step->number < (uint64_t)PyList_GET_SIZE(list) &&
               PyList_GET_ITEM(list, step->number) == object;
    }
    case CELL_CONTENT:
        return PyCell_GET((PyObject *)step->other) == object;
    case FUNCTION_OF:
        return check_function(object, step->other);
    case STILL_ALIVE:
        return PyWeakref_GET_OBJECT((PyObject *)step->other) == object;
    case TENSOR_OF: {
        void *data = NULL;
        int held = check_tensor(check, step->other, object, QUICK, &data);
        if (held > 0 && step->slot >= 0)
            check->data[step->slot] = data;
        return held;
    }
    }
    Py_XSETREF(check->held[step->slot], Py_NewRef(object));
    return 1;
}

static int add_step(Guarded *tree, uint8_t kind, int32_t slot, PyObject *object, void *other,
                    uint64_t number)
{
    if (tree->step_count == tree->step_room) {
        Py_ssize_t room = 2 * tree->step_room + 64;
        Step *steps = PyMem_Realloc(tree->steps, (size_t)room * sizeof(Step));
        if (steps == NULL)
            return 0;
        tree->steps = steps;
        tree->step_room = room;
    }
    tree->steps[tree->step_count++] = (Step){kind, slot, object, other, number};
    return 1;
}

/* See to it that an object at the same address is the same object. */
static int pin(Guarded *tree, PyObject *value)
{
    int is_constant = value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
                      PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) ||
                      PyBytes_CheckExact(value) || PyComplex_CheckExact(value);
    if (!is_constant && !PyType_SUPPORTS_WEAKREFS(Py_TYPE(value)))
        return 0;
    if (tree->pinned == NULL && (tree->pinned = PyList_New(0)) == NULL)
        return 0;
    PyObject *kept = is_constant ? Py_NewRef(value) : PyWeakref_NewRef(value, NULL);
    int added = kept != NULL && PyList_Append(tree->pinned, kept) == 0;
    if (added && !is_constant)
        added = add_step(tree, STILL_ALIVE, -1, value, kept, 0);
    Py_XDECREF(kept); /* the list holds it */
    PyErr_Clear();
    return added;
}

static int add_length(Guarded *tree, PyObject *value, PyObject *expected)
{
    uint64_t length = (uint64_t)PyLong_AsSsize_t(expected);
    if (PyDict_CheckExact(value) || PyODict_CheckExact(value))
        return add_step(tree, DICT_LENGTH, -1, value, NULL, length);
    if (PyList_CheckExact(value))
        return add_step(tree, LIST_LENGTH, -1, value, NULL, length);
    return PyTuple_CheckExact(value);
}

/* The steps for a node's own guards, of which those need none that its identity settles. */
static int add_guards(Guarded *tree, Node *node, PyObject *value, int unchanged)
{
    for (Py_ssize_t n = node->guards_begin; n < node->guards_end; n++) {
        Guard *guard = &tree->guards[n];
        int added = 0;
        if (guard->by_holder || (unchanged && guard->by_itself))
            continue;
        if (guard->kind == TYPE)
            added = add_step(tree, TYPE_OF, -1, value, guard->expected, 0);
        else if (guard->kind == LENGTH)
            added = add_length(tree, value, guard->expected);
        else if (guard->kind == FUNCTION)
            added = add_step(tree, FUNCTION_OF, -1, value, guard->expected, 0);
        else if (guard->kind == TENSOR && !guard->facts->is_complex) {
            added = add_step(tree, TENSOR_OF, (int32_t)node->slot, value, guard->facts, 0);
            tree->negatable_count += guard->facts->may_negate;
        }
        if (!added)
            return 0;
    }
    return 1;
}

/* The value of a child, with the step that finds it to be the same; NULL where there is none. */
static PyObject *add_reading(Guarded *tree, Node *child, PyObject *value, int unchanged)
{
    PyObject *found = NULL;
    if (child->access == INSTANCE_DICT) {
        found = dict_of(value);
        return found && add_step(tree, DICT_OF, -1, value, found, 0) ? found : NULL;
    }
    if (unchanged) /* of a dict or class that holds all its children's values */
        return child->found;
    if (child->access == CELL && PyCell_Check(value)) {
        found = PyCell_GET(value);
        return found && add_step(tree, CELL_CONTENT, -1, found, value, 0) && pin(tree, found)
                   ? found
                   : NULL;
    }
    if (child->access != ITEM || child->index < 0)
        return NULL;
    if (PyTuple_CheckExact(value) && child->index < PyTuple_GET_SIZE(value))
        return PyTuple_GET_ITEM(value, child->index);
    if (!PyList_CheckExact(value) || child->index >= PyList_GET_SIZE(value))
        return NULL;
    found = PyList_GET_ITEM(value, child->index);
    return add_step(tree, LIST_ITEM, -1, found, value, (uint64_t)child->index) && pin(tree, found)
               ? found
               : NULL;
}

static int add_node(Guarded *tree, Node *node, PyObject *value)
{
    uint64_t version = node->has_version ? version_of(node, value) : 0;
    int unchanged = version != 0 && version == node->version;
    if (unchanged) {
        void *watched = NULL;
#if PY_VERSION_HEX >= 0x030C0000
        watched = node->watched;
#endif
        if (!add_step(tree, is_dict(value) ? DICT_VERSION : CLASS_VERSION, -1, value, watched,
                      version))
            return 0;
    }
    if (!add_guards(tree, node, value, unchanged) ||
        (node->slot >= 0 && !add_step(tree, KEEP, (int32_t)node->slot, value, NULL, 0)))
        return 0;
    Py_ssize_t count = unchanged ? node->unsettled_count : node->child_count;
    Node **children = unchanged ? node->unsettled : node->children;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *found = add_reading(tree, children[n], value, unchanged);
        if (found == NULL || !add_node(tree, children[n], found))
            return 0;
    }
    return 1;
}

enum { TRUST = 64, DISAPPOINTMENT = 8, PROOF = 3 };

static int add_root(Check *check, Node *root)
{
    Guarded *tree = check->tree;
    if (root->access == CONSTANT)
        return add_node(tree, root, root->key);
    int is_same = root->given_again >= PROOF - 1, is_one = 0;
    for (Py_ssize_t n = root->guards_begin; n < root->guards_end; n++)
        is_one |= tree->guards[n].kind == IDENTITY;
    if (root->access != ARGUMENT || !(is_same || is_one))
        return 0;
    PyObject *value = check->arguments[root->index];
    return add_step(tree, ARGUMENT_IS, -1, value, NULL, (uint64_t)root->index) &&
           (is_one || pin(tree, value)) && add_node(tree, root, value);
}

/* After a full check that passed. */
static void find_short_way(Check *check)
{
    Guarded *tree = check->tree;
    tree->step_count = 0;
    tree->loose_count = 0;
    tree->negatable_count = 0;
    Py_CLEAR(tree->pinned);
    for (Py_ssize_t n = 0; n < tree->root_count; n++) {
        Py_ssize_t before = tree->step_count;
        if (!add_root(check, tree->roots[n])) {
            tree->step_count = before;
            tree->loose[tree->loose_count++] = tree->roots[n];
        }
    }
}

/* An argument that is the same object time and again, as a module is, is expected to stay. */
static void note_given(Node *root, PyObject *value)
{
    root->given_again = root->given == value ? root->given_again + 1 : 0;
    root->given = value;
}

static int visit_roots(Check *check, Node **roots, Py_ssize_t count)
{
    int held = 1;
    for (Py_ssize_t n = 0; held > 0 && n < count; n++) {
        PyObject *value = read_node(check, roots[n], NULL);
        if (value == NULL) {
            check->failed = roots[n]->first_guard;
            return raised();
        }
        if (check->remembers)
            note_given(roots[n], value);
        held = visit(check, roots[n], value, 0);
        Py_DECREF(value);
    }
    return held;
}

/* Reading sign bits lets other threads run: it comes last, with the tensors held. */
static int check_signs(Guarded *tree)
{
    PyObject *tensors = PyList_New(0);
    int held = tensors ? 1 : -1;
    for (Py_ssize_t n = 0; held > 0 && n < tree->step_count; n++) {
        Step *step = &tree->steps[n];
        if (step->kind == TENSOR_OF && ((Facts *)step->other)->may_negate)
            held = PyList_Append(tensors, step->object) < 0 ? -1 : 1;
    }
    for (Py_ssize_t n = 0; held > 0 && n < PyList_GET_SIZE(tensors); n++)
        held = returns_false(is_neg_method, PyList_GET_ITEM(tensors, n));
    Py_XDECREF(tensors);
    return held;
}

static int take_steps(Check *check)
{
    Guarded *tree = check->tree;
    int held = 1;
    for (Py_ssize_t n = 0; held > 0 && n < tree->step_count; n++)
        held = take_step(check, &tree->steps[n]);
    return held > 0 && tree->negatable_count ? check_signs(tree) : held;
}

/* In full, but without touching what is remembered. */
static int number_failure(Check *check)
{
    check->remembers = 0;
    int held = visit_roots(check, check->tree->roots, check->tree->root_count);
    check->remembers = 1;
    return held;
}

static int check_roots(Check *check)
{
    Guarded *tree = check->tree;
    if (check->remembers && tree->step_count) {
        int held = visit_roots(check, tree->loose, tree->loose_count);
        if (held <= 0) /* an argument is of another kind: the rest may well be as it was */
            return held == 0 && check->wants_number ? number_failure(check) : held;
        held = take_steps(check);
        if (held != 0) {
            tree->patience += held > 0 && tree->patience < TRUST;
            return held;
        }
        tree->step_count = 0;
        tree->passed = 0;
        tree->patience -= DISAPPOINTMENT;
    }
    int held = visit_roots(check, tree->roots, tree->root_count);
    if (held > 0 && check->remembers && tree->patience > 0 && ++tree->passed == PROOF)
        find_short_way(check);
    return held;
}

static int run_check(Check *check)
{
    Guarded *tree = check->tree;
    int held = check_numbered(check, 0, tree->mode_count);
    if (held > 0)
        held = check_roots(check);
    return held > 0 ? check_numbered(check, tree->last_begin, tree->guard_count) : held;
}
