/* Reads tensors where they are: a few loads each, where Python's attributes or DLPack take a
 * call each, and nothing lets other threads run meanwhile. Takes back what was drawn from
 * generators while no other thread can draw.
 *
 * It is compiled with the headers of the torch that is installed, and for it alone.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/TensorImpl.h>

extern "C" {
#include "seen.h"
}

namespace {

/* Of a tensor that has other keys, not all is where it is of a dense tensor. */
constexpr c10::DispatchKeySet plain({
    c10::DispatchKey::CPU,
    c10::DispatchKey::CUDA,
    c10::DispatchKey::ADInplaceOrView,
    c10::DispatchKey::AutogradCPU,
    c10::DispatchKey::AutogradCUDA,
    c10::DispatchKey::AutocastCPU,
    c10::DispatchKey::AutocastCUDA,
    c10::DispatchKey::Negative,
    c10::DispatchKey::Conjugate,
});

Py_ssize_t place = 0; /* where an object of torch.Tensor keeps the address of its TensorImpl */

int read_tensor(PyObject *tensor, Seen *seen)
try {
    auto *impl = *reinterpret_cast<c10::TensorImpl **>(reinterpret_cast<char *>(tensor) + place);
    if (impl == nullptr)
        return 0;
    const c10::DispatchKeySet keys = impl->key_set();
    if (!plain.has_all(keys) || !impl->has_storage())
        return 0;
    const c10::Device device = impl->device();
    auto *storage = impl->unsafe_storage().unsafeGetStorageImpl();
    seen->data = nullptr;
    if (!impl->is_empty())
        seen->data = static_cast<char *>(storage->_mutable_data_ptr_no_checks().get()) +
                     impl->itemsize() * impl->storage_offset();
    seen->shape = impl->sizes().data();
    seen->strides = impl->strides().data();
    seen->ndim = static_cast<int32_t>(impl->dim());
    seen->dtype = static_cast<int32_t>(impl->dtype().toScalarType());
    seen->device = static_cast<int32_t>(device.type()) * 65536 + device.index();
    seen->requires_grad = impl->requires_grad();
    seen->is_negated = keys.has(c10::DispatchKey::Negative);
    seen->is_conjugated = keys.has(c10::DispatchKey::Conjugate);
    return 1;
} catch (...) {
    return 0;
}

/* find(tensor, address): where the tensor keeps the address of its TensorImpl, if in one place. */
PyObject *find(PyObject *module, PyObject *arguments)
{
    PyObject *tensor;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "OK", &tensor, &address))
        return nullptr;
    const Py_ssize_t size = Py_TYPE(tensor)->tp_base->tp_basicsize;
    Py_ssize_t found = 0;
    for (Py_ssize_t at = sizeof(PyObject); at + 8 <= size; at += sizeof(void *)) {
        void *word = *reinterpret_cast<void **>(reinterpret_cast<char *>(tensor) + at);
        if (reinterpret_cast<unsigned long long>(word) == address)
            found = found == 0 ? at : -1;
    }
    place = found > 0 ? found : 0;
    return PyBool_FromLong(place);
}

/* describe(tensor): all that is read of it, for comparison; None where it is not plain. */
PyObject *describe(PyObject *module, PyObject *tensor)
{
    Seen seen;
    if (!place || !read_tensor(tensor, &seen))
        Py_RETURN_NONE;
    PyObject *shape = PyTuple_New(seen.ndim), *strides = PyTuple_New(seen.ndim);
    for (int32_t n = 0; shape && strides && n < seen.ndim; n++) {
        PyTuple_SET_ITEM(shape, n, PyLong_FromLongLong(seen.shape[n]));
        PyTuple_SET_ITEM(strides, n, PyLong_FromLongLong(seen.strides[n]));
    }
    return Py_BuildValue("iiKNNNNN", seen.dtype, seen.device,
                         reinterpret_cast<unsigned long long>(seen.data), shape, strides,
                         PyBool_FromLong(seen.requires_grad), PyBool_FromLong(seen.is_negated),
                         PyBool_FromLong(seen.is_conjugated));
}

/* reader(): the function for guarded.c. */
PyObject *reader(PyObject *module, PyObject *nothing)
{
    return PyCapsule_New(reinterpret_cast<void *>(read_tensor), READER_NAME, nullptr);
}

bool is_same(const c10::TensorImpl &one, const c10::TensorImpl &other)
{
    return one.numel() == other.numel() && one.dtype() == other.dtype() && one.is_contiguous() &&
           other.is_contiguous() && memcmp(one.data(), other.data(), one.numel() * one.itemsize()) == 0;
}

/* take_back(generator, left, before): give a generator a state if it is in another. Of each the
 * address of its implementation (`_cdata`). */
PyObject *take_back(PyObject *module, PyObject *arguments)
{
    unsigned long long addresses[3];
    if (!PyArg_ParseTuple(arguments, "KKK", addresses, addresses + 1, addresses + 2))
        return nullptr;
    auto *generator = reinterpret_cast<c10::GeneratorImpl *>(addresses[0]);
    auto *left = reinterpret_cast<c10::TensorImpl *>(addresses[1]);
    auto *before = reinterpret_cast<c10::TensorImpl *>(addresses[2]);
    bool done = false;
    try {
        std::lock_guard<std::mutex> lock(generator->mutex_); /* every operator draws under it */
        done = is_same(*generator->get_state(), *left);
        if (done)
            generator->set_state(*before);
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
    return PyBool_FromLong(done);
}

PyMethodDef functions[] = {
    {"find", find, METH_VARARGS, nullptr},
    {"describe", describe, METH_O, nullptr},
    {"reader", reader, METH_NOARGS, nullptr},
    {"take_back", take_back, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plait_tensors", nullptr, -1, functions};

} // namespace

PyMODINIT_FUNC PyInit_plait_tensors(void) { return PyModule_Create(&definition); }
