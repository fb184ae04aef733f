"""What products of matrices call whose warps have roles, in Gluon, for GPUs of capability 90.

One warp reads blocks of both factors by descriptors (TMA) into a ring of stages in shared memory;
two warpgroups of four warps multiply. A stage's barrier `full` tells that its bytes have come,
`empty` that all who multiply are done with it. Where both warpgroups are at one block, each has
half of its rows (`together`); where they take blocks in turn, one multiplies while the other
finishes (`in_turn`), and `turns_of` tells each when it may.

Nothing here waits for what may not come: each role goes through the same blocks, those of its
program, and as many turns of each, at least one, whatever the data; none leaves early.

Of two names for one value that a loop sets, the front end of Gluon carries only those whose value
differs from the one before the loop. So the stage before one is computed, rather than kept.

It is imported only where such a kernel is: Gluon is experimental.
"""

# Device functions are compiled by Triton and have no Python types.
# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator, no-untyped-call"
# mypy: disable-error-code="no-any-return, assignment, unused-ignore"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from plait_triton_codegen import device

if hasattr(tma, "async_load"):  # since Triton 3.8

    @gluon.jit
    def read(matrix, place, barrier, buffer):
        """Begin to copy a block to shared memory; its bytes count at a barrier."""
        tma.async_load(matrix, place, barrier, buffer)

    @gluon.jit
    def write(matrix, place, buffer):
        """Begin to copy a block from shared memory."""
        tma.async_store(matrix, place, buffer)

else:

    @gluon.jit
    def read(matrix, place, barrier, buffer):
        """Begin to copy a block to shared memory; its bytes count at a barrier."""
        tma.async_copy_global_to_shared(matrix, place, barrier, buffer)

    @gluon.jit
    def write(matrix, place, buffer):
        """Begin to copy a block from shared memory."""
        tma.async_copy_shared_to_global(matrix, place, buffer)


@gluon.jit
def described(base, sizes, stride: gl.constexpr, block: gl.constexpr):
    """A descriptor of a matrix for such blocks, whose last axes are contiguous."""
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(block, base.dtype.element_ty)
    return tma.make_tensor_descriptor(base, sizes, [stride, 1], block, layout)


@gluon.jit
def ring(matrix, count: gl.constexpr):
    """Shared memory for so many blocks of a matrix."""
    block: gl.constexpr = matrix.block_type.shape
    return gl.allocate_shared_memory(matrix.dtype, [count, block[0], block[1]], matrix.layout)


@gluon.jit
def barriers(count: gl.constexpr, arrivals: gl.constexpr):
    """Barriers that so many arrivals complete."""
    made = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(count):
        mbarrier.init(made.index(n), arrivals)
    return made


@gluon.jit
def _next(stage, phase, stages: gl.constexpr):
    """The stage after one, and the phase of barriers there."""
    last = stage == stages - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def _before(stage, stages: gl.constexpr):
    """The stage before one."""
    return gl.where(stage == 0, stages - 1, stage - 1)


@gluon.jit
def _place(line, term, lines_first: gl.constexpr):
    """Where a block begins, as the matrix's descriptor has it."""
    if lines_first:
        return [line, term]
    else:
        return [term, line]


@gluon.jit
def _as(block, lines_first: gl.constexpr, wanted: gl.constexpr):
    """A block in shared memory with lines as its first axis, or its second."""
    if lines_first == wanted:
        return block
    else:
        return block.permute((1, 0))


@gluon.jit
def loads(left, right, lefts, rights, full, empty, shape: gl.constexpr, forms: gl.constexpr):
    """The role that reads: all blocks of terms of the program's blocks, in the order in which those
    who multiply take them.

    `shape` is how many blocks of rows and columns there are, and of terms, and rows of blocks whose
    programs run one after another; `forms` is rows that a warpgroup has, how many of such a block
    has, its columns, terms and stages, and whether lines are the first axes of the factors.
    """
    rows: gl.constexpr = shape[0]
    columns: gl.constexpr = shape[1]
    height: gl.constexpr = forms[0]
    parts: gl.constexpr = forms[1]
    width: gl.constexpr = forms[2]
    depth: gl.constexpr = forms[3]
    stages: gl.constexpr = forms[4]
    size: gl.constexpr = (height * parts + width) * depth * left.dtype.primitive_bitwidth // 8
    stage = 0
    phase = 1
    for program in range(gl.program_id(0), rows * columns, gl.num_programs(0)):
        row, column = device.grouped(program, rows, columns, shape[3])
        for turn in range(shape[2]):
            barrier = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(barrier, size)
            for part in gl.static_range(parts):
                place = _place((row * parts + part) * height, turn * depth, forms[5])
                read(left, place, barrier, lefts.index(stage * parts + part))
            place = _place(column * width, turn * depth, forms[6])
            read(right, place, barrier, rights.index(stage))
            stage, phase = _next(stage, phase, stages)


