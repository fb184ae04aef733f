"""The same computation of other buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plait_ir_lowering.ir.graph import (
    Attention,
    Body,
    ExternArg,
    ExternCall,
    ExternList,
    Mixture,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    TensorRef,
)
from plait_ir_lowering.ir.values import Load, Value, renamed


def renamed_body(body: Body, names: Mapping[str, str]) -> Body:
    """`body` over other buffers; `names` has those of all that it reads."""
    match body:
        case Pointwise(ranges, value):
            return Pointwise(ranges, renamed(value, names))
        case Reduction(ranges, reduced, kind, value):
            return Reduction(ranges, reduced, kind, renamed(value, names))
        case Scan() | Sort():
            return replace(body, value=renamed(body.value, names))
        case Scatter():
            index = tuple(renamed(at, names) if isinstance(at, Value) else at for at in body.index)
            value = renamed(body.value, names)
            return replace(body, target=names[body.target], index=index, value=value)
        case Attention():
            queries, keys, values = (renamed_ref(ref, names) for ref in body.refs)
            score = renamed(body.score, names)
            spans = tuple(Load(names[load.buffer], load.index, load.dtype) for load in body.spans)
            return Attention(
                body.ranges, body.axis, queries, keys, values, score, body.zeros, spans
            )
        case Mixture():
            return replace(
                body,
                factors=tuple(
                    (renamed_ref(a, names), renamed_ref(b, names)) for a, b in body.factors
                ),
                values=tuple(renamed_ref(ref, names) for ref in body.values),
                weights=renamed(body.weights, names),
                spans=tuple(Load(names[s.buffer], s.index, s.dtype) for s in body.spans),
                sums=tuple(
                    None if at is None else Load(names[at.buffer], at.index, at.dtype)
                    for at in body.sums
                ),
            )
        case ExternCall(op, overload, args, out_variant):
            moved = tuple(_renamed_argument(arg, names) for arg in args)
            return ExternCall(op, overload, moved, out_variant)


def renamed_ref(ref: TensorRef, names: Mapping[str, str]) -> TensorRef:
    """The same view of another buffer."""
    return TensorRef(names[ref.buffer], ref.view, ref.dtype)


def _renamed_argument(arg: ExternArg, names: Mapping[str, str]) -> ExternArg:
    if isinstance(arg, TensorRef):
        return renamed_ref(arg, names)
    if isinstance(arg, ExternList):
        return ExternList(tuple(_renamed_argument(item, names) for item in arg.items))
    return arg
