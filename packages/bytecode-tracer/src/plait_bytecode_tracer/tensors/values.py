"""Values of tensors that the trace may know: nothing but constants and inputs decide them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_arg

from plait_bytecode_tracer.graph.memory import storage_of
from plait_bytecode_tracer.guards import Kind, TensorValue, plain_constant
from plait_bytecode_tracer.outside.generators import is_awaited
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    SliceVariable,
    TensorVariable,
    Variable,
)
from plait_utils.wrappings import is_wrapper

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

UNKNOWN = object()
"""That a value is known only when the graph has run."""
_MAX_CONSTANT_NODES = 200
_MAX_CONSTANT_ELEMENTS = 1 << 20
_MAX_NODES = 24
_MAX_ELEMENTS = 1 << 17
"""How much is computed before each call to guard a value."""
_MAX_READ = 64
"""How many elements of a tensor that depends on inputs are read."""
_UNDECIDED = (
    *("rand", "normal", "bernoulli", "multinomial", "dropout", "poisson", "empty"),
    *("attention", "rrelu", "gumbel", "uniform", "exponential"),
)
"""Parts of the names of functions whose results differ from call to call."""
_DEVICES = ("cpu", "cuda")
"""Where values are read: from a GPU as the program itself would, which waits for it there."""
_UNMARKED = ("batch_norm", "instance_norm")
"""Parts of the names of functions that change arguments without a trace in their versions."""
READERS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "index": operator.index,
    "item": torch.Tensor.item,
    "tolist": torch.Tensor.tolist,
}
"""How Python reads a tensor, by the method's name."""
_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "and_": "&",
    "or_": "|",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "xor": "^",
}


def value_of(state: TraceState, variable: TensorVariable, reader: str) -> Any:
    """What `reader` gives of a tensor, as a Python value; UNKNOWN where only the run tells.

    The value of a tensor made of constants alone, as `torch.arange(4) + 1` is, is the same
    in every call. Of one that follows from few, small inputs of integers or bools, or from sizes
    that are open, it is guarded: before each call it is computed again and compared.
    """
    if state.scope.parent is not None:
        return UNKNOWN
    needed = _needed(variable.node)
    if needed is None or not _is_unchanged(state, needed):
        return UNKNOWN
    used = [i for i in state.inputs if i.node in needed]
    if any(is_awaited(i.source) for i in used):
        return UNKNOWN
    if used and (len(needed) > _MAX_NODES or _size(variable.node) > _MAX_READ):
        return UNKNOWN
    graph = _expression(state, needed, variable.node, reader)
    evaluate = fx.GraphModule(torch.nn.Module(), graph).forward
    try:
        value = evaluate(*(i.real for i in used))
        constant = plain_constant(value)
    except Exception:  # Python raises it where the program asks for the value
        return UNKNOWN
    if not used:
        return value
    sources = tuple(i.source for i in used)
    key = f"{[source.code for source in sources]} {graph.python_code('self').src}"
    if key in state.undecided:
        return UNKNOWN
    expected = TensorValue(sources, evaluate, constant, key)
    text = f"{_read_text(variable.node, reader)} is {value!r}"
    state.require(None, Kind.TENSOR_VALUE, expected, text)
    return value


def constant_tensor(
    state: TraceState, node: fx.Node, *, as_made: bool = False
) -> torch.Tensor | None:
    """The tensor that a node gives in every call; None where inputs decide it, or the run, or the
    trace has changed it. `as_made` asks for what it was before its own memory was changed.

    Not to be written to: the value is remembered.
    """
    needed = _needed(node)
    if needed is None or any(each.op == "placeholder" for each in needed):
        return None
    if any(_is_written(state, each) for each in needed if not (as_made and each is node)):
        return None
    known = state.memory.constants.get(node)
    if known is None:
        value = _evaluated(sorted(needed))
        if not isinstance(value, torch.Tensor):
            return None
        known = state.memory.constants[node] = value
    return known