@gluon.jit
def _split(block, parts: gl.constexpr):
    """A block as blocks side by side."""
    if parts == 1:
        return (block,)
    else:
        halves = block.reshape([block.shape[0], 2, block.shape[1] // 2]).permute((0, 2, 1))
        first, second = halves.split()
        return _split(first, parts // 2) + _split(second, parts // 2)


@gluon.jit
def _finish(sums, result, buffer, row, column, finish: gl.constexpr, given):
    """Compute what follows a block of sums and have it written, some columns after others: `finish`
    gives what is stored, of sums, the first row and column, and the kernel's arguments."""
    columns: gl.constexpr = result.block_type.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    parts: gl.constexpr = sums.shape[1] // columns
    blocks = _split(sums, parts)
    for n in gl.static_range(parts):
        part = gl.convert_layout(blocks[n], layout)
        value = finish(part, row, column + n * columns, given)
        tma.store_wait(0)  # the buffer is read
        buffer.store(value)
        fence_async_shared()
        write(result, [row, column + n * columns], buffer)


@gluon.jit
def _add(sums, turn, left, right, forms: gl.constexpr):
    """Begin to add the products of a turn, and wait for those of the one before."""
    sums = warpgroup_mma(
        _as(left, forms[5], True),
        _as(right, forms[6], False),
        sums,
        use_acc=turn > 0,
        is_async=True,
    )
    return warpgroup_mma_wait(1, deps=(sums,))


@gluon.jit
def _together(
    result,
    lefts,
    rights,
    results,
    full,
    empty,
    given,
    finish: gl.constexpr,
    shape: gl.constexpr,
    forms: gl.constexpr,
    which: gl.constexpr,
):
    """One of the two warpgroups that share a block's rows."""
    rows: gl.constexpr = shape[0]
    columns: gl.constexpr = shape[1]
    height: gl.constexpr = forms[0]
    parts: gl.constexpr = forms[1]
    width: gl.constexpr = forms[2]
    stages: gl.constexpr = forms[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    stage = 0
    phase = 0
    for program in range(gl.program_id(0), rows * columns, gl.num_programs(0)):
        row, column = device.grouped(program, rows, columns, shape[3])
        sums = gl.zeros((height, width), gl.float32, layout)
        for turn in range(shape[2]):
            mbarrier.wait(full.index(stage), phase)
            left = lefts.index(stage * parts + which)
            sums = _add(sums, turn, left, rights.index(stage), forms)
            mbarrier.arrive(empty.index(_before(stage, stages)), pred=turn > 0)
            stage, phase = _next(stage, phase, stages)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index(_before(stage, stages)))
        first = (row * parts + which) * height
        _finish(sums, result, results.index(which), first, column * width, finish, given)
    tma.store_wait(0)


@gluon.jit
def _in_turn(
    result,
    lefts,
    rights,
    results,
    full,
    empty,
    turns_of,
    given,
    finish: gl.constexpr,
    shape: gl.constexpr,
    forms: gl.constexpr,
    which: gl.constexpr,
):
    """One of the two warpgroups that take blocks in turn."""
    rows: gl.constexpr = shape[0]
    columns: gl.constexpr = shape[1]
    height: gl.constexpr = forms[0]
    width: gl.constexpr = forms[2]
    stages: gl.constexpr = forms[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    done = shape[2] * which
    mine = 1 - which
    first = gl.program_id(0) + which * gl.num_programs(0)
    for program in range(first, rows * columns, 2 * gl.num_programs(0)):
        row, column = device.grouped(program, rows, columns, shape[3])
        sums = gl.zeros((height, width), gl.float32, layout)
        stage = done % stages
        phase = (done // stages) & 1
        mbarrier.wait(turns_of.index(which), mine)
        for turn in range(shape[2]):
            mbarrier.wait(full.index(stage), phase)
            sums = _add(sums, turn, lefts.index(stage), rights.index(stage), forms)
            mbarrier.arrive(empty.index(_before(stage, stages)), pred=turn > 0)
            stage, phase = _next(stage, phase, stages)
        mbarrier.arrive(turns_of.index(1 - which))
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index(_before(stage, stages)))
        _finish(sums, result, results.index(which), row * height, column * width, finish, given)
        done += 2 * shape[2]
        mine ^= 1
    tma.store_wait(0)


@gluon.jit
def together(
    left, right, result, given, finish: gl.constexpr, shape: gl.constexpr, forms: gl.constexpr
):
    """A product whose blocks two warpgroups share, half of the rows each. See `loads`."""
    lefts, rights = ring(left, forms[4] * forms[1]), ring(right, forms[4])
    results = ring(result, 2)
    full, empty = barriers(forms[4], 1), barriers(forms[4], 2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _together,
                (
                    result,
                    lefts,
                    rights,
                    results,
                    full,
                    empty,
                    given,
                    finish,
                    shape,
                    forms,
                    gl.constexpr(0),
                ),
            ),
            (
                _together,
                (
                    result,
                    lefts,
                    rights,
                    results,
                    full,
                    empty,
                    given,
                    finish,
                    shape,
                    forms,
                    gl.constexpr(1),
                ),
            ),
            (loads, (left, right, lefts, rights, full, empty, shape, forms)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def in_turn(
    left, right, result, given, finish: gl.constexpr, shape: gl.constexpr, forms: gl.constexpr
):
    """A product whose blocks two warpgroups take in turn. See `loads`."""
    lefts, rights = ring(left, forms[4]), ring(right, forms[4])
    results = ring(result, 2)
    full, empty = barriers(forms[4], 1), barriers(forms[4], 1)
    turns_of = barriers(2, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                _in_turn,
                (
                    result,
                    lefts,
                    rights,
                    results,
                    full,
                    empty,
                    turns_of,
                    given,
                    finish,
                    shape,
                    forms,
                    gl.constexpr(0),
                ),
            ),
            (
                _in_turn,
                (
                    result,
                    lefts,
                    rights,
                    results,
                    full,
                    empty,
                    turns_of,
                    given,
                    finish,
                    shape,
                    forms,
                    gl.constexpr(1),
                ),
            ),
            (loads, (left, right, lefts, rights, full, empty, shape, forms)),
        ],
        [4, 1],
        [240, 24],
    )
