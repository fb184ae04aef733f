"""Lifetimes, arena offsets and in-place reuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scheduler_checks import run
from scheduler_graphs import Builder, T, transformer

from plait_ir_lowering import (
    Buffer,
    Definition,
    Device,
    DType,
    ExternCall,
    Graph,
    Layout,
    Load,
    Op,
    Pointwise,
    Sym,
    TensorRef,
    Var,
    as_index,
)
from plait_scheduler import (
    Access,
    ArenaStorage,
    CopyBack,
    ExternStorage,
    Free,
    InputStorage,
    Lifetime,
    OutputStorage,
    ProgramError,
    SchedulerOptions,
    SharedStorage,
    load_python,
    memory_of,
    memory_report,
    parse_program,
    plan,
    plan_arena,
    print_program,
    render_python,
    verify_program,
)

lifetimes = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 10)), max_size=40
).map(
    lambda rows: [
        Lifetime(f"b{n}", as_index(size), first, first + span)
        for n, (size, first, span) in enumerate(rows)
    ]
)


@given(lifetimes)
def test_buffers_alive_together_do_not_overlap(lives: list[Lifetime]) -> None:
    arena = plan_arena(lives)
    for life in lives:
        start = arena.offsets[life.name].as_int()
        assert start % 64 == 0
        assert start + life.nbytes.as_int() <= arena.nbytes.as_int()
        for other in lives:
            if other is not life and life.meets(other):
                begin = arena.offsets[other.name].as_int()
                end = begin + other.nbytes.as_int()
                assert end <= start or start + life.nbytes.as_int() <= begin


@given(lifetimes)
def test_reuse_never_takes_more_memory(lives: list[Lifetime]) -> None:
    assert plan_arena(lives).nbytes.as_int() <= plan_arena(lives, reuse=False).nbytes.as_int()


def test_sizes_not_known_yet_share_memory_only_with_equals() -> None:
    s, t = Sym("s0").expr * 4, Sym("s1").expr * 4
    lives = [
        Lifetime("a", s, 0, 1),
        Lifetime("b", s, 2, 3),
        Lifetime("c", t, 2, 3),
        Lifetime("d", as_index(100), 0, 3),
    ]
    arena = plan_arena(lives)
    assert arena.offsets["a"] is arena.offsets["b"]
    assert arena.offsets["c"] is not arena.offsets["a"]
    assert arena.offsets["d"].as_int() == 0


def _chain(b: Builder, x, steps: int):
    w = b.input(torch.randn(16, 16) / 4)
    for _ in range(steps):
        x = b.mm(b.unary("sin", x), w)
    return x


def test_a_chain_needs_memory_for_two_temporaries() -> None:
    b = Builder()
    y = _chain(b, b.input(torch.randn(16, 16)), 6)
    program = run(b, y).program
    assert program.arena_nbytes.as_int() == 2 * 16 * 16 * 4
    report = memory_report(program)
    assert report.peak.as_int() == 3 * 16 * 16 * 4
    assert report.unshared.as_int() == 11 * 16 * 16 * 4


def test_without_reuse_each_temporary_has_memory_of_its_own() -> None:
    b = Builder()
    y = _chain(b, b.input(torch.randn(16, 16)), 6)
    options = SchedulerOptions(reuse_memory=False, reuse_in_place=False)
    assert run(b, y, options=options).program.arena_nbytes.as_int() == 11 * 16 * 16 * 4


def test_a_dying_temporary_is_overwritten_in_place() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    y = b.mm(b.softmax(b.mm(x, w)), w)
    program = run(b, y).program
    shared = [p for p in program.buffers if isinstance(p.storage, SharedStorage)]
    assert len(shared) == 1
    (kernel,) = program.kernels
    assert [p.access for p in kernel.params] == [Access.READ_WRITE]


HAND_OUT = SchedulerOptions(hand_out_bytes=0)


def test_a_result_takes_over_a_dying_temporary() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    h = b.mm(x, w)
    y = b.binary("add", h, b.mm(b.unary("sin", h), w))
    program = run(b, y, options=HAND_OUT).program
    buffers = {p.name: p for p in program.buffers}
    assert isinstance(buffers[y.buffer].storage, SharedStorage)
    assert buffers[memory_of(buffers, y.buffer)].storage == OutputStorage()
    assert memory_report(program).outputs.as_int() == 16 * 16 * 4
    assert memory_report(program).peak.as_int() == 3 * 16 * 16 * 4
    assert memory_report(run(b, y).program).peak.as_int() == 4 * 16 * 16 * 4


def _triangle(b: Builder, x: T) -> T:
    """What an external call makes, in memory of its own."""
    call = [TensorRef(x.buffer), as_index(0)]
    return b.extern("aten::tril", "", call, x.value.tril(), out=False)


def test_a_result_takes_over_what_an_external_call_made() -> None:
    b = Builder()
    x = b.input(torch.randn(16, 16))
    made = _triangle(b, x)
    y = b.unary("exp", made)
    program = run(b, y, options=HAND_OUT).program
    storage = {p.name: p.storage for p in program.buffers}
    assert storage[y.buffer] == SharedStorage(made.buffer)
    assert storage[made.buffer] == ExternStorage()
    assert not any(isinstance(step, Free) for step in program.steps)
    freed = replace(program, steps=(*program.steps[:-1], Free(made.buffer), program.steps[-1]))
    with pytest.raises(ProgramError, match="in the memory of"):
        verify_program(freed)


def test_a_temporary_takes_over_what_an_external_call_made() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    made = _triangle(b, x)
    first = b.unary("exp", made)
    second = b.binary("add", b.unary("sin", first), b.mm(first, w))
    program = run(b, b.mm(b.mm(second, w), w)).program
    storage = {p.name: p.storage for p in program.buffers}
    assert storage[first.buffer] == SharedStorage(made.buffer)
    assert storage[made.buffer] == ExternStorage()
    frees = [step.buffer for step in program.steps if isinstance(step, Free)]
    assert frees.count(made.buffer) == 1
    assert frees.index(made.buffer) > frees.index(first.buffer)
    assert program.arena_nbytes.as_int() == 2 * 16 * 16 * 4
    early = [step for step in program.steps if step != Free(made.buffer)]
    early.insert(early.index(Free(first.buffer)), Free(made.buffer))
    with pytest.raises(ProgramError, match="in the memory of"):
        verify_program(replace(program, steps=tuple(early)))


def test_what_is_copied_to_an_input_keeps_the_memory_of_a_call_until_then() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    made = _triangle(b, x)
    first = b.unary("exp", made)
    graph = b.graph(b.mm(b.mm(first, w), w), mutations=[(w.buffer, TensorRef(first.buffer))])
    program = plan(graph, options=SchedulerOptions(write_in_place=False)).program
    verify_program(program)
    storage = {p.name: p.storage for p in program.buffers}
    assert storage[first.buffer] == SharedStorage(made.buffer)
    steps = list(program.steps)
    copied = next(n for n, step in enumerate(steps) if isinstance(step, CopyBack))
    assert steps.index(Free(made.buffer)) > steps.index(Free(first.buffer)) > copied


def test_small_results_share_the_kernels_of_temporaries() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    program = run(b, b.unary("exp", b.mm(x, w))).program
    assert not any(isinstance(p.storage, SharedStorage) for p in program.buffers)


def test_a_value_named_before_it_is_overwritten_keeps_its_value() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    h = b.mm(x, w)
    turned = b.contiguous(b.permute(h, (1, 0)))
    run(b, b.mm(b.unary("sin", h), w), turned)


def test_inputs_and_outputs_are_never_overwritten() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    h = b.mm(x, w)
    y = b.mm(b.unary("exp", h), w)
    before = x.value.clone()
    program = run(b, h, y, b.unary("sin", x)).program
    assert torch.equal(b.given[0], before)
    for buffer in program.buffers:
        assert not isinstance(buffer.storage, SharedStorage)


def test_a_temporary_read_at_other_points_is_not_overwritten() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    h = b.mm(x, w)
    y = b.mm(b.binary("add", h, b.permute(h, (1, 0))), w)
    program = run(b, y).program
    assert not any(isinstance(p.storage, SharedStorage) for p in program.buffers)


def _rows_added(b: Builder, to: T) -> T:
    """Rows added to some of those of `to`, of which one gets two."""
    rows, index = b.input(torch.randn(3, 16)), b.input(torch.tensor([4, 0, 4]))
    value = to.value.index_add(0, index.value, rows.value)
    refs = TensorRef(index.buffer), TensorRef(rows.buffer)
    args = [TensorRef(to.buffer), as_index(0), *refs, as_index(1)]
    return b.extern("aten::index_add", "out", args, value)


def test_rows_are_added_in_the_memory_of_what_dies() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    h = b.mm(x, w)
    y = _rows_added(b, h)
    program = run(b, y, options=HAND_OUT).program
    buffers = {p.name: p for p in program.buffers}
    assert buffers[y.buffer].storage == SharedStorage(h.buffer)
    assert buffers[h.buffer].storage == OutputStorage()
    assert memory_report(program).peak.as_int() == 16 * 16 * 4
    none = SchedulerOptions(reuse_in_place=False)
    assert memory_report(run(b, y, options=none).program).peak.as_int() == 2 * 16 * 16 * 4


def test_rows_are_added_elsewhere_to_what_lives_on() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    h = b.mm(x, w)
    y, z = _rows_added(b, h), _rows_added(b, x)
    program = run(b, y, z, b.unary("exp", h), options=HAND_OUT).program
    storage = {p.name: p.storage for p in program.buffers}
    assert storage[y.buffer] == storage[z.buffer] == OutputStorage()


def test_the_arena_is_on_one_device() -> None:
    def on(name: str, device: str) -> Buffer:
        return Buffer(name, DType.f32, Device(device), Layout.of([4]))

    def sine(name: str, of: str, device: str) -> Definition:
        i0 = Var("i0", 4)
        value = Op("sin", [Load(of, [i0.expr], DType.f32)])
        return Definition((on(name, device),), Pointwise((i0,), value))

    def moved(name: str, of: str, device: str) -> Definition:
        return Definition(
            (on(name, device),), ExternCall("aten::copy", "out", (TensorRef(of),) * 3, True)
        )

    graph = Graph(
        "two",
        (on("x", "cpu"),),
        (
            sine("a", "x", "cpu"),
            moved("b", "a", "cuda"),
            sine("c", "b", "cuda"),
            moved("d", "c", "cuda"),
            moved("e", "d", "cpu"),
        ),
        (TensorRef("e"),),
    )
    storages = {b.name: b.storage for b in plan(graph).program.buffers}
    assert isinstance(storages["a"], OutputStorage)
    assert isinstance(storages["b"], ArenaStorage)


def test_outputs_that_view_one_buffer_share_it() -> None:
    b = Builder()
    x = b.input(torch.randn(4, 6))
    e = b.unary("exp", x)
    graph = b.graph(e, b.view(e, (24,)))
    program = plan(graph).program
    assert sum(isinstance(p.storage, OutputStorage) for p in program.buffers) == 1


def test_an_input_may_be_returned() -> None:
    b = Builder()
    x = b.input(torch.randn(4))
    program = run(b, x, b.unary("exp", x)).program
    assert program.buffers[0].storage == InputStorage(0)


def test_mutated_inputs_are_copied_back_last() -> None:
    from plait_scheduler import load_python, render_python

    b = Builder()
    x, y = b.input(torch.arange(4.0)), b.input(torch.arange(4.0) + 10)
    z = b.binary("add", x, y)
    swap = [("x0", TensorRef("x1")), ("x1", TensorRef("x0"))]
    program = plan(b.graph(z, x, mutations=swap)).program
    first, second = (t.clone() for t in b.given)
    total, old = load_python(render_python(program))([first, second])
    assert torch.equal(total, z.value)
    assert torch.equal(first, y.value)
    assert torch.equal(second, x.value)
    assert torch.equal(old, x.value)


def test_the_arena_of_a_deep_model_is_that_of_one_layer() -> None:
    sizes = []
    for layers in (2, 6):
        b, y = transformer(layers)
        program = plan(b.graph(y)).program
        assert any(isinstance(p.storage, ArenaStorage) for p in program.buffers)
        sizes.append(program.arena_nbytes.as_int())
    assert sizes[0] == sizes[1]


def test_an_input_that_nobody_needs_is_overwritten_once_it_is_read() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    y = b.mm(b.unary("sin", b.mm(b.unary("exp", x), w)), w)
    kept = plan(b.graph(y)).program
    program = plan(b.graph(y), scratch=[0]).program
    assert (kept.overwritten, program.overwritten) == (set(), {0})
    assert program.arena_nbytes.as_int() == kept.arena_nbytes.as_int() // 2
    inputs = [value.clone() for value in b.given]
    (result,) = load_python(render_python(program))(inputs)
    torch.testing.assert_close(result, y.value)
    assert torch.equal(inputs[1], b.given[1])
    assert parse_program(print_program(program)) == program


def test_an_input_that_is_read_again_or_returned_is_not_overwritten() -> None:
    b = Builder()
    x, w = b.input(torch.randn(16, 16)), b.input(torch.randn(16, 16))
    y = b.mm(b.unary("exp", x), w)
    again = b.mm(y, x)
    program = plan(b.graph(y, again), scratch=[0]).program
    assert program.overwritten == set()
    assert plan(b.graph(b.mm(b.unary("exp", x), w), x), scratch=[0]).program.overwritten == set()
