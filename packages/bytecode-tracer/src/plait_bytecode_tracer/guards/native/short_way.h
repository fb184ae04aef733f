/* Finding the short way, and when to take it. */

/* Where an object refers to its dict, and keeps referring: NULL where it has none (yet). */
static PyObject **place_of_dict(PyObject *object)
{
    PyObject **place = _PyObject_GetDictPtr(object);
    return place && *place ? place : NULL;
}

static void forget_standing(Guarded *tree, Py_ssize_t first)
{
#if PY_VERSION_HEX >= 0x030C0000
    for (Py_ssize_t n = first; n < tree->standing_count; n++)
        release_watched(tree->standing[n].watched);
#endif
    tree->standing_count = first;
}

static void forget_short_way(Guarded *tree)
{
    tree->step_count = 0;
    forget_standing(tree, 0);
    tree->loose_count = 0;
    Py_CLEAR(tree->pinned);
}

/* The list with room for one more; NULL where there is no memory. */
static void *make_room(void *list, Py_ssize_t count, Py_ssize_t *room, size_t size)
{
    if (count < *room)
        return list;
    void *made = PyMem_Realloc(list, (size_t)(2 * *room + 64) * size);
    if (made)
        *room = 2 * *room + 64;
    return made;
}

/* The step before, of the same root, which may do more at once. */
static Step *step_before(Guarded *tree, int kind)
{
    Step *step = &tree->steps[tree->step_count - 1];
    return tree->step_count > tree->root_steps && step->kind == kind ? step : NULL;
}

static int add(Guarded *tree, Step step)
{
    Step *steps = make_room(tree->steps, tree->step_count, &tree->step_room, sizeof(Step));
    if (steps == NULL)
        return 0;
    tree->steps = steps;
    steps[tree->step_count++] = step;
    return 1;
}

static int add_step(Guarded *tree, uint8_t kind, int32_t slot, PyObject *object, void *other,
                    uint64_t number)
{
    return add(tree, (Step){.kind = kind, .slot = slot, .object = object, .other = other,
                            .number = number});
}

static int add_dict_of(Guarded *tree, PyObject *object, PyObject **place)
{
    Step *before = step_before(tree, TYPE_OF);
    if (before && before->object == object) {
        before->kind = INSTANCE;
        before->other = *place;
        before->place = place;
        return 1;
    }
    return add(tree, (Step){.kind = DICT_OF, .object = object, .other = *place, .place = place});
}

/* That a dict of this version is unchanged. */
static int add_dict_version(Guarded *tree, PyObject *dict, uint64_t version)
{
#if PY_VERSION_HEX >= 0x030C0000
    Watched *watched = watch(dict);
    Standing *list = make_room(tree->standing, tree->standing_count, &tree->standing_room,
                               sizeof(Standing));
    if (list == NULL)
        return 0;
    tree->standing = list;
    if (watched == NULL || watched->version != version)
        return 0;
    watched->users++;
    list[tree->standing_count++] = (Standing){dict, watched, version};
    return 1;
#else
    Step *before = step_before(tree, INSTANCE);
    if (before && before->other == dict && before->number == 0) {
        before->number = version;
        return 1;
    }
    return add_step(tree, DICT_VERSION, -1, dict, NULL, version);
#endif
}

static int add_dict_length(Guarded *tree, PyObject *dict, uint64_t length)
{
#if PY_VERSION_HEX >= 0x030C0000
    Watched *watched = watcher >= 0 && tells_changes(dict) ? watch(dict) : NULL;
    if (watched)
        return add_dict_version(tree, dict, watched->version);
#endif
    Step *before = step_before(tree, EMPTY_DICTS);
    if (length != 0)
        return add_step(tree, DICT_LENGTH, -1, dict, NULL, length);
    if (before && before->count < MOST_DICTS) {
        before->dicts[before->count++] = dict;
        return 1;
    }
    return add(tree, (Step){.kind = EMPTY_DICTS, .count = 1, .dicts = {dict}});
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
        return add_dict_length(tree, value, length);
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
            added = add(tree, (Step){.kind = TYPE_OF, .object = value, .type = guard->expected});
        else if (guard->kind == LENGTH)
            added = add_length(tree, value, guard->expected);
        else if (guard->kind == FUNCTION)
            added = add_step(tree, FUNCTION_OF, -1, value, guard->expected, 0);
        else if (guard->kind == TENSOR && guard->facts->is_readable)
            added = add_step(tree, TENSOR_OF, (int32_t)node->slot, value, guard->facts, 0);
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
        PyObject **place = place_of_dict(value);
        return place && add_dict_of(tree, value, place) ? *place : NULL;
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

/* What reads the value of a node that has a slot, unless a tensor's step does. */
static int add_keeping(Guarded *tree, Node *node, PyObject *value)
{
    Step *before = step_before(tree, TENSOR_OF);
    if (node->slot < 0 || (before && before->object == value && before->slot == node->slot))
        return 1;
    return add_step(tree, KEEP, (int32_t)node->slot, value, NULL, 0);
}

static int add_node(Guarded *tree, Node *node, PyObject *value)
{
    uint64_t version = node->has_version ? version_of(node, value) : 0;
    int unchanged = version != 0 && version == node->version;
    if (unchanged && !(is_dict(value) ? add_dict_version(tree, value, version)
                                      : add_step(tree, CLASS_VERSION, -1, value, NULL, version)))
        return 0;
    if (!add_guards(tree, node, value, unchanged) || !add_keeping(tree, node, value))
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
    for (Py_ssize_t n = root->guards_begin; n < root->guards_end; n++) {
        is_one |= tree->guards[n].kind == IDENTITY;
        if (tree->guards[n].kind == TENSOR)
            return 0; /* what a tensor is like is read anyway; swap_tensors() refuses pinned ones */
    }
    if (root->access != ARGUMENT || !(is_same || is_one))
        return 0;
    if (root->guards_begin == root->guards_end && root->child_count == 0)
        return 0; /* nothing is asked of it alone */
    PyObject *value = check->arguments[root->index];
    return add_step(tree, ARGUMENT_IS, -1, value, NULL, (uint64_t)root->index) &&
           (is_one || pin(tree, value)) && add_node(tree, root, value);
}

/* After a full check that passed. */
static void find_short_way(Check *check)
{
    Guarded *tree = check->tree;
    forget_short_way(tree);
    for (Py_ssize_t n = 0; n < tree->root_count; n++) {
        Py_ssize_t standing = tree->standing_count;
        tree->root_steps = tree->step_count;
        if (!add_root(check, tree->roots[n])) {
            tree->step_count = tree->root_steps;
            forget_standing(tree, standing);
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