def _is_written(state: TraceState, node: fx.Node) -> bool:
    """Whether the trace may have changed the memory of a tensor since a node made it."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    inside = state.memory.touching(state.graph, storage_of(value))
    versions = [(each.node, state.versions.get(each.node, -1)) for each in inside if each.gives]
    return any(version < 0 or n.meta["val"]._version != version for n, version in versions)


def _evaluated(nodes: Sequence[fx.Node]) -> Any:
    """What the last of some nodes gives that need no others."""
    values: dict[fx.Node, Any] = {}
    for node in nodes:
        target: Any = node.target
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "call_method":
            values[node] = getattr(args[0], target)(*args[1:], **kwargs)
        else:
            values[node] = target(*args, **kwargs)
    return values[nodes[-1]]


def is_made_of_constants(node: fx.Node) -> bool:
    """Whether a tensor is the same in every call, as far as the trace can tell."""
    needed = _needed(node)
    return needed is not None and all(each.op != "placeholder" for each in needed)


def with_numbers(
    state: TraceState, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]] | None:
    """The arguments of a call that reads tensors of one element, with these as numbers.

    As torch does it for `torch.arange(n)`. None if there are none, or the trace does not
    know a value.
    """
    numbers: list[Variable] = []

    def number(value: Any) -> Any:
        if isinstance(value, TensorVariable) and value.fake.dim() == 0:
            known = value_of(state, value, "item")
            if known is UNKNOWN:
                return value
            numbers.append(Known(known))
            return numbers[-1]
        if isinstance(value, SequenceVariable):
            return SequenceVariable([number(item) for item in value.items], value.kind)
        if isinstance(value, SliceVariable):
            return SliceVariable([number(part) for part in value.parts])
        if isinstance(value, list | tuple):
            return [number(item) for item in value]
        return value

    given = number(list(args)), {name: number(value) for name, value in kwargs.items()}
    return given if numbers else None


def _needed(last: fx.Node) -> set[fx.Node] | None:
    """The nodes that a node is made of, itself included; None if the trace cannot run them."""
    needed: set[fx.Node] = set()
    measured: set[fx.Node] = set()
    waiting = [last]
    from_inputs = False
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        needed.add(node)
        size = _size_of_input(node)
        if size is not None:
            measured.add(size[0])
            from_inputs = True
            continue
        from_inputs = from_inputs or node.op == "placeholder"
        if len(needed) > _MAX_CONSTANT_NODES or not _is_decided(node):
            return None
        waiting.extend(node.all_input_nodes)
    limit = _MAX_ELEMENTS if from_inputs else _MAX_CONSTANT_ELEMENTS
    return needed | measured if all(_size(node) <= limit for node in needed) else None


def _size_of_input(node: fx.Node) -> tuple[fx.Node, int] | None:
    """An input, and its dimension whose open size, or one that is always equal, a node gives."""
    size = node.meta.get("val")
    if node.target != "size" or not isinstance(size, torch.SymInt):
        return None
    for given in node.graph.find_nodes(op="placeholder"):
        value = given.meta.get("val")
        sizes: tuple[object, ...] = value.shape if isinstance(value, torch.Tensor) else ()
        for dim, other in enumerate(sizes):
            if isinstance(other, torch.SymInt) and other.node.expr == size.node.expr:
                return given, dim
    return None


def _size(node: fx.Node) -> float:
    """How many elements a node gives; of open sizes, in this call."""
    value = node.meta.get("val")
    count: Any = value.numel() if isinstance(value, torch.Tensor) else 0
    if isinstance(count, torch.SymInt):
        return math.inf if count.node.hint is None else int(count.node.hint)
    return int(count)


def _is_decided(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if is_wrapper(value) or "is_switched" in node.meta:  # before the call, modes are others
        return False
    if node.op == "placeholder":
        return isinstance(value, torch.Tensor) and not (
            value.is_floating_point() or value.is_complex()
        )
    if node.op not in ("call_function", "call_method"):
        return False
    is_here = not isinstance(value, torch.Tensor) or value.device.type in _DEVICES
    is_known = node.op == "call_method" or _is_torch(node.target)
    return is_known and is_here and not any(part in _name(node) for part in _UNDECIDED)


def _name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def _is_torch(target: Any) -> bool:
    """Whether a function is an operator of Python's or one of torch's own, not a user's."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return target.__module__ in ("torch._ops.aten", "torch._ops.prims")
    module = getattr(target, "__module__", None) or ""
    is_builtin = getattr(operator, getattr(target, "__name__", ""), None) is target
    owner = type(getattr(target, "__self__", None)).__name__
    return (
        is_builtin
        or target is getattr
        or module.startswith("torch")
        or owner == "_VariableFunctionsClass"
    )


def _is_unchanged(state: TraceState, needed: set[fx.Node]) -> bool:
    """Whether the trace has changed none of these tensors, nor memory that they share."""
    if any(part in _name(user) for n in needed for user in n.users for part in _UNMARKED):
        return False
    if not state.mutates_tensors:
        return True
    versions = state.versions
    try:
        if any(n.meta["val"]._version != versions[n] for n in needed if n in versions):
            return False  # as the counts of an optimizer's steps, one by one
        changed = [n for n, version in versions.items() if n.meta["val"]._version != version]
    except RuntimeError:  # tensors of inference mode do not count
        return False
    storages = {_storage(node.meta["val"]) for node in changed}
    if any(_storage(n.meta["val"]) in storages for n in needed if n in versions):
        return False
    inputs = state.tensor_inputs
    real = {_storage(i.real) for i in inputs if _storage(i.node.meta["val"]) in storages}
    return not any(_storage(i.real) in real for i in inputs if i.node in needed)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _expression(state: TraceState, needed: set[fx.Node], last: fx.Node, reader: str) -> fx.Graph:
    """A graph of some nodes alone, which reads the last one."""
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in state.graph.nodes:
        if node not in needed:
            continue
        size = _size_of_input(node)
        if size is None:
            copies[node] = made.node_copy(node, copies.__getitem__)
        else:
            copies[node] = made.call_method("size", (copies[size[0]], size[1]))
    made.output(made.call_function(READERS[reader], (copies[last],)))
    return made


# Words.


def _read_text(node: fx.Node, reader: str) -> str:
    shown = _text(node)
    if reader in ("item", "tolist"):
        return f"{shown}.{reader}()"
    return shown if reader == "bool" else f"{reader}({shown})"


def _text(value: Any) -> str:
    """A node as the Python expression that it came from, or nearly so."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if not isinstance(value, fx.Node):
        return str(value)
    if value.op == "placeholder":
        return str(value.meta["source"])
    name, args = _name(value), [_text(arg) for arg in value.args]
    args += [f"{key}={_text(arg)}" for key, arg in value.kwargs.items()]
    if name in _SIGNS and len(args) == 2:
        return f"({args[0]} {_SIGNS[name]} {args[1]})"
    if name == "getitem":
        return f"{args[0]}{args[1] if args[1].startswith('[') else f'[{args[1]}]'}"
    if value.op == "call_method":
        return f"{args[0]}.{name}({', '.join(args[1:])})"
    return f"{name}({', '.join(args)})"


__all__ = ["READERS", "UNKNOWN", "constant_tensor", "value_of"]
