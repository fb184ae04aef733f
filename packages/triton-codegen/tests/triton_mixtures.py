"""The gradients of the attentions of `triton_attention.py`, as mixtures."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from triton_attention import KINDS, SCORES, Case, drawn, eager

from plait_ir_lowering import Graph, parse_graph, verify
from plait_scheduler import Kernel, Mix, Program, SchedulerOptions, schedule

SLOPES = {
    "capped": "mul(mul({weight}, sub(%product1, {delta})), mul(f32({scale}), "
    "sub(f32(1.0), square(tanh(div(mul(%product0, f32({scale})), f32(20.0)))))))",
}
"""The gradient of the product of a query and a key, where it is more than a multiple of the score's
gradient."""
SLOPES["capped causal"] = SLOPES["capped"]
PLAIN = "mul(mul({weight}, sub(%product1, {delta})), f32({scale}))"


SUMS = {
    "rows": ("rows", "mul({gradient}, to(sub(index(i3), index(i2)), f32))", None),
    "distances": ("table[i1, -i2 + i3 + {rows}]", "{gradient}", None),
    "places": ("table[i1, %place0]", "{gradient}", "checked(places[i3], {keys})"),
    "pairs": ("pairs[i0, i1, i2, i3]", "{gradient}", None),
    "pairs of all heads": ("shared[i0, i2, i3]", "{gradient}", None),
}
"""Sums over pairs beside the gradients of queries: where they go, of what, and a coordinate that is
computed."""


def gradients_of(
    case: Case, device: str = "cpu", sums: Sequence[str] = (), grouped: bool = False
) -> Graph:
    """The gradients of an attention's values, keys and queries, of that of its result; of keys and
    values for each head of queries, or summed over those that share them (`grouped`)."""
    batch, heads, shared, rows, keys, depth, width = case.sizes
    kind, group = KINDS[case.dtype], heads // shared
    score = SCORES[case.score].format(**case.values).replace("%score", "%product0")
    weight = f"exp(sub({score}, sums[i0, i1, i2]))"
    parts = {"weight": weight, "delta": "delta[i0, i1, i2]", **case.values}
    slope = SLOPES.get(case.score, PLAIN).format(**parts)

    def strides(many: int, length: int, size: int) -> tuple[int, int, int]:
        if case.transposed:
            return length * many * size, size, many * size
        return many * length * size, length * size, size

    def given(name: str, many: int, length: int, size: int) -> str:
        shown = ", ".join(map(str, (*strides(many, length, size), 1)))
        shape = f"[{batch}, {many}, {length}, {size}]"
        return f"  input {name}: {kind}{shape} stride [{shown}] offset 0 on {device}"

    def viewed(name: str, many: int, length: int, size: int, turned: bool) -> str:
        first, second, step = strides(many, length, size)
        times = heads // many
        inner = f"{size}, {length}" if turned else f"{length}, {size}"
        last = f"1, {step}" if turned else f"{step}, 1"
        shape = f"[{batch}, {many}, {times}, {inner}], [{first}, {second}, 0, {last}]"
        return f"{name}.view({shape}, 0)"

    q, qt = (viewed("q", heads, rows, depth, turned) for turned in (False, True))
    k, kt = (viewed("k", shared, keys, depth, turned) for turned in (False, True))
    v, vt = (viewed("v", shared, keys, width, turned) for turned in (False, True))
    g, gt = (viewed("g", heads, rows, width, turned) for turned in (False, True))
    assert group * shared == heads
    many, over, loop, both = heads, "", "", f"{weight}, {slope}"
    if grouped:
        many, over, loop = shared, "i4, ", f"i4: {group}, "
        both = re.sub(r"\bi1\b", f"(i1*{group} + i4)", both)
    parts_of_sums = _sums(case, weight, sums, device)
    zeros, made, adding, returned = (
        parts_of_sums[name] for name in ("zeros", "made", "adding", "returned")
    )
    weights = f"pack({slope}, {parts_of_sums['weights']})" if sums else slope
    text = f"""graph main()
{given("q", heads, rows, depth)}
{given("k", shared, keys, depth)}
{given("v", shared, keys, width)}
{given("g", heads, rows, width)}
  input sums: f32[{batch}, {heads}, {rows}] on {device}
  input delta: f32[{batch}, {heads}, {rows}] on {device}
  input bias: f32[{heads}, {rows}, {keys}] on {device}
  input slopes: f32[{heads}] on {device}
  input documents: i64[{max(rows, keys)}] on {device}
  input lengths: i64[{batch}] on {device}
  input places: i64[{keys}] on {device}
  define dv: {kind}[{batch * many}, {keys}, {width}] on {device}; \
