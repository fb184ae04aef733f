"""Meta tensors in place of fake ones, for the kernels that compute shapes.

torch's own way hands the fake tensors themselves to a kernel. Whatever asks there for a device, as
`Tensor::options` in C++ does, comes back to Python and makes torch look whether the tensor is a
distributed one: the first time, that imports `torch.distributed.tensor`, `ShapeEnv` and sympy,
most of a second and 40 MB for nothing. A meta tensor answers by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

_OF_FAKES = frozenset({"FakeTensor", "device_hint", "fake_device", "fake_mode"})
"""Names by which a kernel tells fake tensors from meta tensors."""
_HARMLESS = frozenset({"handle_noncontiguous_outputs"})
"""Functions that do so for the sake of Habana's devices alone."""


@cache
def takes_bare(func: OpOverload) -> bool:
    """Whether an operator's meta kernel gives the same for meta tensors as for fake ones.

    torch's kernels in C++ cannot tell them apart. Those in Python may ask a fake tensor for the
    device that it stands for; which do is read from their code and that of what they call.
    """
    kernel = func.py_kernels.get(torch._C.DispatchKey.Meta)
    waiting = [kernel] if isinstance(kernel, FunctionType) else []
    if kernel is not None and not waiting:
        return False
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen or function.__name__ in _HARMLESS:
            continue
        seen.add(id(function))
        called = _calls(function)
        if called is None:
            return False
        waiting += called
    return True


@cache
def _calls(function: FunctionType) -> tuple[FunctionType, ...] | None:
    """torch's functions that one of torch's may call; None where it tells fake tensors apart."""
    names = set(_names(function.__code__))
    return None if names & _OF_FAKES else tuple(_called(function, names))


def _names(code: CodeType) -> Iterator[str]:
    """Global names and attributes that a function's code, and code in it, uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _called(function: FunctionType, names: set[str]) -> Iterator[FunctionType]:
    """torch's functions that a function may call: globals, of modules, and in its closure."""
    scope = function.__globals__
    found: list[object] = [scope[name] for name in names if name in scope]
    modules = [each for each in found if isinstance(each, ModuleType)]
    private = [each for each in modules if each.__name__.startswith("torch._")]
    found += [vars(module)[name] for module in private for name in names if name in vars(module)]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a cell that is not filled yet
            continue
    for each in found:
        if isinstance(each, FunctionType) and each.__module__.startswith("torch."):
            yield each


class BareArguments:
    """Arguments of a kernel with meta tensors for the fake ones, whose storages they share.

    To be made and used where torch dispatches nothing to Python.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._made: list[tuple[FakeTensor, torch.Tensor]] = []
        self.args: tuple[Any, ...] = tuple([self._bare(value) for value in args])
        self.kwargs: dict[str, Any] = {name: self._bare(value) for name, value in kwargs.items()}

    def restore(self, result: Any) -> Any:
        """A kernel's result, where it hands an argument through the fake tensor itself."""
        if isinstance(result, torch.Tensor):
            return next((fake for fake, bare in self._made if bare is result), result)
        if type(result) in (tuple, list):
            return type(result)([self.restore(each) for each in result])
        return result

    def _bare(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            known = [bare for fake, bare in self._made if fake is value]
            return known[0] if known else self._new(value)
        if kind is list or kind is tuple:
            return kind([self._bare(each) for each in value])
        return value

    def _new(self, fake: FakeTensor) -> torch.Tensor:
        bare = torch.empty(0, dtype=fake.dtype, device="meta")
        bare.set_(fake.untyped_storage(), fake.storage_offset(), fake.size(), fake.stride())
        if fake.requires_grad:
            bare.requires_grad_()
        self._made.append((fake, bare))
        return bare
