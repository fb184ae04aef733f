"""A slow, clear interpreter of loop IR graphs: the meaning of each node in torch calls.

Every value is computed at all points of its loops at once, as a tensor with one
dimension for each variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import torch
from torch import Tensor

from plait_ir_lowering.errors import LoopIRError
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import (
    SCORE,
    Attention,
    Buffer,
    Device,
    ExternArg,
    ExternCall,
    ExternList,
    Graph,
    Layout,
    Mixture,
    OutputRef,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    TensorRef,
    place_name,
    product_name,
    sorted_words,
)
from plait_ir_lowering.ir.index import IndexExpr, Quotient, Remainder, Var
from plait_ir_lowering.ir.ops import ReductionKind, ScatterKind
from plait_ir_lowering.ir.values import (
    CheckedIndex,
    Const,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Value,
    carried,
    components,
    post_order,
)
from plait_ir_lowering.torch_types import to_torch_dtype
from plait_utils import dataclass
from plait_utils.philox import philox
from plait_utils.philox_numbers import box_muller_cos, box_muller_sin

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": lambda a: torch.where(a != a, torch.zeros_like(a), torch.sign(a)),
    "signbit": torch.signbit,
    "approximate_log": torch.log,
    "approximate_exp": torch.exp,
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: a | b if a.dtype is torch.bool else a + b,
    "mul": lambda a, b: a & b if a.dtype is torch.bool else a * b,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "rem": torch.remainder,
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "box_muller_sin": box_muller_sin,
    "box_muller_cos": box_muller_cos,
}


def interpret(graph: Graph, inputs: Sequence[Tensor]) -> tuple[object, ...]:
    """The outputs of `graph` for `inputs`. Sizes must be static.

    Raises IndexError for an index that a checked load finds out of bounds.
    """
    run = _Run()
    for buffer, tensor in zip(graph.inputs, inputs, strict=True):
        run.tensors[buffer.name] = tensor
    for definition in graph.definitions:
        match definition.body:
            case Pointwise(ranges, value):
                run.store(definition.buffers[0], run.at_all(value, ranges))
            case Reduction(ranges, reduced, kind, value):
                elements = run.at_all(value, (*ranges, *reduced))
                run.store(definition.buffers[0], _combine(kind, elements, len(ranges)))
            case Scan():
                run.store(definition.buffers[0], run.scan(definition.body))
            case Sort():
                run.store(definition.buffers[0], run.sort(definition.body, definition.buffers[0]))
            case Scatter():
                run.store(definition.buffers[0], _scattered(run, definition.body))
            case Attention():
                attended = run.attention(definition.body, len(definition.buffers) == 3)
                for buffer, result in zip(definition.buffers, attended, strict=False):
                    run.store(buffer, result)
            case Mixture():
                mixed = run.mixture(definition.body)
                for buffer, result in zip(definition.buffers, mixed, strict=True):
                    run.store(buffer, result)
            case ExternCall():
                results = run.call(definition.body)
                for buffer, result in zip(definition.buffers, results, strict=True):
                    run.store(buffer, result)
    for target, source in graph.mutations:
        run.tensors[target].copy_(run.ref(source))
    return tuple(run.output(out) for out in graph.outputs)


def _combine(kind: ReductionKind, elements: Tensor, kept: int) -> Tensor:
    flat = elements.flatten(kept) if elements.dim() > kept else elements.unsqueeze(-1)
    match kind:
        case ReductionKind.SUM:
            return flat.sum(-1, dtype=flat.dtype)
        case ReductionKind.PROD:
            return flat.prod(-1, dtype=flat.dtype)
        case ReductionKind.MAX:
            return flat.amax(-1)
        case ReductionKind.MIN:
            return flat.amin(-1)
        case ReductionKind.ANY:
            return flat.any(-1)
        case ReductionKind.ALL:
            return flat.all(-1)
        case ReductionKind.ARGMAX:
            return _ordered(flat).argmax(-1)
    return _ordered(flat).argmin(-1)


def _ordered(flat: Tensor) -> Tensor:
    return flat.to(torch.uint8) if flat.dtype is torch.bool else flat


def _scattered(run: _Run, body: Scatter) -> Tensor:
    """The target with the values combined into it, one after another as a loop would."""
    result = run.tensors[body.target].clone()
    values = run.at_all(body.value, body.ranges).flatten()
    places = [
        run.at_all(at if isinstance(at, Value) else IndexValue(at), body.ranges).flatten()
        for at in body.index
    ]
    for point, value in enumerate(values):
        place = tuple(int(at[point]) for at in places)
        result[place] = _combined(body.kind, result[place], value)
    return result


def _combined(kind: ScatterKind, old: Tensor, new: Tensor) -> Tensor:
    match kind:
        case ScatterKind.ASSIGN:
            return new
        case ScatterKind.ADD:
            return _BINARY["add"](old, new)
        case ScatterKind.MUL:
            return _BINARY["mul"](old, new)
        case ScatterKind.MAX:
            return torch.maximum(old, new)
    return torch.minimum(old, new)


@dataclass(slots=True)
class _Run:
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def store(self, buffer: Buffer, value: Tensor) -> None:
        size, stride = _ints(buffer.layout)
        made = torch.empty_strided(size, stride, dtype=to_torch_dtype(buffer.dtype))
        made.copy_(value.reshape(size))
        self.tensors[buffer.name] = made

    def ref(self, ref: TensorRef) -> Tensor:
        tensor = self.tensors[ref.buffer]
        if ref.view is None:
            return tensor
        size, stride = _ints(ref.view)
        offset = tensor.storage_offset() + ref.view.offset.as_int()
        return tensor.as_strided(size, stride, offset)

    def output(self, out: OutputRef) -> object:
        if isinstance(out, TensorRef):
            return self.ref(out)
        return out.as_int() if isinstance(out, IndexExpr) else out

    def call(self, call: ExternCall) -> list[Tensor]:
        namespace, name = call.op.split("::")
        overload = getattr(getattr(getattr(torch.ops, namespace), name), call.overload or "default")
        if call.out_variant:
            overload = getattr(getattr(torch.ops, namespace), name).default
        schema = [a for a in overload._schema.arguments if not a.is_out]
        args, named = [], {}
        for argument, given in zip(schema, call.args, strict=True):
            value = self._argument(given)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                args.append(value)
        found = overload(*args, **named)
        if isinstance(found, Tensor):
            return [found]
        return [torch.empty(0) if each is None else each for each in found]  # one not computed

    def _argument(self, arg: ExternArg) -> object:
        match arg:
            case TensorRef():
                return self.ref(arg)
            case ExternList(items):
                return [self._argument(item) for item in items]
            case DType():
                return to_torch_dtype(arg)
            case Device(kind, index):
                return torch.device(kind, index) if index is not None else torch.device(kind)
            case IndexExpr():
                return arg.as_int()
            case str() if isinstance(getattr(torch, arg, None), torch.memory_format | torch.layout):
                return getattr(torch, arg)
        return arg

    def scan(self, body: Scan) -> Tensor:
        """The results along the axis, one point after another."""
        place = body.ranges.index(body.axis)
        parts = components(body.value)
        dtypes = [part.dtype for part in parts]
        columns = [self.at_all(part, body.ranges).unbind(place) for part in parts]
        if not columns[0]:
            return self.at_all(body.value, body.ranges).to(to_torch_dtype(body.result.dtype))
        state = [column[0] for column in columns]
        found = []
        for position, element in enumerate(zip(*columns, strict=True)):
            known = dict(zip(carried("a", dtypes), state, strict=True))
            if position:
                both = known | dict(zip(carried("b", dtypes), element, strict=True))
                state = [self._joined(part, both) for part in components(body.combine)]
                known = dict(zip(carried("a", dtypes), state, strict=True))
            found.append(self._joined(body.result, known).expand(element[0].shape))
        return torch.stack(found, place)

    def sort(self, body: Sort, buffer: Buffer) -> Tensor:
        """The results of the least keys along the axis, which is sorted word by word, the last one
        first."""
        place = body.ranges.index(body.axis)
        kept = buffer.layout.size[place].as_int()
        words = [self.at_all(word, body.ranges) for word in components(body.value)]
        for number in reversed(range(len(words))):
            order = words[number].sort(dim=place, stable=True).indices
            words = [word.gather(place, order) for word in words]
        least = [word.narrow(place, 0, kept) for word in words]
        found = self._joined(body.result, dict(zip(sorted_words(body.value), least, strict=True)))
        return found.expand(least[0].shape)

    def attention(self, body: Attention, apart: bool) -> tuple[Tensor, ...]:
        """All scores at once, then their softmax; and the logarithms of its sums, or `apart` the
        largest scores and those of the sums below them."""
        queries, keys, values = (self.ref(ref).flatten(0, -3) for ref in body.refs)
        shape = [var.extent.as_int() for var in (*body.ranges, body.axis)]
        computed = to_torch_dtype(body.score.dtype)
        product = (queries.to(computed) @ keys.to(computed)).reshape(shape)
        local = Local(SCORE, body.score.dtype)
        scores = self.at_all(body.score, (*body.ranges, body.axis), {local: product})
        weights = scores.softmax(-1)
        most = scores.amax(-1, keepdim=True) if apart else torch.zeros((), dtype=scores.dtype)
        sums = (scores - most).logsumexp(-1, keepdim=True)
        if body.zeros:
            is_empty = (scores == -torch.inf).all(-1, keepdim=True)
            weights, sums = weights.masked_fill(is_empty, 0), sums.masked_fill(is_empty, torch.inf)
            most = most.masked_fill(is_empty, 0)
        rows = weights.reshape(queries.shape[0], queries.shape[1], -1)
        found = (rows @ values.to(rows.dtype)).to(values.dtype)
        return (found, most, sums) if apart else (found, sums)

    def mixture(self, body: Mixture) -> list[Tensor]:
        """All products and weights at once."""
        shape = [var.extent.as_int() for var in body.domain]
        computed = body.weights.dtype
        wide = to_torch_dtype(computed)

        def matrices(ref: TensorRef) -> Tensor:
            return self.ref(ref).flatten(0, -3).to(wide)

        products: dict[Value, Tensor] = {
            Local(product_name(number), computed): (matrices(a) @ matrices(b)).reshape(shape)
            for number, (a, b) in enumerate(body.factors)
        }
        parts, places = body.parts
        weights = [self.at_all(part, body.domain, products) for part in parts]
        group = 1 if body.group is None else body.group.extent.as_int()
        mixed: list[Tensor] = []
        for weight, ref in zip(weights, body.values, strict=False):
            values = matrices(ref)
            rows = weight.reshape(values.shape[0], shape[-2], values.shape[1]) @ values
            mixed.append(rows.reshape(-1, group, *rows.shape[1:]).sum(1))
        known: dict[Value, Tensor] = {
            Local(place_name(number), place.dtype): self.at_all(place, body.domain)
            for number, place in enumerate(places)
        }
        for weight, place in zip(weights[len(body.values) :], body.sums, strict=True):
            mixed.append(self._added(weight, place, body, known))
        return mixed

    def _added(
        self, weight: Tensor, place: Load | None, body: Mixture, known: Mapping[Value, Tensor]
    ) -> Tensor:
        """The sums of weights: of rows, or into the places that `place` names."""
        if place is None:
            rows = weight.sum(-1)
            return rows if body.group is None else rows.sum(-2)
        start = self.tensors[place.buffer]
        roots = (at if isinstance(at, Value) else IndexValue(at) for at in place.index)
        index = [self.at_all(at, body.domain, known).flatten() for at in roots]
        return start.index_put(tuple(index), weight.flatten(), accumulate=True)

    def _joined(self, root: Value, known: dict[Local, Tensor]) -> Tensor:
        """A value of locals alone."""
        found: dict[Value, Tensor] = {}
        for value in post_order([root]):
            local = known[value] if isinstance(value, Local) else None
            found[value] = self._compute(value, found, {}) if local is None else local
        return found[root]

    def at_all(
        self, root: Value, variables: Sequence[Var], known: Mapping[Value, Tensor] | None = None
    ) -> Tensor:
        """`root` at each point of `variables`, where some values are known."""
        shape = [var.extent.as_int() for var in variables]
        grids = {
            var.name: torch.arange(size).reshape([-1 if m == n else 1 for m in range(len(shape))])
            for n, (var, size) in enumerate(zip(variables, shape, strict=True))
        }
        if 0 in shape:
            return torch.zeros(shape, dtype=to_torch_dtype(root.dtype))
        found: dict[Value, Tensor] = {}
        outside: dict[Value, Tensor] = {}
        for value in post_order([root]):
            given = None if known is None else known.get(value)
            found[value] = self._compute(value, found, grids) if given is None else given
            outside[value] = _outside(value, found, outside)
        if bool(outside[root].any()):
            raise IndexError("index out of range in self")
        return found[root].expand(shape)

    def _compute(
        self, value: Value, found: dict[Value, Tensor], grids: dict[str, Tensor]
    ) -> Tensor:
        match value:
            case Load(name, index, _):
                places = [found[i] if isinstance(i, Value) else _grid(i, grids) for i in index]
                return _element(self.tensors[name], places)
            case Const(number, dtype):
                return torch.tensor(number, dtype=to_torch_dtype(dtype))
            case IndexValue(expr):
                return _grid(expr, grids)
            case Op(name, args, dtype):
                return _operate(name, [found[arg] for arg in args], to_torch_dtype(dtype))
            case Masked(mask, inner, other):
                return torch.where(found[mask], found[inner], found[other])
            case CheckedIndex(inner, size):
                return _wrapped(found[inner], size.as_int())
        raise LoopIRError(f"{type(value).__name__} has no meaning outside of kernels")


def _ints(layout: Layout) -> tuple[list[int], list[int]]:
    return [s.as_int() for s in layout.size], [s.as_int() for s in layout.stride]


def _wrapped(index: Tensor, size: int) -> Tensor:
    return torch.where(index < 0, index + size, index)


def _outside(value: Value, found: dict[Value, Tensor], outside: dict[Value, Tensor]) -> Tensor:
    """Where a value is read at coordinates that are out of range; where a mask hides it, it is not
    read."""
    if isinstance(value, Masked):
        mask, hidden = found[value.mask], torch.tensor(False)
        shown = torch.where(mask, outside[value.value], hidden)
        return outside[value.mask] | shown | torch.where(mask, hidden, outside[value.other])
    missed = torch.tensor(False)
    if isinstance(value, CheckedIndex):
        missed = (found[value] < 0) | (found[value] >= value.size.as_int())
    for operand in value.operands:
        missed = missed | outside[operand]
    return missed


def _element(tensor: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Elements at broadcast coordinates; those outside (under a mask) read anything."""
    if not places:
        return tensor
    safe = [p.clamp(0, max(size - 1, 0)) for p, size in zip(places, tensor.shape, strict=True)]
    return tensor[tuple(safe)]


def _grid(expr: IndexExpr, grids: dict[str, Tensor]) -> Tensor:
    if expr.is_constant:
        return torch.tensor(expr.constant)
    total = torch.tensor(0)
    for monomial, coefficient in expr.terms:
        product = torch.tensor(coefficient)
        for atom in monomial:
            match atom:
                case Quotient(top, bottom):
                    found = torch.div(
                        _grid(top, grids), _grid(bottom, grids), rounding_mode="floor"
                    )
                case Remainder(top, bottom):
                    found = torch.remainder(_grid(top, grids), _grid(bottom, grids))
                case _:
                    found = grids[atom.text]
            product = product * found
        total = total + product
    return total


def _operate(name: str, args: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    match name:
        case "to":
            return args[0].to(dtype)
        case "bitcast":
            return args[0].contiguous().view(dtype)
        case "where":
            return torch.where(args[0], args[1], args[2])
        case "fma":
            return torch.addcmul(args[2], args[0], args[1])
    if name in _UNARY:
        return _UNARY[name](args[0])
    if name in _BINARY:
        return _BINARY[name](args[0], args[1])
    function: Callable[..., Tensor] = philox if name == "philox" else getattr(torch, name)
    return function(*args)
