/* What is checked: the structures that flatten.py describes. */

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
static ReadTensor read_tensor; /* or NULL */
static getter requires_grad_get;
static void *requires_grad_closure;
static PyCFunction is_neg_method;
static PyCFunction is_conj_method;
static PyObject *same_constant;
static PyObject *same_order;
static PyObject *storage_pattern;
static PyObject *absent;
enum { CPU_DEVICE = -1, FLOAT32 = 6, FLOAT64 = 7 }; /* as Seen has them */
static PyObject *tensor_hash; /* of Python: the address of a tensor; None if it is not */
static PyObject *hash_name;   /* "__hash__" */
static PyTypeObject *tensor_class;
static PyTypeObject *parameter_class;
static PyTypeObject *step_class;
static PyObject *run_steps; /* of Python: makes the calls that a Step stands for */

/* The tree. */

enum Access { ARGUMENT, CONSTANT, ATTRIBUTE, INSTANCE_DICT, ITEM, CELL, PYTHON_READ, BY_KEY, COUNTED };

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
    ARRAY,
    SAME_OBJECT,
    STORAGE_PATTERN,
    DISTINCT,
    RELATION,
    MODE,
    PYTHON_CONDITION,
    CONTAINS,
    ATTRIBUTE_IS,
    HOLDS
};

typedef struct {
    PyTypeObject *cls;
    DLDevice device;
    DLDataType dtype;
    int32_t ndim;
    int8_t is_complex;
    int8_t requires_grad; /* -1: whatever it is */
    int8_t is_exact;      /* one shape and strides; else they lie between bounds */
    int8_t is_readable;   /* where it is, by `read_tensor`, most often */
    int32_t seen_dtype, seen_device; /* as Seen has them */
    int64_t shape[]; /* the strides follow; unless exact, then the upper bounds of both */
} Facts;

/* A number that a relation reads: of which value, a size or stride or itself, and where. */
typedef struct {
    Py_ssize_t place;
    int read;
    int dim;
} Leaf;

typedef struct {
    Py_ssize_t *ops, *operands;
    Py_ssize_t count;
    Leaf *leaves;
    Py_ssize_t leaf_count;
    double *constants; /* NULL: all numbers are ints */
} Program;

typedef struct {
    int kind;
    int by_holder; /* follows from the version of the dict or class that holds the value */
    int by_itself; /* follows from the version of the value, a dict or class; of
                    * STORAGE_PATTERN: from where the tensors are, which other guards found */
    PyObject *expected;
    PyObject *second;
    PyCFunction ask;   /* MODE: what a builtin function without parameters runs; or NULL */
    Py_ssize_t *slots; /* SAME_OBJECT, STORAGE_PATTERN, DISTINCT, RELATION, HOLDS: the values;
                        * CONTAINS: the key */
    Py_ssize_t slot_count;
    void **last_data; /* STORAGE_PATTERN: where the tensors were; DISTINCT: the objects */
    Facts *facts;
    Program *program; /* RELATION: NULL where only Python can tell */
} Guard;

struct Watched;

typedef struct Node {
    int access;
    PyObject *key;
    Py_ssize_t index;       /* BY_KEY: the slot of the key */
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
    PyObject *given; /* of an argument: what the last full check got; compared, never followed */
    int given_again; /* how many full checks in a row have got it */
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
    void **spare; /* buffers for a check: see `buffer_words`; NULL while one uses them */
    int busy;     /* a check uses the remembered state */
    struct Step *steps; /* the short way; see there */
    PyObject *pinned;   /* a list of what keeps its addresses from being taken again */
    Py_ssize_t step_count, step_room;
    Py_ssize_t root_steps;    /* where the steps of the root that is being added begin */
    struct Standing *standing; /* watched dicts that the short way needs unchanged */
    Py_ssize_t standing_count, standing_room;
    uint64_t changes; /* how often watched dicts had changed when these were last found so */
    Node **loose; /* roots that it leaves to a visit */
    int32_t loose_count;
    int passed;   /* full checks that passed since the short way was last found */
    int patience; /* while positive, it is worth finding it again */
    PyObject *graph; /* NULL: none, and the body gets an empty tuple */
    Py_ssize_t *inputs;
    Py_ssize_t input_count;
    int in_order; /* input n is the value of slot n */
    PyObject *body; /* NULL: return output `direct` of the graph */
    Py_ssize_t direct;
    Py_ssize_t *reads;
    Py_ssize_t read_count;
    PyObject *miss;
    PyObject *failed; /* makes the call where the graph raises; NULL: the call raises that */
} Guarded;

typedef struct {
    Guarded *tree;
    PyObject *const *arguments;
    PyObject **held; /* a free place before them */
    void **data;
    void **buffers; /* what these two, and the call that follows, are parts of */
    int remembers;
    int wants_number; /* of the guard that fails */
    Py_ssize_t failed;
} Check;
