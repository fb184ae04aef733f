/* Guarded calls: a tree of sources and guards, checked and read in one pass.
 *
 * The tree comes as data (see flatten.py, which writes it, and the enums below, which
 * it shares); python.py renders the same tree as Python, which behaves the same. Of torch
 * only the DLPack exchange table of torch.Tensor is used, and where there is one the reader
 * of tensors.cpp, which is faster.
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
#include <structmember.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "seen.h"
#include "tree.h"
#include "versions.h"
#include "compare.h"
#include "specs.h"
#include "relation.h"
#include "guard.h"
#include "visit.h"
#include "steps.h"
#include "short_way.h"
#include "call.h"
#include "build.h"
#include "watching.h"
#include "caller.h"

/* setup(exchange table, requires_grad, is_neg, is_conj, reader of tensors or None, same_constant,
 * same_order, storage_pattern, ABSENT, Tensor, Parameter, the hash of a tensor where that is its
 * address or None, Step, run_steps): what is needed of torch and of the Python side. */
static PyObject *setup(PyObject *module, PyObject *arguments)
{
    PyObject *table, *requires_grad, *is_neg, *is_conj, *reader, *constants, *order,
        *pattern, *nothing, *tensor, *parameter, *hash, *step, *run;
    if (!PyArg_ParseTuple(arguments, "OO!O!O!OOOOOOOOO!O", &table, &PyGetSetDescr_Type, &requires_grad,
                          &PyMethodDescr_Type, &is_neg, &PyMethodDescr_Type, &is_conj, &reader,
                          &constants, &order, &pattern, &nothing, &tensor, &parameter, &hash, &PyType_Type, &step, &run))
        return NULL;
    exchange = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (exchange == NULL)
        return NULL;
    ReadTensor read = reader == Py_None ? NULL : PyCapsule_GetPointer(reader, READER_NAME);
    if (read == NULL && reader != Py_None)
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
    read_tensor = read;
    Py_XSETREF(same_constant, Py_NewRef(constants));
    Py_XSETREF(same_order, Py_NewRef(order));
    Py_XSETREF(storage_pattern, Py_NewRef(pattern));
    Py_XSETREF(absent, Py_NewRef(nothing));
    Py_XSETREF(tensor_class, (PyTypeObject *)Py_NewRef(tensor));
    Py_XSETREF(parameter_class, (PyTypeObject *)Py_NewRef(parameter));
    Py_XSETREF(tensor_hash, Py_NewRef(hash));
    Py_XSETREF(step_class, (PyTypeObject *)Py_NewRef(step));
    Py_XSETREF(run_steps, Py_NewRef(run));
    Py_RETURN_NONE;
}

/* describe(tensor): dtype code, bits, lanes, device type, device id; dtype and device as Seen has
 * them, or -1. */
static PyObject *describe(PyObject *module, PyObject *tensor)
{
    DLTensor found;
    if (exchange->describe(tensor, &found) != 0)
        return NULL;
    Seen seen = {.dtype = -1, .device = -1};
    if (read_tensor != NULL)
        read_tensor(tensor, &seen);
    return Py_BuildValue("iiiiiii", found.dtype.code, found.dtype.bits, found.dtype.lanes,
                         found.device.device_type, found.device.device_id, seen.dtype, seen.device);
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, NULL},
    {"describe", describe, METH_O, NULL},
    {"guarded", guarded_new, METH_O, NULL},
    {"calls", calls_new, METH_VARARGS, NULL},
    {"caller", caller_new, METH_VARARGS, NULL},
    {"call_quickly", call_quickly, METH_O, NULL},
    {"watching", watching, METH_NOARGS, NULL},
    {"set_unwatched", set_unwatched, METH_O, NULL},
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
        PyType_Ready(&Calls_Type) < 0 || start_watching() < 0 ||
        !(call_name = PyUnicode_InternFromString("__call__")) ||
        !(hash_name = PyUnicode_InternFromString("__hash__")))
        return NULL;
    return PyModule_Create(&definition);
}
