/* Relations of sizes and ints, or of floats: small programs over int64 or double (see
 * programs.py). Whatever does not fit, such as an overflow or a division by zero, is left to the
 * condition in Python. */

enum Op {
    OP_CONSTANT,
    OP_LEAF,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_FLOORDIV,
    OP_MOD,
    OP_NEG,
    OP_LT,
    OP_LE,
    OP_EQ,
    OP_NE,
    OP_GT,
    OP_GE,
    OP_AND,
    OP_OR,
    OP_NOT,
    OP_TRUTH,
    OP_MIN,
    OP_MAX,
    OP_TRUEDIV,
    OP_POW
};

enum { LEAF_VALUE, LEAF_SIZE, LEAF_STRIDE, DEEPEST = 32, MOST_LEAVES = 32 };

static int is_plain_tensor(Check *check, PyObject *value)
{
    return Py_TYPE(value) == tensor_class || Py_TYPE(value) == parameter_class;
}

/* 1 where the leaf could be read. */
static int read_leaf(Check *check, Guard *guard, Leaf *leaf, int64_t *number)
{
    PyObject *value = check->held[guard->slots[leaf->place]];
    if (value == NULL)
        return 0;
    if (leaf->read == LEAF_VALUE) {
        int overflow = 0;
        if (!PyLong_CheckExact(value))
            return 0;
        *number = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow;
    }
    DLTensor found;
    Seen seen;
    if (!is_plain_tensor(check, value))
        return 0;
    if (read_tensor != NULL && read_tensor(value, &seen)) {
        if (leaf->dim < 0 || leaf->dim >= seen.ndim)
            return 0;
        *number = (leaf->read == LEAF_SIZE ? seen.shape : seen.strides)[leaf->dim];
        return 1;
    }
    if (exchange->describe(value, &found) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (leaf->dim < 0 || leaf->dim >= found.ndim)
        return 0;
    *number = (leaf->read == LEAF_SIZE ? found.shape : found.strides)[leaf->dim];
    return 1;
}

/* As Python divides: towards minus infinity. */
static int divide(int64_t one, int64_t other, int64_t *quotient, int64_t *rest)
{
    if (other == 0 || (other == -1 && one == INT64_MIN))
        return 0;
    *quotient = one / other;
    *rest = one % other;
    if (*rest != 0 && ((*rest < 0) != (other < 0))) {
        *quotient -= 1;
        *rest += other;
    }
    return 1;
}

/* 1 where `one` could become the result of an instruction with two operands. */
static int combine(int op, int64_t *one, int64_t other)
{
    int64_t quotient, rest;
    switch (op) {
    case OP_ADD:
        return !__builtin_add_overflow(*one, other, one);
    case OP_SUB:
        return !__builtin_sub_overflow(*one, other, one);
    case OP_MUL:
        return !__builtin_mul_overflow(*one, other, one);
    case OP_FLOORDIV:
    case OP_MOD:
        if (!divide(*one, other, &quotient, &rest))
            return 0;
        *one = op == OP_MOD ? rest : quotient;
        return 1;
    case OP_LT:
        return (*one = *one < other), 1;
    case OP_LE:
        return (*one = *one <= other), 1;
    case OP_EQ:
        return (*one = *one == other), 1;
    case OP_NE:
        return (*one = *one != other), 1;
    case OP_GT:
        return (*one = *one > other), 1;
    case OP_GE:
        return (*one = *one >= other), 1;
    case OP_AND:
        return (*one = *one && other), 1;
    case OP_OR:
        return (*one = *one || other), 1;
    case OP_MIN:
        return (*one = *one < other ? *one : other), 1;
    case OP_MAX:
        return (*one = *one > other ? *one : other), 1;
    }
    return 0;
}

/* 1 or 0; -1 where it is left to Python. */
static int run_program(Check *check, Guard *guard)
{
    Program *program = guard->program;
    int64_t leaves[MOST_LEAVES], stack[DEEPEST + 1], *top = stack;
    if (program == NULL)
        return -1;
    for (Py_ssize_t n = 0; n < program->leaf_count; n++)
        if (!read_leaf(check, guard, &program->leaves[n], &leaves[n]))
            return -1;
    for (Py_ssize_t n = 0; n < program->count; n++) {
        int op = (int)program->ops[n];
        if (op == OP_CONSTANT)
            *top++ = program->operands[n];
        else if (op == OP_LEAF)
            *top++ = leaves[program->operands[n]];
        else if (op == OP_NEG) {
            if (__builtin_sub_overflow((int64_t)0, top[-1], &top[-1]))
                return -1;
        }
        else if (op == OP_NOT)
            top[-1] = !top[-1];
        else if (op == OP_TRUTH)
            top[-1] = top[-1] != 0;
        else {
            top--;
            if (!combine(op, &top[-1], top[0]))
                return -1;
        }
    }
    return top[-1] != 0;
}

/* 1 where `one` could become the result of an instruction with two operands. */
static int combine_floats(int op, double *one, double other)
{
    switch (op) {
    case OP_ADD:
        return (*one += other), 1;
    case OP_SUB:
        return (*one -= other), 1;
    case OP_MUL:
        return (*one *= other), 1;
    case OP_TRUEDIV:
        return other != 0 ? (*one /= other), 1 : 0;
    case OP_POW: /* elsewhere Python has results and errors of its own */
        if (!(*one > 0 && isfinite(*one) && isfinite(other)))
            return 0;
        return (*one = pow(*one, other)), isfinite(*one);
    case OP_LT:
        return (*one = *one < other), 1;
    case OP_LE:
        return (*one = *one <= other), 1;
    case OP_EQ:
        return (*one = *one == other), 1;
    case OP_NE:
        return (*one = *one != other), 1;
    case OP_GT:
        return (*one = *one > other), 1;
    case OP_GE:
        return (*one = *one >= other), 1;
    case OP_AND:
        return (*one = *one && other), 1;
    case OP_OR:
        return (*one = *one || other), 1;
    }
    return 0;
}

/* As run_program, of floats. */
static int run_floats(Check *check, Guard *guard)
{
    Program *program = guard->program;
    double leaves[MOST_LEAVES], stack[DEEPEST + 1], *top = stack;
    for (Py_ssize_t n = 0; n < program->leaf_count; n++) {
        PyObject *value = check->held[guard->slots[program->leaves[n].place]];
        if (value == NULL || !PyFloat_CheckExact(value))
            return -1;
        leaves[n] = PyFloat_AS_DOUBLE(value);
    }
    for (Py_ssize_t n = 0; n < program->count; n++) {
        int op = (int)program->ops[n];
        if (op == OP_CONSTANT)
            *top++ = program->constants[program->operands[n]];
        else if (op == OP_LEAF)
            *top++ = leaves[program->operands[n]];
        else if (op == OP_NEG)
            top[-1] = -top[-1];
        else if (op == OP_NOT)
            top[-1] = !top[-1];
        else if (op == OP_TRUTH)
            top[-1] = top[-1] != 0;
        else {
            top--;
            if (!combine_floats(op, &top[-1], top[0]))
                return -1;
        }
    }
    return top[-1] != 0;
}

static int check_relation(Check *check, Guard *guard)
{
    int of_floats = guard->program != NULL && guard->program->constants != NULL;
    int held = of_floats ? run_floats(check, guard) : run_program(check, guard);
    if (held >= 0)
        return held;
    PyObject *small[17], **given = small;
    Py_ssize_t count = guard->slot_count;
    if (count > 16 && !(given = PyMem_Malloc((size_t)(count + 1) * sizeof(PyObject *)))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t n = 0; n < count; n++)
        given[n + 1] = check->held[guard->slots[n]];
    size_t flags = (size_t)count | PY_VECTORCALL_ARGUMENTS_OFFSET;
    held = truth_of(PyObject_Vectorcall(guard->second, given + 1, flags, NULL));
    if (given != small)
        PyMem_Free(given);
    return held;
}

/* relation: (instructions, operands, numbers to read, floats). */
static Program *build_program(PyObject *spec)
{
    Program *made = array(1, sizeof(Program));
    if (made == NULL)
        return NULL;
    PyObject *leaves = PyTuple_GET_ITEM(spec, 2);
    made->ops = numbers(PyTuple_GET_ITEM(spec, 0), &made->count);
    made->operands = numbers(PyTuple_GET_ITEM(spec, 1), &made->count);
    made->leaf_count = PyTuple_GET_SIZE(leaves);
    made->leaves = array(made->leaf_count, sizeof(Leaf));
    for (Py_ssize_t n = 0; made->leaves && n < made->leaf_count; n++) {
        PyObject *leaf = PyTuple_GET_ITEM(leaves, n);
        made->leaves[n] = (Leaf){number(leaf, 0), (int)number(leaf, 1), (int)number(leaf, 2)};
    }
    PyObject *constants = PyTuple_GET_ITEM(spec, 3);
    if (PyTuple_GET_SIZE(constants))
        made->constants = array(PyTuple_GET_SIZE(constants), sizeof(double));
    for (Py_ssize_t n = 0; made->constants && n < PyTuple_GET_SIZE(constants); n++)
        made->constants[n] = PyFloat_AS_DOUBLE(PyTuple_GET_ITEM(constants, n));
    return made;
}

static void free_program(Program *program)
{
    if (program) {
        PyMem_Free(program->ops);
        PyMem_Free(program->operands);
        PyMem_Free(program->leaves);
        PyMem_Free(program->constants);
    }
    PyMem_Free(program);
}
