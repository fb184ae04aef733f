/* Guarded calls: a tree of sources and guards, checked and read in one pass.
 *
 * The tree comes as data (see compile.py, which writes it, and the enums below, which
 * it shares); python.py renders the same tree as Python, which behaves the same. Only
 * the CPython API and the DLPack exchange table of torch.Tensor are used.
 *
 * What need not be checked again. A dict has a version: a number that no other state of
 * any dict ever has (see "Versions"). A node whose dict passed all its checks remembers
 * the version, and the values that it found. While the version stands, the dict has the
 * same keys in the same order and the same objects under them, so its keys are not
 * looked up again, and of what is guarded about those objects all that cannot change
 * in an object is skipped: its identity, the value of an immutable constant, its class
 * where the class is not one whose instances can change theirs. Everything else is
 * checked at each call: metadata of tensors (`.data = `, `requires_grad_` and others
 * change it in place), lengths, attributes of plain objects, classes of instances.
 *
 * The remembered state belongs to one check at a time. A check that begins while another
 * of the same tree is under way, in another thread or from within a guard, does without.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* DLPack, as of its exchange table (version 1.3). */

typedef struct {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major;
    uint32_t minor;
    void *previous;
    void *allocate;
    void *from_object;
    void *to_object;
    int (*describe)(void *object, DLTensor *out); /* borrows; 0 where it succeeds */
    void *current_stream;
} ExchangeTable;

static const ExchangeTable *exchange;
static getter requires_grad_get;
static void *requires_grad_closure;
static PyCFunction is_neg_method;
static PyCFunction is_conj_method;
static PyObject *same_constant;
static PyObject *same_order;
static PyObject *storage_pattern;
static PyObject *absent;

/* The tree. */

enum Access { ARGUMENT, CONSTANT, ATTRIBUTE, INSTANCE_DICT, ITEM, CELL, PYTHON_READ };

enum Kind {
    IDENTITY,
    TYPE,
    EQUAL,
    LENGTH,
    KEYS,
    LACKS,
    HAS,
    NO_ATTRIBUTE,
    CLASS_ATTRIBUTE,
    METHOD,
    FUNCTION,
    TENSOR,
    SAME_OBJECT,
    STORAGE_PATTERN,
    MODE,
    PYTHON_CONDITION
};

typedef struct {
    PyTypeObject *cls;
    DLDevice device;
    DLDataType dtype;
    int32_t ndim;
    int is_complex;
    int requires_grad; /* -1: whatever it is */
    int64_t *shape;    /* the strides follow */
    PyObject *last;    /* what was found not to be negated; compared, never followed */
    void *last_data;
} Facts;

typedef struct {
    int kind;
    int by_holder; /* follows from the version of the dict or class that holds the value */
    int by_itself; /* follows from the version of the value, a dict or class; of
                    * STORAGE_PATTERN: from where the tensors are, which other guards found */
    PyObject *expected;
    PyObject *second;
    Py_ssize_t *slots; /* SAME_OBJECT, STORAGE_PATTERN: the values */
    Py_ssize_t slot_count;
    void **last_data; /* STORAGE_PATTERN: where the tensors were */
    Facts *facts;
} Guard;

struct Watched;

typedef struct Node {
    int access;
    PyObject *key;
    Py_ssize_t index;
    Py_ssize_t slot;        /* where its value is kept for later, or -1 */
    Py_ssize_t first_guard; /* the one that fails where it cannot be read */
    Py_ssize_t guards_begin, guards_end;
    Py_ssize_t child_count, unsettled_count;
    struct Node **children;
    struct Node **unsettled; /* those to visit though nothing changed in the dict */
    int has_version;         /* what a version would spare */
    uint64_t version;        /* of the dict or class that passed, or 0 */
    PyObject *found;         /* borrowed from the dict or class of that version */
    PyObject *seen;          /* compared, never followed */
    struct Watched *watched;
} Node;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *spec; /* owns every object that nodes and guards point to */
    Node *nodes;
    Py_ssize_t node_count;
    Node **roots;
    Py_ssize_t root_count;
    Guard *guards;
    Py_ssize_t guard_count, mode_count, last_begin;
    Py_ssize_t argument_count, slot_count;
    PyObject **held; /* of the check that uses the remembered state */
    void **data;
    int busy;
    struct Step *steps; /* the short way; see there */
    Py_ssize_t step_count, step_room;
    Node **loose; /* roots that it leaves to a visit */
    int32_t loose_count;
    int passed;   /* full checks that passed since the short way was last found */
    int patience; /* while positive, it is worth finding it again */
    PyObject *graph; /* NULL: none, and the body gets an empty tuple */
    Py_ssize_t *inputs;
    Py_ssize_t input_count;
    PyObject *body; /* NULL: return output `direct` of the graph */
    Py_ssize_t direct;
    Py_ssize_t *reads;
    Py_ssize_t read_count;
    PyObject *miss;
} Guarded;

