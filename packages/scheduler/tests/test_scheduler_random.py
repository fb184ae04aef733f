"""Random graphs compute the same however they are scheduled."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_checks import run
from scheduler_graphs import Builder, T

from plait_scheduler import SchedulerOptions

SWITCHES = (
    "fuse_pointwise",
    "fuse_reductions",
    "fuse_siblings",
    "inline_producers",
    "simplify_loops",
    "reuse_memory",
    "reuse_in_place",
)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Builder, list[T]]:
    """A dozen random operations on tensors of 24 elements and what they broadcast to."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    b = Builder()
    pool = [b.input(torch.rand(*size) + 0.5) for size in ((4, 6), (2, 3, 4), (6,), (4, 1))]
    for _ in range(draw(st.integers(2, 12))):
        x = pool[draw(st.integers(0, len(pool) - 1))]
        kind = draw(
            st.sampled_from(["unary", "binary", "reduce", "view", "permute", "mm", "slice"])
        )
        if kind == "unary":
            pool.append(b.unary(draw(st.sampled_from(["sin", "sigmoid", "sqrt", "tanh"])), x))
        elif kind == "binary":
            y = pool[draw(st.integers(0, len(pool) - 1))]
            try:
                torch.broadcast_shapes(x.size, y.size)
            except RuntimeError:
                continue
            pool.append(b.binary(draw(st.sampled_from(["add", "mul", "maximum"])), x, y))
        elif kind == "reduce" and x.size:
            dims = draw(st.sets(st.integers(0, len(x.size) - 1), min_size=1))
            keep = draw(st.booleans())
            pool.append(b.reduce(draw(st.sampled_from(["sum", "max"])), x, sorted(dims), keep))
        elif kind == "view" and x.value.numel() == 24:
            size = draw(st.sampled_from([(4, 6), (24,), (2, 3, 4), (6, 4), (3, 8), (2, 2, 6)]))
            pool.append(b.view(x, size))
        elif kind == "permute" and len(x.size) > 1:
            pool.append(b.permute(x, draw(st.permutations(range(len(x.size))))))
        elif kind == "slice" and x.size and x.size[0] > 1:
            pool.append(b.pointwise(lambda v: v, x.value[:1].clone(), x))
        elif kind == "mm" and x.size == (4, 6) and x.value.is_contiguous():
            c = b.contiguous(x)
            pool.append(b.mm(c, b.input(torch.rand(6, 6) / 6)))
    made = [t for t in pool[4:] if t.buffer.startswith("buf")]
    produced = {t.buffer: t for t in made}
    firsts = [d.buffers[0].name for d in b.definitions]
    whole = [t for name, t in produced.items() if tuple(t.value.shape) == t.size]
    chosen = draw(st.lists(st.sampled_from(firsts), max_size=3)) if firsts else []
    outputs = [t for t in whole if t.buffer in chosen or t is whole[-1]]
    return b, [b.contiguous(t) for t in outputs]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.lists(st.sampled_from(SWITCHES), max_size=3))
def test_any_schedule_computes_the_same(made: tuple[Builder, list[T]], off: list[str]) -> None:
    b, outputs = made
    run(b, *outputs, options=SchedulerOptions(**dict.fromkeys(off, False)))
    small = SchedulerOptions(
        min_parallel_points=8, split_points=4, min_split_elements=4, hand_out_bytes=0
    )
    run(b, *outputs, options=small)
