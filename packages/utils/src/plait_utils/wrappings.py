"""How a wrapper subclass holds tensors, by `__tensor_flatten__` and `__tensor_unflatten__`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from plait_utils.records import dataclass

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def is_plain(cls: type) -> bool:
    """Whether operators on tensors of the class go to kernels, real or fake, at once."""
    return cls in _PLAIN


def is_wrapper(value: object) -> bool:
    """Whether a value is a tensor of a subclass that says what it holds."""
    return (
        type(value) not in _PLAIN
        and isinstance(value, torch.Tensor)
        and hasattr(type(value), "__tensor_flatten__")
        and hasattr(type(value), "__tensor_unflatten__")
    )


@dataclass(frozen=True, slots=True)
class Wrapping:
    """A wrapper's class, the attributes that hold tensors, and what says the rest.

    ``parts`` has, for each name, how the tensor there is a wrapper itself, or None; ``objects``
    what else a wrapper lists among what it holds, by name, such as a mesh of devices. ``size``
    and ``stride`` count elements of the wrapper.
    """

    cls: type
    names: tuple[str, ...]
    parts: tuple[Wrapping | None, ...]
    context: object
    size: tuple[int, ...]
    stride: tuple[int, ...]
    is_parameter: bool = False
    objects: tuple[tuple[str, object], ...] = ()

    @property
    def count(self) -> int:
        """How many plain tensors it holds."""
        return sum(1 if part is None else part.count for part in self.parts)

    def flatten(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The plain tensors that a wrapper of this kind holds, in order."""
        found: list[torch.Tensor] = []
        for name, part in zip(self.names, self.parts, strict=True):
            inner = getattr(value, name)
            found += [inner] if part is None else part.flatten(inner)
        return found

    def build(self, plain: Sequence[torch.Tensor]) -> torch.Tensor:
        """A wrapper that holds these tensors."""
        return self._built(iter(plain))

    def _built(self, plain: Iterator[torch.Tensor]) -> torch.Tensor:
        inner: dict[str, object] = {
            name: next(plain) if part is None else part._built(plain)
            for name, part in zip(self.names, self.parts, strict=True)
        }
        inner.update(self.objects)
        cls: Any = self.cls
        made: Any = cls.__tensor_unflatten__(inner, self.context, self.size, self.stride)
        if self.is_parameter:
            made._is_param = True  # what torch.nn.Parameter sets
        return cast(torch.Tensor, made)

    def is_like(self, other: Wrapping) -> bool:
        """Whether wrappers of both kinds say the same but for their strides."""
        own = (self.cls, self.names, self.context, self.size, self.objects)
        if own != (other.cls, other.names, other.context, other.size, other.objects):
            return False
        return all(
            one is two if one is None or two is None else one.is_like(two)
            for one, two in zip(self.parts, other.parts, strict=True)
        )


def wrapping_of(value: torch.Tensor) -> Wrapping | None:
    """How a tensor wraps others; None if it is plain."""
    if not is_wrapper(value):
        return None
    wrapper: Any = value
    listed, context = wrapper.__tensor_flatten__()
    held = {name: getattr(value, name) for name in listed}
    names = tuple(name for name in listed if isinstance(held[name], torch.Tensor))
    return Wrapping(
        type(value),
        names,
        tuple(wrapping_of(held[name]) for name in names),
        context,
        tuple(value.shape),
        tuple(value.stride()),
        is_parameter=isinstance(value, torch.nn.Parameter),
        objects=tuple((name, held[name]) for name in listed if name not in names),
    )