typedef struct {
    Guarded *tree;
    PyObject *const *arguments;
    PyObject **held;
    void **data;
    int remembers;
    Py_ssize_t failed;
} Check;

/* Versions.
 *
 * Python 3.11 has a version in each dict, new at every change and never used twice.
 * Later versions deprecate it and have watchers instead: a callback before each change
 * of a watched dict. There, watched dicts get versions here, from one counter.
 */

#if PY_VERSION_HEX < 0x030C0000

static uint64_t dict_version(Node *node, PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag;
}

static void forget_watched(Node *node) {}

static int start_watching(void) { return 0; }

#else

typedef struct Watched {
    PyObject *dict; /* borrowed; NULL once it is gone */
    uint64_t version;
    Py_ssize_t users; /* nodes, and the table while the dict lives */
    struct Watched *next;
} Watched;

enum { BUCKETS = 4096 };
static Watched *buckets[BUCKETS];
static uint64_t last_version;
static int watcher = -1;

static Watched **bucket_of(PyObject *dict)
{
    uintptr_t mixed = (uintptr_t)dict >> 4;
    return &buckets[(mixed ^ (mixed >> 12)) % BUCKETS];
}

static void release_watched(Watched *watched)
{
    if (--watched->users == 0)
        PyMem_RawFree(watched);
}

static int dict_changes(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    for (Watched **place = bucket_of(dict); *place; place = &(*place)->next) {
        Watched *watched = *place;
        if (watched->dict != dict)
            continue;
        watched->version = ++last_version;
        if (event == PyDict_EVENT_DEALLOCATED) {
            watched->dict = NULL;
            *place = watched->next;
            release_watched(watched);
        }
        return 0;
    }
    return 0;
}

static Watched *watch(PyObject *dict)
{
    Watched **bucket = bucket_of(dict);
    for (Watched *watched = *bucket; watched; watched = watched->next)
        if (watched->dict == dict)
            return watched;
    Watched *made = PyMem_RawMalloc(sizeof(Watched));
    if (made == NULL)
        return NULL;
    if (PyDict_Watch(watcher, dict) < 0) {
        PyErr_Clear();
        PyMem_RawFree(made);
        return NULL;
    }
    *made = (Watched){dict, ++last_version, 1, *bucket};
    *bucket = made;
    return made;
}

static void forget_watched(Node *node)
{
    if (node->watched)
        release_watched(node->watched);
    node->watched = NULL;
}

/* A dict that comes but once is not worth watching: it is watched when it comes again. */
static uint64_t dict_version(Node *node, PyObject *dict)
{
#if PY_VERSION_HEX >= 0x030D0000
    /* Setting an attribute of an object that holds the dict's values itself calls nobody. */
    if (((PyDictObject *)dict)->ma_values)
        return 0;
#endif
    if (node->watched && node->watched->dict == dict)
        return node->watched->version;
    if (watcher < 0 || node->seen != dict) {
        node->seen = dict;
        return 0;
    }
    forget_watched(node);
    Watched *watched = watch(dict);
    if (watched == NULL)
        return 0;
    watched->users++;
    node->watched = watched;
    return watched->version;
}

static int start_watching(void)
{
    watcher = PyDict_AddWatcher(dict_changes);
    if (watcher < 0)
        PyErr_Clear(); /* all are taken: nothing is skipped */
    return 0;
}

#endif

/* Whether an object is a dict of whose order and reading its class changes nothing. */
static inline int is_dict(PyObject *value) { return PyDict_CheckExact(value); }

