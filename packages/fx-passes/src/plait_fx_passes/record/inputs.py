"""The inputs of a graph being recorded: arguments, lifted parameters, constants, shared storage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from plait_fx_passes.aten_graph import (
    AttributeInput,
    ConstantInput,
    Detached,
    InputSource,
    SyntheticBase,
    UserInput,
    ViewStep,
)
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.layouts import may_overlap, span
from plait_fx_passes.record.aliases import Alias, Lineage
from plait_fx_passes.record.fakes import fake_of, fake_result
from plait_fx_passes.record.recorder import Recorder
from plait_utils import dataclass

StorageKey = int


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the inputs over one storage lie in it: alike, or within ``[start, stop)`` elements."""

    alike: bool
    start: int
    stop: int


class SharedStorageWritten(Exception):
    """The program writes to storage that several inputs share; trace again knowing that."""

    def __init__(self, key: StorageKey, sharing: Sharing) -> None:
        super().__init__(key)
        self.key = key
        self.sharing = sharing


def storage_key(tensor: torch.Tensor) -> StorageKey | None:
    """What two tensors over the same memory have in common; None for layouts without storage."""
    if tensor.layout is not torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)


class InputTable:
    """Knows every placeholder of the graph being recorded and where its tensor comes from."""

    def __init__(
        self,
        mode: FakeTensorMode,
        names: Mapping[int, str],
        merged: Mapping[StorageKey, Sharing],
        *,
        gradients: bool = False,
    ) -> None:
        self._mode = mode
        self._gradients = gradients
        self._names = names
        self._merged = merged
        self._members: dict[StorageKey, list[tuple[int, torch.Tensor]]] = {}
        self._bases: dict[StorageKey, Alias] = {}
        self._keys: dict[int, StorageKey] = {}
        self._objects: dict[int, int] = {}
        self._aliases: dict[int, Alias] = {}
        self._fresh: dict[int, FakeTensor] = {}
        self._pending: list[tuple[StorageKey, Sharing, Alias, torch.Tensor, int]] = []
        self._constants = 0
        self.sources: list[InputSource] = []
        self.written: dict[int, bool] = {}
        """The placeholders written to, and whether autograd is to see it."""
        self.uncounted: set[int] = set()
        """Those of which the writes are not even counted, as those through ``.data``."""
        self.written_countedly: set[int] = set()
        """Those that the graph does not only write to through ``.data``, as far as it says so."""
        self.written_directly: set[int] = set()
        """Those that are written to as what they are, and not through what is detached."""
        self.values: list[FakeTensor] = []
        self.arguments: list[FakeTensor] = []
        self.leaves: dict[int, tuple[torch.Tensor, ...]] = {}
        """Where gradients are recorded, what autograd counts as the inputs that get some."""

    # Adding inputs.

    def add_argument(self, recorder: Recorder, name: str, index: int, tensor: object) -> FakeTensor:
        """The placeholder for the caller's argument ``index``."""
        if type(tensor) is float:
            # Of the inputs' values only these are no tensors: nothing writes to them.
            number = cast(FakeTensor, recorder.number(name))
            self._enter(UserInput(index), number)
            self.arguments.append(number)
            return number
        if not isinstance(tensor, torch.Tensor):
            raise AtenTraceError(
                f"example input {index} is a {type(tensor).__name__}, not a tensor",
                hint="pass one tensor or fake tensor for each placeholder",
            )
        fake = self._add(recorder, name, tensor, UserInput(index))
        self.arguments.append(fake)
        return fake

    def stand_in(self, recorder: Recorder, index: int, value: FakeTensor) -> None:
        """Let another tensor of the same geometry be what the program sees as an input."""
        old = self.values[index]
        alias = self._aliases[id(old)]
        self.values[index] = alias.value = value
        self._objects[id(value)] = index
        self._aliases[id(value)] = alias
        recorder.bind(value, alias)

    def finish_arguments(self, recorder: Recorder) -> None:
        """After the last argument: make those that share written storage views of one base."""
        for each in self._pending:
            self._share(recorder, *each)
        self._pending.clear()

    def lift(self, recorder: Recorder, tensor: torch.Tensor, *, fresh: bool) -> FakeTensor:
        """The input that stands for a real tensor which the program reached for."""
        if fresh:
            return self._constant(recorder, tensor)
        name = self._names.get(id(tensor))
        if name is None:
            if isinstance(tensor, FakeTensor):
                raise AtenTraceError(
                    "the program uses a fake tensor that is not one of its inputs",
                    where=recorder.where,
                    hint="pass it as an input, or make it a parameter or buffer of the module",
                )
            name = f"lifted_{len(self.sources)}"
        with recorder.emitting({}):
            return self._add(recorder, _identifier(name), tensor, AttributeInput(name, tensor))

    def _add(
        self, recorder: Recorder, name: str, tensor: torch.Tensor, source: InputSource
    ) -> FakeTensor:
        fake = fake_of(self._mode, tensor)
        index = self._enter(source, fake)
        if self._gradients and isinstance(source, AttributeInput) and tensor.requires_grad:
            # Where a module reads it by itself, autograd has seen the real one.
            self.leaves[index] = (fake.requires_grad_(), tensor)
        self._objects[id(fake)] = index
        key = storage_key(tensor)
        alias = recorder.placeholder(name, fake)
        self._aliases[id(fake)] = alias
        if key is None:
            return fake
        self._keys[index] = key
        self._members.setdefault(key, []).append((index, tensor))
        sharing = self._merged.get(key)
        if sharing is not None:
            pending = (key, sharing, alias, tensor, index)
            if isinstance(source, UserInput):  # placeholders of arguments stay together
                self._pending.append(pending)
            else:
                self._share(recorder, *pending)
        elif any(self._keys.get(each) == key for each in self.written):
            raise self._conflict(key)
        return fake

    def _enter(self, source: InputSource, fake: FakeTensor) -> int:
        self.sources.append(source)
        self.values.append(fake)
        return len(self.sources) - 1

    def _share(
        self,
        recorder: Recorder,
        key: StorageKey,
        sharing: Sharing,
        alias: Alias,
        tensor: torch.Tensor,
        owner: int,
    ) -> None:
        """Make the new input an alias of those seen before over the same storage.

        Raises AtenTraceError where its elements share memory among themselves.
        """
        if may_overlap(tensor):
            raise AtenTraceError(
                "it writes to memory that inputs share, one of which has elements that do",
                hint="clone that input first",
            )
        fake = alias.value
        base = self._bases.get(key)
        if sharing.alike:
            self._bases.setdefault(key, alias)
            if base is not None:
                self._aliases[id(fake)] = base
                recorder.bind(fake, base)
            return
        if base is None:
            numel = sharing.stop - sharing.start
            # At the place in the storage that it has when the program runs.
            memory = torch.empty(sharing.stop, dtype=tensor.dtype, device="meta")
            flat = FakeTensor(self._mode, memory[sharing.start :], tensor.device)
            offset_from = sharing.start - int(tensor.storage_offset())
            self._enter(SyntheticBase(owner, numel, offset_from), flat)
            base = self._bases[key] = recorder.placeholder(f"shared_{owner}", flat)
        offset = int(tensor.storage_offset())
        size, stride = list(tensor.shape), list(tensor.stride())
        as_strided = torch.ops.aten.as_strided.default
        value = fake_result(recorder.fake_mode, as_strided, (base.value, size, stride, offset), {})
        assert isinstance(value, FakeTensor)
        step = ViewStep(as_strided, (size, stride, offset - sharing.start))
        view = Alias(base.storage, value, recorder.meta, parent=base, step=step)
        self._aliases[id(fake)] = view
        recorder.bind(fake, view)

    def _constant(self, recorder: Recorder, tensor: torch.Tensor) -> FakeTensor:
        known = self._fresh.get(id(tensor))
        if known is not None:
            return known
        if (filled := _as_full(recorder, tensor)) is not None:
            return filled
        fake = fake_of(self._mode, tensor)
        name = f"constant_{self._constants}"
        self._constants += 1
        self._enter(ConstantInput(name, tensor), fake)
        with recorder.emitting({}):
            recorder.placeholder(name, fake, owned=False)
        return fake

    # Questions.

    def index_of(self, tensor: torch.Tensor) -> int | None:
        """The placeholder whose very tensor object this is."""
        return self._objects.get(id(tensor))

    def alias_at_start(self, tensor: torch.Tensor) -> Alias | None:
        """How an input looked at its storage when the program began."""
        return self._aliases.get(id(tensor))

    def note_write(self, index: int, target: Lineage) -> None:
        """The program writes to placeholder ``index``'s storage, through ``target``.

        Raises:
            SharedStorageWritten: other inputs look at that storage and are not merged with it.
            AtenTraceError: elements of the input share memory.
        """
        itself = self.index_of(target.root) == index and target.detached is Detached.NOT
        if itself:
            self.written_directly.add(index)
        if not target.uncounted:
            self.written_countedly.add(index)
        grad = itself and torch.is_grad_enabled()
        if index in self.written:
            self.written[index] |= grad
            return
        if may_overlap(self.values[index]):
            raise AtenTraceError(
                "it writes to an input whose elements share memory",
                hint="clone the input first, or write to the tensor that it expands",
            )
        self.written[index] = grad
        key = self._keys.get(index)
        if key is not None and key not in self._merged and len(self._members[key]) > 1:
            raise self._conflict(key)

    def _conflict(self, key: StorageKey) -> SharedStorageWritten:
        tensors = [tensor for _, tensor in self._members[key]]
        first = tensors[0]
        if any(each.dtype != first.dtype for each in tensors):
            raise AtenTraceError(
                "inputs of different dtypes share memory that the program writes to",
                hint="clone one of them before the call",
            )
        alike = all(
            each.shape == first.shape
            and each.stride() == first.stride()
            and each.storage_offset() == first.storage_offset()
            for each in tensors
        )
        spans = [span(each) for each in tensors]
        return SharedStorageWritten(
            key, Sharing(alike, min(s for s, _ in spans), max(e for _, e in spans))
        )

    def shares(self, index: int) -> bool:
        """Whether another input lies in the storage of a placeholder."""
        key = self._keys.get(index)
        return key is not None and len(self._members[key]) > 1

    def shared_groups(self) -> tuple[tuple[int, ...], ...]:
        """The placeholders merged because they share storage that is written."""
        return tuple(
            tuple(index for index, _ in self._members[key])
            for key in self._merged
            if key in self._members
        )


