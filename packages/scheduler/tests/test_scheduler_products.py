"""Products that the options name are loops, which join what surrounds them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import Graph, interpret, lower, parse_graph, print_graph, verify
from plait_scheduler import (
    DecisionKind,
    Launch,
    Reduce,
    Schedule,
    SchedulerOptions,
    load_python,
    parse_program,
    plan,
    print_kernel,
    print_program,
    product_pieces,
    render_python,
)

GPU = SchedulerOptions.for_gpu()
TYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "f8": torch.float8_e4m3fn,
}


def graph_of(function, *inputs: torch.Tensor) -> Graph:
    """The loops of a function of tensors on a GPU, as if they were on the CPU."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") for x in inputs
        ]
        traced = make_fx(lambda *given: _in_tuple(function(*given)))(*fakes)
    found = parse_graph(print_graph(lower(traced)).replace("on cuda:0", "on cpu"))
    verify(found)
    return found


def _in_tuple(result) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def planned(graph: Graph, products: str = "*", **changes) -> Schedule:
    return plan(graph, options=replace(GPU, kernel_products=products, **changes))


def launches(schedule: Schedule) -> int:
    return sum(isinstance(step, Launch) for step in schedule.program.steps)


def outcome(schedule: Schedule) -> dict[str, str]:
    """For each product, why it is a kernel or a call."""
    return {
        each.first: each.reason
        for each in schedule.decisions
        if each.kind is DecisionKind.PRODUCT and not each.accepted
    }


def draw(*size: int, kind: str = "f32", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator).to(TYPES[kind])


def padded_with_bias(b, x, w):
    made = torch.addmm(F.pad(b, [0, 3]), x, F.pad(w, [0, 0, 0, 3]).t())
    return made.narrow(1, 0, 61).sigmoid()


def several_parts(x, w):
    y = x @ w.t()
    return y.narrow(1, 0, 60) * 2, y.narrow(0, 0, 50).narrow(1, 3, 54) + 1


