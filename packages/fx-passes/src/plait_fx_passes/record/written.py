"""Functional variants of operators that have none: they write to copies, and return those.

An operator of a user's that says which arguments it writes to becomes one that takes the same
arguments, calls it with copies of these, and returns its results and then the copies. Such a
variant is an operator of the namespace ``plait_written``, so a graph calls it as it calls any. It
is tagged as one that draws random numbers, which the user's may do, so it is never left out, taken
for another, moved before or after one, or run again, unless it is known to do nothing but write.
Where the operator raises, the error holds what it had written by then (:func:`partly_written`).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import Any, cast

import torch
from torch._ops import OpOverload

from plait_fx_passes.layouts import is_dense
from plait_fx_passes.op_info import FunctionalVariant, op_info
from plait_fx_passes.record.journal import Written, journaled
from plait_utils import dataclass
from plait_utils.forks import new_lock
from plait_utils.lent_arguments import LENT
from plait_utils.plain_writers import only_writes

NAMESPACE = "plait_written"
_ALIASES = re.compile(r"\bTensor\([^)]*\)")
_PARTLY = "_plait_partly_written"
_VERSIONS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_lock = new_lock()
_originals: dict[OpOverload, OpOverload] = {}
"""Variants that take all that their operators take, with these."""
_counts: dict[OpOverload, tuple[int, ...]] = {}
"""How many tensors each argument of these holds that is written to."""
_NOTHING: Mapping[str, torch.Tensor] = {}
_Fresh = tuple[tuple[str, torch.dtype, torch.device], ...]
"""The arguments that a variant makes: by name, with the dtype and the device of each."""


def written_variant(
    func: OpOverload, counts: tuple[int, ...], fresh: Mapping[str, torch.Tensor] = _NOTHING
) -> FunctionalVariant | None:
    """The variant of a mutating operator; None where its results are not only tensors.

    ``counts`` says how many tensors each argument holds that is written to: one, none, or those
    of a list. ``fresh`` are arguments, by name, that hold nothing yet: the variant takes the size
    and the strides of each (:func:`sizes_of`), and makes it.
    """
    own = _own_results(func)
    if not sum(counts) or any(str(func._schema.returns[n].type) != "Tensor" for n in own):
        return None
    made = tuple((name, each.dtype, each.device) for name, each in sorted(fresh.items()))
    with _lock:
        variant = _defined(func, counts, made)
        if not made:
            _originals[variant] = func
            _counts[variant] = counts
        return FunctionalVariant(variant, len(own))


def variant_over(variant: OpOverload, arguments: tuple[str, ...]) -> OpOverload:
    """What does as a variant that :func:`original_of` knows, but writes to some of its arguments
    themselves, by name, and returns these (:mod:`plait_utils.lent_arguments`)."""
    with _lock:
        return _defined(_originals[variant], _counts[variant], (), arguments)


def sizes_of(name: str, fresh: torch.Tensor) -> dict[str, object]:
    """What a variant takes in the place of an argument that holds nothing yet."""
    return {f"{name}_size": list(fresh.shape), f"{name}_stride": list(fresh.stride())}


def _own_results(func: OpOverload) -> list[int]:
    """Which results of an operator are not arguments that it writes to."""
    returns = func._schema.returns
    return [n for n, result in enumerate(returns) if result.alias_info is None]


def is_written_variant(func: object) -> bool:
    """Whether an operator is such a variant, and stands for one of a user's."""
    return isinstance(func, OpOverload) and func.namespace == NAMESPACE


def original_of(variant: OpOverload) -> OpOverload | None:
    """The operator that writes to the arguments of which a variant writes to copies; None for other
    operators, and for variants that make some of these arguments."""
    return _originals.get(variant)


@dataclass(frozen=True, slots=True)
class PartlyWritten:
    """What an operator of a user's had written when it raised: to the tensors that it writes to,
    in the order of its arguments. ``before`` are the calls of such operators that the program had
    made, if a :class:`~plait_fx_passes.record.journal.Journal` was kept; else None."""

    operator: OpOverload
    values: tuple[torch.Tensor, ...]
    before: tuple[Written, ...] | None = None


def partly_written(error: BaseException) -> PartlyWritten | None:
    """What the operator that raised an error in a graph had written, if it was one that writes."""
    return getattr(error, _PARTLY, None)