dk: f32[{batch * many}, {keys}, {depth}] on {device}
    mixture {over}i2 for i0: {batch}, i1: {many}, i3: {keys}, {loop}i2: {rows} by {k} @ {qt}, \
{v} @ {gt} of {g}, {q} = pack({both})
{zeros}  define dq: f32[{batch * heads}, {rows}, {depth}] on {device}{made}
    mixture i3 for i0: {batch}, i1: {heads}, i2: {rows}, i3: {keys} by {q} @ {kt}, {g} @ {vt} \
of {k}{adding} = {weights}
  return dq, dk, dv{returned}
"""
    graph = parse_graph(text)
    verify(graph)
    return graph


def _sums(case: Case, weight: str, sums: Sequence[str], device: str) -> dict[str, str]:
    """Parts of the text of what sums over pairs."""
    batch, heads, _, rows, keys, _, _ = case.sizes
    sizes = {
        "rows": (batch, heads, rows),
        "table": (heads, rows + keys),
        "pairs": (batch, heads, rows, keys),
        "shared": (batch, rows, keys),
    }
    gradient = f"mul({weight}, sub(%product1, delta[i0, i1, i2]))"
    numbers = {"gradient": gradient, "rows": rows, "keys": keys}
    shown = [[None if part is None else part.format(**numbers) for part in SUMS[n]] for n in sums]
    stems = [place.partition("[")[0] for place, _, _ in shown]
    zeros, made = "", ""
    for number, stem in enumerate(stems):
        size = sizes[stem]
        kind = f"f32[{', '.join(map(str, size))}] on {device}"
        made += f"; sum{number}: {kind}"
        if stem != "rows":
            loops = ", ".join(f"i{n}: {extent}" for n, extent in enumerate(size))
            zeros += f"  define zeros{number}: {kind}\n    for {loops} = f32(0.0)\n"
    places = [
        place if stem == "rows" else place.replace(stem, f"zeros{number}", 1)
        for number, (stem, (place, _, _)) in enumerate(zip(stems, shown, strict=True))
    ]
    computed = [at for _, _, at in shown if at is not None]
    return {
        "zeros": zeros,
        "made": made,
        "adding": f" adding {', '.join(places)}" if places else "",
        "weights": ", ".join([*(of for _, of, _ in shown), *computed]),
        "returned": "".join(f", sum{number}" for number in range(len(sums))),
    }


def gradient_program(
    case: Case, device: str = "cpu", sums: Sequence[str] = (), grouped: bool = False
) -> Program:
    """The gradients as a program."""
    graph = gradients_of(case, device, sums, grouped)
    return schedule(graph, options=SchedulerOptions.for_gpu())


def gradient_kernels(
    case: Case, sums: Sequence[str] = (), grouped: bool = False
) -> tuple[Kernel, ...]:
    """The kernels of the gradients: of keys and values, and of queries."""
    kernels = gradient_program(case, sums=sums, grouped=grouped).kernels
    return tuple(kernel for kernel in kernels if isinstance(kernel.statements[0], Mix))


def with_gradients(
    case: Case, device: str = "cpu"
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs of the graph, and its results in float64: gradients of queries, keys and values, the
    last two for each head of queries."""
    batch, heads, shared, rows, keys, _, width = case.sizes
    q, k, v, *others = drawn(case, device)
    draw = torch.Generator().manual_seed(1)
    g = torch.randn(batch, heads, rows, width, generator=draw).to(case.dtype).to(device)
    if case.transposed:
        g = g.transpose(1, 2).contiguous().transpose(1, 2)
    wide = [q.double(), *(x.double().repeat_interleave(heads // shared, 1) for x in (k, v))]
    whole = Case(case.score, (batch, heads, heads, rows, keys, *case.sizes[5:]))
    for each in wide:
        each.requires_grad_()
    made = eager(whole, [*wide, *others])
    wanted = torch.autograd.grad(made, wide, g.double().flatten(0, 1))
    ones = [*wide[:2], torch.ones_like(wide[2]), *others]
    delta = (made * g.double().flatten(0, 1)).sum(-1).view(batch, heads, rows)
    sums = _row_sums(whole, ones)
    inputs = [q, k, v, g, sums.float(), delta.detach().float(), *others[:5]]
    return inputs, [each.flatten(0, 1) for each in wanted]


def _row_sums(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    """The logarithms of the sums of the exponentials of each row's scores; inf for empty ones."""
    found: list[torch.Tensor] = []

    class Sums(torch.overrides.TorchFunctionMode):
        """Notes what a softmax is of."""

        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's protocol
            if function is torch.Tensor.softmax:
                found.append(args[0].detach().logsumexp(-1))
            return function(*args, **(kwargs or {}))

    with Sums():
        eager(case, inputs)
    (sums,) = found
    return torch.where(sums == -torch.inf, torch.inf, sums)
