"""Calls that are alike as one: which become a batch, which do not, and what they compute."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import assert_like_eager, trace
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from plait_fx_passes import find_bad_rewrite, run_passes, to_aten, to_joint, wrap_runtime
from plait_fx_passes.open_sizes import runner
from plait_fx_passes.passes import BATCHED_PRODUCTS, BATCHES, DEAD_CODE, Limits, batching
from plait_fx_passes.passes.batched import FAMILIES, LIMITS
from plait_fx_passes.passes.sorting import sort_calls

HERE = {
    "products": Limits(calls=1, elements=4096),
    "elementwise": Limits(calls=2, elements=4096),
    "layer-norms": Limits(calls=1, elements=4096, most_calls=3),
}
ON_CPU = batching("batches-here", FAMILIES, {"cpu": HERE})


def random(*sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).to(dtype)


def apply(program, inputs, *passes, tolerance=1e-10):
    """How often each operator is left; values, strides and aliasing are as in eager."""
    gm = trace(program)
    left = run_passes(to_aten(gm, inputs), (*(passes or (ON_CPU,)), DEAD_CODE), verify_each=True)
    assert_like_eager("batches", wrap_runtime(left, left.module()), gm, inputs, tolerance)
    return counts(left)


def counts(graph):
    found = {}
    for node in graph.graph.nodes:
        if node.op == "call_function":
            name = str(node.target).removeprefix("aten.").split(".")[0]
            found[name] = found.get(name, 0) + 1
    return found


def split(function, count=4):
    """A program of the same function of each matrix of a batch."""

    def program(x, y):
        return torch.stack([function(x[at], y[at]) for at in range(count)]).sum()

    return program


def separate(function):
    """The same of each pair of inputs."""

    def program(*inputs):
        half = len(inputs) // 2
        pairs = zip(inputs[:half], inputs[half:], strict=True)
        return torch.stack([function(*pair) for pair in pairs]).sum(0)

    return trace_of(program, 8)


def trace_of(program, count):
    names = ", ".join(f"x{at}" for at in range(count))
    scope = {"program": program}
    exec(f"def made({names}): return program({names})", scope)
    return scope["made"]


@pytest.mark.parametrize(
    ("function", "sizes", "left"),
    [
        (lambda a, b: a @ b, [(3, 5), (5, 6)], {"bmm": 1}),
        (lambda a, b: a @ b.t(), [(3, 5), (6, 5)], {"bmm": 1}),
        (lambda a, b: torch.addmm(a[0], a, b), [(5, 5), (5, 5)], {"baddbmm": 1}),
        (lambda a, b: torch.addmm(a, a, b), [(5, 5), (5, 5)], {"baddbmm": 1}),
        (lambda a, b: a + b, [(3, 5), (3, 5)], {"add": 1}),
        (lambda a, b: (a * b).sin(), [(3, 5), (3, 5)], {"mul": 1, "sin": 1}),
        (lambda a, b: torch.where(a > b, a, b), [(3, 5), (3, 5)], {"where": 1, "gt": 1}),
        (lambda a, b: F.layer_norm(a, (5,), b), [(3, 5), (5,)], {"native_layer_norm": 2}),
        (lambda a, b: (a @ b).tanh() @ b, [(5, 5), (5, 5)], {"bmm": 2, "tanh": 1}),
    ],
)
def test_calls_that_are_alike_are_one(function, sizes, left):
    inputs = [random(*size) + at for size in sizes for at in range(4)]
    after = apply(separate(function), inputs)
    assert {name: after.get(name) for name in left} == left


def test_elements_of_a_batch_are_not_stacked_again():
    after = apply(split(lambda a, b: (a @ b).sigmoid() @ b), [random(4, 5, 5), random(4, 5, 5)])
    assert after["bmm"] == 2
    assert after["sigmoid"] == 1
    assert after.get("cat", 0) == 1  # the program's own


def test_linear_layers_of_one_input_share_it():
    layers = nn.ModuleList(nn.Linear(6, 4).double() for _ in range(3)).requires_grad_(False)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return torch.cat([layer(x) for layer in self.layers], -1)

    after = apply(Heads(), [random(5, 6)])
    assert after["baddbmm"] == 1
    assert "addmm" not in after


@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: (a @ b) @ b,  # one is of the other
        lambda a, b: (a @ b).sum() + (a @ b.t()).sum(),  # the second factor lies otherwise
        lambda a, b: (a @ b).sum() + (a[:2] @ b).sum(),  # other sizes
        lambda a, b: (a @ b).sum() + (a.float() @ b.float()).sum(),  # another dtype
        lambda a, b: a.sin().sum() + b.cos().sum(),
        lambda a, b: (a + b[0]).sum() + (b + a[0]).sum(),  # they are spread
        lambda a, b: (a + 1).sum() + (b + 2).sum(),
        lambda a, b: torch.add(a, b, alpha=2).sum() + torch.add(b, a, alpha=2).sum(),
        lambda a, b: a.clone().sum() + b.clone().sum(),
        lambda a, b: torch.dropout(a, 0.5, True) + torch.dropout(b, 0.5, True),
        lambda a, b: F.layer_norm(a, (4,)).sum() + F.layer_norm(b, (4,), None, None, 0.1).sum(),
        lambda a, b: F.layer_norm(a, (4,)).sum() + F.layer_norm(b, (4, 4)).sum(),
    ],
)
def test_other_calls_stay_apart(program):
    inputs = [random(4, 4), random(4, 4) + 1]
    gm = trace(program)
    graph = to_aten(gm, inputs)
    left = run_passes(graph, (ON_CPU, DEAD_CODE), verify_each=True)
    assert counts(left) == counts(run_passes(graph, (DEAD_CODE,)))


def test_calls_move_to_where_all_that_they_need_is_there():
    """The third sine is of something that comes after a use of the first."""

    def program(a, b, c):
        first = a.sin()
        changed = torch.cumsum(first, 0) + b
        return changed, c.sin(), changed.cos(), c.sin().exp().neg().cos()

    after = apply(program, [random(4, 4), random(4, 4), random(4, 4) + 1])
    assert after["sin"] == 1
    assert after["cos"] == 1


def test_draws_are_made_in_their_order():
    """One cosine is of the second draw, the other one leads to the first."""

    def program(a, b):
        first = torch.rand_like(a.cos().exp())
        second = torch.rand_like(b)
        return first + second.cos(), a.cos() * b.cos()

    apply(program, [random(4, 4), random(4, 4) + 1])


def test_the_caller_gets_tensors_of_its_own():
    after = apply(lambda a, b: (a.sin(), b.sin(), b.sin().t()), [random(4, 4), random(4, 4) + 1])
    assert after["sin"] == 1
    assert after["clone"] >= 2


def test_limits_are_kept():
    def program(a, b):
        return sum(F.layer_norm(x, (4,)).sum() for x in (a, b, a + 1, b + 1, a * b)) + (a @ b).sum()

    assert apply(program, [random(4, 4), random(4, 4) + 1])["native_layer_norm"] == 2
    large = [random(65, 64), random(65, 64) + 1]
    assert apply(lambda a, b: a.sin() * b.sin(), large)["sin"] == 2


def test_a_cpu_gains_nothing_and_is_left_alone():
    assert {device: set(each) for device, each in LIMITS.items()} == {
        "cuda": {"products", "layer-norms"}
    }
    inputs = [random(5, 5) + at for at in range(8)]
    after = apply(separate(lambda a, b: (a @ b).sin()), inputs, BATCHED_PRODUCTS, BATCHES)
    assert after["mm"] == 4
    assert after["sin"] == 4


def test_gradients_are_those_of_eager():
    def program(*inputs):
        half = len(inputs) // 2
        pairs = zip(inputs[:half], inputs[half:], strict=True)
        found = [F.layer_norm((a @ b).tanh(), (5,)) @ b.t() for a, b in pairs]
        return torch.stack(found).square().sum()

    inputs = [(random(3, 5) + at).requires_grad_() for at in range(4)]
    inputs += [(random(5, 5) + at).requires_grad_() for at in range(4)]
    made = trace_of(program, 8)
    joint = to_joint(trace(made), inputs)
    left = run_passes(joint.flat(), (ON_CPU, DEAD_CODE), verify_each=False)
    assert counts(left)["bmm"] >= 4
    assert "mm" not in counts(left)
    given = [*(each.detach() for each in inputs), torch.ones((), dtype=torch.float64)]
    with torch.no_grad():
        got = left.module()(*given)
    for one, other in zip(got[1:], torch.autograd.grad(made(*inputs), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_open_sizes_stay_open():
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    inputs = [mode.from_tensor(random(7, 5)) for _ in range(2)]
    graph = to_aten(trace(lambda a, b: torch.relu(a.sin()) + torch.relu(b.sin())), inputs)
    guards = len(graph.fake_mode.shape_env.guards)
    same = run_passes(graph, (ON_CPU, DEAD_CODE), verify_each=True)
    assert len(graph.fake_mode.shape_env.guards) == guards
    assert counts(same)["sin"] == counts(same)["relu"] == 1
    values = [random(6, 5), random(6, 5) + 1]
    wanted = torch.relu(values[0].sin()) + torch.relu(values[1].sin())
    torch.testing.assert_close(runner(same)(*values)[0], wanted)


def test_a_batch_is_one_rewrite_that_the_bisector_finds():
    inputs = [random(5, 5) + at for at in range(8)]
    graph = to_aten(trace(separate(lambda a, b: a @ b)), inputs)
    culprit = find_bad_rewrite(graph, lambda g: "bmm" not in counts(g), (ON_CPU, DEAD_CODE))
    assert culprit is not None
    assert culprit.pass_name == "batches-here"


def deep(layers):
    """Layers of four branches each."""

    def program(x, w):
        for _ in range(layers):
            x = sum(torch.tanh(x[at : at + 4] @ w) for at in range(4))
            x = torch.cat([x, x])
        return x

    return to_aten(trace(program), [random(8, 8), random(8, 8)])


def test_the_work_grows_linearly_with_the_graph():
    def calls(layers):
        count, graph = 0, deep(layers)

        def note(frame, event, argument):
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            run_passes(graph, (ON_CPU,))
        finally:
            sys.setprofile(before)
        return count

    calls(2)
    few, some, many = (calls(layers) for layers in (4, 12, 36))
    assert (many - some) / 24 <= 1.1 * (some - few) / 8


def test_calls_are_sorted_behind_what_they_use():
    graph = to_aten(
        trace(lambda a, b: (a.sin().cos() + b, torch.rand_like(b).exp())), [random(4)] * 2
    )
    private = graph.copy().graph
    nodes = [node for node in private.nodes if node.op == "call_function"]
    wanted = [node.name for node in nodes]
    nodes[-1].append(nodes[0])  # the first one behind all others
    sort_calls(private)
    moved = [node.name for node in private.nodes if node.op == "call_function"]
    assert sorted(moved) == sorted(wanted)
    private.lint()
    nodes[1].args = (nodes[2],)
    with pytest.raises(ValueError, match="circle"):
        sort_calls(private)
