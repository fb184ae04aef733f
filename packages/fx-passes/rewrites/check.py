"""One random program: its graph after passes against the graph as recorded."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gradients.score import Outcome, Verdict
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from plait_fx_passes import (
    DEFAULT_PASSES,
    IN_PLACE_PASSES,
    LOOP_PASSES,
    NUMERIC_PASSES,
    AtenGraph,
    AtenTraceError,
    NoGradientsError,
    PassError,
    find_bad_rewrite,
    print_aten,
    run_passes,
    to_aten,
    to_joint,
    wrap_runtime,
)
from plait_fx_passes.layouts import span
from plait_fx_passes.open_sizes import runner
from plait_fx_passes.passes import NEAR_USES, Alignment, Limits, PassRecord, aligning, batching
from plait_fx_passes.passes.batched import FAMILIES
from plait_fx_passes.passes.joined_products import joining
from plait_fx_passes.passes.manager import LAYOUT_PASSES
from plait_fx_passes.patterns import BATCHES_OF_ONE, rule_pass, thin_products
from rewrites.programs import LARGEST, Case, Kind, generate

_FEW = Limits(calls=1, elements=LARGEST, most_calls=5)
_THIN = {"cpu": thin_products.Thin(inner=16, results=4)}
# What gains on accelerators, or for large tensors, with limits that small ones reach.
_BATCHES = batching("batches", FAMILIES, {"cpu": {each.name: _FEW for each in FAMILIES}})
_ALIGNED = aligning("aligned", {("cpu", torch.float64): Alignment(4, 8)})
_THINNED = rule_pass("thin", thin_products.thin_rules(_THIN, _THIN))
_ENDS = (NEAR_USES, joining("parts", {"cpu": 1}), *IN_PLACE_PASSES)
_SUMS = rule_pass("sums", thin_products.vector_rules({"cpu": LARGEST}, least=0))
_ALONE = (BATCHES_OF_ONE, _THINNED, _SUMS)

PASSES = {
    Kind.EXACT: (*DEFAULT_PASSES, *LOOP_PASSES, *_ENDS),
    Kind.OPEN: (*DEFAULT_PASSES, *LOOP_PASSES, *_ENDS),
    Kind.NUMERIC: (
        *(*_ALONE, *NUMERIC_PASSES, *LOOP_PASSES, *LAYOUT_PASSES),
        *(_BATCHES, _ALIGNED, *_ENDS),
    ),
    Kind.JOINT: (*_ALONE, *NUMERIC_PASSES, *LOOP_PASSES, _BATCHES, _ALIGNED, NEAR_USES),
}
SIZES = (4, 5, 7)
"""Of the first dimension, where it is open; the first is recorded."""

_SINGLE = 1e-4
"""What is allowed to differ in float32, to which integers are divided."""

Run = Callable[..., Any]
Values = list[object]


def check(number: int, kind: Kind, fired: Counter[str]) -> Verdict:
    """The random program of that number; adds what was rewritten, by pass and rule."""
    case = generate(number, kind)
    name = f"{kind.value} {number}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph, rounds = _recorded(case)
        except (AtenTraceError, NoGradientsError) as error:
            return Verdict(name, Outcome.NOTHING, f"{type(error).__name__}: {str(error)[:100]}")
        except RuntimeError as error:
            if "is a view of a leaf" in str(error) or "a leaf Variable" in str(error):
                return Verdict(name, Outcome.EAGER_RAISES)
            raise
        return _judged(name, case, graph, rounds, fired)


def _judged(
    name: str,
    case: Case,
    graph: AtenGraph,
    rounds: Sequence[Callable[[], list[Tensor]]],
    fired: Counter[str],
) -> Verdict:
    chosen = random.Random(f"fuel {case.number}")
    fuel = chosen.randint(0, 12) if chosen.random() < 0.3 else None

    def note(record: PassRecord) -> None:
        fired[record.name] += record.rewrites
        for rule, count in record.matches.items():
            fired[f"{record.name}: {rule}"] += count

    passes, verified = PASSES[case.kind], case.kind is not Kind.JOINT
    try:
        optimized = run_passes(graph, passes, fuel=fuel, observer=note, verify_each=verified)
    except PassError as error:
        return Verdict(name, Outcome.WRONG, f"{error}\n{case.text}\n{print_aten(graph)}")
    wrong = _difference(case, graph, optimized, rounds)
    if not wrong:
        return Verdict(name, Outcome.EQUAL)
    culprit = find_bad_rewrite(
        graph,
        lambda each: not _difference(case, graph, each, rounds),
        passes,
    )
    told = f"{wrong}\n{case.text}"
    if culprit is not None:
        told += f"\nrewrite {culprit.rewrite}, of the pass {culprit.pass_name}: "
        told += f"{print_aten(culprit.before)}\nbecomes {print_aten(culprit.after)}"
    return Verdict(name, Outcome.WRONG, told)


def _recorded(case: Case) -> tuple[AtenGraph, list[Callable[[], list[Tensor]]]]:
    """The program's graph, and what makes inputs that it is compared for."""
    gm = fx.symbolic_trace(case.program())
    if case.kind is Kind.JOINT:
        leaves = [each.requires_grad_(each.is_floating_point()) for each in case.inputs()]
        graph = to_joint(gm, leaves).program
        return graph, [lambda: _with_tangents(case, graph)]
    if case.kind is not Kind.OPEN:
        with torch.no_grad():
            return to_aten(gm, case.inputs()), [case.inputs]
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with torch.no_grad():
        graph = to_aten(gm, [_open(mode, each) for each in case.inputs(SIZES[0])])
    return graph, [lambda size=size: case.inputs(size) for size in SIZES]


