"""Concatenations and casts: what is joined, read where it comes from, cast once; what is left."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import check_program, trace
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from plait_fx_passes import DEFAULT_PASSES, run_passes, to_aten, verify, wrap_runtime
from plait_fx_passes.open_sizes import runner
from plait_fx_passes.passes import DEAD_CODE, JOIN_PIECES, MERGE_CASTS, REMOVE_NOOPS
from plait_fx_passes.passes.casts import keeps_values

CAT, SLICE, CLONE = "aten.cat.default", "aten.slice.Tensor", "aten.clone.default"


def matrix(rows=4, columns=6):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def apply(program, *inputs, passes=(JOIN_PIECES,)):
    """The operators that are left; values, strides and aliasing are checked by `check_program`."""
    check_program(program, list(inputs))
    graph = to_aten(trace(program), list(inputs))
    left = run_passes(graph, (*passes, DEAD_CODE), verify_each=True)
    return [str(n.target) for n in left.graph.nodes if n.op == "call_function"]


def apply_all(program, *inputs):
    return apply(program, *inputs, passes=DEFAULT_PASSES[:-1])


def test_parts_of_sizes_that_depend_on_data():
    """Whether one is empty is not asked."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    program = trace(lambda x: torch.cat([x[x[:, 0] > 0], torch.cat([x[x[:, 0] < 0] * 2, x])]))
    graph = to_aten(program, [mode.from_tensor(torch.randn(6, 2))])
    asked = len(mode.shape_env.guards)
    left = run_passes(graph, (JOIN_PIECES, DEAD_CODE))
    assert len(mode.shape_env.guards) == asked
    verify(left)
    assert [n.target for n in left.graph.nodes].count(torch.ops.aten.cat.default) == 1


# Open sizes.


def apply_open(program, passes=(JOIN_PIECES,)):
    """The operators that are left where rows are open: nothing is asked of how many there are, and
    values are eager's for other numbers of them than were recorded, which are equal by chance."""
    mode, open_rows = FakeTensorMode(shape_env=ShapeEnv()), (DimDynamic.DYNAMIC, DimDynamic.STATIC)
    made = StatelessSymbolicContext(dynamic_sizes=list(open_rows), constraint_sizes=[None] * 2)
    inputs = [mode.from_tensor(matrix(8), symbolic_context=made) for _ in range(2)]
    gm = trace(program)
    graph = to_aten(gm, inputs)
    asked = len(mode.shape_env.guards)
    left = run_passes(graph, (*passes, DEAD_CODE))
    assert len(mode.shape_env.guards) == asked
    verify(left)
    for sizes in ((8, 8), (12, 9), (9, 14)):
        values = [matrix(each) + at for at, each in enumerate(sizes)]
        (got,), wanted = runner(left)(*values), program(*values)
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()
    return [str(n.target) for n in left.graph.nodes if n.op == "call_function"]