/* Whether `value[key]` and `len(value)` are those of dict, as in OrderedDict. */
static inline int reads_as_dict(PyObject *value)
{
    PyMappingMethods *methods = Py_TYPE(value)->tp_as_mapping;
    return PyDict_Check(value) && methods &&
           methods->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript &&
           methods->mp_length == PyDict_Type.tp_as_mapping->mp_length;
}

/* What a version would spare: nothing; something; or only looking up what a class defines,
 * which a metaclass does not change. */
enum { NOTHING, READING, DEFINITIONS };

/* A class has a version too, until it or one of its bases is changed. Bit 63 keeps these
 * apart from the versions of dicts. */
static uint64_t class_version(PyObject *value)
{
    PyTypeObject *type = (PyTypeObject *)value;
#if PY_VERSION_HEX < 0x030D0000
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG))
        return 0;
#endif
    return type->tp_version_tag ? (uint64_t)type->tp_version_tag | (uint64_t)1 << 63 : 0;
}

static uint64_t version_of(Node *node, PyObject *value)
{
    if (is_dict(value))
        return dict_version(node, value);
    if (Py_IS_TYPE(value, &PyType_Type) || (node->has_version == DEFINITIONS && PyType_Check(value)))
        return class_version(value);
    return 0;
}

/* Whether a dict or class holds what reading a child has given. A class does not where a
 * descriptor computes the value. */
static int is_held(Node *child, PyObject *holder, PyObject *found)
{
    if (is_dict(holder))
        return child->access == ITEM;
    if (!Py_IS_TYPE(holder, &PyType_Type) || child->access != ATTRIBUTE ||
        _PyType_Lookup((PyTypeObject *)holder, child->key) != found)
        return 0;
    return Py_IS_TYPE(found, &PyFunction_Type) || Py_TYPE(found)->tp_descr_get == NULL;
}

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
    }
    return call_python(check, node->key, base);
}

/* Comparing. Each returns 1, 0, or -1 with an exception that is to leave the call. */

