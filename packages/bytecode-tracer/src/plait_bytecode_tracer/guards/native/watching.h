/* Debuggers and coverage tools see the lines of a function only where Python runs them.
 *
 * A trace function is known of the thread. What `sys.monitoring` tools ask for (Python 3.12 and
 * later) has a version, which all code that is being executed carries. Whether a version means
 * that lines are watched, Python decides (watching.py), and says so here. */

#if PY_VERSION_HEX < 0x030C0000

static inline uint64_t monitoring_version(PyThreadState *thread) { return 1; }

static inline int has_own_events(PyObject *code) { return 0; }

#else

/* 0 where no Python code is being executed. */
static inline uint64_t monitoring_version(PyThreadState *thread)
{
#if PY_VERSION_HEX < 0x030D0000
    struct _PyInterpreterFrame *frame = thread->cframe->current_frame;
#else
    struct _PyInterpreterFrame *frame = thread->current_frame;
#endif
    PyObject *code = frame ? PyUnstable_InterpreterFrame_GetCode(frame) : NULL;
    if (code == NULL)
        return 0;
    uint64_t version = ((PyCodeObject *)code)->_co_instrumentation_version;
    Py_DECREF(code);
    return version + 1;
}

/* Whether a tool has ever watched just this code. */
static inline int has_own_events(PyObject *code)
{
    return ((PyCodeObject *)code)->_co_monitoring != NULL;
}

#endif

static uint64_t unwatched = 0; /* the version that was last found to mean no lines */

static inline int may_be_watched(PyObject *code)
{
    PyThreadState *thread = PyThreadState_Get();
    return thread->c_tracefunc != NULL || monitoring_version(thread) != unwatched ||
           has_own_events(code);
}

/* watching(): the version of what is watched. */
static PyObject *watching(PyObject *module, PyObject *nothing)
{
    return PyLong_FromUnsignedLongLong(monitoring_version(PyThreadState_Get()));
}

/* set_unwatched(version): no tool watches lines of all code. */
static PyObject *set_unwatched(PyObject *module, PyObject *version)
{
    unwatched = PyLong_AsUnsignedLongLong(version);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}
