"""Programs with compiled forward and backward against eager: values, gradients, autograd's view."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from test_fx_random_programs import BINARY, PURE, VIEWS, WRITES, build
from torch import nn

from plait_fx_passes import (
    AtenTraceError,
    NoGradientsError,
    WaypointError,
    in_pieces,
    partition,
    print_aten,
    run_passes,
    run_pieces,
    to_joint,
    verify,
    wrap_training,
)
from plait_fx_passes.training.partition import Partition
from plait_fx_passes.training.places import SavedResult

BUDGETS = (None, 1.0, 0.75, 0.5, 0.25, 0.0)


def parts_of(gm, inputs, budget=None) -> tuple[object, Partition]:
    recorded = to_joint(gm, inputs)
    verify(recorded.flat())
    joint = recorded.replace_graph(run_passes(recorded.flat(), verify_each=True).graph)
    parts = partition(joint, budget)
    verify(parts.forward)
    verify(parts.backward)
    return joint, parts


def compiled(program, inputs):
    """The program through the joint graph, whose halves run with ATen's kernels."""
    gm = trace(program)
    try:
        joint, parts = parts_of(gm, inputs)
    except WaypointError as error:
        pieces = in_pieces(gm, inputs, error)
        return run_pieces(pieces, lambda each: compiled(each.program, each.examples))
    except NoGradientsError:
        return gm
    return wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)


def weighted(tensors):
    """A number that depends on each element of each tensor in its own way."""
    total = 0
    for tensor in tensors:
        weights = torch.arange(1, tensor.numel() + 1, dtype=tensor.dtype).view(tensor.shape)
        total = total + (tensor * weights * tensor + tensor.sin()).sum()
    return total


def observe(run, make, *, twice: bool = False):
    """All that a caller can see of one call and the gradients of what it returns."""
    torch.manual_seed(0)
    leaves, inputs = make()
    torch.manual_seed(1)
    returned = run(*inputs)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    outputs = [each for each in outputs if isinstance(each, torch.Tensor)]
    wanted = [each for each in leaves if each.requires_grad]
    seen = [
        (t.requires_grad, t.is_leaf, t._is_view(), tuple(t.shape), t.stride())
        for t in (*inputs, *outputs)
    ]
    values = [t.detach().clone() for t in (*inputs, *outputs)]
    loss = weighted([t for t in (*outputs, *inputs) if t.requires_grad and not t.is_leaf])
    first = _gradients(loss, wanted, create_graph=twice)
    second = None
    if twice:
        again = weighted([each for each in first if each is not None and each.requires_grad])
        second = _gradients(again, wanted)
    return seen, values, first, second


def _gradients(loss, wanted, **options):
    if not wanted or not isinstance(loss, torch.Tensor):
        return ()
    return torch.autograd.grad(loss, wanted, allow_unused=True, **options)


