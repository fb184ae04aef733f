"""Modes, transforms and subclasses in the captured graph."""

from __future__ import annotations

import pytest
import torch
from tracer_oracle import check, compiled

import plait_bytecode_tracer as tracer


class Tagged(torch.Tensor):
    """A tensor with a name in Python only."""


def targets(made: tracer.CompiledFunction) -> list[str]:
    """The names of what the first graph calls."""
    nodes = made.entries[0].capture.graph_module.graph.nodes
    return [getattr(n.target, "__name__", str(n.target)) for n in nodes if n.op == "call_function"]


def test_autocast_is_entered_and_left_in_the_graph() -> None:
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return y, x @ x

    made = check(program, torch.ones(2, 2))
    assert not made.breaks
    assert targets(made).count("set_autocast_enabled") == 2
    assert targets(made).count("set_autocast_dtype") in (0, 2)
    assert not torch.is_autocast_enabled("cpu")


def test_an_error_in_the_graph_leaves_no_mode_switched() -> None:
    def program(x, places):
        with torch.autocast("cpu"), torch.inference_mode():
            return torch.index_select(x @ x, 0, places)

    made = check(program, torch.ones(2, 2), torch.tensor([0]))
    try:
        made(torch.ones(2, 2), torch.tensor([7]))
    except IndexError:
        pass
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_transforms_are_calls_with_bodies() -> None:
    def program(w, x):
        return torch.vmap(torch.func.grad(lambda a, row: (a * row).sin().sum()), (None, 0))(w, x)

    made = check(program, torch.ones(3), torch.ones(4, 3))
    module = made.entries[0].capture.graph_module
    assert targets(made) == ["vmap"]
    assert "grad(" in module.body0.code
    assert "vmap(" in module.code


def test_functions_of_torch_are_guarded_where_they_are_read() -> None:
    def program(x):
        return torch.nn.functional.relu(x)

    made = check(program, torch.ones(3))
    before = torch.nn.functional.relu
    torch.nn.functional.relu = torch.neg  # type: ignore[assignment]  # patched on purpose
    try:
        assert torch.equal(made(torch.ones(3)), -torch.ones(3))
    finally:
        torch.nn.functional.relu = before


def test_questions_about_torch_are_guarded() -> None:
    def program(x):
        return x * 2, torch.are_deterministic_algorithms_enabled()

    made = check(program, torch.ones(1))
    torch.use_deterministic_algorithms(True)
    try:
        assert made(torch.ones(1))[1]
    finally:
        torch.use_deterministic_algorithms(False)


def test_subclasses_compute_with_plain_tensors() -> None:
    def program(x):
        return x * 2 + 1

    made = compiled(program)
    assert torch.equal(made(torch.ones(2).as_subclass(Tagged)), torch.full((2,), 3.0))
    assert not made.breaks
    assert type(made(torch.ones(2).as_subclass(Tagged))) is Tagged


def test_the_current_device_may_be_chosen_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)

    def chosen(x, index):
        before = torch.cuda._exchange_device(index)
        y = x + before
        return y * torch.cuda._maybe_exchange_device(before)

    def of_the_cpu(x):
        with torch.cuda.device_of(x):
            return x + 1

    assert tracer.trace(chosen, [torch.ones(3), 1]).graph_break is None
    broken = tracer.trace(chosen, [torch.ones(3), 0]).graph_break
    assert "cuda:0 as the current device" in str(broken)
    assert tracer.trace(of_the_cpu, [torch.ones(3)]).graph_break is None


@pytest.mark.parametrize("answer", [False, True, None])
def test_whether_a_cuda_graph_is_captured_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, answer: bool | None
) -> None:
    """Asking raises where there is no GPU, as in every build for one on a machine without."""

    asked = []

    def ask() -> bool | None:
        asked.append(answer)
        if answer is None:
            raise RuntimeError("CUDA error: no CUDA-capable device is detected")
        return answer

    monkeypatch.setattr(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", ask)

    def program(x):
        try:
            return x + 1 if torch.cuda.is_current_stream_capturing() else x - 1
        except RuntimeError as error:
            return x, str(error)

    made = check(program, torch.ones(2))
    assert not made.breaks
    asked.clear()
    made(torch.ones(2))
    assert not asked
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert torch.equal(made(torch.ones(2)), torch.full((2,), 2.0))  # compiled anew


def test_where_a_gpu_is_used_products_in_tf32_are_guarded(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    before = torch.get_float32_matmul_precision()
    made = compiled(lambda x: x @ x)
    x = torch.ones(2, 2)
    try:
        for precision, count in (("highest", 1), ("high", 2), ("highest", 2), ("high", 2)):
            torch.set_float32_matmul_precision(precision)
            torch.testing.assert_close(made(x), x @ x)
            assert len(made.entries) == count
    finally:
        torch.set_float32_matmul_precision(before)
