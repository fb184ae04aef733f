/* Reading specifications, which come from flatten.py and are not otherwise checked. */

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
