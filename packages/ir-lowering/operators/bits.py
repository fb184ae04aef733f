"""Elementwise operators under `numerics="strict"`: every bit is eager's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.testing._internal.common_methods_invocations import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils._pytree import tree_leaves

import plait
from operators.judge import how
from operators.samples import dense_samples, dtypes, name_of, one_program
from operators.score import Outcome, Verdict
from operators.texts import check_report
from plait import CompileOptions
from plait_fx_passes import AtenTraceError, run_passes, to_aten
from plait_ir_lowering import LoweringError, external_ops, lower

FURTHER = frozenset(
    {
        *("addcdiv", "addcmul", "clamp", "lerp", "masked_fill", "where", "isclose", "clone"),
        *("bool", "byte", "char", "short", "int", "long", "half", "bfloat16", "float", "double"),
        *("nn.functional.celu", "nn.functional.elu", "nn.functional.gelu", "nn.functional.glu"),
        *("nn.functional.hardshrink", "nn.functional.hardsigmoid", "nn.functional.hardswish"),
        *("nn.functional.hardtanh", "nn.functional.leaky_relu", "nn.functional.logsigmoid"),
        *("nn.functional.mish", "nn.functional.prelu", "nn.functional.relu"),
        *("nn.functional.relu6", "nn.functional.selu", "nn.functional.silu"),
        *("nn.functional.softplus", "nn.functional.softshrink", "nn.functional.softsign"),
        *("nn.functional.tanhshrink", "nn.functional.threshold"),
    }
)
"""Elementwise operators that torch's database does not class as such."""
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}

_WITHOUT_LOOPS = frozenset({torch.complex32})
"""Dtypes that the loop IR lacks: graphs with them run as captured, as a whole."""

_WITHOUT_HARD_VALUES = ("lcm", "polynomial")
"""In names of operators whose own kernels divide the least integer by -1, which ends the process,
or count to what they are given."""


def is_elementwise(op: Any) -> bool:
    """Whether an operator computes each element from those at its place."""
    return isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo) or op.name in FURTHER


def _is_tender(op: Any) -> bool:
    return any(name in op.name for name in _WITHOUT_HARD_VALUES)


def check(op: Any, count: int) -> list[Verdict]:
    """One operator in all dtypes, as one program; how it was run is told for each dtype."""
    found = {dtype: list(_samples(op, dtype, count)) for dtype in dtypes(op)}
    found = {dtype: samples for dtype, samples in found.items() if samples}
    without = {dtype: samples for dtype, samples in found.items() if dtype in _WITHOUT_LOOPS}
    rest = {dtype: samples for dtype, samples in found.items() if dtype not in without}
    return [verdict for part in (rest, without) if part for verdict in _judged(op, part)]


def _judged(op: Any, found: dict[torch.dtype, list[Any]]) -> Iterator[Verdict]:
    program = one_program(op, [each for samples in found.values() for each in samples])
    torch.manual_seed(1)
    wanted = program(*program.inputs())
    try:
        run = plait.compile(program.__call__, dynamic=False, numerics="strict")
        torch.manual_seed(1)
        got = run(*program.inputs())
        report = plait.report(run)
        check_report(report)
    except Exception as error:  # whatever comes here is the compiler's fault, and the score's
        for dtype in found:
            yield _verdict(op, dtype, Outcome.WRONG, f"{error!r}"[:300])
        return
    as_a_whole, place = how(report), 0
    for dtype, samples in found.items():
        ours, theirs = (each[place : place + len(samples)] for each in (got, wanted))
        place += len(samples)
        wrong = difference(ours, theirs)
        if wrong is not None:
            yield _verdict(op, dtype, Outcome.WRONG, wrong)
        elif as_a_whole[0] is Outcome.EXTERNAL:
            yield _verdict(op, dtype, *_how(op, samples))
        else:
            yield _verdict(op, dtype, *as_a_whole)


def _verdict(op: Any, dtype: torch.dtype, outcome: Outcome, detail: str) -> Verdict:
    return Verdict(name_of(op), str(dtype).removeprefix("torch."), outcome, detail)


