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
static uint64_t all_changes; /* of all watched dicts together */
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
        all_changes++;
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

#if PY_VERSION_HEX >= 0x030D0000

/* Python 3.13.0 calls nobody where an attribute is set of an object that holds its dict's
 * values itself (CPython issue 125608). */
static int tells_all;

static inline int tells_changes(PyObject *dict)
{
    return tells_all || ((PyDictObject *)dict)->ma_values == NULL;
}

/* Whether setting, adding and deleting an attribute are all told: -1 with an exception. */
static int find_out_what_is_told(void)
{
    PyObject *cls = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){}", "Probe");
    PyObject *probe = cls ? PyObject_CallNoArgs(cls) : NULL;
    PyObject *dict = probe && PyObject_SetAttrString(probe, "one", Py_None) == 0
                         ? PyObject_GenericGetDict(probe, NULL)
                         : NULL;
    Watched *watched = dict ? watch(dict) : NULL;
    int failed = watched == NULL, told = 1;
    for (int n = 0; !failed && n < 3; n++) {
        uint64_t before = watched->version;
        failed = n == 0   ? PyObject_SetAttrString(probe, "one", Py_True)
                 : n == 1 ? PyObject_SetAttrString(probe, "two", Py_True)
                          : PyObject_DelAttrString(probe, "one");
        told &= watched->version != before;
    }
    tells_all = !failed && told;
    Py_XDECREF(dict);
    Py_XDECREF(probe);
    Py_XDECREF(cls);
    return failed && PyErr_Occurred() ? -1 : 0;
}

#else

static inline int tells_changes(PyObject *dict) { return 1; }

#endif

/* A dict that comes but once is not worth watching: it is watched when it comes again. */
static uint64_t dict_version(Node *node, PyObject *dict)
{
    if (!tells_changes(dict))
        return 0;
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
    if (watcher < 0) {
        PyErr_Clear(); /* all are taken: nothing is skipped */
        return 0;
    }
#if PY_VERSION_HEX >= 0x030D0000
    return find_out_what_is_told();
#else
    return 0;
#endif
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
