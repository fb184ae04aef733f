"""Calls whose compiled program fails: what they raise, log, and leave in the report."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import plait
from plait_utils.device_errors import DeviceFailedError, waited_for


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Makes programs that are built from now on raise an error."""
    import plait_cpp_codegen

    real = plait_cpp_codegen.build

    def install(error: Exception) -> None:
        def broken(program, **keywords):
            def run(*inputs):
                raise error

            made = real(program, **keywords)
            object.__setattr__(made, "run", run)
            return made

        monkeypatch.setattr(plait_cpp_codegen, "build", broken)

    return install


def test_failures_are_counted_in_the_report_and_told_once(failing, caplog):
    failing(RuntimeError("a broken program"))
    fast = plait.compile(lambda x: x.exp() + 1, options={"warm_start": False})
    x = torch.ones(3)
    for _ in range(3):
        assert torch.equal(fast(x), x.exp() + 1)
    (graph,) = plait.report(fast).graphs
    assert graph.run_failures is not None
    assert "failed in 3 calls, which ran eagerly: a broken program" in graph.run_failures
    assert graph.run_failures in str(plait.report(fast))
    assert graph.run_failures in plait.report(fast).html()
    assert caplog.text.count("which is a bug") == 1


def test_calls_that_python_makes_anew_are_counted(failing):
    failing(RuntimeError("a broken program"))

    def program(x, seen):
        seen.append(1)
        return x.add_(1).exp()

    fast = plait.compile(program, options={"warm_start": False})
    x, y, seen = torch.ones(3), torch.ones(3), []
    for _ in range(2):
        assert torch.equal(fast(x, seen), program(y, []))
    assert torch.equal(x, y)
    assert len(seen) == 2
    told = [str(graph.run_failures) for graph in plait.report(fast).graphs]
    assert any("a broken program" in each for each in told), told


def test_operators_of_users_run_once_where_memory_is_short(failing):
    calls = []

    @torch.library.custom_op("plait_run_failures::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + 1

    noted.register_fake(torch.empty_like)
    failing(torch.OutOfMemoryError("out of memory on the CPU: asked for 12 bytes"))
    fast = plait.compile(lambda x: noted(x).exp(), options={"warm_start": False})
    with pytest.raises(torch.OutOfMemoryError, match="12 bytes"):
        fast(torch.ones(3))
    assert not calls


def test_a_program_without_memory_is_no_bug(failing, caplog):
    failing(torch.OutOfMemoryError("out of memory on GPU 0: asked for 12 bytes"))
    fast = plait.compile(lambda x: x.exp() + 1, options={"warm_start": False})
    x = torch.ones(3)
    for _ in range(2):
        assert torch.equal(fast(x), x.exp() + 1)
    assert "is a bug" not in caplog.text
    assert caplog.text.count("has run out of memory") == 1
    assert "asked for 12 bytes" in str(plait.report(fast))


def user_outer(x, y):
    return (x[:, None] * y[None, :] + 1).sin()


def test_where_eager_has_no_memory_either_its_error_is_raised(caplog):
    fast = plait.compile(user_outer)
    x = torch.ones(4)
    torch.testing.assert_close(fast(x, x), user_outer(x, x))
    huge = torch.ones(1).expand(1 << 26)
    with pytest.raises(RuntimeError, match="memory"):
        fast(huge, huge)
    assert "is a bug" not in caplog.text
    torch.testing.assert_close(fast(x, x), user_outer(x, x))


def test_a_backward_without_memory_says_so(failing, caplog):
    failing(torch.OutOfMemoryError("out of memory on the CPU: asked for 12 bytes"))
    fast = plait.compile(lambda x: (x.exp() + 1).softmax(-1), options={"warm_start": False})
    x = torch.ones(3, 3, requires_grad=True)
    try:
        fast(x).sum().backward()
    except torch.OutOfMemoryError as error:
        assert "12 bytes" in str(error)  # noqa: PT017
    assert "is a bug" not in caplog.text


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU that fails when it is waited for, once the list has a reason."""
    reasons: list[str] = []

    def synchronize(device: int) -> None:
        if reasons:
            raise RuntimeError(f"{reasons[0]}\nCUDA kernel errors might be reported elsewhere")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return reasons


def test_what_is_waited_for_is_named(lost):
    with waited_for("the kernel sum of model.py:3", 0):
        pass
    with pytest.raises(IndexError, match="an own error"), waited_for("the kernel sum", 0):
        raise IndexError("an own error")
    with pytest.raises(RuntimeError, match="an own error"), waited_for("the kernel sum", 0):
        raise RuntimeError("an own error")
    lost.append("an illegal memory access")
    with (
        pytest.raises(DeviceFailedError, match=r"the kernel sum of model\.py:3 failed: an illegal"),
        waited_for("the kernel sum of model.py:3", 0),
    ):
        pass
    with waited_for("what is on no GPU"):
        pass


def test_after_a_kernel_has_failed_nothing_runs_eagerly(failing, monkeypatch):
    error = DeviceFailedError("sum_1: an illegal memory access; it may be another's")
    failing(error)
    eager = []

    def function(x):
        return torch.sigmoid(x) + 1

    fast = plait.compile(function, options={"warm_start": False})
    monkeypatch.setattr(torch.Tensor, "sigmoid", lambda x: eager.append(x))
    with pytest.raises(DeviceFailedError, match="sum_1: an illegal memory access") as raised:
        fast(torch.ones(3))
    assert "restart the process" in str(raised.value)
    assert not eager
    with pytest.raises(DeviceFailedError):
        fast(torch.ones(3))


def test_after_a_kernel_has_failed_a_graph_that_writes_does_not_run_again(failing):
    failing(DeviceFailedError("sum_1: an illegal memory access"))
    fast = plait.compile(lambda x: x.add_(1).sum(), options={"warm_start": False})
    x = torch.ones(3)
    with pytest.raises(DeviceFailedError):
        fast(x)
    assert torch.equal(x, torch.ones(3))


def test_a_failure_of_a_gpu_is_found_where_another_error_is_raised(lost):
    from plait.replay import raise_lost

    class OnGpu(torch.Tensor):
        is_cuda = True

        def get_device(self) -> int:
            return 0

    given = [torch.ones(3).as_subclass(OnGpu)]
    raise_lost(ValueError("an operator's own"), given, "f-0")
    lost.append("an illegal memory access")
    raise_lost(ValueError("an operator's own"), [torch.ones(3)], "f-0")
    with pytest.raises(DeviceFailedError, match="illegal memory access, in f-0; it may") as raised:
        raise_lost(ValueError("an operator's own"), given, "f-0")
    assert isinstance(raised.value.__cause__, ValueError)
