"""What compiles kernels of GPUs gets ready where a call has tensors on one."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import plait
from plait import preparing
from plait.arguments import check_arguments
from plait.backend import GraphCompiler
from plait.preparing import on_gpu


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)


def _fake(device: str) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(2, device=device)


class _Holder(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.ReLU(), nn.Module())
        self.inner[1].weight = nn.Parameter(weight, requires_grad=False)

    def parameters(self, recurse: bool = True) -> Any:
        raise AssertionError("code of the user's")


def test_tensors_are_found_in_arguments_containers_and_modules() -> None:
    there, here = _fake("cuda:0"), _fake("cpu")
    assert on_gpu([3, here, there])
    assert on_gpu([{"a": [(there,)]}])
    assert on_gpu([_Holder(there)])
    assert not on_gpu([3, "a", None, here, [here, {"a": here}], _Holder(here), nn.ReLU()])


def test_nothing_is_looked_at_before_torch_has_opened_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not on_gpu([_fake("cuda:0")])


def test_code_of_the_users_is_not_run() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *arguments: object, **named: object) -> Any:
            raise AssertionError("code of the user's")

    assert not on_gpu([torch.ones(2).as_subclass(Loud)])


def test_only_plaits_own_compiler_gets_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    from plait import backend

    begun: list[object] = []
    monkeypatch.setattr(backend, "prepare_kernels", begun.append)
    for name in ("plait", "python", "eager"):
        request = check_arguments(False, None, "default", name, {"triton.workers": 3}, None)
        GraphCompiler(request, "f").before_trace([_fake("cuda:0")])
    (options,) = begun
    assert options.triton_options().workers == 3  # type: ignore[attr-defined]  # its class is imported late


def test_the_chosen_options_are_given_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    module = types.SimpleNamespace(TritonOptions=None, prepare=given.append)
    import plait_triton_codegen

    module.TritonOptions = plait_triton_codegen.TritonOptions
    monkeypatch.setitem(__import__("sys").modules, "plait_triton_codegen", module)
    request = check_arguments(False, None, "default", "plait", {"triton.workers": 2}, None)
    monkeypatch.setattr(preparing, "start_in_background", lambda work, name: work())
    preparing.prepare_kernels(request.options)
    assert [each.workers for each in given] == [2]


def test_an_unknown_option_of_the_backend_is_told() -> None:
    with pytest.raises(plait.OptionError, match=r"triton\.workrs"):
        plait.compile(lambda x: x, options={"triton.workrs": 2})


def test_a_report_tells_why_python_launches_the_kernels() -> None:
    compiled = plait.compile(lambda x: x.sin() + 1)
    compiled(torch.ones(4))
    report = plait.report(compiled)
    (graph,) = report.graphs
    assert graph.python_reason is None
    assert "Python launches" not in str(report)
    code = dataclasses.replace(graph.record.code, python_reason="no C++ compiler\n  hint: <g++>")
    there = dataclasses.replace(graph, record=dataclasses.replace(graph.record, code=code))
    told = dataclasses.replace(report, graphs=(there,))
    assert there.python_reason == "no C++ compiler\n  hint: <g++>"
    assert "Python launches the kernels: no C++ compiler" in str(told)
    assert "Python launches the kernels: no C++ compiler" in told.html()
    assert "hint: &lt;g++&gt;" in told.html()


def test_a_report_tells_which_kernels_are_torch_operations_and_why() -> None:
    compiled = plait.compile(lambda x: x.sin() + 1)
    compiled(torch.ones(4))
    report = plait.report(compiled)
    (graph,) = report.graphs
    assert not graph.torch_kernels
    code = dataclasses.replace(graph.record.code, torch_kernels={"sin_1": "no <fp8> on sm_80"})
    there = dataclasses.replace(graph, record=dataclasses.replace(graph.record, code=code))
    told = dataclasses.replace(report, graphs=(there,))
    assert "the kernel sin_1 runs as torch operations: no <fp8> on sm_80" in str(told)
    assert "sin_1 runs as torch operations: no &lt;fp8&gt; on sm_80" in told.html()


def test_a_report_counts_calls_whose_inputs_are_not_aligned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from plait_triton_codegen import UnalignedCalls

    calls = UnalignedCalls("a program of this test")
    run = calls.counted(lambda *inputs: inputs)
    compiled = plait.compile(lambda x: x.sin() + 1)
    compiled(torch.ones(4))
    report = plait.report(compiled)
    (graph,) = report.graphs
    code = dataclasses.replace(graph.record.code, unaligned=calls)
    there = dataclasses.replace(graph, record=dataclasses.replace(graph.record, code=code))
    told = dataclasses.replace(report, graphs=(there,))
    assert graph.unaligned is None
    assert there.unaligned is None
    assert [run(1, 2) for _ in range(3)] == 3 * [(1, 2)]
    assert "3 calls had inputs that do not begin at multiples of 16 bytes" in str(told)
    assert "3 calls had inputs that do not begin at multiples of 16 bytes" in told.html()
    assert caplog.text.count("does not begin at a multiple of 16 bytes") == 1
