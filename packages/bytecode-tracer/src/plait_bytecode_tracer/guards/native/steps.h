/* The steps of the short way.
 *
 * When a tree has passed, what must still be checked is mostly a few words here and there:
 * that an object's dict is the same, a dict's version, that a dict of hooks is empty, a
 * class, a tensor. The short way is a list of these. Its objects are borrowed: each is held
 * by a constant, an argument, or something that a step before it has just found unchanged,
 * and no step lets other code run. Where an object is known by its address, it is pinned, so
 * that no other can have taken its place: immutable constants are held, others have a weak
 * reference that must still be alive, and what can have none has no short way. Roots that
 * cannot be checked so are visited first. Where the short way fails, nothing is said yet: the
 * tree is checked in full.
 *
 * From Python 3.12 on, dicts have no step of their own: a watched dict tells of its changes,
 * so that as long as no watched dict at all has changed, there is nothing to look at. */

enum StepKind {
    ARGUMENT_IS,
    DICT_OF,
    INSTANCE,
    DICT_VERSION,
    CLASS_VERSION,
    TYPE_OF,
    DICT_LENGTH,
    EMPTY_DICTS,
    LIST_LENGTH,
    LIST_ITEM,
    CELL_CONTENT,
    FUNCTION_OF,
    TENSOR_OF,
    STILL_ALIVE,
    KEEP
};

enum { MOST_DICTS = 5 };

typedef struct Step {
    uint8_t kind;
    uint8_t count;
    int32_t slot;
    union {
        struct {
            PyObject *object;
            void *other;
            uint64_t number;
            void *type;
            PyObject **place; /* DICT_OF, INSTANCE: where an object refers to its dict */
        };
        PyObject *dicts[MOST_DICTS]; /* EMPTY_DICTS */
    };
} Step;

/* A watched dict, as the short way needs it. */
typedef struct Standing {
    PyObject *dict;
    struct Watched *watched;
    uint64_t version;
} Standing;

#if PY_VERSION_HEX < 0x030C0000

static inline int is_version(PyObject *dict, uint64_t version)
{
    return ((PyDictObject *)dict)->ma_version_tag == version;
}

static inline int all_stand(Guarded *tree) { return 1; }

#else

static inline int is_version(PyObject *dict, uint64_t version) { return 1; } /* see all_stand */

static inline int all_stand(Guarded *tree)
{
    if (tree->changes == all_changes)
        return 1;
    for (Py_ssize_t n = 0; n < tree->standing_count; n++) {
        Standing *standing = &tree->standing[n];
        if (standing->watched->dict != standing->dict ||
            standing->watched->version != standing->version)
            return 0;
    }
    tree->changes = all_changes;
    return 1;
}

#endif

static int empty_dicts(Step *step)
{
    Py_ssize_t found = 0;
    for (int n = 0; n < step->count; n++)
        found |= PyDict_GET_SIZE(step->dicts[n]);
    return found == 0;
}

static inline int take_step(Check *check, Step *step)
{
    PyObject *object = step->object;
    switch (step->kind) {
    case TENSOR_OF: {
        Facts *facts = step->other;
        Seen seen;
        if (Py_TYPE(object) != facts->cls || !read_tensor(object, &seen) || !matches(facts, &seen))
            return 0;
        if (step->slot >= 0) {
            check->data[step->slot] = seen.data;
            check->held[step->slot] = Py_NewRef(object);
        }
        return 1;
    }
    case INSTANCE: /* a class is set only to one that keeps the dict's place */
        return (void *)Py_TYPE(object) == step->type && *step->place == step->other &&
               (step->number == 0 || is_version(step->other, step->number));
    case EMPTY_DICTS:
        return empty_dicts(step);
    case ARGUMENT_IS:
        return check->arguments[step->number] == object;
    case DICT_OF:
        return *step->place == step->other;
    case DICT_VERSION:
        return is_version(object, step->number);
    case CLASS_VERSION:
        return class_version(object) == step->number;
    case TYPE_OF:
        return (void *)Py_TYPE(object) == step->type;
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
    }
    check->held[step->slot] = Py_NewRef(object);
    return 1;
}

static int take_steps(Check *check)
{
    Guarded *tree = check->tree;
    Step *end = tree->steps + tree->step_count;
    int held = all_stand(tree);
    for (Step *step = tree->steps; held > 0 && step < end; step++)
        held = take_step(check, step);
    return held;
}