def _as_full(recorder: Recorder, tensor: torch.Tensor) -> FakeTensor | None:
    """A constant of one number needs no input."""
    if tensor.numel() != 1 or tensor.device.type != "cpu" or tensor.is_complex():
        return None
    with torch._C._DisableTorchDispatch():
        number = tensor.reshape(()).item()
    with recorder:
        filled = torch.ops.aten.full.default(
            list(tensor.shape), number, dtype=tensor.dtype, device=tensor.device
        )
    assert isinstance(filled, FakeTensor)
    return filled


class NothingToLift:
    """For recording into a graph that has all its inputs already."""

    def lift(self, recorder: Recorder, tensor: torch.Tensor, *, fresh: bool) -> FakeTensor:
        filled = _as_full(recorder, tensor) if fresh else None
        if filled is None:
            raise AtenTraceError(
                "a rewrite uses a tensor that is not one of its arguments",
                where=recorder.where,
                hint="make it an argument, or build it with torch.full or torch.arange",
            )
        return filled

    def note_write(self, index: int, target: Lineage) -> None:
        raise AtenTraceError(f"a rewrite writes to graph input {index}")


def _identifier(qualified: str) -> str:
    """A qualified name as a Python name: ``layers.0.weight`` is ``layers_0_weight``."""
    name = re.sub(r"\W", "_", qualified)
    return f"_{name}" if name[:1].isdigit() else name


def attribute_names(modules: Sequence[torch.nn.Module]) -> dict[int, str]:
    """Parameters and buffers by object identity, with their qualified names."""
    names: dict[int, str] = {}
    for module in modules:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            names.setdefault(id(tensor), name)
    return names