def rows(x):
    return x.shape[0]


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: torch.cat([x[: rows(x) // 2], x[rows(x) // 2 :]]).abs(),
        lambda x, y: torch.cat([x[:2], x[2 : rows(x) // 2 + 2], x[rows(x) // 2 + 2 :]]).abs(),
        lambda x, y: torch.cat(x.split([rows(x) // 3, rows(x) - rows(x) // 3])).abs(),
        lambda x, y: torch.cat([x, y])[: rows(x)].abs(),
        lambda x, y: torch.cat([x, y])[rows(x) :].abs(),
        lambda x, y: torch.cat([y, x, y])[rows(y) : rows(y) + rows(x)].abs(),
        lambda x, y: torch.cat([x[:2], y, x])[2 : 2 + rows(y)].abs(),
    ],
)
@pytest.mark.sampled(3)
def test_open_parts_that_are_surely_all_of_a_tensor_are_the_tensor(program):
    passes = (REMOVE_NOOPS, JOIN_PIECES)
    assert apply_open(program, passes) == ["aten.abs.default"]


def test_numbers_of_open_parts_are_read_where_they_come_from():
    left = apply_open(lambda x, y: torch.cat([x[:2], y])[1:2].abs())
    assert left.count(CAT) == 0
    left = apply_open(lambda x, y: torch.cat([y[rows(y) - 1 :], x[1:3], x[3:5], y]).abs())
    assert left.count(SLICE) == 2


def test_open_concatenations_are_one():
    left = apply_open(lambda x, y: torch.cat([torch.cat([x, y]), torch.cat([y * 2, x])]).abs())
    assert left.count(CAT) == 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: torch.cat([x, y])[: rows(y)].abs(),  # as many by chance
        lambda x, y: torch.cat([x[: rows(y) // 2], x[rows(x) // 2 :]]).abs(),
        lambda x, y: torch.cat([x[: rows(x) // 2], x[rows(x) // 2 + 1 :]]).abs(),
        lambda x, y: torch.cat([x[: rows(x) // 2], x[rows(x) // 2 - 1 :]]).abs(),
        lambda x, y: torch.cat([x[: rows(x) // 2], y[rows(x) // 2 :]]).abs(),
        lambda x, y: torch.cat([x[: rows(x) - 3], x[rows(x) - 3 :]]).abs(),  # -3 may be the last
        lambda x, y: torch.cat([x, y])[rows(x) - 1 : rows(x) + 1].abs(),  # of both
        lambda x, y: torch.cat([x, y])[rows(x) : rows(x) + 2].abs(),  # of how many there are
        lambda x, y: torch.cat([x, y])[:3].abs(),
        lambda x, y: torch.cat([x, y])[-rows(y) - 1 : -1].abs(),
        # There is no tensor of so many rows yet, and to make one asks whether they are one.
        lambda x, y: torch.cat([x[: rows(x) // 3], x[rows(x) // 3 : rows(x) // 2], y]).abs(),
    ],
)
def test_other_open_parts_stay_a_concatenation(program):
    assert CAT in apply_open(program)


# Concatenations of what lies side by side.


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cat(x.split(2, 1), 1).sin(),
        lambda x: torch.cat(x.chunk(3, -1), -1).sin(),
        lambda x: torch.stack(x.unbind(0), 0).sin(),
        lambda x: torch.stack(x.unbind(1), 1).sin(),
        lambda x: torch.cat([x[:1], x[1:3], x[-1:]]).sin(),
        lambda x: torch.cat([x, torch.empty(0)]).sin(),
    ],
)
def test_all_parts_of_a_tensor_are_the_tensor(program):
    assert apply_all(program, matrix()) == ["aten.sin.default"]


def test_neighbouring_parts_are_one_part():
    def program(x, y):
        return torch.cat([x[:, :2], x[:, 2:4], y, y[:, 3:], y[:, :3]], 1)

    left = apply(program, matrix(), matrix())
    assert left.count(SLICE) == 3
    assert left.count(CAT) == 1


def test_some_neighbouring_parts_alone_are_a_copy():
    left = apply(lambda x: torch.cat([x[1:2], x[2:4]]) * 2, matrix())
    assert left == [SLICE, CLONE, "aten.mul.Tensor"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cat([x[2:], x[:2]]).sin(),
        lambda x: torch.cat([x[:2], x[1:]]).sin(),
        lambda x: torch.cat([x[::2], x[1::2]]).sin(),
        lambda x: torch.cat([x[:2], x[2:]], 1).sin(),
        lambda x: torch.stack(x.unbind(0), 1).sin(),
        lambda x: torch.cat([x[:2], x[2:].double()]).sin(),
    ],
)
def test_other_parts_stay_a_concatenation(program):
    assert CAT in apply_all(program, matrix())


def test_what_the_caller_gets_is_a_tensor_of_its_own():
    assert apply_all(lambda x: torch.cat(x.split(2)), matrix()) == [CLONE]
    assert CAT not in apply_all(lambda x: torch.cat(x.t().split(2)).sin(), matrix())


def test_a_concatenation_of_concatenations_is_one():
    def program(x, y):
        return torch.cat([torch.cat([x, y]), torch.cat([y, x]), x])

    assert apply(program, matrix(), matrix()) == [CAT]

    def twice(x, y):
        inner = torch.cat([x, y])
        return torch.cat([inner, x]), inner.sin()

    assert apply(twice, matrix(), matrix()).count(CAT) == 2
    assert (
        apply(lambda x: torch.cat([torch.cat([x, x]), torch.cat([x, x])], 1), matrix()).count(CAT)
        == 3
    )


def test_places_in_memory_are_counted_from_where_they_were():
    x = torch.arange(16.0)
    check_program(lambda x: torch.cat(x[8:].split(4)).as_strided((2, 2), (0, 1), 0) + 1, [x])


# Rows of concatenations.


def test_parts_are_read_where_they_come_from():
    def program(x, y):
        joined = torch.cat([x, y], 1)
        left, right = joined.split([6, 6], 1)
        return left * right, joined[:, 7:9].abs(), -torch.stack([x, y])[1]

    left = apply(program, matrix(), matrix(), passes=DEFAULT_PASSES[:-1])
    assert CAT not in left


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: torch.cat([x, y], 1)[:, 5:7].abs(),  # of both parts
        lambda x, y: torch.cat([x, y], 1)[1:].abs(),  # along another dimension
        lambda x, y: torch.cat([x, y], 1)[:, :6],  # a view that the caller gets
        lambda x, y: torch.cat([x, y], 1)[:, :6].mm(y.t()),  # kernels may round by layout
        lambda x, y: torch.cat([x, y], 1)[:, :6].exp(),  # so may these
        lambda x, y: torch.cat([x, y.double()], 1)[:, :6].abs(),  # another dtype
    ],
)
def test_other_rows_are_read_from_the_concatenation(program):
    assert CAT in apply_all(program, matrix(), matrix())


def pieced(dim, pieces, start, stop):
    """A program that joins pieces of two tensors, and takes rows of that."""

    def program(x, y):
        joined = torch.cat([(x, y)[each].narrow(dim, a, b - a) for each, a, b in pieces], dim)
        taken = joined[start:stop] if dim == 0 else joined[:, start:stop]
        return taken.abs(), joined * 2, taken

    return program


def test_random_pieces_keep_their_values():
    generator = torch.Generator().manual_seed(3)

    def number(below):
        return int(torch.randint(below, (), generator=generator))

    for _ in range(60):
        starts = [number(5) for _ in range(1 + number(4))]
        pieces = [(number(2), start, start + number(7 - start)) for start in starts]
        program = pieced(number(2), pieces, number(8), 4 + number(8))
        check_program(program, [matrix(6, 6), matrix(6, 6) + 1])


# Casts.


def test_casts_are_exact_where_they_say_so():
    dtypes = (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
    for source, target in itertools.product(dtypes, dtypes):
        if source.is_floating_point:
            bits = torch.arange(-(2**15), 2**15).to(torch.int16)
            wide = bits if source.itemsize == 2 else torch.randint(-(2**31), 2**31, (4096,))
            values = wide.view(source) if source.itemsize == 2 else wide.double().to(source) / 3
        elif source is torch.bool:
            values = torch.tensor([False, True])
        else:
            info = torch.iinfo(source)
            values = torch.tensor([info.min, info.min + 1, 0, 1, 77, info.max - 1, info.max])
            values = values.to(source)
        back = values.to(target).to(source)
        kept = (
            torch.equal(back.nan_to_num(), values.nan_to_num())
            if source.is_floating_point
            else (torch.equal(back, values) and values.to(target).tolist() == values.tolist())
        )
        assert kept or not keeps_values(source, target), (source, target)


@pytest.mark.parametrize(
    ("program", "casts"),
    [
        (lambda x: x.double().float().sin(), 0),
        (lambda x: x.double().half().sin(), 1),
        (lambda x: x.half().float().sin(), 2),
        (lambda x: x.double().to(torch.int32).abs(), 2),
        (lambda x: x.to(torch.int32).double().float().abs(), 2),
        (lambda x: (x > 0).to(torch.int8).float().sin(), 1),
    ],
)
def test_a_cast_of_a_lossless_cast_is_one(program, casts):
    left = apply(program, matrix(), passes=(MERGE_CASTS, REMOVE_NOOPS))
    assert left.count("aten._to_copy.default") == casts


# What changes nothing.


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.round().abs(),
        lambda x: x.floor().abs(),
        lambda x: x.trunc().abs(),
        lambda x: x.ceil().abs(),
        lambda x: F.pad(x, (0, 0)).abs(),
        lambda x: x.roll(0, 1).abs(),
        lambda x: x.flip([]).abs(),
    ],
)
def test_rounding_of_integers_and_moves_by_nothing_go(program):
    x = torch.arange(-6, 6).view(3, 4)
    assert apply(program, x, passes=(REMOVE_NOOPS,)) == ["aten.abs.default"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.round().abs(),
        lambda x: F.pad(x, (0, 1)).abs(),
        lambda x: F.pad(x, (1, -1)).abs(),
        lambda x: x.roll(1, 1).abs(),
        lambda x: x.flip([0]).abs(),
    ],
)
def test_what_moves_or_rounds_stays(program):
    assert len(apply(program, matrix(), passes=(REMOVE_NOOPS,))) == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x | 0).abs(),
        lambda x: (x ^ 0).abs(),
        lambda x: (x & -1).abs(),
        lambda x: (x << 0).abs(),
        lambda x: (x >> 0).abs(),
        lambda x: (x // 1).abs(),
        lambda x: x.div(1, rounding_mode="trunc").abs(),
        lambda x: (x | torch.zeros_like(x)).abs(),
        lambda x: torch.where(torch.ones_like(x) > 0, x, x + 1).abs(),
        lambda x: torch.where(torch.zeros_like(x) > 0, x + 1, x).abs(),
    ],
)
def test_arithmetic_of_integers_that_changes_nothing_goes(program):
    x = torch.tensor([-(2**63), -7, -1, 0, 1, 2**63 - 1])
    assert apply_all(program, x) == ["aten.abs.default"]


def test_flips_of_one_element_go():
    assert apply_all(lambda x: x[0].flip([0]).abs(), torch.arange(3)) == [
        "aten.select.int",
        "aten.abs.default",
    ]


def test_remainders_of_what_is_less_go():
    assert "aten.remainder.Scalar" not in apply_all(lambda x: x.argmax(1) % 6 * 2, matrix())
    assert "aten.remainder.Scalar" in apply_all(lambda x: x.argmax(1) % 5 * 2, matrix())
    assert "aten.remainder.Scalar" in apply_all(lambda x: x.argmax(1) % -6 * 2, matrix())


@pytest.mark.parametrize(
    ("program", "added"),
    [
        (lambda x: x.abs() + 0.0, 0),
        (lambda x: x.exp() + torch.zeros_like(x), 0),
        (lambda x: torch.zeros_like(x) + (x > 0).float(), 0),
        (lambda x: (x + 0.0) + 0.0, 1),
        (lambda x: (x + -0.0) + 0.0, 1),
        (lambda x: (x + 1.5) + 0.0, 1),
        (lambda x: x.ceil() + 0.0, 1),
        (lambda x: -x.abs() + 0.0, 1),
        (lambda x: x * x.abs() + 0.0, 1),
    ],
)
def test_zeros_are_added_only_where_a_zero_may_be_negative(program, added):
    x = torch.tensor([-0.5, -0.0, 0.0, 2.0, float("nan"), -float("inf")])
    assert apply_all(lambda x: program(x).reciprocal(), x).count("aten.add.Tensor") == added
    gm = trace(program)
    left = run_passes(to_aten(gm, [x]))
    got, wanted = wrap_runtime(left, left.module())(x), gm(x)
    assert torch.equal(got.signbit(), wanted.signbit())


@pytest.mark.parametrize(
    ("program", "is_known"),
    [
        (lambda x: x.long() * 0, True),
        (lambda x: torch.zeros_like(x, dtype=torch.int64) * x.long(), True),
        (lambda x: x.long() & 0, True),
        (lambda x: x.long() % 1, True),
        (lambda x: x**0, True),
        (lambda x: x.long() ** 0, True),
        (lambda x: (x > 0) & torch.zeros_like(x, dtype=torch.bool), True),
        (lambda x: torch.logical_and(x, torch.zeros_like(x)), True),
        (lambda x: x * 0, False),
        (lambda x: x * torch.zeros_like(x), False),
        (lambda x: x.long() * 0.0, False),
        (lambda x: x % 1, False),
    ],
)
def test_results_that_one_operand_decides_are_constants(program, is_known):
    x = torch.tensor([-2.5, 0.0, 3.0, float("nan"), float("inf")])
    graph = run_passes(to_aten(trace(lambda x: program(x).double()), [x]))
    assert (not graph.placeholders[0].users) is is_known
    check_program(program, [x])