def assert_same(program, make, *, twice=False, run=None):
    torch.manual_seed(0)
    run = compiled(program, make()[1]) if run is None else run
    wanted, got = observe(program, make, twice=twice), observe(run, make, twice=twice)
    assert got[0] == wanted[0]
    torch.testing.assert_close(got[1:], wanted[1:], rtol=1e-9, atol=1e-9)


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def plain(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def both(*leaves):
    return list(leaves), list(leaves)


class Cubed(torch.autograd.Function):
    """Whose backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * grad


torch.fx.wrap("cubed")
torch.fx.wrap("without_gradients")


def cubed(x):
    return Cubed.apply(x)


def without_gradients(x):
    with torch.no_grad():
        return x * 3


def in_place_on_views(x, w):
    y = x @ w
    y.mul_(2)
    row = y[0]
    row.add_(1)
    return y.relu() + without_gradients(y), row, y, y[:2], y[2:]


def writes_to_intermediate(x, w):
    h = x * 1
    h.mul_(w.sin())
    h.add_(1)
    return h * w, h.detach() * 2


def buffer_gets_history(x, b):
    b.add_(x.sum())
    return x.cos()


def returns_all_kinds(x, b):
    y = x.sin()
    return y, y, y.detach(), x, x.view(-1), x.detach(), None, 3, (y > 0), b


PROGRAMS = {
    "arithmetic": (lambda x, w: (x * w).exp() / (1 + x.abs()), lambda: both(leaf(3, 4), leaf(4))),
    "softmax": (lambda x: F.log_softmax(x, -1), lambda: both(leaf(3, 4))),
    "normalized": (
        lambda x, w, b: F.gelu(F.layer_norm(x, (4,), w, b)),
        lambda: both(leaf(3, 4), leaf(4), leaf(4)),
    ),
    "indexing": (lambda x: x[:, 1:] * x[:, :-1] + x.flip(0)[:, 1:], lambda: both(leaf(3, 4))),
    "gather": (lambda x: x.gather(1, x.argsort(1)) * x, lambda: both(leaf(3, 4))),
    "in-place on views": (in_place_on_views, lambda: both(leaf(3, 4), leaf(4, 4))),
    "in-place on intermediates": (writes_to_intermediate, lambda: both(leaf(3, 4), leaf(3, 4))),
    "detached factor": (lambda x: x.detach() * x * x, lambda: both(leaf(3))),
    "own gradient": (lambda x: cubed(x.sin()) + x, lambda: both(leaf(3))),
    "buffer gets history": (buffer_gets_history, lambda: both(leaf(3), plain(1))),
    "every kind of output": (returns_all_kinds, lambda: both(leaf(3, 2), plain(2))),
    "some inputs without gradients": (lambda x, y: (x * y, y * 2), lambda: both(leaf(3), plain(3))),
    "dropout": (lambda x: F.dropout(x.sin(), 0.5) * x, lambda: both(leaf(3, 4))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * q,
        lambda: both(leaf(1, 2, 5, 4), leaf(1, 2, 5, 4), leaf(1, 2, 5, 4)),
    ),
}
ONCE = {"attention"}
"""Whose fused backward has no derivative, in eager either."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager(name):
    assert_same(*PROGRAMS[name])


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - ONCE))
def test_gradients_of_gradients_are_those_of_eager(name):
    assert_same(*PROGRAMS[name], twice=True)


@pytest.mark.parametrize("twice", [False, True])
def test_writing_to_an_input_that_is_no_leaf_keeps_its_history(twice):
    def program(h, w):
        h.mul_(w.sin())
        return h.exp()

    def make():
        x, w = leaf(3, 4), leaf(3, 4)
        return [x, w], [x * 2, w]

    assert_same(program, make, twice=twice)


def test_writing_to_a_leaf_raises_as_in_eager():
    def program(x):
        x.mul_(2)
        return x.exp()

    run = compiled(program, [leaf(3) * 1])
    for each in (program, run):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            each(leaf(3))


@pytest.mark.parametrize("twice", [False, True])
def test_inputs_that_come_from_one_another_or_are_one_count_once(twice):
    def make():
        x = leaf(3)
        return [x], [x, x * 2, x]

    assert_same(lambda a, b, c: a * b * c.sin(), make, twice=twice)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4)),
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Dropout(0.3)),
    ],
    ids=["mlp", "batch norm"],
)
@pytest.mark.parametrize("twice", [False, True])
def test_parameters_and_buffers_of_modules(model, twice):
    torch.manual_seed(0)
    for layer in model.double().train():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    names = dict(model.named_parameters())

    def make():
        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(start[name])
        x = leaf(2, 2, 4, 4)
        return [x, *names.values()], [x]

    results, buffers = [], []
    torch.manual_seed(0)
    for run in (model, compiled(model, make()[1])):
        results.append(observe(run, make, twice=twice))
        buffers.append([each.clone() for each in model.buffers()])
    torch.testing.assert_close(results[1][1:], results[0][1:], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(buffers[1], buffers[0])


def test_a_second_backward_needs_retain_graph_as_in_eager():
    x = leaf(3)
    run = compiled(lambda x: x.sin() * x, [x])
    y = run(x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y, x)


def test_inputs_changed_between_forward_and_backward_raise_as_in_eager():
    for program in (lambda x, w: x * w, None):
        x, w = leaf(3), leaf(3)
        run = program or compiled(lambda x, w: x * w, [x, w])
        y = run(x, w).sum()
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


OF_ANOTHER_ORDER = {
    "a square": ((4, 4), lambda x: x.exp().t()),
    "axes of three": ((2, 3, 4), lambda x: x.exp().permute(2, 0, 1)),
    "axes of one size": ((3, 3, 3), lambda x: x.tanh().transpose(0, 2)),
    "an axis of one": ((3, 1, 4), lambda x: x.exp().transpose(0, 1)),
    "joined axes": ((2, 3, 4), lambda x: x.exp().view(6, 4)),
    "flipped": ((3, 3), lambda x: x.exp().flip(0).t()),
    "a half": ((4, 4), lambda x: x.exp()[:2].t()),
}


@pytest.mark.parametrize("name", OF_ANOTHER_ORDER)
def test_results_in_another_order_serve_the_backward_and_may_not_change(name):
    shape, program = OF_ANOTHER_ORDER[name]
    x = leaf(*shape)
    run = compiled(program, [x])
    found, expected = run(x), program(x)
    weights = torch.randn(expected.shape, dtype=expected.dtype)
    assert found.stride() == expected.stride()
    given = [torch.autograd.grad((f(x) * weights).sum(), x) for f in (run, program)]
    torch.testing.assert_close(*given, rtol=1e-12, atol=1e-12)
    for function in (run, program):
        y = function(x)
        loss = (y * weights).sum()
        with torch.no_grad():
            y.zero_()
        if name == "flipped":
            torch.autograd.grad(loss, x)  # what was changed is a copy
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, x)