def _open(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    is_open = tensor.dim() == 2 and tensor.shape[0] == SIZES[0]
    kinds = [DimDynamic.STATIC] * tensor.dim()
    if is_open:
        kinds[0] = DimDynamic.DUCK
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(kinds))


def _with_tangents(case: Case, graph: AtenGraph) -> list[Tensor]:
    draw = torch.Generator().manual_seed(case.number + 1)
    given = [each.detach() for each in case.inputs()]
    for fake in graph.example_inputs[len(given) :]:
        _, end = span(fake)
        memory = torch.randn(end, generator=draw, dtype=torch.float64).to(fake.dtype)
        given.append(memory.as_strided(fake.shape, fake.stride(), fake.storage_offset()))
    return given


def _difference(
    case: Case,
    graph: AtenGraph,
    other: AtenGraph,
    rounds: Sequence[Callable[[], list[Tensor]]],
) -> str:
    """Where two graphs differ; empty if nowhere."""
    wanted, got = _program(case, graph), _program(case, other)
    for make in rounds:
        inputs = make()
        if not _holds(graph, inputs):
            continue
        try:
            first = _seen(wanted, inputs, case.number)
        except RuntimeError:
            if case.kind is not Kind.OPEN:
                raise
            continue  # as eager does at that size
        again = _seen(got, make(), case.number)
        copied = {len(inputs) + each.result for each in graph.mutations}
        wrong = _compared(first, again, case.kind, copied)
        if wrong:
            return wrong
    return ""


def _program(case: Case, graph: AtenGraph) -> Run:
    run = runner(graph)
    return run if case.kind is Kind.JOINT else wrap_runtime(graph, run)


def _holds(graph: AtenGraph, inputs: Sequence[Tensor]) -> bool:
    """Whether all that recording and passes noted of sizes is true of these inputs."""
    mode = graph.fake_mode
    if mode is None or mode.shape_env is None:
        return True
    values: dict[object, int] = {}
    for fake, real in zip(graph.example_inputs, inputs, strict=True):
        for size, number in zip(fake.shape, real.shape, strict=True):
            if isinstance(size, torch.SymInt) and size.node._expr.is_Symbol:
                values[size.node._expr] = number
    env = mode.shape_env
    fixed = {symbol: made for symbol, made in env.replacements.items() if symbol in values}
    if any(values[symbol] != made.xreplace(values) for symbol, made in fixed.items()):
        return False
    return all(bool(guard.expr.xreplace(values)) for guard in env.guards)


def _seen(run: Run, inputs: list[Tensor], seed: int) -> Values:
    torch.manual_seed(seed)
    with torch.no_grad():
        returned = run(*inputs)
    return [*inputs, *returned]


def _compared(wanted: Values, got: Values, kind: Kind, copied: set[int]) -> str:
    """Where values differ; of a joint graph the results that are ``copied`` to inputs may share
    memory with others, since nobody is given them."""
    if len(wanted) != len(got):
        return f"{len(got)} tensors instead of {len(wanted)}"
    for place, (one, other) in enumerate(zip(wanted, got, strict=True)):
        wrong = _compared_tensors(one, other, kind.tolerance)
        if wrong:
            return f"tensor {place}: {wrong}"
    hidden = copied if kind is Kind.JOINT else set()
    shared, by = _sharing(wanted, hidden), _sharing(got, hidden)
    return "" if shared == by else f"memory is shared by {by} instead of {shared}"


def _compared_tensors(wanted: object, got: object, tolerance: float) -> str:
    if not isinstance(wanted, Tensor) or not isinstance(got, Tensor):
        return "" if wanted is got is None else f"{got} instead of {wanted}"
    for told in ("dtype", "shape"):
        if getattr(wanted, told) != getattr(got, told):
            return f"{told} {getattr(got, told)} instead of {getattr(wanted, told)}"
    if wanted.numel() and _strides(wanted) != _strides(got):
        return f"strides {got.stride()} instead of {wanted.stride()}"
    if tolerance:
        allowed = tolerance if wanted.dtype in (torch.float64, torch.int64) else _SINGLE
        same = torch.allclose(got, wanted, rtol=allowed, atol=allowed, equal_nan=True)
    else:
        same = _same_bits(wanted, got)
    return "" if same else f"{got.tolist()}\ninstead of {wanted.tolist()}"


def _strides(tensor: Tensor) -> list[int]:
    """Those that say something about where elements lie."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in pairs if size > 1]


def _same_bits(wanted: Tensor, got: Tensor) -> bool:
    """Equal, zeros in their sign too; one NaN is as good as another."""
    if not wanted.is_floating_point():
        return torch.equal(wanted, got)
    number = ~wanted.isnan()
    one, other = (torch.where(number, each, 0) for each in (wanted, got))
    alike = torch.equal(one, other) and torch.equal(one.signbit(), other.signbit())
    return alike and torch.equal(number, ~got.isnan())


def _sharing(values: Values, hidden: set[int]) -> list[tuple[int, int, bool]]:
    """Which of the values are one tensor, or show one storage."""
    tensors = [
        (place, each, each.untyped_storage().data_ptr())
        for place, each in enumerate(values)
        if isinstance(each, Tensor) and each.numel() and place not in hidden
    ]
    return [
        (left[0], right[0], left[1] is right[1])
        for place, right in enumerate(tensors)
        for left in tensors[:place]
        if left[2] == right[2]
    ]
