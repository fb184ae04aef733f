"""`as_strided`, its inverse, and what rules decline."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import check, record

from plait_ir_lowering import (
    LoweringError,
    external_ops,
    interpret,
    lower,
    print_graph,
    verify,
)

aten = torch.ops.aten
X = torch.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((3,), (1,), 0),
        ((3,), (7,), 2),
        ((2, 2), (1, 2), 1),
        ((4, 6), (1, 4), 0),
        ((5, 4), (2, 3), 1),
        ((3, 0), (1, 1), 0),
        ((), (), 5),
        ((2, 3, 1), (12, 0, 7), 3),
    ],
)
@pytest.mark.parametrize("base", [X, X.t().contiguous().t()], ids=["rows", "columns"])
def test_as_strided_reads_the_same_places(base, size, stride, offset):
    graph = check(lambda x: (x * 2).as_strided(size, stride, offset) + 1, base)
    assert not external_ops(graph)
    check(lambda x: x.as_strided(size, stride, offset) + 1, base)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_as_strided_of_nothing(shape):
    check(lambda x: (x * 2).as_strided((0, 3), (1, 1)) + 1, torch.ones(shape))
    with pytest.raises(LoweringError, match="beyond"):
        lower(record(lambda x: (x * 2).as_strided((2,), (0,)) + 1, [torch.ones(shape)]))


def test_as_strided_beyond_its_operand_is_refused():
    base = torch.arange(100.0)
    with pytest.raises(LoweringError, match="beyond"):
        lower(record(lambda x: x.as_strided((20,), (1,), 10) + 1, [base[:24]]))
    with pytest.raises(LoweringError, match="laid out otherwise"):
        lower(record(lambda x: x.as_strided((3,), (1,), 0) + 1, [base[::2]]))


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [((3,), (1,), 4), ((2, 2), (12, 2), 1), ((2, 2), (2, 12), 1), ((4, 1), (5, 0), 3)],
)
@pytest.mark.parametrize("base", [X, X.t().contiguous().t()], ids=["rows", "columns"])
def test_as_strided_scatter_writes_the_same_places(base, size, stride, offset):
    source = -torch.rand(size)
    graph = check(
        lambda x, s: aten.as_strided_scatter(x * 1.5, s, size, stride, offset), base, source
    )
    assert not external_ops(graph)


def test_as_strided_scatter_to_overlapping_places_is_left_to_aten():
    graph = lower(
        record(lambda x, s: aten.as_strided_scatter(x, s, (3, 2), (1, 1), 0), [X, torch.ones(3, 2)])
    )
    assert list(external_ops(graph)) == ["aten::as_strided_scatter"]


REFUSED = [
    (lambda x: F.gelu(x), torch.int64),
    (lambda x: torch.softmax(x, 0), torch.int64),
    (lambda x: torch.log_softmax(x, 0), torch.int32),
    (lambda x: torch.relu(x), torch.bool),
    (lambda x: torch.abs(x), torch.bool),
    (lambda x: torch.floor(x), torch.bool),
]


@pytest.mark.parametrize(("program", "dtype"), REFUSED)
def test_dtypes_that_eager_refuses_are_refused_by_its_kernel(program, dtype):
    """No half-lowered loops stay behind, and the kernel's own error comes out."""
    x = torch.ones(4, 4, dtype=dtype)
    graph = lower(record(program, [x]))
    verify(graph)
    assert len(graph.definitions) == 1
    assert external_ops(graph)
    with pytest.raises((NotImplementedError, RuntimeError)) as eager:
        program(x)
    with pytest.raises(eager.type) as compiled:
        interpret(graph, [x])
    assert str(compiled.value) == str(eager.value)


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: aten.mm(a, b),
        lambda a, b: aten.addmm(b[0], a, a),
        lambda a, b: aten.addmm(b[0], a, b),
    ],
)
def test_products_of_two_dtypes_are_left_to_the_kernel_that_refuses_them(program):
    a, b = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4)
    graph = lower(record(program, [a, b]))
    assert external_ops(graph)
    with pytest.raises(RuntimeError) as eager:
        program(a, b)
    with pytest.raises(RuntimeError) as compiled:
        interpret(graph, [a, b])
    assert str(compiled.value) == str(eager.value)


@pytest.mark.parametrize(
    "program",
    [
        lambda z: torch.view_as_real(z.t())[..., 0],
        lambda z: torch.view_as_real(torch.fft.fft(z, dim=0))[1:, 0],
        lambda z: torch.view_as_real(z[1:, ::2]).select(2, 1),
        lambda z: torch.view_as_real(z[1:, 1:]).permute(2, 0, 1)[:, 1],
        lambda z: z[:, ::2].conj()[1:].real,
        lambda z: z.t()[1:].imag.unfold(1, 2, 1)[0].t(),
        lambda z: z.real.unfold(0, 2, 1)[1:, :, 0],
        lambda z: z.real.t()[1:].view(torch.int32)[:, 1:],
    ],
)
def test_views_of_copies_of_views_read_what_the_copies_hold(program):
    """What stands for a view without a rule may lie otherwise in memory."""
    check(lambda z: program(z) + 1, torch.randn(4, 4, dtype=torch.complex64))


def test_what_has_no_memory_gets_some_to_be_restrided():
    graph = check(
        lambda x: torch.as_strided(x.expand(3, 4).reshape(12), (2, 3), (1, 4)), torch.randn(4)
    )
    assert not external_ops(graph)
    check(lambda x: torch.as_strided(x.unfold(0, 4, 4)[1], (2, 2), (1, 2)) + 1, torch.randn(8))


def test_views_begin_where_their_operand_does_though_a_pass_put_it_in_the_place_of_a_copy():
    x, places = torch.arange(16.0), torch.tensor([0, 1, 1])

    def program(x, places):
        copy = x[14:].clone()
        return copy.index_put((places,), copy[1])

    graph = record(program, [x, places])
    (copy,) = graph.find_nodes(op="call_function", target=aten.clone.default)
    copy.replace_all_uses_with(copy.args[0])
    graph.erase_node(copy)
    lowered = lower(graph)
    verify(lowered)
    assert torch.equal(interpret(lowered, [x, places])[0], program(x, places))


def test_equal_constants_side_by_side_are_one_part_of_a_concatenation():
    def padded(x):
        zeros = [torch.zeros(2), torch.zeros(3, dtype=torch.float64), torch.zeros(1)]
        return torch.cat([*zeros, x[0], *zeros, torch.ones(2), *zeros[:1] * 400])

    graph = check(padded, X)
    assert print_graph(graph).count("masked(") == 5


@pytest.mark.parametrize(("parts", "called"), [(256, {}), (257, {"aten::cat": 1})])
def test_a_concatenation_of_very_many_parts_is_a_call(parts, called):
    graph = check(lambda x: torch.cat([x[n % 4, n % 6 :] for n in range(parts)]), X)
    assert external_ops(graph) == called