def test_a_result_in_another_order_is_not_copied_for_the_backward():
    x = leaf(8, 6)
    _, parts = parts_of(trace(lambda x: x.exp().t()), [x])
    assert [type(each) for each in parts.saved] == [SavedResult]
    assert parts.saved_bytes == 0
    assert "clone" not in print_aten(parts.forward)


def test_inputs_that_the_backward_does_not_need_may_change():
    x, w = leaf(3), leaf(3)
    y = compiled(lambda x, w: x.sin() + w, [x, w])(x, w).sum()
    with torch.no_grad():
        w.add_(1)
    y.backward()
    assert torch.equal(w.grad, torch.ones_like(w))


def test_gradients_of_gradients_check_what_has_changed():
    x, w = leaf(3), leaf(3)
    y = compiled(lambda x, w: (x.sin() + w) ** 2, [x, w])(x, w).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)


def test_hooks_anomaly_mode_and_part_of_the_inputs():
    seen = []
    x, w = leaf(3), leaf(3)
    run = compiled(lambda x, w: (x * w).sin(), [x, w])
    x.register_post_accumulate_grad_hook(lambda t: seen.append("parameter"))
    y = run(x, w)
    y.register_hook(lambda grad: seen.append("output") or grad * 2)
    (only,) = torch.autograd.grad(y.sum(), w, retain_graph=True)
    torch.testing.assert_close(only, 2 * (x * w).cos() * x)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (x * w).cos() * w)
    assert seen == ["output", "output", "parameter"]


def test_what_is_saved_is_freed_by_the_backward():
    x = leaf(100)
    h = x * 2
    run = compiled(lambda h: h.sin() * h.cos(), [h])
    y = run(h).sum()
    kept = weakref.ref(h)
    del h
    gc.collect()
    assert kept() is not None
    y.backward()
    gc.collect()
    assert kept() is None


def test_what_only_further_backwards_need_is_freed_before_the_backward_runs():
    gm = trace(lambda h: h.log_softmax(0))
    h = leaf(100) * 2
    joint, parts = parts_of(gm, [h])
    alive = []

    def backward(*given):
        alive.append(kept() is not None)
        return parts.backward.module()(*given)

    run = wrap_training(joint, parts, parts.forward.module(), backward, gm)
    for keep in (False, True):
        h = leaf(100) * 2
        y = run(h)
        kept = weakref.ref(h)
        del h
        y.sum().backward(retain_graph=keep)
    assert alive == [False, True]