static int equal_floats(double one, double other)
{
    if (isnan(one) || isnan(other))
        return isnan(one) && isnan(other);
    return one == other && signbit(one) == signbit(other);
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

static int returns_false(PyCFunction method, PyObject *tensor)
{
    PyObject *result = method(tensor, NULL);
    if (result == NULL)
        return raised();
    Py_DECREF(result);
    return result == Py_False;
}

/* `pinned`: the value is the very object that passed before. Then its sign bit is read
 * again only if it has come to lie elsewhere in memory. A tensor object gets or loses
 * the bit only by having another tensor's storage and strides put into it (`.data = `),
 * and a conjugated or negated view of the tensor's own memory, of its dtype, has none. */
enum { LOOSE, PINNED, QUICK }; /* quick: fail rather than let other threads run meanwhile */

static int check_tensor(Check *check, Facts *facts, PyObject *value, int pinned, void **data)
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
    size_t bytes = (size_t)found.ndim * sizeof(int64_t);
    if (bytes && (memcmp(found.shape, facts->shape, bytes) != 0 ||
                  memcmp(found.strides, facts->shape + found.ndim, bytes) != 0))
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
    if (!(pinned && facts->last == value && facts->last_data == found.data)) {
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
    if (guard->last_data == NULL) {
        size_t count = (size_t)guard->slot_count;
        guard->last_data = PyMem_Malloc((count ? count : 1) * sizeof(void *));
    }
    for (Py_ssize_t n = 0; guard->last_data && n < guard->slot_count; n++)
        guard->last_data[n] = check->data[guard->slots[n]];
    return 1;
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
    case SAME_OBJECT:
        return check->held[guard->slots[0]] == check->held[guard->slots[1]];
    case STORAGE_PATTERN:
        return check_storage(check, guard);
    case MODE: {
        PyObject *now = PyObject_CallNoArgs(guard->expected);
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

static int visit(Check *check, Node *node, PyObject *value, int pinned);

/* `all_held`: becomes 0 unless `value` holds each child's, so that its version tells all. */
static int visit_all_children(Check *check, Node *node, PyObject *value, int *all_held)
{
    for (Py_ssize_t n = 0; n < node->child_count; n++) {
        Node *child = node->children[n];
        PyObject *found = read_node(check, child, value);
        if (found == NULL) {
            check->failed = child->first_guard;
            return raised();
        }
        int held = visit(check, child, found, 0);
        if (check->remembers)
            child->found = found;
        *all_held = *all_held && is_held(child, value, found);
        Py_DECREF(found); /* what is remembered is used only while something else holds it */
        if (held <= 0)
            return held;
    }
    return 1;
}

/* A guard may run code that changes the holder: then nothing remembered is used. */
static int visit_unsettled_children(Check *check, Node *node, PyObject *holder)
{
    for (Py_ssize_t n = 0; n < node->unsettled_count; n++) {
        Node *child = node->unsettled[n];
        int pinned = version_of(node, holder) == node->version;
        PyObject *found = pinned ? Py_NewRef(child->found) : read_node(check, child, holder);
        if (found == NULL) {
            check->failed = child->first_guard;
            return raised();
        }
        int held = visit(check, child, found, pinned);
        Py_DECREF(found);
        if (held <= 0)
            return held;
    }
    return 1;
}

/* Check a node's guards and all below it. `pinned`: the dict or class that holds the value
 * is as it was when the value passed. */
static int visit(Check *check, Node *node, PyObject *value, int pinned)
{
    uint64_t version = 0;
    int unchanged = 0, all_held = 1;
    if (node->has_version && check->remembers) {
        version = version_of(node, value);
        unchanged = version != 0 && version == node->version;
        if (!unchanged)
            node->version = 0;
    }
    Guard *guards = check->tree->guards;
    for (Py_ssize_t n = node->guards_begin; n < node->guards_end; n++) {
        if ((pinned && guards[n].by_holder) || (unchanged && guards[n].by_itself))
            continue;
        int held = check_guard(check, &guards[n], node, value, pinned);
        if (held <= 0) {
            check->failed = n;
            return held;
        }
    }
    if (node->slot >= 0)
        Py_XSETREF(check->held[node->slot], Py_NewRef(value));
    if (unchanged)
        return visit_unsettled_children(check, node, value);
    int held = visit_all_children(check, node, value, &all_held);
    if (held > 0 && check->remembers && all_held)
        node->version = version;
    return held;
}

/* The short way.
 *
 * When a tree has passed, what must still be checked is mostly a few words here and there:
 * that an object's dict is the same, a dict's version, that a dict of hooks is empty, a
 * class, a tensor. The short way is a list of these. Its objects are borrowed: each is held
 * by a constant, an argument, or something that a step before it has just found unchanged,
 * and no step lets other code run. Roots that cannot be checked so are visited first.
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
        else if (guard->kind == TENSOR && !guard->facts->is_complex)
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
        found = dict_of(value);
        return found && add_step(tree, DICT_OF, -1, value, found, 0) ? found : NULL;
    }
    if (unchanged) /* of a dict or class that holds all its children's values */
        return child->found;
    if (child->access == CELL && PyCell_Check(value)) {
        found = PyCell_GET(value);
        return found && add_step(tree, CELL_CONTENT, -1, found, value, 0) ? found : NULL;
    }
    if (child->access != ITEM || child->index < 0)
        return NULL;
    if (PyTuple_CheckExact(value) && child->index < PyTuple_GET_SIZE(value))
        return PyTuple_GET_ITEM(value, child->index);
    if (!PyList_CheckExact(value) || child->index >= PyList_GET_SIZE(value))
        return NULL;
    found = PyList_GET_ITEM(value, child->index);
    return add_step(tree, LIST_ITEM, -1, found, value, (uint64_t)child->index) ? found : NULL;
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

static int add_root(Check *check, Node *root)
{
    Guarded *tree = check->tree;
    if (root->access == CONSTANT)
        return add_node(tree, root, root->key);
    int is_identified = 0;
    for (Py_ssize_t n = root->guards_begin; n < root->guards_end; n++)
        is_identified |= tree->guards[n].kind == IDENTITY;
    if (root->access != ARGUMENT || !is_identified)
        return 0;
    PyObject *value = check->arguments[root->index];
    return add_step(tree, ARGUMENT_IS, -1, value, NULL, (uint64_t)root->index) &&
           add_node(tree, root, value);
}

/* After a full check that passed. */
static void find_short_way(Check *check)
{
    Guarded *tree = check->tree;
    tree->step_count = 0;
    tree->loose_count = 0;
    for (Py_ssize_t n = 0; n < tree->root_count; n++) {
        Py_ssize_t before = tree->step_count;
        if (!add_root(check, tree->roots[n])) {
            tree->step_count = before;
            tree->loose[tree->loose_count++] = tree->roots[n];
        }
    }
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
        held = visit(check, roots[n], value, 0);
        Py_DECREF(value);
    }
    return held;
}

static int check_short(Check *check)
{
    Guarded *tree = check->tree;
    int held = visit_roots(check, tree->loose, tree->loose_count);
    for (Py_ssize_t n = 0; held > 0 && n < tree->step_count; n++)
        held = take_step(check, &tree->steps[n]);
    return held;
}

enum { TRUST = 64, DISAPPOINTMENT = 8, PROOF = 3 };

static int check_roots(Check *check)
{
    Guarded *tree = check->tree;
    if (check->remembers && tree->step_count) {
        int held = check_short(check);
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

/* Begin a check: take the tree's own buffers, or others while they are in use. */
static int begin(Check *check, Guarded *tree, PyObject *const *arguments)
{
    *check = (Check){tree, arguments, tree->held, tree->data, 1, -1};
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
    }
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

/* Building. Specifications come from compile.py and are not otherwise checked. */

static Py_ssize_t number(PyObject *tuple, Py_ssize_t place)
{
    return PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, place));
}

static void *array(Py_ssize_t count, size_t size)
{
    void *made = PyMem_Calloc((size_t)count + 1, size);
    if (made == NULL)
        PyErr_NoMemory();
    return made;
}

/* The ints of a tuple; NULL with an exception. */
static Py_ssize_t *numbers(PyObject *tuple, Py_ssize_t *count)
{
    *count = PyTuple_GET_SIZE(tuple);
    Py_ssize_t *made = array(*count, sizeof(Py_ssize_t));
    for (Py_ssize_t n = 0; made && n < *count; n++)
        made[n] = number(tuple, n);
    return made;
}

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
    Facts *facts = array(1, sizeof(Facts));
    if (facts == NULL)
        return NULL;
    PyObject *shape = PyTuple_GET_ITEM(spec, 6), *strides = PyTuple_GET_ITEM(spec, 7);
    facts->cls = (PyTypeObject *)PyTuple_GET_ITEM(spec, 0);
    facts->dtype.code = (uint8_t)number(spec, 1);
    facts->dtype.bits = (uint8_t)number(spec, 2);
    facts->dtype.lanes = (uint16_t)number(spec, 3);
    facts->device.device_type = (int32_t)number(spec, 4);
    facts->device.device_id = (int32_t)number(spec, 5);
    facts->ndim = (int32_t)PyTuple_GET_SIZE(shape);
    facts->is_complex = (int)number(spec, 8);
    facts->requires_grad = (int)number(spec, 9);
    facts->shape = array(2 * facts->ndim, sizeof(int64_t));
    for (int32_t n = 0; facts->shape && n < facts->ndim; n++) {
        facts->shape[n] = (int64_t)number(shape, n);
        facts->shape[facts->ndim + n] = (int64_t)number(strides, n);
    }
    return facts;
}

static int build_guard(Guard *guard, PyObject *spec)
{
    guard->kind = (int)number(spec, 0);
    guard->by_holder = (int)number(spec, 1);
    guard->by_itself = (int)number(spec, 2);
    guard->expected = PyTuple_GET_ITEM(spec, 3);
    guard->second = PyTuple_GET_ITEM(spec, 4);
    guard->slots = numbers(PyTuple_GET_ITEM(spec, 5), &guard->slot_count);
    if (guard->kind == TENSOR)
        guard->facts = build_facts(guard->expected);
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
    self->held = array(self->slot_count, sizeof(PyObject *));
    self->data = array(self->slot_count, sizeof(void *));
    return self->roots && self->loose && self->held && self->data ? 0 : -1;
}

static PyTypeObject Guarded_Type;

/* guarded(tree, call): see compile.py. */
static PyObject *guarded_new(PyObject *module, PyObject *spec)
{
    PyObject *nodes, *guards, *roots, *graph, *inputs, *body, *reads, *miss;
    Guarded *self = PyObject_GC_New(Guarded, &Guarded_Type);
    if (self == NULL)
        return NULL;
    size_t head = offsetof(Guarded, vectorcall);
    memset((char *)self + head, 0, sizeof(Guarded) - head);
    self->vectorcall = guarded_call;
    self->spec = Py_NewRef(spec);
    PyObject_GC_Track(self);
    if (!PyArg_ParseTuple(spec, "O!O!O!nnnnOO!OnO!O", &PyTuple_Type, &nodes, &PyTuple_Type,
                          &guards, &PyTuple_Type, &roots, &self->mode_count, &self->last_begin,
                          &self->argument_count, &self->slot_count, &graph, &PyTuple_Type,
                          &inputs, &body, &self->direct, &PyTuple_Type, &reads, &miss) ||
        build_tree(self, nodes, guards, roots) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->graph = graph == Py_None ? NULL : graph;
    self->body = body == Py_None ? NULL : body;
    self->miss = miss;
    self->inputs = numbers(inputs, &self->input_count);
    self->reads = numbers(reads, &self->read_count);
    if (self->inputs == NULL || self->reads == NULL || PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int guarded_traverse(PyObject *object, visitproc visit, void *arg)
{
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
        Facts *facts = self->guards[n].facts;
        if (facts)
            PyMem_Free(facts->shape);
        PyMem_Free(facts);
        PyMem_Free(self->guards[n].slots);
        PyMem_Free(self->guards[n].last_data);
    }
    void *arrays[] = {self->nodes, self->guards, self->roots, self->held,
                      self->data,  self->inputs, self->reads, self->steps, self->loose};
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
            return result;
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

/* setup(exchange table, requires_grad, is_neg, is_conj, same_constant, same_order,
 * storage_pattern, ABSENT): what is needed of torch and of the Python side. */
static PyObject *setup(PyObject *module, PyObject *arguments)
{
    PyObject *table, *requires_grad, *is_neg, *is_conj, *constants, *order, *pattern,
        *nothing;
    if (!PyArg_ParseTuple(arguments, "OO!O!O!OOOO", &table, &PyGetSetDescr_Type, &requires_grad,
                          &PyMethodDescr_Type, &is_neg, &PyMethodDescr_Type, &is_conj, &constants,
                          &order, &pattern, &nothing))
        return NULL;
    exchange = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (exchange == NULL)
        return NULL;
    PyGetSetDef *getset = ((PyGetSetDescrObject *)requires_grad)->d_getset;
    PyMethodDef *neg = ((PyMethodDescrObject *)is_neg)->d_method;
    PyMethodDef *conj = ((PyMethodDescrObject *)is_conj)->d_method;
    if (exchange->major != 1 || neg->ml_flags != METH_NOARGS || conj->ml_flags != METH_NOARGS) {
        PyErr_SetString(PyExc_RuntimeError, "this torch is not known to the guards");
        return NULL;
    }
    requires_grad_get = getset->get;
    requires_grad_closure = getset->closure;
    is_neg_method = neg->ml_meth;
    is_conj_method = conj->ml_meth;
    Py_XSETREF(same_constant, Py_NewRef(constants));
    Py_XSETREF(same_order, Py_NewRef(order));
    Py_XSETREF(storage_pattern, Py_NewRef(pattern));
    Py_XSETREF(absent, Py_NewRef(nothing));
    Py_RETURN_NONE;
}

/* describe(tensor): dtype code, bits, lanes, device type, device id. */
static PyObject *describe(PyObject *module, PyObject *tensor)
{
    DLTensor found;
    if (exchange->describe(tensor, &found) != 0)
        return NULL;
    return Py_BuildValue("iiiii", found.dtype.code, found.dtype.bits, found.dtype.lanes,
                         found.device.device_type, found.device.device_id);
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, NULL},
    {"describe", describe, METH_O, NULL},
    {"guarded", guarded_new, METH_O, NULL},
    {"calls", calls_new, METH_VARARGS, NULL},
    {"caller", caller_new, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "plait_guards",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_plait_guards(void)
{
    if (PyType_Ready(&Guarded_Type) < 0 || PyType_Ready(&Caller_Type) < 0 ||
        PyType_Ready(&Calls_Type) < 0 || start_watching() < 0)
        return NULL;
    return PyModule_Create(&definition);
}
