// The few functions of CPython's stable ABI that the runtime uses, declared by hand: it builds
// without Python's headers, and one binary serves every Python 3.11 and newer. Then DLPack's
// exchange table, through which tensors come and go.
#include <stddef.h>
#include <sys/types.h>

extern "C" {
typedef ssize_t Py_ssize_t;
struct PyObject { Py_ssize_t refcount; void* type; };
typedef PyObject* (*PyCFunction)(PyObject*, PyObject*);
typedef PyObject* (*FastCall)(PyObject*, PyObject* const*, Py_ssize_t);
struct PyMethodDef { const char* name; PyCFunction method; int flags; const char* doc; };
struct PyModuleDef {
  PyObject base; PyObject* (*init)(); Py_ssize_t index; PyObject* copy;
  const char* name; const char* doc; Py_ssize_t size; PyMethodDef* methods;
  void* slots; void* traverse; void* clear; void* free;
};
PyObject* PyModule_Create2(PyModuleDef*, int);
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
PyObject* PyCFunction_GetSelf(PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
int PyBytes_AsStringAndSize(PyObject*, char**, Py_ssize_t*);
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyList_New(Py_ssize_t);
int PyList_SetItem(PyObject*, Py_ssize_t, PyObject*);
PyObject* PySequence_Tuple(PyObject*);
PyObject* PyTuple_New(Py_ssize_t);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);
Py_ssize_t PyTuple_Size(PyObject*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(long long);
double PyFloat_AsDouble(PyObject*);
PyObject* PyObject_CallNoArgs(PyObject*);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyObject_CallMethod(PyObject*, const char*, const char*, ...);
int PyObject_IsTrue(PyObject*);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyErr_Occurred();
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_Restore(PyObject*, PyObject*, PyObject*);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
void PyErr_Clear();
int PyErr_ExceptionMatches(PyObject*);
int PyObject_SetAttrString(PyObject*, const char*, PyObject*);
void Py_DecRef(PyObject*);
void Py_IncRef(PyObject*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
int PyGILState_Ensure();
void PyGILState_Release(int);
extern PyObject *PyExc_Exception, *PyExc_RuntimeError, *PyExc_IndexError, *PyExc_TypeError, *PyExc_ImportError, *PyExc_ValueError;
extern PyObject _Py_NoneStruct, PyFloat_Type;

struct DLDevice { int32_t type; int32_t id; };
struct DLDataType { uint8_t code; uint8_t bits; uint16_t lanes; };
struct DLTensor { void* data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t* shape; int64_t* strides; uint64_t byte_offset; };
struct DLVersion { uint32_t major, minor; };
struct DLManaged { DLVersion version; void* context; void (*deleter)(DLManaged*); uint64_t flags; DLTensor tensor; };
struct DLExchange {
  DLVersion version; void* previous;
  void* allocator; int (*from_object)(void*, DLManaged**); int (*to_object)(DLManaged*, void**);
  int (*view)(void*, DLTensor*); void* stream;
};
}