def test_a_backward_that_fails_leaves_no_half_of_a_graph():
    gm = trace(lambda h: h.log_softmax(0))
    x = leaf(100)
    joint, parts = parts_of(gm, [x])

    def backward(*given):
        raise ValueError("no")

    y = wrap_training(joint, parts, parts.forward.module(), backward, gm)(x)
    with pytest.raises(ValueError, match="no"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_only_what_the_backward_needs_is_saved():
    def program(x, w, b):
        return torch.relu(x @ w + b).sum()

    _, parts = parts_of(trace(program), [plain(3, 4), leaf(4, 5), leaf(5)])
    shapes = [tuple(each.shape) for each in parts.backward.example_inputs]
    assert shapes == [(3, 4), (3, 5), ()], print_aten(parts.backward)


def test_random_numbers_are_drawn_in_the_forward_alone():
    _, parts = parts_of(trace(lambda x: F.dropout(x, 0.5)), [leaf(3, 4)])
    calls = [n for n in parts.backward.graph.nodes if n.op == "call_function"]
    assert not any("bernoulli" in str(node.target) for node in calls)


def test_programs_without_gradients_are_refused():
    with pytest.raises(AtenTraceError, match="nothing that the program computes needs gradients"):
        to_joint(trace(lambda x: x.detach() * 2), [leaf(3)])


@pytest.mark.parametrize(
    "program",
    [
        lambda w: F.embedding(torch.tensor([0, 2, 0]), w, sparse=True),
        lambda w: w.to_sparse().to_dense() * 2,
        lambda w: torch.sparse.mm(w.to_sparse_csr(), w),
    ],
)
def test_sparse_tensors_are_refused(program):
    """Also as gradients: a compiled backward would hand over what has no strides."""
    with pytest.raises(AtenTraceError, match="makes a tensor of torch"):
        to_joint(trace(program), [leaf(3, 3)])


MORE_WRITES = [*WRITES, ("sin_", ()), ("exp_", ()), ("sigmoid_", ())]
MORE = [*PURE, ("exp", ()), ("tanh", ()), ("sum", ()), ("softmax", (-1,))]


def random_program(seed, monkeypatch):
    """A graph of random steps, a maker of its inputs, and whether to differentiate twice."""
    chosen = random.Random(seed)
    kinds = ["view", "pure", "write", "binary"]
    number = lambda: chosen.randrange(21)  # as short as the comprehension wants it
    steps = [(chosen.choice(kinds), number(), number(), number()) for _ in range(1 + number() % 10)]
    outputs = [number() for _ in range(1 + number() % 3)]
    needs = [chosen.choice(["nothing", "leaf", "history"]) for _ in range(3)]
    shared = chosen.random() < 0.2

    def make():
        base = torch.linspace(-2, 2, 24, dtype=torch.float64)
        values = [base[:12], base[12:], base[6:18] * 0.7]
        leaves = [value.view(3, 4).clone() for value in values]
        inputs = []
        for each, need in zip(leaves, needs, strict=True):
            each.requires_grad_(need != "nothing")
            inputs.append(each * 1.5 if need == "history" else each)
        wanted = [each for each, need in zip(leaves, needs, strict=True) if need != "nothing"]
        return wanted, [*inputs, inputs[0]] if shared else inputs

    monkeypatch.setattr("test_fx_random_programs.WRITES", MORE_WRITES)
    monkeypatch.setattr("test_fx_random_programs.PURE", MORE)
    with torch.no_grad():
        gm = build(steps, outputs, [each.detach() for each in make()[1]])
    return gm, make, chosen.random() < 0.4


def outcome(run, make, twice):
    try:
        return observe(run, make, twice=twice)
    except RuntimeError as error:
        said = str(error)
        return "writes to a leaf" if "a leaf Variable" in said else said.splitlines()[0][:40]


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_random_programs_have_the_gradients_of_eager(start, monkeypatch):
    assert VIEWS
    assert BINARY
    for seed in range(start, start + 50):
        gm, make, twice = random_program(seed, monkeypatch)
        wanted = outcome(gm, make, twice)
        try:
            joint, parts = parts_of(gm, make()[1], BUDGETS[seed % len(BUDGETS)])
        except AtenTraceError:
            continue  # runs eagerly
        run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
        got = outcome(run, make, twice)
        if isinstance(wanted, str) or isinstance(got, str):
            assert got == wanted, f"{seed}\n{gm.code}"
            continue
        assert [s[:2] + s[3:] for s in got[0]] == [s[:2] + s[3:] for s in wanted[0]], seed
        torch.testing.assert_close(
            [[_or_zeros(g, w) for g, w in zip(got[n], wanted[n], strict=True)] for n in (1, 2)],
            [list(wanted[n]) for n in (1, 2)],
            rtol=1e-6, atol=1e-6, equal_nan=True, msg=lambda text, gm=gm: f"{text}\n{gm.code}",
        )  # fmt: skip


def _or_zeros(got, wanted):
    return torch.zeros_like(wanted) if got is None and wanted is not None else got


def test_nobody_gives_gradients_of_what_is_returned_detached_alone():
    """The running sum needs gradients, and only a view that is cut off from it is returned."""

    def program(x):
        total = x.cumsum(0)
        x.select(1, 0).zero_()
        return total.detach().diagonal()

    def make():
        leaf = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
        return [leaf], [leaf * 1.5]

    run = compiled(program, make()[1])
    torch.testing.assert_close(
        observe(run, make, twice=True), observe(program, make, twice=True), rtol=1e-9, atol=1e-9
    )
