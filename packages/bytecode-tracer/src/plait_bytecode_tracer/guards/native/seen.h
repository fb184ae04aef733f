/* What is read of a tensor, by C (guarded.c) and C++ (tensors.cpp). */

typedef struct {
    void *data;
    const int64_t *shape, *strides; /* valid while nothing else runs */
    int32_t ndim;
    int32_t dtype;  /* torch's number of it */
    int32_t device; /* torch's numbers of its type and index, one in each half */
    int8_t requires_grad, is_negated, is_conjugated;
} Seen;

/* 1: read; 0: not a plain dense tensor. Runs no code of Python and lets no thread run. */
typedef int (*ReadTensor)(PyObject *tensor, Seen *seen);

#define READER_NAME "plait_tensors.read"
