"""What the tracer makes of torch's own ways into programs: modes, patches, states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from plait_bytecode_tracer import CompiledFunction, trace


class _Scaled(TorchFunctionMode):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.sin else result


def _compiled(function: Any) -> tuple[CompiledFunction, list[torch.fx.GraphModule]]:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph_module: torch.fx.GraphModule, *_: object) -> Any:
        graphs.append(graph_module)
        return graph_module.forward

    return CompiledFunction(function, backend), graphs


def test_a_function_mode_that_the_traced_code_enters_costs_no_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with _Scaled(3.0):
            return torch.sin(x) + 1

    compiled, graphs = _compiled(function)
    x = torch.ones(3)
    assert torch.equal(compiled(x), torch.sin(x) * 3 + 1)
    assert not compiled.breaks
    assert len(graphs) == 1
    assert torch._C._len_torch_function_stack() == 0


def test_an_operator_of_tensors_that_is_replaced_is_noticed(monkeypatch: Any) -> None:
    compiled, _ = _compiled(lambda x: x + 1)
    x = torch.ones(3)
    assert torch.equal(compiled(x), torch.full((3,), 2.0))
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "__add__", lambda one, other: torch.mul(one, 10))
        assert torch.equal(compiled(x), torch.full((3,), 10.0))
        assert "not torch's own" in compiled.breaks[0].reason
    assert torch.equal(compiled(x), torch.full((3,), 2.0))


def test_a_function_of_torch_that_may_switch_something_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch._C._set_mkldnn_enabled(torch._C._get_mkldnn_enabled())
        return x + 1

    compiled, _ = _compiled(function)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert [found.code for found in compiled.breaks] == ["GB0002"]


def test_a_break_at_an_operator_without_a_fake_kernel_tells_how_to_register_one() -> None:
    @torch.library.custom_op("tracer_tests::plain", mutates_args=())
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    compiled, graphs = _compiled(lambda x: torch.ops.tracer_tests.plain(x * 2) + 1)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    (found,) = compiled.breaks
    assert found.code == "GB0019"
    assert "register_fake('tracer_tests::plain')" in found.reason
    assert len(graphs) == 2


def test_hook_in_traced_code_is_one_break() -> None:
    def hooked(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda grad: print(grad.shape))
        return y + 1

    compiled, graphs = _compiled(hooked)
    compiled(torch.ones(3, requires_grad=True))
    assert [found.code for found in compiled.breaks] == ["GB0002"]
    assert len(graphs) == 2


def test_a_hook_stays_with_what_its_tensor_was() -> None:
    def function(x: torch.Tensor, leaf: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        x.add_(leaf)
        x.register_hook(seen.append)
        x.mul_(2)
        x.register_hook(lambda grad: grad * 10)
        return x * x

    def run(called: Any) -> list[torch.Tensor]:
        leaf, seen = torch.ones(3, requires_grad=True), list[torch.Tensor]()
        called(torch.zeros(3), leaf, seen).sum().backward()
        assert leaf.grad is not None
        return [leaf.grad, *seen]

    compiled, _ = _compiled(function)
    for got, wanted in zip(run(compiled), run(function), strict=True):
        assert torch.equal(got, wanted)
    (found,) = compiled.breaks
    assert "after a hook was registered" in found.reason


def test_a_hook_of_a_tensor_that_is_no_leaf_is_registered_after_the_graph() -> None:
    def function(x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        x.register_hook(seen.append)
        x.retain_grad()
        return x * x

    compiled, _ = _compiled(function)
    leaf, seen = torch.ones(3, requires_grad=True), list[torch.Tensor]()
    x = leaf * 2
    compiled(x, seen).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 4.0))
    assert [grad.tolist() for grad in seen] == [[4.0] * 3]
    assert not compiled.breaks


def test_hooks_that_only_compute_are_in_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        mask = x.detach() > 0
        y = x * 2
        y.register_hook(lambda grad: grad * mask)
        x.register_hook(lambda grad: grad + 1)
        return y.sin()

    compiled, graphs = _compiled(function)
    for _ in range(2):
        x, other = (torch.randn(3, requires_grad=True) for _ in range(2))
        other.data.copy_(x.data)
        compiled(x).sum().backward()
        function(other).sum().backward()
        assert torch.equal(x.grad, other.grad)  # type: ignore[arg-type]  # not None
    assert not compiled.breaks
    assert len(graphs) == 1


def test_function_modes_around_a_call_are_traced_as_if_it_entered_them() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + 1

    compiled, graphs = _compiled(function)
    x = torch.ones(3)
    for factor in (2.0, 2.0, 3.0):
        with _Scaled(factor) as mode:
            assert torch.equal(compiled(x), function(x))
            assert torch.overrides._get_current_function_mode() is mode
    assert torch.equal(compiled(x), function(x))
    assert len(graphs) == 3  # without a mode, and for each factor
    assert not [found for member in compiled.family() for found in member.breaks]


def test_a_graph_that_fails_under_a_function_mode_leaves_it_active() -> None:
    compiled, _ = _compiled(lambda x, places: x.index_select(0, places).mul_(2))
    with _Scaled(2.0) as mode:
        compiled(torch.ones(3), torch.tensor([1]))
        try:
            compiled(torch.ones(3), torch.tensor([7]))
        except IndexError:
            pass
        assert torch.overrides._get_current_function_mode() is mode
    assert torch.overrides._get_current_function_mode() is None


def test_an_operator_that_launches_triton_kernels_is_one_node() -> None:
    triton = pytest.importorskip("triton")

    @triton.jit
    def kernel(source, target):
        pass

    @torch.library.triton_op("tracer_tests::launched", mutates_args={})
    def launched(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(x)
        torch.library.wrap_triton(kernel)[(1,)](x, made)
        return made

    def function(x: torch.Tensor) -> torch.Tensor:
        return launched(x * 2).sin()

    capture = trace(function, [torch.ones(3)])  # type: ignore[arg-type]  # it is one
    assert capture.graph_break is None
    names = [str(node.target) for node in capture.graph_module.graph.nodes]
    assert "tracer_tests.launched.default" in names


def test_attention_with_a_score_function_is_traced() -> None:
    """So are the function and its reads of other tensors, which `torch.vmap` maps over places."""
    from torch.nn.attention.flex_attention import flex_attention

    slope = torch.tensor([0.5, 2.0])

    def function(q: torch.Tensor) -> torch.Tensor:
        made = flex_attention(
            q * 2, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1 + slope[h] * slope[1]
        )
        return made + 1  # type: ignore[operator]  # no auxiliary results are asked for

    q = torch.randn(1, 2, 16, 8)
    run, graphs = _compiled(function)
    torch.testing.assert_close(run(q), function(q))
    assert len(graphs) == 1
