"""Compare a program recorded as an ATen graph with eager: values, strides, aliasing, mutation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from plait_fx_passes import AtenGraph, print_aten, run_passes, to_aten, verify, wrap_runtime

Program = Callable[..., object]


# Their forward looks at sizes, which a symbolic trace cannot.
LEAVES = (torch.nn.BatchNorm2d, torch.nn.GroupNorm, torch.nn.GRUCell)


class FlatTracer(fx.Tracer):
    """Traces through every submodule, so parameters become ``get_attr`` nodes."""

    def is_leaf_module(self, module: torch.nn.Module, name: str) -> bool:
        return isinstance(module, LEAVES)


def trace(program: Program) -> fx.GraphModule:
    """A torch-level graph of a function or module, by symbolic tracing."""
    if isinstance(program, fx.GraphModule):
        return program
    tracer = FlatTracer()
    graph = tracer.trace(program)
    return fx.GraphModule(tracer.root, graph)


def tensors_of(value: object) -> list[object]:
    return tree_leaves(value)


def storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def describe_sharing(tensors: Sequence[object]) -> list[tuple[int, int, str]]:
    """Which pairs are one object, or look at one storage."""
    found = []
    for i, left in enumerate(tensors):
        for j in range(i):
            right = tensors[j]
            if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
                continue
            if left is right:
                found.append((j, i, "same"))
            elif storage_of(left) == storage_of(right) and left.numel() and right.numel():
                found.append((j, i, "shares"))
    return found


def assert_like_eager(
    label: str,
    run: Program,
    eager: Program,
    inputs: Sequence[torch.Tensor],
    tolerance: float,
    seed: int = 0,
) -> None:
    """Run both on copies of the inputs and compare everything a caller can see."""
    expected_inputs, actual_inputs = copy.deepcopy(list(inputs)), copy.deepcopy(list(inputs))
    with torch.no_grad():
        torch.manual_seed(seed)
        expected = eager(*expected_inputs)
        torch.manual_seed(seed)
        actual = run(*actual_inputs)
    assert type(actual) is type(expected), label
    expected_all = [*expected_inputs, *tensors_of(expected)]
    actual_all = [*actual_inputs, *tensors_of(actual)]
    assert len(expected_all) == len(actual_all), label
    for index, (want, got) in enumerate(zip(expected_all, actual_all, strict=True)):
        where = f"{label}: {'input' if index < len(inputs) else 'output'} {index}"
        if not isinstance(want, torch.Tensor):
            assert want == got, where
            continue
        assert want.dtype == got.dtype, where
        assert want.shape == got.shape, where
        assert want.stride() == got.stride() or want.numel() <= 1, (
            f"{where}: strides {want.stride()} expected, {got.stride()} found"
        )
        torch.testing.assert_close(
            got, want, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{where}: {m}"
        )
    assert describe_sharing(expected_all) == describe_sharing(actual_all), label


def check_program(
    program: Program,
    inputs: Sequence[torch.Tensor],
    *,
    tolerance: float = 1e-5,
) -> AtenGraph:
    """Record, verify, run and optimize a program; every stage must behave as eager does.

    Returns the graph as recorded.
    """
    gm = trace(program)
    # Modules hold state of their own that a run may change: each run gets a copy.
    state = copy.deepcopy(gm)

    def eager(*arguments: torch.Tensor) -> object:
        return copy.deepcopy(state)(*arguments)

    graph = to_aten(gm, inputs)
    try:
        verify(graph)
        optimized = run_passes(graph, verify_each=True)
        for label, each in (("as recorded", graph), ("optimized", optimized)):
            run = wrap_runtime(each, each.module())
            before = copy.deepcopy(gm.state_dict())
            assert_like_eager(label, run, eager, inputs, tolerance)
            gm.load_state_dict(before)
    except BaseException:
        print(print_aten(graph))
        raise
    return graph
