"""What it means that a graph fails: a wrong result, an error, a process that dies or hangs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_fx_passes.tools.comparing import first_difference
from plait_fx_passes.tools.minify.program import Program, copied
from plait_fx_passes.tools.minify.script import write_script

Compiler: TypeAlias = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
_LAST_WORDS = 400


class WrongResult:
    """Fails where what ``compiler`` makes gives another result, or gradient, than eager.

    Float64 says what rounding is, as in :func:`plait_fx_passes.tools.difference`. Graphs that
    raise, in eager or compiled, do not fail.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def __call__(self, gm: fx.GraphModule, inputs: list[Any]) -> bool:
        try:
            eager = _observed(gm, _copies(inputs))
            got = _observed(self._compiler(gm, _copies(inputs)), _copies(inputs))
        except Exception:
            return False
        try:
            exact = _observed(gm, [_wide(each) for each in _copies(inputs)])
        except Exception:  # dtypes that the program says itself need not go together
            exact = None
        if len(got) != len(eager) or (exact is not None and len(exact) != len(eager)):
            return len(got) != len(eager)
        names = [str(n) for n in range(len(eager))]
        return first_difference(names, got, eager, exact) is not None


class RaisesError:
    """Fails where compiling, or what that makes, raises, and eager does not.

    Args:
        compiler: from a graph and inputs to what runs it.
        words: which the error's text must have, so that no other error is found.
    """

    def __init__(self, compiler: Compiler, words: str = "") -> None:
        self._compiler = compiler
        self._words = words

    def __call__(self, gm: fx.GraphModule, inputs: list[Any]) -> bool:
        try:
            _observed(gm, _copies(inputs))
        except Exception:
            return False
        try:
            _observed(self._compiler(gm, _copies(inputs)), _copies(inputs))
        except Exception as error:
            return self._words in f"{type(error).__name__}: {error}"
        return False


class SubprocessFailure:
    """Fails where the graph's script ends in the way in which the first one did.

    Each graph runs in a process of its own, so that crashes and hangs are failures like others.

    Args:
        how: Python lines that define ``compiled`` from ``program`` and ``inputs``; see
            :func:`plait_fx_passes.tools.write_script`.
        timeout: seconds after which a process hangs.
    """

    def __init__(self, how: str, timeout: float = 60.0) -> None:
        self._how = how
        self._timeout = timeout
        self.outcome: str | None = None
        """How the first graph ended: "wrong", "hangs", "signal 11", "raises ValueError"."""

    def __call__(self, gm: fx.GraphModule, inputs: list[Any]) -> bool:
        found = self.run(Program.of(gm, inputs))
        if self.outcome is None:
            self.outcome = found
        return found == self.outcome and found not in ("fine", "raises in eager")

    def run(self, program: Program) -> str:
        """How the script of a program ends: "fine", or as in ``outcome``."""
        with tempfile.TemporaryDirectory() as folder:
            path = write_script(Path(folder) / "failing.py", program, self._how)
            try:
                done = subprocess.run(
                    [sys.executable, str(path)],
                    capture_output=True,
                    text=True,
                    timeout=self._timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "hangs"
        if done.returncode < 0:
            return f"signal {-done.returncode}"
        last = (done.stdout.strip().splitlines() or [""])[-1]
        return last if last else f"dies: {done.stderr[-_LAST_WORDS:]}"


def _observed(run: Callable[..., Any], inputs: list[Any]) -> list[torch.Tensor | None]:
    """Results, inputs after the call, and gradients of inputs."""
    results = run(*inputs)
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    outputs = [each for each in results if isinstance(each, torch.Tensor)]
    found: list[torch.Tensor | None] = [each.detach().clone() for each in (*outputs, *tensors)]
    wanted = [each for each in tensors if each.requires_grad and each.is_leaf]
    given = [each for each in outputs if each.requires_grad]
    if wanted and given:
        generator = torch.Generator().manual_seed(0)
        tangents = [torch.randn(each.shape, generator=generator).to(each) for each in given]
        found += torch.autograd.grad(given, wanted, tangents, allow_unused=True)
    return found


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [copied(each) for each in inputs]


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    return value.detach().to(torch.float64).requires_grad_(value.requires_grad)
