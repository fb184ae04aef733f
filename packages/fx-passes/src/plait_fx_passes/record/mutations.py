"""In-place operators: their values go into the graph, their writes into the alias tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, takewhile
from typing import TYPE_CHECKING, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.layouts import may_overlap, same_strides
from plait_fx_passes.op_info import (
    FunctionalVariant,
    OpInfo,
    OpKind,
    functional_variant,
    op_info,
)
from plait_fx_passes.record.aliases import Alias, new_base, write
from plait_fx_passes.record.fakes import fake_result
from plait_fx_passes.record.viewing import call_view
from plait_fx_passes.record.writes import note_view_write
from plait_fx_passes.record.written import returned_by, sizes_of, written_variant
from plait_utils.meeting import may_meet

if TYPE_CHECKING:
    from plait_fx_passes.record.recorder import Recorder

aten = torch.ops.aten
_BY_ELEMENT = frozenset({aten.copy_.default})
_EMPTY = frozenset(
    {
        *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default),
        *(aten.empty_permuted.default, aten.new_empty.default, aten.new_empty_strided.default),
    }
)
# Their second argument is one number, which they look up before they write.
_READING_FIRST = frozenset({aten.fill_.Tensor, aten.masked_fill_.Tensor})


def mutate(
    recorder: Recorder,
    func: OpOverload,
    info: OpInfo,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Record a call that writes to arguments, and let eager's own kernel check and return."""
    fakes = tuple(recorder.unread(arg) for arg in args)
    fake_kwargs = {name: recorder.unread(arg) for name, arg in kwargs.items()}
    targets = _written(info, fakes, fake_kwargs)
    _refuse_reads_of_targets(recorder, func, info, targets, fakes, fake_kwargs)
    given = _tensors([*fakes, *fake_kwargs.values()])
    is_followed = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    shapes = [target.shape for target in targets]
    own: list[object] = []
    if func is aten.copy_.default:
        returned = fake_result(recorder.fake_mode, func, fakes, fake_kwargs)
        source, target = cast("tuple[FakeTensor, FakeTensor]", (fakes[1], fakes[0]))
        values = [_copied(recorder, source, target)]
    else:
        own, values = _functional_values(recorder, func, args, kwargs)
        for target, value in zip(targets, values, strict=True):
            if target.shape != value.meta["val"].shape:
                _keep_geometry(recorder, recorder.alias_of(target), target)
        returned = fake_result(recorder.fake_mode, func, fakes, fake_kwargs)
        for target, value in zip(targets, values, strict=True):
            _check_cast(recorder, func, value.meta["val"], target)
    for target, shape, value in zip(targets, shapes, values, strict=True):
        if target.shape != shape:
            _resize(recorder, target, shape, value)
        _store(recorder, target, value)
        if is_followed:
            recorder.know_now(target)
        note_view_write(recorder, func, fakes, fake_kwargs, target)
    if func.namespace != "aten":
        return returned_by(func, own, fakes, fake_kwargs)
    if not own:
        return returned
    return recorder.conformed(func, returned, own[0]) if len(own) == 1 else tuple(own)