LAST = {"memory_format": torch.channels_last}
IMAGE = draw(2, 16, 9, 10).contiguous(**LAST)
X, W, B, Y = draw(64, 48), draw(64, 48, seed=1), draw(64, seed=2), draw(64, 64, seed=3)
CASES = {
    "linear": (lambda x, w, b: torch.relu(F.linear(x, w, b)), (X, W, B), 1),
    "plain": (lambda x, w: x @ w.t(), (X, W), 1),
    "turned": (lambda x, w: x.t() @ w, (draw(48, 64), draw(48, 64, seed=1)), 1),
    "scaled": (
        lambda c, x, w: torch.addmm(c, x, w.t(), beta=0.5, alpha=-2.0),
        (Y, X, W),
        1,
    ),
    "without addition": (lambda c, x, w: torch.addmm(c, x, w.t(), beta=0), (Y, X, W), 1),
    "batches": (
        lambda c, a, b: torch.baddbmm(c, a, b.transpose(1, 2)).exp(),
        (draw(3, 40, 40), draw(3, 40, 48), draw(3, 40, 48, seed=1)),
        1,
    ),
    "three dimensions": (lambda x, w: x @ w.t() + 1, (draw(4, 16, 48), W), 1),
    "bf16": (
        lambda x, w, b: F.silu(F.linear(x, w, b)),
        (draw(64, 48, kind="bf16"), draw(64, 48, kind="bf16", seed=1), draw(64, kind="bf16")),
        1,
    ),
    "parts of matrices": (
        lambda x, w: x @ w.t(),
        (draw(64, 96)[:, 8:56], draw(64, 96, seed=1)[:, ::2]),
        1,
    ),
    "scaled by tensors": (
        lambda a, b, s, t: torch._scaled_mm(a, b.t(), s, t, out_dtype=torch.bfloat16) * 2,
        (draw(64, 48, kind="f8"), draw(64, 48, kind="f8", seed=1), B[0].abs(), B[1:2].abs()),
        1,
    ),
    "scaled by rows, bias": (
        lambda a, b, s, t, c: torch._scaled_mm(a, b.t(), s, t, c, out_dtype=torch.bfloat16),
        (
            *(draw(64, 48, kind="f8"), draw(32, 48, kind="f8", seed=1)),
            *(draw(64, 1).abs(), draw(1, 32).abs(), draw(32, kind="bf16")),
        ),
        1,
    ),
    "padded": (
        lambda x, w: (x @ F.pad(w, [0, 0, 0, 3]).t()).narrow(1, 0, 61) * 2,
        (X, W[:61]),
        1,
    ),
    "padded, bias": (
        padded_with_bias,
        tuple(draw(*size, kind="bf16") for size in ((61,), (64, 48), (61, 48))),
        1,
    ),
    "padded below": (
        lambda x, w: (F.pad(x.t(), [0, 3]).t() @ w.t()).narrow(0, 0, 61) + 1,
        (X[:61], W),
        1,
    ),
    "padded terms": (
        lambda x, w: (F.pad(x, [0, 8]) @ F.pad(w, [0, 8]).t()) + 1,
        (X, W),
        1,
    ),
    "a part and all": (
        lambda x, w: ((y := x @ w.t()).narrow(1, 0, 60) * 2, y.narrow(1, 3, 61) + 1),
        (X, W),
        3,
    ),
    "several parts": (several_parts, (X, W), 2),
    "in groups": (
        lambda a, b, ends: torch._grouped_mm(a, b.transpose(1, 2), ends).relu(),
        (
            draw(64, 48, kind="bf16"),
            draw(4, 32, 48, kind="bf16", seed=1),
            torch.tensor([7, 7, 40, 64], dtype=torch.int32),
        ),
        1,
    ),
    "columns in groups": (
        lambda a, b, ends: torch._grouped_mm(a, b.t(), ends).relu(),
        (
            draw(4, 32, 48, kind="bf16"),
            draw(64, 48, kind="bf16", seed=1),
            torch.tensor([7, 7, 40, 64], dtype=torch.int32),
        ),
        1,
    ),
    "terms in groups": (
        lambda a, b, ends: torch._grouped_mm(a.t(), b, ends) * 2,
        (
            draw(64, 48, kind="bf16"),
            draw(64, 32, kind="bf16", seed=1),
            torch.tensor([7, 7, 40, 60], dtype=torch.int32),
        ),
        1,
    ),
    "terms in groups, a factor that is computed": (
        lambda a, b, ends: torch._grouped_mm(a.t().relu(), b, ends),
        (
            draw(64, 48, kind="bf16"),
            draw(64, 32, kind="bf16", seed=1),
            torch.tensor([7, 7, 40, 60], dtype=torch.int32),
        ),
        1,
    ),
    "groups that are batches": (
        lambda a, b: torch._grouped_mm(a, b.transpose(1, 2)).relu(),
        (draw(4, 40, 48, kind="bf16"), draw(4, 32, 48, kind="bf16", seed=1)),
        1,
    ),
    "convolution": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2, padding=1)),
        (IMAGE, draw(32, 16, 3, 3, seed=1).contiguous(**LAST), draw(32, seed=2)),
        1,
    ),
    "convolution of points": (
        lambda x, w, y: F.conv2d(x, w) + y,
        (IMAGE, draw(32, 16, 1, 1, seed=1), draw(2, 32, 9, 10, seed=2).contiguous(**LAST)),
        1,
    ),
    "spread convolution": (
        lambda x, w: F.conv2d(x, w, padding=(2, 1), dilation=(2, 1)),
        (IMAGE, draw(32, 16, 3, 3, seed=1).contiguous(**LAST)),
        1,
    ),
    "two behind each other": (lambda x, w, y: torch.tanh(x @ w.t()) @ y, (X, W, Y), 2),
    "divided": (lambda x, w: x @ w, (draw(16, 2048), draw(2048, 64, seed=1)), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_loops_compute_what_calls_do(name) -> None:
    function, inputs, count = CASES[name]
    if name.startswith("scaled by rows") and torch.__version__ < "2.12":
        pytest.skip("CPUs of this torch scale by tensors alone")
    graph = graph_of(function, *inputs)
    schedule = planned(graph)
    text = print_program(schedule.program)
    assert parse_program(text) == schedule.program
    assert outcome(schedule) == {}
    assert "call" not in text
    assert launches(schedule) == count, text
    got = load_python(render_python(schedule.program))(list(inputs))
    for actual, expected in zip(got, interpret(graph, list(inputs)), strict=True):
        rounding = 2e-2 if actual.dtype is torch.bfloat16 else 1e-4
        torch.testing.assert_close(actual, expected, rtol=rounding, atol=rounding)


def test_padding_for_calls_is_no_part_of_kernels() -> None:
    function, inputs, _ = CASES["padded"]
    schedule = planned(graph_of(function, *inputs))
    (kernel,) = schedule.program.kernels
    assert "masked" not in print_kernel(kernel)
    assert kernel.outer[1].extent.as_int() == 61
    (launch,) = (step for step in schedule.program.steps if isinstance(step, Launch))
    assert "constant_pad_nd" in launch.origin.nodes
    calls = print_program(planned(graph_of(function, *inputs), "").program)
    assert "f32[64, 64] on cpu = arena" in calls  # of the whole product
    pieces = product_pieces(graph_of(function, *inputs), schedule)
    assert [len(piece.graph.inputs) for piece in pieces] == [2]


def test_what_returns_or_gives_to_calls_a_whole_product_is_not_cut() -> None:
    for function in (
        lambda x, w: ((y := x @ w.t()), y.narrow(1, 0, 60) * 2),
        lambda x, w: ((y := x @ w.t()).narrow(1, 0, 60) * 2, y @ y),
    ):
        graph = graph_of(function, X, W)
        text = print_program(planned(graph).program)
        assert "f32[64, 64] on cpu" in text.replace("= input", "")


def test_bytes_are_added_as_integers() -> None:
    left, right = (torch.randint(-128, 128, (64, 96), dtype=torch.int8) for _ in range(2))
    graph = graph_of(lambda a, b: torch._int_mm(a, b.t()).float() * 0.5, left, right)
    (kernel,) = planned(graph).program.kernels
    assert "sum mul(to(p0[i0, r0], i32), to(p1[i1, r0], i32))" in print_kernel(kernel)
    (got,) = load_python(render_python(planned(graph).program))([left, right])
    torch.testing.assert_close(got.double(), (left.double() @ right.t().double()) * 0.5)


def test_products_are_calls_by_rule() -> None:
    function, inputs, _ = CASES["linear"]
    assert "aten::mm" in print_program(planned(graph_of(function, *inputs), "").program)


def test_only_named_products_are_loops() -> None:
    function, inputs, _ = CASES["two behind each other"]
    graph = graph_of(function, *inputs)
    assert print_program(planned(graph, "mm_1").program).count("aten::mm") == 1
    assert print_program(planned(graph, "mm, mm_1").program).count("aten::mm") == 0
    assert print_program(planned(graph, "another").program).count("aten::mm") == 2


def test_what_kernels_do_not_multiply_stays_a_call_with_a_reason() -> None:
    graph = graph_of(lambda x, w: x @ w.t(), draw(64, 48, kind="f64"), draw(64, 48, kind="f64"))
    schedule = planned(graph)
    assert outcome(schedule) == {"mm": "kernels do not multiply matrices of f64"}
    assert "aten::mm" in print_program(schedule.program)


def test_a_view_between_the_elements_of_a_buffer_stays_a_call() -> None:
    graph = parse_graph("""\
graph main()
  input x: f32[64, 48] stride [96, 1] offset 0 on cpu
  input w: f32[48, 64] on cpu
  define y: f32[48, 64] on cpu
    call out aten::mm.out(x.view([48, 48], [97, 1], 0), w)
  return y
""")
    assert "lies in memory in parts" in outcome(planned(graph))["y"]


def test_fuel_and_switches_leave_products_as_calls() -> None:
    function, inputs, _ = CASES["linear"]
    graph = graph_of(function, *inputs)
    assert "aten::mm" in print_program(planned(graph, fuel=0).program)
    apart = planned(graph, fuse_reductions=False)
    assert "aten::mm" not in print_program(apart.program)
    assert launches(apart) == 2


def test_a_kernel_sums_up_no_more_products_than_it_has_registers_for() -> None:
    x, *weights = (draw(64, 128, seed=seed) for seed in range(4))
    three = graph_of(lambda x, a, b, c: (x @ a.t(), x @ b.t(), x @ c.t()), x, *weights)
    found = [planned(three, max_sums=most) for most in (1, 2, -1)]
    sums = [
        max(sum(isinstance(s, Reduce) for s in k.statements) for k in each.program.kernels)
        for each in found
    ]
    assert sums == [1, 2, 3]
    assert [launches(each) for each in found] == [3, 2, 1]


def test_other_reductions_stay_out_of_a_product() -> None:
    graph = graph_of(lambda x, w: (x @ w.t()).softmax(-1), X, W)
    schedule = planned(graph)
    (first, *_) = schedule.program.kernels
    assert sum(type(s).__name__ == "Reduce" for s in first.statements) == 1
    assert launches(schedule) == 2


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ((16, 4096, 64), 8),  # one block: as many parts as sums are long enough for
        ((16, 4096, 4096), 4),
        ((4096, 4096, 4096), 1),
        ((16, 1000, 64), 1),  # is no multiple of what is multiplied at once
        ((16, 512, 64), 1),
    ],
)
def test_long_sums_of_few_blocks_are_divided(sizes, parts) -> None:
    rows, terms, columns = sizes
    graph = graph_of(lambda x, w: x @ w, draw(rows, terms), draw(terms, columns))
    found = planned(graph).program.kernels
    assert len(found) == (1 if parts == 1 else 2)
    lead = found[0].outer[0].extent.as_int()
    assert lead == (rows if parts == 1 else parts)


