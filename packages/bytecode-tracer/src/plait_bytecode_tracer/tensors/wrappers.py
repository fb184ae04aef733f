"""Tensor subclasses that wrap tensors, with `__torch_dispatch__` and `__tensor_flatten__`.

The graph computes with wrappers as the program does, on wrappers of fake tensors while it is
traced; a backend takes them apart or runs the class's own code. What the trace assumes of one from
outside is guarded: its class, what it holds, what `__tensor_flatten__` says besides, and whatever
the code of the class reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.guards import Kind, tensor_facts
from plait_bytecode_tracer.outside.class_code import ClassCode, class_code
from plait_bytecode_tracer.outside.contexts import Context, context_of
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import Variable
from plait_utils import dataclass
from plait_utils.wrappings import Wrapping, is_plain, is_wrapper, wrapping_of

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a wrapper says of itself, apart from the tensors in it."""

    cls: type
    names: tuple[str, ...]
    context: Context
    attributes: frozenset[str]
    metadata: tuple[object, ...]

    def holds(self, value: Any) -> bool:
        """Whether a tensor is such a wrapper."""
        if type(value) is not self.cls:
            return False
        if not is_a(value, torch.Tensor) or _metadata(value) != self.metadata:
            return False
        names, said = _said(value)
        if names != self.names or frozenset(vars(value)) != self.attributes:
            return False
        return self.context.holds(said)


def _said(value: Any) -> tuple[tuple[str, ...], object]:
    """The names of what a wrapper holds, and whatever there is no tensor."""
    names, context = value.__tensor_flatten__()
    objects = tuple(o for o in (getattr(value, n) for n in names) if not is_a(o, torch.Tensor))
    return tuple(names), (context, objects) if objects else context


def _metadata(value: torch.Tensor) -> tuple[object, ...]:
    return (
        *(tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.dtype),
        *(value.device, value.layout, value.requires_grad, value.is_inference()),
    )


def wrap_wrapper(
    state: TraceState, value: Any, source: Source, place: Callable[[torch.Tensor], Variable]
) -> Variable:
    """A wrapper from outside; `place` makes an input of the graph of it and of its fake."""
    cls = type(value)
    if state.symbols is not None:
        raise TraceBreakError("GB0009", f"{source.text} is a {cls.__name__}, beside symbolic sizes")
    if not all(type(number) is int for number in (*value.shape, *value.stride())):
        raise TraceBreakError("GB0009", f"{source.text} is a {cls.__name__} of ragged sizes")
    require_code(state, cls)
    wrapping = wrapping_of(value)
    assert wrapping is not None
    (names, said), (_, again) = _said(value), _said(value)
    state.guard_type(source, value)
    facts = _Facts(*(cls, names, context_of(said, again), frozenset(vars(value)), _metadata(value)))
    check = state.constants.name(facts.holds)
    state.guard(source, f"{check}({{}})", f"{source.text} is such a {cls.__name__}")
    held = _held(state, value, wrapping, source)
    try:
        with state.fake_mode:
            fake = wrapping.build(held)
        _require_equal(fake, value, source)
    except TraceBreakError:
        raise
    except Exception as error:  # whatever the class's code raises
        text = f"{source.text} is a {cls.__name__} that cannot be made again: {error}"
        raise TraceBreakError("GB0009", text) from error
    finally:
        refuse_effects(state.class_codes.values())
    return place(fake)


def _held(
    state: TraceState, value: torch.Tensor, wrapping: Wrapping, source: Source
) -> list[torch.Tensor]:
    """Fake tensors for what a wrapper holds, guarded."""
    found: list[torch.Tensor] = []
    for name, part in zip(wrapping.names, wrapping.parts, strict=True):
        inner: torch.Tensor = getattr(value, name)
        place = source.attribute(name)
        if part is not None:
            require_code(state, type(inner))
            found += _held(state, inner, part, place)
            continue
        plain = inner.layout is torch.strided and not (inner.is_conj() or inner.is_neg())
        if type(inner) not in (torch.Tensor, torch.nn.Parameter) or not plain:
            raise TraceBreakError("GB0009", f"{place.text} is no plain strided tensor")
        if id(inner) in state.world.wrapped:
            raise TraceBreakError("GB0009", f"{place.text} is passed beside what holds it")
        facts = tensor_facts(inner, with_grad=True)
        state.require(place, Kind.TENSOR, facts, f"{place.text}: {facts.dtype} {inner.shape}")
        found.append(state.fake_mode.with_sizes(inner))
    return found


def _require_equal(fake: torch.Tensor, value: torch.Tensor, source: Source) -> None:
    """`__tensor_unflatten__` made what there was, as far as can be seen."""
    if fake.requires_grad is not value.requires_grad:
        fake.requires_grad_(value.requires_grad)
    if type(fake) is not type(value) or _metadata(fake) != _metadata(value):
        raise TraceBreakError("GB0009", f"{source.text}, which is not made again as it is")
    if vars(fake).keys() != vars(value).keys():
        raise TraceBreakError(
            "GB0009", f"attributes of {source.text} of which __tensor_flatten__ does not tell"
        )


def require_code(state: TraceState, cls: type) -> None:
    """Guard what the code of a class reads."""
    if cls in state.class_codes:
        return
    code = state.class_codes[cls] = class_code(cls)
    check = state.constants.name(code.holds)
    state.guard(None, f"{check}()", f"what the code of {cls.__name__} reads stays as it is")


def watched(codes: Iterable[ClassCode], kind: str, target: Any, args: Any, kwargs: Any) -> Any:
    """What a node calls, with wrappers about.

    Raises TraceBreakError where their code has effects.
    """
    try:
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)
    finally:
        refuse_effects(codes)


def has_changed(codes: Iterable[ClassCode]) -> bool:
    """Whether code of classes has changed what it reads since that was found; undo it."""
    changed = [code for code in codes if not code.holds()]
    for code in changed:
        code.restore()
    return bool(changed)


def refuse_effects(codes: Iterable[ClassCode]) -> None:
    """Undo what code of classes has changed. Raises TraceBreakError for it."""
    if has_changed(codes):
        raise TraceBreakError("GB0009", "a tensor subclass, whose code changes what outlasts it")


def require_apart(state: TraceState, value: torch.Tensor, source: Source) -> None:
    """Break where a tensor from outside is one that a wrapper from outside holds."""
    for graph_input in state.tensor_inputs:
        if is_wrapper(graph_input.real):
            held = memory_of(graph_input.real, graph_input.source)
            if any(inner is value for _, inner in held):
                raise TraceBreakError("GB0009", f"{source.text} is passed beside what holds it")


def refuse_symbols(state: TraceState) -> None:
    """Sizes stay static where wrappers are about."""
    if state.class_codes:
        raise TraceBreakError("GB0009", "symbolic sizes beside a tensor subclass")


def memory_of(value: torch.Tensor, source: Source) -> list[tuple[Source, torch.Tensor]]:
    """The tensors with memory of their own that a tensor consists of, and how to read them."""
    wrapping = wrapping_of(value)
    if wrapping is None:
        return [(source, value)]
    return [
        each
        for name in wrapping.names
        for each in memory_of(getattr(value, name), source.attribute(name))
    ]


def class_of(fake: torch.Tensor) -> type:
    """The class that the program sees. Raises TraceBreakError for other subclasses."""
    if is_plain(type(fake)):
        return torch.Tensor
    if not is_wrapper(fake) or not all(type(n) is int for n in (*fake.shape, *fake.stride())):
        raise TraceBreakError("GB0009", f"a result that is a {type(fake).__name__}")
    return type(fake)
