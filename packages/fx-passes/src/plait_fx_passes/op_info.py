"""What an operator's schema says about aliasing, mutation and randomness; cached per overload."""

from __future__ import annotations

import enum
from functools import cache

import torch
from torch import fx
from torch._ops import OpOverload

from plait_utils import dataclass
from plait_utils.collectives import is_collective
from plait_utils.data_errors import may_raise_for_data


class OpKind(enum.Enum):
    """How the recorder treats a call of the operator."""

    FUNCTIONAL = "functional"
    VIEW = "view"
    MUTATING = "mutating"
    METADATA = "metadata"  # changes the geometry of its argument in place, like ``t_``


@dataclass(frozen=True, slots=True)
class OpInfo:
    """Facts about one overload.

    ``written`` holds the names of the arguments it writes to, in schema order; ``positions`` the
    position of each, None for keyword-only ones. ``random`` ops advance a generator.
    ``communicates`` says that other processes take part in the call, or wait for it.
    """

    kind: OpKind
    composite: bool
    random: bool
    communicates: bool
    written: tuple[str, ...]
    positions: tuple[int | None, ...]


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# Composite by a Python kernel only; their schema hides that they write to the running statistics.
_HIDDEN_WRITES = frozenset({"aten::native_batch_norm"})


# Arguments that say which numbers to draw: those of the forward again, though the tag is there.
_SEEDS = frozenset({"philox_seed", "rng_state"})


def has_composite_kernel(func: OpOverload) -> bool:
    """Whether the operator is made of other operators for every backend, in C++.

    Not where the CPU has a kernel of its own beside that, as for `silu_backward`.
    """
    name = func.name()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, _COMPOSITE) and not has_kernel(name, "CPU")


@cache
def op_info(func: OpOverload) -> OpInfo:
    """The facts about ``func``; cleared by :func:`clear_caches`."""
    schema = func._schema
    written: list[str] = []
    positions: list[int | None] = []
    views = False
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is None:
            continue
        if alias.is_write:
            written.append(argument.name)
            positions.append(None if argument.kwarg_only else position)
        else:
            views = True
    returns_alias = any(result.alias_info is not None for result in schema.returns)
    if torch.Tag.inplace_view in func.tags:
        kind = OpKind.METADATA
    elif written:
        kind = OpKind.MUTATING
    elif views and returns_alias:
        kind = OpKind.VIEW
    else:
        kind = OpKind.FUNCTIONAL
    composite = has_composite_kernel(func)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    draws = draws and _SEEDS.isdisjoint(argument.name for argument in schema.arguments)
    return OpInfo(
        kind=kind,
        composite=composite or schema.name in _HIDDEN_WRITES,
        random=draws,
        communicates=is_collective(func),
        written=tuple(written),
        positions=tuple(positions),
    )


def raises_for_data(node: fx.Node) -> bool:
    """Whether running the node may raise for what its operands hold.

    Such a node may be computed once where it is called twice, but not left out.
    """
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return may_raise_for_data(
        target._schema.name,
        divides_integers=_divides_integers(node),
        checks_errors=node.kwargs.get("check_errors") is True,
    )


def _divides_integers(node: fx.Node) -> bool:
    """Whether a node that divides does so with integers, by what may be 0."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return False
    return any(isinstance(divisor, fx.Node) or divisor == 0 for divisor in node.args[1:2])


def run_composite(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run the composite kernel of ``func``, so that the ops it is made of are dispatched."""
    if has_composite_kernel(func):
        return func._op_dk(_COMPOSITE, *args, **kwargs)
    return func.py_kernels[_COMPOSITE](*args, **kwargs)


@dataclass(frozen=True, slots=True)
class FunctionalVariant:
    """An overload that computes what a mutating one writes.

    It takes the same arguments by name (without those of ``out=``) and returns ``own_results``
    results of its own before the written values, which are in schema order.
    """

    op: OpOverload
    own_results: int

    def arguments(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[str, object]:
        """A call of the mutating ``func`` as keyword arguments of the variant.

        The dispatcher leaves out arguments that equal the default; the variant's may differ.
        """
        bound: dict[str, object] = {}
        for position, argument in enumerate(func._schema.arguments):
            if argument.is_out:
                continue
            if position < len(args):
                bound[argument.name] = args[position]
            elif argument.name in kwargs:
                bound[argument.name] = kwargs[argument.name]
            elif argument.has_default_value():
                bound[argument.name] = argument.default_value
        return bound


@cache
def functional_variant(func: OpOverload) -> FunctionalVariant | None:
    """The overload that computes what ``func`` writes, or None if torch has none.

    ``add_.Tensor`` gives ``add.Tensor``, ``mul.out`` gives ``mul.Tensor``,
    ``rrelu_with_noise`` gives ``rrelu_with_noise_functional``.
    """
    info = op_info(func)
    schema = func._schema
    outs = {argument.name for argument in schema.arguments if argument.is_out}
    wanted = _signature(func, outs)
    fresh = sum(result.alias_info is None for result in schema.returns)
    for packet in _candidate_packets(func):
        for name in packet.overloads():  # type: ignore[no-untyped-call]  # torch leaves it untyped
            candidate: OpOverload = getattr(packet, name)
            if op_info(candidate).written or _signature(candidate, set()) != wanted:
                continue
            if len(candidate._schema.returns) == len(info.written) + fresh:
                return FunctionalVariant(candidate, fresh)
    return None


def _candidate_packets(func: OpOverload) -> list[torch._ops.OpOverloadPacket]:
    namespace, name = func._schema.name.split("::")
    names = [name] if not name.endswith("_") else [name[:-1]]
    names.append(f"{names[0]}_functional")
    library = getattr(torch.ops, namespace)
    return [getattr(library, each) for each in names if hasattr(library, each)]


def _signature(func: OpOverload, without: set[str]) -> frozenset[tuple[str, str]]:
    """Names and types; some variants (``polygamma``) have them in another order."""
    return frozenset(
        (argument.name, str(argument.type))
        for argument in func._schema.arguments
        if argument.name not in without
    )


def clear_caches() -> None:
    """Forget every cached fact; for processes that reload operator libraries."""
    op_info.cache_clear()
    functional_variant.cache_clear()