def model(x, w, b, v):
    for _ in range(3):
        x = x + torch.relu(F.linear(x, w, b)) @ v
    return x


def test_pieces_are_products_with_what_their_kernel_computes() -> None:
    inputs = (X, draw(64, 48, seed=1), B, draw(64, 48, seed=4))
    graph = graph_of(model, *inputs)
    whole = planned(graph)
    up, down, over = product_pieces(graph, whole)
    assert up.names == ("addmm_mm", "addmm_1_mm", "addmm_2_mm")  # launches of one kernel
    assert down.names == ("mm", "mm_2")
    assert over.names == ("mm_1",)  # in memory that it adds to
    assert [each.own for each in (up, down, over)] == [("addmm_mm",), ("mm",), ("mm_1",)]
    for piece in (up, down, over):
        verify(piece.graph)
        calls = print_program(planned(piece.graph, "").program)
        assert calls.count("aten::mm") == 1
        own = planned(piece.graph, ",".join(piece.own))
        assert launches(own) == 1
        given = [torch.randn(*(n.as_int() for n in b.layout.size)) for b in piece.graph.inputs]
        got = load_python(render_python(own.program))(list(given))
        for actual, expected in zip(got, interpret(piece.graph, given), strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_piece_of_divided_sums_has_what_is_done_with_them() -> None:
    graph = graph_of(lambda x, w: torch.relu(x @ w), draw(16, 2048), draw(2048, 64, seed=1))
    (piece,) = product_pieces(graph, planned(graph))
    assert [b.name for d in piece.graph.definitions for b in d.buffers] == ["mm", "relu"]
    assert launches(planned(piece.graph)) == 2
    assert product_pieces(graph, planned(graph, "")) == ()


def dequantized(x, w, scale, zero):
    return x @ ((w.to(x.dtype) - zero) * scale)


def test_a_weight_is_unpacked_where_few_rows_are_multiplied_by_it() -> None:
    weight = torch.randint(-128, 128, (128, 256), dtype=torch.int8)
    scale, zero = draw(256, kind="bf16"), draw(256, kind="bf16", seed=1)
    for rows, count in ((16, 1), (1024, 2)):
        x = draw(rows, 128, kind="bf16")
        graph = graph_of(dequantized, x, weight, scale, zero)
        schedule = planned(graph)
        assert launches(schedule) == count
        (*_, last) = schedule.program.kernels
        assert any(str(p.dtype) == "i8" for p in last.params) == (count == 1)
        (got,) = load_python(render_python(schedule.program))([x, weight, scale, zero])
        exact = dequantized(x.double(), weight.double(), scale.double(), zero.double())
        assert (got.double() - exact).abs().max() < 2e-2 * exact.abs().max()


def test_an_activation_stays_with_the_product_that_it_is_of() -> None:
    graph = graph_of(
        lambda x, w, v: torch.tanh(x @ w.t()) @ v.t(), X, draw(256, 48), draw(64, 256, seed=1)
    )
    first, second = planned(graph).program.kernels
    assert "tanh" in print_kernel(first)
    assert "tanh" not in print_kernel(second)


def test_factors_are_rounded_as_they_are_multiplied() -> None:
    scale = draw(256, kind="bf16")
    inputs = draw(32, 128, kind="bf16"), draw(128, 256, kind="bf16", seed=1), scale
    graph = graph_of(lambda x, w, s: x @ (w * s), *inputs)
    (kernel,) = planned(graph).program.kernels
    assert "to(to(mul(" in print_kernel(kernel)


def few(rows: int, columns: int = 768, terms: int = 768, kind: str = "bf16") -> Schedule:
    """A linear layer of few rows with its GELU, as by rule."""
    inputs = (draw(rows, terms, kind=kind), draw(columns, terms, kind=kind))
    graph = graph_of(lambda x, w: F.gelu(F.linear(x, w)), *inputs)
    return plan(graph, options=GPU)


def test_few_rows_by_a_small_weight_are_loops_by_rule() -> None:
    assert launches(few(1)) == 1
    assert launches(few(32, columns=3072)) == 1
    for other in (
        few(33),
        few(16, columns=4096, terms=1024),
        few(16, kind="f32"),
        few(16, terms=764),  # whose rows do not begin at multiples of 16 bytes
    ):
        assert all("sums" not in print_kernel(kernel) for kernel in other.program.kernels)
        assert not [each for each in other.decisions if each.kind is DecisionKind.PRODUCT]


def wide(columns: int, rows: int = 512, kind: str = "bf16", terms: int = 256) -> Schedule:
    """The logits of many rows, as by rule."""
    inputs = (draw(rows, terms, kind=kind), draw(columns, terms, kind=kind))
    return plan(graph_of(F.linear, *inputs), options=GPU)


def test_products_in_groups_are_calls_by_rule() -> None:
    ends = torch.tensor([8, 64], dtype=torch.int32)
    inputs = draw(64, 16, kind="bf16"), draw(64, 64, kind="bf16"), ends
    graph = graph_of(lambda a, b, ends: torch._grouped_mm(a.t(), b, ends), *inputs)
    assert "aten::_grouped_mm" in print_program(planned(graph, "").program)


def test_large_products_with_rows_of_odd_lengths_are_loops_by_rule() -> None:
    assert launches(wide(16385)) == 1
    for other in (
        wide(16384),
        wide(1025),  # which takes a call no longer than a launch
        wide(16385, kind="f32"),
        wide(16385, terms=255),  # whose factors are read at odd places
    ):
        assert launches(other) == 0
    inputs = draw(512, 256, kind="bf16"), draw(16385, 256, kind="bf16")
    graph = graph_of(F.linear, *inputs)
    assert launches(plan(graph, options=replace(GPU, odd_columns=False))) == 0


def test_products_that_are_named_or_not_few_are_no_matter_of_the_rule() -> None:
    inputs = draw(8, 768, kind="bf16"), draw(768, 768, kind="bf16")
    graph = graph_of(lambda x, w: x @ w.t(), *inputs)
    assert launches(plan(graph, options=replace(GPU, few_rows=0))) == 0
    assert launches(plan(graph, options=replace(GPU, kernel_products="other"))) == 0
    assert launches(plan(graph, options=GPU)) == 1
    assert launches(plan(graph, options=SchedulerOptions())) == 0


def convolved(function, *, window: int = 1, channels: int = 64, side: int = 64) -> Schedule:
    """A convolution of images of bf16 with channels last, and what follows."""
    x = draw(2, channels, side, side, kind="bf16").contiguous(**LAST)
    w = draw(64, channels, window, window, kind="bf16", seed=1).contiguous(**LAST)
    return plan(graph_of(function, x, w), options=GPU)


def kernels_of(schedule: Schedule) -> list[str]:
    """The products that are kernels by rule."""
    return [e.first for e in schedule.decisions if e.kind is DecisionKind.PRODUCT and e.accepted]


def test_convolutions_of_points_join_what_follows_by_rule() -> None:
    made = convolved(lambda x, w: F.relu(F.conv2d(x, w)))
    assert kernels_of(made) == ["convolution"]
    assert launches(made) == 1
    assert not kernels_of(convolved(lambda x, w: F.conv2d(x, w)))  # nothing follows
    assert not kernels_of(convolved(lambda x, w: F.relu(F.conv2d(x, w)).sum(1), side=32))
    assert not kernels_of(convolved(lambda x, w: F.relu(F.conv2d(x, w)), channels=72))
    assert not kernels_of(convolved(lambda x, w: F.relu(F.conv2d(x, w, stride=2)), side=140))
    assert not kernels_of(convolved(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), window=3))


def test_convolutions_whose_results_are_reduced_stay_calls() -> None:
    def normed(x, w):
        y = F.conv2d(x, w)
        return F.relu(F.batch_norm(y, None, None, training=True))

    assert not kernels_of(convolved(normed))