def tensors_written(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[torch.Tensor]:
    """The tensors that a call writes to, in the order of :attr:`PartlyWritten.values`."""
    found: list[torch.Tensor] = []
    for _, value in _written_arguments(func, args, kwargs):
        parts = value if isinstance(value, Sequence) else [value]
        found += [each for each in parts if isinstance(each, torch.Tensor)]
    return found


def returned_by(
    func: OpOverload,
    own: Sequence[object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """What an operator of a user's returns: results of its own, and arguments that it writes to,
    as its schema says; its kernel for fakes may return others."""
    written: dict[frozenset[str], object] = {}
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            written[frozenset(argument.alias_info.before_set)] = value
    waiting = iter(own)
    found = [
        next(waiting) if each.alias_info is None else written[frozenset(each.alias_info.before_set)]
        for each in func._schema.returns
    ]
    return None if not found else found[0] if len(found) == 1 else tuple(found)


def run_written_variant(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Run what a variant does, so that the modes that are active see the user's operator."""
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


@cache
def _library(space: str) -> torch.library.Library:
    return torch.library.Library(space, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's


def _defined(
    func: OpOverload, counts: tuple[int, ...], fresh: _Fresh, over: tuple[str, ...] = ()
) -> OpOverload:
    """The operator, by a name that says all that it depends on."""
    schema = str(func._schema)
    namespace, name = func._schema.name.split("::")
    shape = "_".join(map(str, counts))
    marked = f"{namespace}__{name}__{func._overloadname}__{shape}__{zlib.crc32(schema.encode()):x}"
    if fresh:
        kinds = ("_".join(map(str, each)) for each in fresh)
        marked += "__" + re.sub(r"\W", "_", "__".join(kinds))
    if over:
        marked += "__over__" + "__".join(over)
    space = LENT if over else NAMESPACE
    packet = getattr(torch.ops, space)
    if not hasattr(packet, marked):
        taken = _ALIASES.sub("Tensor", schema[schema.index("(") : schema.rindex(" -> ")])
        for made, _, _ in fresh:
            sizes = f"SymInt[] {made}_size, SymInt[] {made}_stride"
            taken = re.sub(rf"\bTensor {made}\b", sizes, taken)
        count = len(_own_results(func)) + sum(counts)
        given = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
        library: Any = _library(space)  # whose methods torch leaves untyped
        tags = set(func.tags)
        if not only_writes(func):
            tags.add(torch.Tag.nondeterministic_seeded)
        library.define(f"{marked}{taken} -> {given}", tags=tuple(tags))
        names = [each.name for each in getattr(packet, marked).default._schema.arguments]
        where = (namespace, name, func._overloadname)
        run = _on_copies(*where, fresh, names, frozenset(over))
        library.impl(marked, run, "CompositeExplicitAutograd")
        fake = _on_copies(*where, fresh, names) if over else run
        torch.library.register_fake(f"{space}::{marked}", fake, lib=library)
    return cast(OpOverload, getattr(packet, marked).default)


def _on_copies(
    namespace: str,
    name: str,
    overload: str,
    fresh: _Fresh,
    names: Sequence[str],
    over: frozenset[str] = frozenset(),
) -> Callable[..., object]:
    """What calls the operator with copies of what it writes to, but of the arguments ``over``."""
    is_made = {each for each, _, _ in fresh}

    def run(*args: object, **kwargs: object) -> object:
        func: OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        given, named, copies = list(args), dict(kwargs), list[torch.Tensor]()
        inputs = []
        if fresh:
            named.update(zip(names, given, strict=False))
            given.clear()
            _make(fresh, named)
        for place, value in [*_written_arguments(func, given, named)]:
            if (names[place] if isinstance(place, int) else place) in over:
                inputs.append(len(copies))
                copies.append(cast(torch.Tensor, value))
            elif place in is_made:
                copies.append(cast(torch.Tensor, value))
            elif isinstance(place, int):
                given[place] = _copied(value, copies)
            else:
                named[place] = _copied(value, copies)
        below = _below_versions() if only_writes(func) else nullcontext()
        with journaled(None) as journal, below:  # what the operator calls itself is its own
            try:
                results = func(*given, **named)
            except Exception as error:
                calls = None if journal is None else journal.calls
                before = None if calls is None else tuple(calls)
                with suppress(AttributeError):  # of a class with slots
                    setattr(error, _PARTLY, PartlyWritten(func, tuple(copies), before))
                raise
        found = results if isinstance(results, tuple) else (results,)
        own = tuple(found[n] for n in _own_results(func))
        if journal is not None:
            journal.add(func, own, tuple(copies), inputs)
        whole = [*own, *(each if is_dense(each) else each.clone() for each in copies)]
        return whole[0] if len(whole) == 1 else tuple(whole)

    return run


def _below_versions() -> AbstractContextManager[object]:
    """While it is entered, writes are not counted: nobody else holds the copies."""
    guard: Any = torch._C._ExcludeDispatchKeyGuard
    return cast(AbstractContextManager[object], guard(_VERSIONS))


def _make(fresh: _Fresh, named: dict[str, object]) -> None:
    """Make the arguments that hold nothing yet, of the sizes that are in their place."""
    for name, dtype, device in fresh:
        size, stride = cast(Any, (named.pop(f"{name}_size"), named.pop(f"{name}_stride")))
        named[name] = torch.empty_strided(size, stride, dtype=dtype, device=device)


def _written_arguments(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> Iterator[tuple[int | str, object]]:
    """The arguments of a call that it writes to, by position or name."""
    info = op_info(func)
    for name, position in zip(info.written, info.positions, strict=True):
        if position is not None and position < len(args):
            yield position, args[position]
        elif name in kwargs:
            yield name, kwargs[name]


def _copied(value: object, copies: list[torch.Tensor]) -> object:
    """Tensors that lie in memory as those of ``value`` do; they are added to ``copies``."""
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        copies.append(made.copy_(value))
        return made
    if isinstance(value, Sequence):
        return [_copied(each, copies) for each in value]
    return value