def change_metadata(
    recorder: Recorder, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """``t_``, ``squeeze_`` and their kin: the tensor object gets another geometry.

    Raises:
        AtenTraceError: the operator changes the memory itself, like ``resize_`` and ``set_``.
    """
    fake = recorder.fake_for(cast(torch.Tensor, args[0]))
    storage = recorder.alias_of(fake).storage
    owner = storage.placeholder
    if func is aten.detach_.default:
        return fake
    is_own = (
        owner is None
        and recorder.lineage_of(fake).root is fake
        and func is not aten.as_strided_.default
    )
    storage.turned = fake if is_own else storage.turned
    storage.reshaped |= not is_own
    recorder.reshaped |= set() if owner is None else {owner}
    recorder.count_change(fake)
    variant = functional_variant(func)
    if variant is None or op_info(variant.op).kind is not OpKind.VIEW:
        raise AtenTraceError(
            f"{func} changes what memory a tensor owns, which a graph cannot express",
            where=recorder.where,
            hint="allocate a tensor of the new size instead",
        )
    alias = recorder.alias_of(fake)
    _keep_geometry(recorder, alias, fake)
    recorder.bind(alias.value, alias)
    view = call_view(recorder, variant.op, (alias.value, *args[1:]), kwargs)
    fake_result(recorder.fake_mode, func, (fake, *args[1:]), kwargs)
    recorder.bind(fake, recorder.alias_of(cast(FakeTensor, view)))
    return fake


def _written(
    info: OpInfo, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[FakeTensor]:
    """The tensors that a mutating call writes to, in schema order, lists flattened."""
    return [each for group in _written_groups(info, args, kwargs) for each in group]


def _written_groups(
    info: OpInfo, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[list[FakeTensor]]:
    """The tensors in each argument that a mutating call writes to."""
    for name, position in zip(info.written, info.positions, strict=True):
        value = kwargs.get(name)
        if value is None and position is not None and position < len(args):
            value = args[position]
        parts = value if isinstance(value, (list, tuple)) else [value]
        yield [part for part in parts if isinstance(part, FakeTensor)]


def _refuse_reads_of_targets(
    recorder: Recorder,
    func: OpOverload,
    info: OpInfo,
    targets: Sequence[FakeTensor],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> None:
    """Raise AtenTraceError where a kernel would read memory that it writes to, other than element
    by element: what it finds there depends on the kernel, and where it looks, it refuses."""
    given = [each for n, each in enumerate(args) if n not in info.positions]
    given += [each for name, each in kwargs.items() if name not in info.written]
    storages = {id(recorder.alias_of(each).storage) for each in targets}
    for value in _tensors(given):
        source = recorder.alias_of(value)
        if id(source.storage) not in storages or func in _READING_FIRST:
            continue
        for target in map(recorder.alias_of, targets):
            if target.storage is not source.storage or not may_meet(target.value, source.value):
                continue
            if func not in _BY_ELEMENT and torch.Tag.pointwise not in func.tags:
                raise _reads_target(recorder, func)
            if not _lies_alike(target.value, source.value):
                raise _reads_target(recorder, func)


def _reads_target(recorder: Recorder, func: OpOverload) -> AtenTraceError:
    return AtenTraceError(
        f"{func} reads memory that it writes to",
        where=recorder.where,
        hint="clone what it reads",
    )


def _lies_alike(left: torch.Tensor, right: torch.Tensor) -> bool:
    return same_strides(left, right) and bool(left.storage_offset() == right.storage_offset())


def _tensors(values: Iterable[object]) -> Iterator[FakeTensor]:
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _functional_values(
    recorder: Recorder, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[list[object], list[fx.Node]]:
    """What a mutating operator returns beside what it writes, and the values it writes."""
    variant, fresh = functional_variant(func), dict[str, FakeTensor]()
    if variant is None:
        fresh = _fresh(recorder, func, args, kwargs)
        variant = _variant_on_copies(recorder, func, args, kwargs, fresh)
    named = variant.arguments(func, args, kwargs)
    for name, each in fresh.items():
        del named[name]
        named |= sizes_of(name, each)
    call = None if fresh else recorder.call_of(variant.op, named)
    copied = None if call is None else recorder.repeated.copied(recorder, call)
    if copied is not None:
        return [], [copied]
    last, count = next(iter(reversed(recorder.graph.nodes)), None), recorder.placeholders
    with recorder:
        results = variant.op(**named)
    flat = list(results) if isinstance(results, (list, tuple)) else [results]
    written = cast("list[torch.Tensor]", flat[variant.own_results :])
    nodes = [recorder.node_of(each) for each in written]
    if call is not None and len(flat) == 1 and recorder.placeholders == count:
        recorder.repeated.note(call, _after(recorder.graph, last), *nodes)
    return flat[: variant.own_results], nodes


def _after(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    """The nodes that were added after one."""
    added = list(takewhile(lambda node: node is not last, reversed(graph.nodes)))
    return added[::-1]


def _fresh(
    recorder: Recorder, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, FakeTensor]:
    """The arguments of an operator of a user's that it is to write to and that hold nothing yet."""
    info, found = op_info(func), dict[str, FakeTensor]()
    for name, position in zip(info.written, info.positions, strict=True):
        value = kwargs.get(name)
        if position is not None and position < len(args):
            value = args[position]
        if not isinstance(value, torch.Tensor):
            continue
        fake = recorder.fake_for(value)
        root = storage_root(recorder.node_of(fake))
        if root.target in _EMPTY and not may_overlap(fake):
            found[name] = fake
    return found


def _variant_on_copies(
    recorder: Recorder,
    func: OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    fresh: Mapping[str, FakeTensor],
) -> FunctionalVariant:
    """One that is made for the operator, of which torch has none."""
    unread = tuple(map(recorder.unread, args))
    named = {name: recorder.unread(each) for name, each in kwargs.items()}
    groups = list(_written_groups(op_info(func), unread, named))
    targets = [each for group in groups for each in group]
    variant = written_variant(func, tuple(map(len, groups)), fresh)
    if variant is None or _meet(recorder, targets) or any(map(may_overlap, targets)):
        raise AtenTraceError(
            f"{func} writes to its arguments and has no functional variant",
            where=recorder.where,
            hint="call it outside the compiled function, or pass it as a decomposition",
        )
    return variant


def _meet(recorder: Recorder, targets: Sequence[FakeTensor]) -> bool:
    """Whether two of the tensors may have elements in one place."""
    aliases = [recorder.alias_of(each) for each in targets]
    return any(
        one.storage is other.storage and may_meet(one.value, other.value)
        for one, other in combinations(aliases, 2)
    )


def _check_cast(
    recorder: Recorder, func: OpOverload, value: torch.Tensor, target: torch.Tensor
) -> None:
    """Eager writes a result only to a dtype of its kind or a wider one; ``copy_`` takes any."""
    if not torch.can_cast(value.dtype, target.dtype):
        raise AtenTraceError(
            f"the result of {func} is {value.dtype}, which it does not write to {target.dtype}",
            where=recorder.where,
            hint="run it eagerly, which raises; copy_ casts to any dtype",
        )


def _copied(recorder: Recorder, source: FakeTensor, target: FakeTensor) -> fx.Node:
    """What ``copy_`` leaves in ``target``: the source, cast, moved and expanded.

    What a tensor of the program's own holds is no input any more: autograd saves the one without
    the other.
    """
    node = _cast(recorder, recorder.node_of(source), target)
    if (
        storage_root(node).op == "placeholder"
        and recorder.alias_of(target).storage.placeholder is None
    ):
        node = recorder.apply(aten.clone.default, (node,), {})
    if source.shape != target.shape:
        node = recorder.apply(aten.expand.default, (node, list(target.shape)), {})
    return node


def _cast(recorder: Recorder, node: fx.Node, target: torch.Tensor) -> fx.Node:
    """The node's value in the dtype and on the device of ``target``."""
    value = node.meta["val"]
    changes: dict[str, object] = {}
    if value.dtype != target.dtype:
        changes["dtype"] = target.dtype
    if value.device != target.device:
        changes["device"] = target.device
    return recorder.apply(aten._to_copy.default, (node,), changes) if changes else node


def _store(recorder: Recorder, target: FakeTensor, value: fx.Node) -> None:
    alias = recorder.alias_of(target)
    owner = alias.storage.placeholder
    if owner is not None:
        recorder.refuse_write_of_backward()
        lineage = recorder.lineage_of(target)
        if recorder.hides_writes:
            lineage = replace(lineage, uncounted=True)
        recorder.lifter.note_write(owner, lineage)
    write(recorder, alias, _cast(recorder, value, target))


def _resize(recorder: Recorder, target: FakeTensor, before: torch.Size, value: fx.Node) -> None:
    """Give an ``out=`` tensor that eager resized memory of its own, laid out as the value is.

    Raises:
        AtenTraceError: it had memory, at which others may look who keep their geometry.
    """
    alias = recorder.alias_of(target)
    is_empty = any(type(size) is int and size == 0 for size in before)
    if not is_empty or alias.parent is not None or alias.storage.placeholder is not None:
        raise AtenTraceError(
            "resizing an input, or a tensor with elements, through out= is not supported",
            where=recorder.where,
            hint="pass an out= tensor of the result's shape, or one without elements",
        )
    wanted = value.meta["val"]
    geometry = (target, list(wanted.shape), list(wanted.stride()))
    fake_result(recorder.fake_mode, aten.as_strided_.default, geometry, {})
    recorder.bind(target, new_base(target, alias.meta, node=value))


def _keep_geometry(recorder: Recorder, alias: Alias, fake: FakeTensor) -> None:
    """Before eager changes the geometry of ``fake``: nodes keep that they were made with."""
    if alias.value is not fake:
        return
    copy = fake_result(recorder.fake_mode, aten.alias.default, (fake,), {})
    alias.value = cast(FakeTensor, copy)
    # Rare enough to look at every node: a tensor written since has several.
    for node in recorder.graph.nodes:
        value = node.meta.get("val")
        if value is fake:
            node.meta["val"] = copy
        elif isinstance(value, (tuple, list)) and any(each is fake for each in value):
            node.meta["val"] = type(value)(copy if each is fake else each for each in value)
