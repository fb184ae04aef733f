"""The dispatch mode that turns a running program into a functional ATen graph.

It sits below autograd and above fake tensors, so it sees every dispatcher call once, composite
operators included, and decides: run a rule, run the composite kernel (whose parts come back
here), or put the operator into the graph. See :mod:`plait_fx_passes.record.aliases` for how
mutation disappears on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.node import Argument, map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from plait_fx_passes.errors import AtenTraceError, ValuesCheckedError
from plait_fx_passes.op_info import OpInfo, OpKind, op_info, run_composite
from plait_fx_passes.open_sizes import OpenGraph
from plait_fx_passes.record.aliases import Alias, Lineage, Storage, new_base, read, with_layout
from plait_fx_passes.record.checks import ask_to_check
from plait_fx_passes.record.draws import Call, Draws
from plait_fx_passes.record.fakes import fake_result
from plait_fx_passes.record.kernels import ask_kernel
from plait_fx_passes.record.known import known_answer
from plait_fx_passes.record.mutations import change_metadata, mutate
from plait_fx_passes.record.numbers import NumberNode, is_number, is_readable
from plait_fx_passes.record.numbers import node_of as number_node
from plait_fx_passes.record.refusals import REFUSALS
from plait_fx_passes.record.repeated import Call as RepeatedCall
from plait_fx_passes.record.repeated import Repeated, call_of
from plait_fx_passes.record.viewing import call_view
from plait_fx_passes.record.views import UNSAFE_VIEWS
from plait_fx_passes.record.writes import ViewWrite
from plait_utils.collectives import LAZY_WAIT
from plait_utils.wrappings import is_plain

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_NUMBER = aten._local_scalar_dense.default
# Composite, and with parts that do not check values where those are not known.
_WHOLE = frozenset({aten.one_hot.default})
_running_pass = torch._C._current_graph_task_id

Rule = Callable[..., object]


class Lifter(Protocol):
    """What makes a real tensor that the program reaches for into an input of the graph."""

    def lift(self, recorder: Recorder, tensor: torch.Tensor, *, fresh: bool) -> FakeTensor:
        """The fake tensor that stands for ``tensor``; ``fresh`` if each run makes it anew."""

    def note_write(self, index: int, target: Lineage) -> None:
        """The program writes to the storage of placeholder ``index``, through ``target``."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Records what runs under it into :attr:`graph`, functionally.

    ``rules`` and ``decompositions`` map overloads to functions with the operator's signature that
    are run in its place, under the recorder; one that returns ``NotImplemented`` declines. The
    rules are trusted; what a decomposition returns is checked against the operator, and copied
    where its strides differ.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        lifter: Lifter,
        rules: Mapping[OpOverload, Rule],
        decompositions: Mapping[OpOverload, Rule],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.graph = fx.Graph() if fake_mode.shape_env is None else OpenGraph()
        self.fake_mode = fake_mode
        self.meta: dict[str, object] = {}
        self.lifter = lifter
        self.reshaped: set[int] = set()
        """The placeholders at whose memory a tensor looks that got another geometry in place."""
        self.counted: set[int] = set()
        """Those that autograd counts as changed though nothing is written to them."""
        self.hides_writes = False
        """Whether what runs stands for an operator whose schema speaks of no writes: nobody counts
        those that it does."""
        self.view_writes: list[ViewWrite] = []
        self.held: list[torch.Tensor] = []
        """Those that hold numbers which the program returns."""
        self.unsaved: frozenset[Storage] = frozenset()
        """Memory that the backward must not read: inputs share it, and the program writes to it."""
        self._in_backward = False
        self._note: Callable[[fx.Node], None] | None = None
        # Under which pass of autograd all this runs: backwards are compiled when they run.
        self._outer_pass = _running_pass()
        self._composites = 0
        """Of how many operators the parts are being recorded, one inside of the other."""
        self._draws = Draws()
        self._drawn_for: Call | None = None
        self._rules = rules
        self._decompositions = decompositions
        self._aliases: dict[int, tuple[torch.Tensor, Alias]] = {}
        self._lineages: dict[int, Lineage] = {}
        self._lifted: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._last_placeholder: fx.Node | None = None
        self.placeholders = 0
        """How many inputs there are."""
        self.repeated = Repeated()
        """What operators became that may come again."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # anything else makes torch import its own compiler

    @property
    def where(self) -> str | None:
        """The user's source line of what is being recorded."""
        line = self.meta.get("source_line")
        return None if line is None else str(line)

    # Inputs and the map from tensors to aliases.

    def placeholder(self, name: str, value: FakeTensor, *, owned: bool = True) -> Alias:
        """Add a placeholder after the last one; ``owned`` memory is copied back when written."""
        node = self._placeholder_node(name, value)
        index = self.placeholders - 1 if owned else None
        alias = new_base(value, node.meta, node=node, placeholder=index)
        self.bind(value, alias)
        return alias

    def number(self, name: str) -> torch.SymFloat:
        """Add a placeholder for a number that each call gives anew."""
        return NumberNode.of(self._placeholder_node(name, None))

    def holding(self, number: object) -> torch.Tensor:
        """A tensor of one element that holds a number which the program returns."""
        with self:
            held = torch.scalar_tensor(cast(float, number), dtype=torch.float64)
        self.held.append(held)
        return held

    def _placeholder_node(self, name: str, value: FakeTensor | None) -> fx.Node:
        if self._last_placeholder is None:
            node = self.graph.create_node("placeholder", name, name=name)
        else:
            with self.graph.inserting_after(self._last_placeholder):
                node = self.graph.create_node("placeholder", name, name=name)
        node.meta = {**self.meta, "val": value}
        self._last_placeholder = node
        self.placeholders += 1
        return node

    def bind(self, tensor: torch.Tensor, alias: Alias) -> None:
        """Let ``tensor``, an object of the program, be looked up as ``alias``."""
        self._aliases[id(tensor)] = (tensor, alias)

    def lineage_of(self, tensor: torch.Tensor) -> Lineage:
        """Which tensor object ``tensor`` is a view of; itself if it is none."""
        known = self._lineages.get(id(tensor))
        return Lineage(tensor) if known is None else known

    def count_change(self, tensor: torch.Tensor) -> None:
        """Autograd counts a change of the tensor that is no write, and so of what it looks at."""
        storage = self.alias_of(tensor).storage
        if self.lineage_of(tensor).uncounted:
            return
        storage.counted = True
        if storage.placeholder is not None:
            self.counted.add(storage.placeholder)

    def bind_lineage(self, view: torch.Tensor, lineage: Lineage) -> None:
        """Say which tensor object ``view`` is a view of."""
        self._lineages[id(view)] = lineage

    def know_now(self, view: torch.Tensor) -> None:
        """Autograd has made the tensor's node for what its memory holds now."""
        lineage, storage = self.lineage_of(view), self.alias_of(view).storage
        self.bind_lineage(view, replace(lineage, known_at=storage.version))

    def alias_of(self, tensor: torch.Tensor) -> Alias:
        """The alias of a tensor object; a real or unknown one is lifted to an input."""
        found = self._aliases.get(id(tensor))
        if found is None:
            found = self._aliases[id(self.fake_for(tensor))]
        return found[1]

    def fake_for(self, tensor: torch.Tensor) -> FakeTensor:
        """The fake tensor that stands for ``tensor``: itself, or the input it is lifted to."""
        if id(tensor) in self._aliases:
            return cast(FakeTensor, tensor)
        known = self._lifted.get(id(tensor))
        if known is None:
            known = tensor, self.lifter.lift(self, tensor, fresh=False)
            self._lifted[id(tensor)] = known
        return known[1]

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor object was looked up before, or made here."""
        return id(tensor) in self._aliases

    def call_of(self, func: OpOverload, named: Mapping[str, object]) -> RepeatedCall | None:
        """A call by keywords of an operator whose nodes may be copied from those of another."""
        return call_of(self, func, named, in_backward=self._in_backward)

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that holds the tensor's current contents."""
        alias = self.alias_of(tensor)
        if self.unsaved and self._in_backward and alias.storage in self.unsaved:
            raise AtenTraceError("its backward reads memory that inputs share and it writes to")
        return read(self, alias)

    # Emission.

    @contextmanager
    def emitting(self, meta: dict[str, object]) -> Iterator[None]:
        """Give nodes made inside the block this metadata."""
        before, self.meta = self.meta, meta
        try:
            yield
        finally:
            self.meta = before

    def emit(
        self,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        value: object,
        name: str | None = None,
    ) -> fx.Node:
        """Append a node whose fake value is already known."""
        if name is None:
            name = cast(OpOverload, func)._schema.name.split("::")[1]
        node = self.graph.create_node(
            "call_function",
            func,
            cast("tuple[Argument, ...]", args),
            cast("dict[str, Argument]", kwargs),
            name=name,
        )
        node.meta = {**self.meta, "val": value}
        if self._in_backward and torch.is_grad_enabled():
            node.meta["recomputed"] = True
        if self._note is not None:
            self._note(node)
        return node

    def apply(
        self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> fx.Node:
        """Append ``func`` on nodes, computing its fake value."""
        values = map_arg(cast(Argument, (args, dict(kwargs))), _value_of)
        value_args, value_kwargs = cast("tuple[tuple[object, ...], dict[str, object]]", values)
        value = fake_result(self.fake_mode, func, value_args, value_kwargs)
        return self.emit(func, args, kwargs, value)

    def enter_backward(self, note: Callable[[fx.Node], None] | None = None) -> None:
        """From now on autograd's backward is recorded; ``note`` is told of its nodes.

        What runs there with gradients enabled is a checkpointed region that is run again: its
        nodes say so (``meta["recomputed"]``), and its random numbers are those of the forward,
        as in passes that the program itself makes.
        """
        self._in_backward = True
        self._note = note

    def refuse_write_of_backward(self) -> None:
        """Raise AtenTraceError where the backward writes to an input, as a checkpoint that counts
        its calls does: the program's writes are made when the forward ends."""
        if self._in_backward:
            raise AtenTraceError("its backward writes to an input", hint="run it eagerly")

    # Dispatch.

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if not all(map(is_plain, types)):
            return NotImplemented  # the class's own method, which comes back with what it holds
        if func is _DEVICE:
            return cast(FakeTensor, args[0]).fake_device
        kwargs = kwargs or {}
        ask_kernel(func, args, kwargs)
        check = REFUSALS.get(func)
        if check is not None:
            with self:
                check(*args, **kwargs)
        rule = self._rules.get(func)
        if rule is not None:
            outer, self.hides_writes = self.hides_writes, not func._schema.is_mutable
            try:
                with self:
                    result = rule(*args, **kwargs)
            finally:
                self.hides_writes = outer
            if result is not NotImplemented:
                return result
        decomposition = self._decompositions.get(func)
        if decomposition is not None:
            with self, self._drawing(func, args, kwargs):
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return self._conformed(func, args, kwargs, result)
        if func._name == LAZY_WAIT:  # a graph says where it waits
            with self:
                return torch.ops._c10d_functional.wait_tensor.default(*args, **kwargs)
        info = op_info(func)
        if info.composite:
            return self._composite(func, info, args, kwargs)
        if func is aten.lift_fresh.default:
            return self._lift_fresh(cast(torch.Tensor, args[0]))
        if info.kind is OpKind.VIEW or func in UNSAFE_VIEWS:
            return call_view(self, func, args, kwargs)
        if info.kind is OpKind.FUNCTIONAL:
            return self._functional(func, args, kwargs)
        if info.kind is OpKind.METADATA:
            return change_metadata(self, func, args, kwargs)
        return mutate(self, func, info, args, kwargs)

    @contextmanager
    def _drawing(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[None]:
        """What is drawn inside the block is drawn for this call, if its operator is random."""
        if not op_info(func).random:
            yield
            return
        outer = self._drawn_for
        nodes, node_kwargs = self._operands(args)[1], self._keywords(kwargs)[1]
        self._drawn_for = outer or (func, nodes, node_kwargs)
        try:
            yield
        finally:
            self._drawn_for = outer

    def _composite(
        self, func: OpOverload, info: OpInfo, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """What the operator is made of; the operator itself where a part only checks values."""
        if func not in _WHOLE:
            self._composites += 1
            try:
                with self:
                    return run_composite(func, args, kwargs)
            except ValuesCheckedError:
                if info.kind is not OpKind.FUNCTIONAL:
                    raise
            finally:
                self._composites -= 1
        return self._functional(func, args, kwargs)

    def _functional(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        fakes, nodes = self._operands(args)
        fake_kwargs, node_kwargs = self._keywords(kwargs)
        if not func._schema.returns:
            if not self._composites and ask_to_check(func, nodes):
                return None
            raise ValuesCheckedError(
                f"{func} only checks values, and a graph computes",
                where=self.where,
                hint="run it eagerly",
            )
        known = known_answer(func, nodes)
        if known is not None:
            return known
        if func is _NUMBER and is_readable(cast(FakeTensor, fakes[0])):
            return NumberNode.of(self.emit(func, nodes, node_kwargs, None))
        value = fake_result(self.fake_mode, func, fakes, fake_kwargs)
        if isinstance(value, torch.SymFloat):  # a symbol, which stands for no node of the graph
            raise DataDependentOutputException(func)
        if not op_info(func).random:
            return self._register(func, nodes, node_kwargs, value)
        call = self._drawn_for or (func, nodes, node_kwargs)
        if self._in_backward or _running_pass() != self._outer_pass:
            return self._drawn_again(*call, value)
        drawn = self._register(func, nodes, node_kwargs, value)
        self._draws.note(next(iter(reversed(self.graph.nodes))), *call)
        return drawn

    def _drawn_again(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        value: object,
    ) -> object:
        """The results of the random operator of the forward that the backward runs again."""
        if not torch.is_grad_enabled():
            raise AtenTraceError(f"its backward draws random numbers by {func}", where=self.where)
        node = self._draws.first(func, args, kwargs)
        if isinstance(value, FakeTensor):
            self.bind(value, new_base(value, node.meta, node=node))
        else:
            for index, part in enumerate(cast("Sequence[object]", value)):
                if isinstance(part, FakeTensor):
                    self.bind(part, new_base(part, node.meta, producer=(node, index)))
        return value

    def _conformed(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> object:
        """A decomposition's result with the operator's strides; raises if more than they differ."""
        fake_kwargs = {name: self.unread(arg) for name, arg in kwargs.items()}
        fakes = tuple(map(self.unread, args))
        wanted = fake_result(self.fake_mode, func, fakes, fake_kwargs)
        if isinstance(wanted, FakeTensor):
            return self.conformed(func, wanted, result)
        if isinstance(wanted, (list, tuple)) and isinstance(result, (list, tuple)):
            pairs = zip(wanted, result, strict=True)
            return tuple(self.conformed(func, want, got) for want, got in pairs)
        return result

    def conformed(self, func: OpOverload, wanted: object, result: object) -> object:
        """A tensor that stands for an operator's result, with the strides of that."""
        if not isinstance(wanted, FakeTensor) or not isinstance(result, torch.Tensor):
            return result
        if wanted.shape != result.shape or wanted.dtype != result.dtype:
            raise AtenTraceError(
                f"the decomposition of {func} returns {result.dtype}{list(result.shape)},"
                f" the operator {wanted.dtype}{list(wanted.shape)}",
                where=self.where,
            )
        # The operator's result is memory of its own, whatever the decomposition looks at.
        node = with_layout(self, self.node_of(result), wanted)
        self.bind(wanted, new_base(wanted, node.meta, node=node))
        return wanted

    def _operands(self, args: tuple[object, ...]) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """Positional arguments twice: as fake tensors, and as nodes."""
        pairs = [self._operand(arg) for arg in args]
        return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)

    def _keywords(self, kwargs: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
        if not kwargs:
            return kwargs, kwargs
        pairs = {name: self._operand(arg) for name, arg in kwargs.items()}
        return {n: p[0] for n, p in pairs.items()}, {n: p[1] for n, p in pairs.items()}

    def _operand(self, arg: object) -> tuple[object, object]:
        if isinstance(arg, torch.Tensor):
            fake = self.fake_for(arg)
            return fake, self.node_of(fake)
        if isinstance(arg, (list, tuple)):
            pairs = [self._operand(each) for each in arg]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if is_number(arg):
            return arg, number_node(cast(torch.SymFloat, arg))
        if isinstance(arg, torch.Generator):
            raise AtenTraceError(
                "a random generator object cannot be part of a graph",
                where=self.where,
                hint="use the default generator (torch.manual_seed)",
            )
        return arg, arg

    def _register(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        value: object,
    ) -> object:
        if isinstance(value, FakeTensor):
            if id(value) not in self._aliases:
                if value.layout is not torch.strided:
                    raise AtenTraceError(f"{func} makes a tensor of {value.layout}")
                node = self.emit(func, args, kwargs, value)
                self.bind(value, new_base(value, node.meta, node=node))
            return value
        if isinstance(value, (list, tuple)) and any(isinstance(v, FakeTensor) for v in value):
            node = self.emit(func, args, kwargs, tuple(value))
            for index, part in enumerate(value):
                if isinstance(part, FakeTensor):
                    self.bind(part, new_base(part, node.meta, producer=(node, index)))
        return value

    def _lift_fresh(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        return self.lifter.lift(self, tensor, fresh=True)

    def unread(self, arg: object) -> object:
        """The argument as fake tensors, without reading (and so emitting) its contents."""
        if isinstance(arg, torch.Tensor):
            return self.fake_for(arg)
        if isinstance(arg, (list, tuple)):
            return [self.unread(each) for each in arg]
        return arg


def _value_of(node: fx.Node) -> Argument:
    return cast(Argument, node.meta["val"])
