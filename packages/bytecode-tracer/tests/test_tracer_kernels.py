"""Launches of Triton kernels: which tensors they write to, and what the graph is given."""

import subprocess
import sys

import pytest
import torch

from plait_bytecode_tracer import trace
from plait_bytecode_tracer.kernels.writes import UnknownMemoryError, summary_of

triton = pytest.importorskip("triton", reason="programs launch kernels of Triton's")
import triton.language as tl  # noqa: E402  # there is one


@triton.jit
def _stored(target, places, value):
    moved = target + places
    tl.store(moved, value)


@triton.jit
def _moved(pointer, by):
    return pointer + by


@triton.jit
def stores(x, y, out, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    inside = places < n
    tl.store(out + places, tl.load(x + tl.load(y + places)), mask=inside)


@triton.jit
def stores_by_a_function(x, out):
    _stored(_moved(out, 1), 2, value=tl.load(_moved(by=3, pointer=x)))


@triton.jit
def stores_in_a_loop(x, out, other, n):
    place = other
    for k in range(n):
        tl.store(place, tl.load(x + k))
        place = out


@triton.jit
def adds(x, count, lock):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.atomic_add(count, tl.sum(tl.load(x + tl.arange(0, 16))))


@triton.jit
def stores_blocks(x, out, n):
    source = tl.make_tensor_descriptor(x, [n, n], [n, 1], [16, 16])
    tl.static_assert(n > 0)
    target = tl.make_tensor_descriptor(out, [n, n], [n, 1], [16, 16])
    target.store([0, 0], source.load([0, 0]))


@triton.jit
def calls_what_it_is_given(x, y, function: tl.constexpr):
    function(x)
    tl.device_print("y", tl.load(y))


@triton.jit
def makes_addresses(x, out):
    tl.store(tl.load(out).to(tl.pointer_type(tl.float32)), tl.load(x))


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (stores, {"out"}),
        (stores_by_a_function, {"out"}),
        (stores_in_a_loop, {"out", "other"}),
        (adds, {"count", "lock"}),
        (stores_blocks, {"out"}),
        (calls_what_it_is_given, {"x"}),
        (triton.autotune([triton.Config({})], key=[])(stores), {"out"}),
    ],
)
def test_what_may_be_written_to_is_found_in_the_source(kernel, written):
    numbers = {"n", "BLOCK"}  # which may be stored
    summary = summary_of(kernel)
    assert summary.written - numbers == written
    assert summary.only_writes is (kernel is not calls_what_it_is_given)


def test_addresses_made_of_numbers_are_refused():
    with pytest.raises(UnknownMemoryError):
        summary_of(makes_addresses)


def test_a_kernel_without_a_definition_may_do_anything():
    space = {}
    exec("def kernel(x, y): pass", space)
    for kernel in (space["kernel"], lambda x, y: None):
        summary = summary_of(kernel)
        assert summary.written == {"x", "y"}
        assert not summary.only_writes


def _operators(function, *args):
    capture = trace(function, args)
    assert capture.graph_break is None
    graph = capture.graph_module.graph
    return [
        (node, node.target)
        for node in graph.nodes
        if getattr(node.target, "namespace", "") == "plait_kernels"
    ]


def test_a_launch_is_an_operator_whose_schema_says_what_it_writes_to():
    def function(x, y):
        out = torch.empty_like(x)
        stores[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 1)](x, y, out, 5, BLOCK=2)
        return out

    ((node, target),) = _operators(function, torch.ones(5), torch.arange(5))
    written = [each.alias_info is not None for each in target._schema.arguments]
    assert [each for each in node.args if isinstance(each, int)] == [5, 2, 3, 1]
    assert written == [False, False, True, *[False] * 4]


def test_the_same_launch_is_the_same_operator():
    def function(x, y):
        out = torch.empty_like(x)
        stores[(1,)](x, y, out, 5, BLOCK=8)
        stores[(1,)](x, y, out, 4, BLOCK=8)
        stores[(1,)](x, y, x, 4, BLOCK=8)
        return out

    first, second, third = _operators(function, torch.ones(5), torch.arange(5))
    assert first[1] is second[1] is not third[1]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: stores[(1,)](x, x, x[1:], 4, BLOCK=4),
        lambda x: stores[(1,)](x, x, object(), 4, BLOCK=4),
        lambda x: makes_addresses[(1,)](x, x),
        lambda x: stores[None](x, x, x, 4, BLOCK=4),
    ],
)
def test_what_is_not_known_of_a_launch_is_a_break(program):
    assert trace(program, [torch.ones(5)]).graph_break is not None


def test_triton_is_not_imported_by_the_tracer():
    code = "import sys; import plait_bytecode_tracer; print('triton' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == "False", ran.stderr
