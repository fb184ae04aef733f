"""Operators over lists of tensors (``torch._foreach_*``) as one operator for each tensor.

That is what eager's kernels do on the CPU, in this order; those of GPUs compute the same in fewer
launches. Here it is the scheduler that brings the parts together again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten

_NAMES = (
    *("abs", "acos", "asin", "atan", "ceil", "clone", "cos", "cosh", "erf", "erfc", "exp"),
    *("expm1", "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal"),
    *("round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
    *("add", "sub", "mul", "div", "pow", "lerp", "addcmul", "addcdiv", "clamp_max", "clamp_min"),
    *("maximum", "minimum", "copy", "zero", "max", "norm"),
)
_CALLED: dict[str, Callable[..., Tensor]] = {
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": lambda x, ord, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "copy": aten.copy.default,
    "zero": torch.zeros_like,
}
"""What is called for each tensor where it has another name."""
_IN_PLACE = {"maximum": "clamp_min_", "minimum": "clamp_max_"}
_KEYWORDS = {
    "scalars": "value",
    "value": "value",
    "alpha": "alpha",
    "memory_format": "memory_format",
}
"""Arguments that the operator of one tensor takes by a keyword."""
_POSITIONAL = ("add", "sub", "mul", "div", "pow", "lerp", "clamp_max", "clamp_min", *_IN_PLACE)
"""Operators whose numbers, however they come, follow the tensor."""
_VALUES_OF_A_TENSOR = ("addcmul", "addcdiv")
"""Operators that read numbers out of a tensor in one of their overloads."""


def foreach_rules() -> Iterator[tuple[OpOverload, Callable[..., object]]]:
    """The overloads that are taken apart, and what computes each."""
    for name in _NAMES:
        for suffix in ("", "_"):
            packet = getattr(aten, f"_foreach_{name}{suffix}", None)
            if packet is None:
                continue
            for overload in packet.overloads():
                with_out = overload.endswith("out")
                if not (with_out or (overload == "Tensor" and name in _VALUES_OF_A_TENSOR)):
                    func = getattr(packet, overload)
                    yield func, _for_each(func, name, in_place=bool(suffix))


def _for_each(func: OpOverload, name: str, *, in_place: bool) -> Callable[..., object]:
    def rule(*args: object, **kwargs: object) -> object:
        results = [_one(func, name, in_place, *call) for call in _calls(func, name, args, kwargs)]
        return None if in_place else results

    return rule


def _one(
    func: OpOverload, name: str, in_place: bool, args: list[object], kwargs: dict[str, object]
) -> object:
    if in_place:
        return getattr(args[0], _IN_PLACE.get(name, f"{name}_"))(*args[1:], **kwargs)
    called = _CALLED.get(name) or getattr(torch, name)
    return called(*args, **kwargs)


def _calls(
    func: OpOverload, name: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> Iterator[tuple[list[object], dict[str, object]]]:
    """The arguments for each tensor: elements of lists, and what all share."""
    given: list[tuple[str, object]] = []
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            given.append((argument.name, args[position]))
        elif argument.name in kwargs:
            given.append((argument.name, kwargs[argument.name]))
        elif argument.name == "ord":
            given.append((argument.name, argument.default_value))
    counts = {len(value) for _, value in given if isinstance(value, (list, tuple))}
    if len(counts) != 1:
        raise RuntimeError(f"{func} got lists of different lengths: {sorted(counts)}")
    for number in range(counts.pop()):
        positional: list[object] = []
        keywords: dict[str, object] = {}
        for key, value in given:
            each = value[number] if isinstance(value, (list, tuple)) else value
            if key in _KEYWORDS and not (name in _POSITIONAL and key == "scalars"):
                keywords[_KEYWORDS[key]] = each
            else:
                positional.append(each)
        yield positional, keywords