def _how(op: Any, samples: list[Any]) -> tuple[Outcome, str]:
    """Of one dtype alone, by what lowering calls."""
    program = one_program(op, samples)
    tensors = program.inputs()
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{number}") for number in range(len(tensors))]
    graph.output(graph.call_function(program.__call__, tuple(inputs)))
    chosen = CompileOptions(numerics="strict")
    try:
        aten = to_aten(fx.GraphModule({}, graph), tensors, decompositions=chosen.decompositions())
        aten = run_passes(aten, chosen.passes())
        loops = lower(aten.graph, options=chosen.lowering_options())
    except (AtenTraceError, LoweringError) as error:
        return Outcome.EAGERLY, str(error)
    calls = sorted(external_ops(loops))
    return (Outcome.EXTERNAL, ", ".join(calls)) if calls else (Outcome.LOOPS, "")


def _samples(op: Any, dtype: torch.dtype, count: int) -> Iterator[tuple[Any, Any, Any]]:
    """The database's, then hard values: in rows, and with a stride."""
    args, kwargs = (), {}
    for number, sample in enumerate(dense_samples(op, dtype)):
        if number == count:
            break
        args, kwargs = sample[1:] if number == 0 else (args, kwargs)
        yield sample
    arity = 1 if isinstance(op, UnaryUfuncInfo) else 2 if isinstance(op, BinaryUfuncInfo) else 0
    if arity == 0 or not (dtype.is_floating_point or dtype in (torch.int32, torch.uint8)):
        return
    if (dtype not in _BITS and dtype.is_floating_point) or _is_tender(op):
        return
    values = hard_values(dtype)
    turned = values.flip(0).roll(7)
    for one, other in ((values, turned), (values[::2], turned[1::2])):
        sample = (one, (other,) if arity == 2 else args, kwargs)
        try:
            op.op(one, *sample[1], **kwargs)
        except Exception:  # not for all integers, or for another device
            continue
        yield sample


def hard_values(dtype: torch.dtype) -> Tensor:
    """All numbers of 16 bits; of wider floats the special ones and many bit patterns."""
    torch.manual_seed(0)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        drawn = torch.randint(limits.min, limits.max, (500,), dtype=dtype)
        return torch.cat([drawn, torch.tensor([limits.min, limits.max, 0, 1], dtype=dtype)])
    if dtype.itemsize == 2:
        return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    limits = torch.finfo(dtype)
    parts = [0.0, 1.0, 0.5, 2.5, limits.tiny, limits.smallest_normal / 8, limits.max, torch.inf]
    special = torch.tensor([*parts, *(-each for each in parts), torch.nan], dtype=dtype)
    size = 4004
    drawn = torch.randint(-(2**62), 2**62, (size,)).to(_BITS[dtype])
    near = torch.randn(size, dtype=dtype) * 3
    pairs = special.repeat(len(special)), special.repeat_interleave(len(special))
    return torch.cat([drawn.view(dtype), near, *pairs, special])


def difference(got: object, wanted: object) -> str | None:
    """What differs first in any bit; NaN is NaN."""
    for ours, theirs in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        if not isinstance(theirs, Tensor):
            if repr(ours) != repr(theirs):
                return f"{ours!r}, in eager {theirs!r}"
        elif ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"{ours.dtype} {ours.shape}, in eager {theirs.dtype} {theirs.shape}"
        else:
            differing = _differing(ours, theirs)
            if differing.any():
                where = differing.nonzero()[0].tolist()
                one, other = (each[tuple(where)].item() for each in (ours, theirs))
                number = int(differing.sum())
                return f"{number} of {theirs.numel()} differ; at {where} {one!r} for {other!r}"
    return None


def _differing(ours: Tensor, theirs: Tensor) -> Tensor:
    if theirs.is_complex():
        ours, theirs = (
            torch.view_as_real(ours.resolve_conj()),
            torch.view_as_real(theirs.resolve_conj()),
        )
        return _differing(ours, theirs).any(-1)
    if theirs.dtype not in _BITS:
        return ours != theirs
    kind = _BITS[theirs.dtype]
    bits = (each.contiguous().view(kind) for each in (ours, theirs))
    return (next(bits) != next(bits)) & ~(ours.isnan() & theirs.isnan())
