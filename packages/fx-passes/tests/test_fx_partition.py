"""Partitions of joint graphs: what is saved, what is computed again, and that it is right."""

from __future__ import annotations

import copy
import itertools
import random
import sys

import networkx
import pytest
import torch
import torch.nn.functional as F
from fx_oracle import trace
from test_fx_training import BUDGETS, assert_same, leaf, parts_of, plain
from torch import nn
from torch.utils.checkpoint import checkpoint

from plait_fx_passes import (
    PartitionCosts,
    keep_all,
    memory_efficient,
    partition,
    print_aten,
    print_saved,
    run_passes,
    to_joint,
    verify,
    wrap_training,
)
from plait_fx_passes.aliasing import is_view
from plait_fx_passes.op_info import op_info
from plait_fx_passes.training.cuts import INFINITE, Network
from plait_fx_passes.training.joint_graph import is_random
from plait_fx_passes.training.places import SavedInput


def joint_of(program, inputs):
    recorded = to_joint(trace(program), inputs)
    return recorded.replace_graph(run_passes(recorded.flat()).graph)


def targets(graph):
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def saved_shapes(parts):
    count = len(parts.saved)
    return [tuple(each.shape) for each in parts.backward.example_inputs[:count]]


def gelu_by_hand(x, w):
    h = x @ w
    return (0.5 * h * (1 + torch.tanh(0.79 * (h + 0.044715 * h**3)))).sum()


def test_chains_of_elementwise_operators_are_computed_again():
    joint = joint_of(gelu_by_hand, [leaf(8, 4), leaf(4, 16)])
    kept, parts = keep_all(joint), partition(joint)
    assert saved_shapes(kept).count((8, 16)) > 2
    assert saved_shapes(parts).count((8, 16)) == 1, print_aten(parts.backward)
    assert parts.saved_bytes == 8 * 16 * 8
    assert parts.operations > kept.operations == 0


def test_what_the_forward_stores_anyway_is_saved_rather_than_what_follows_from_it():
    labels = torch.tensor([1, 3, 0])

    def loss(x, w):
        return torch.nn.functional.cross_entropy(x @ w, labels)

    parts = partition(joint_of(loss, [leaf(3, 40), leaf(40, 500)]))
    (large,) = [each for each in parts.kept if each.shape == (3, 500)]
    assert large.cost.kind.value == "a matrix product"
    assert "aten.exp.default" in targets(parts.backward)
    assert parts.saved_bytes == (3 * 500 + 2 * 3) * 8  # and two numbers for each row


def test_matrix_products_are_computed_again_only_under_a_budget():
    joint = joint_of(gelu_by_hand, [leaf(8, 4), leaf(4, 16)])
    forward = targets(keep_all(joint).backward).count("aten.mm.default")
    assert targets(partition(joint).backward).count("aten.mm.default") == forward
    least = partition(joint, 0.0)
    assert targets(least.backward).count("aten.mm.default") == forward + 1
    assert least.saved_bytes == 0
    assert all(isinstance(each, SavedInput) for each in least.saved)


@pytest.mark.parametrize("budget", BUDGETS)
def test_random_numbers_are_drawn_once_whatever_the_budget(budget):
    joint = joint_of(lambda x: F.dropout(F.dropout(x.sin(), 0.5).exp(), 0.2), [leaf(3, 4)])
    parts = partition(joint, budget)
    assert not any(is_random(node) for node in parts.backward.graph.nodes)
    assert sum(is_random(node) for node in parts.forward.graph.nodes) == 2


@torch.library.custom_op("plait_test::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


thrice.register_fake(lambda x: torch.empty_like(x))
thrice.register_autograd(lambda ctx, grad: grad * 3)


def test_custom_operators_run_once_whatever_the_budget():
    joint = joint_of(lambda x: torch.ops.plait_test.thrice(x).sin() * x, [leaf(3, 4)])
    parts = partition(joint, 0.0)
    assert "plait_test.thrice.default" in targets(parts.forward)
    assert "plait_test.thrice.default" not in targets(parts.backward)


def test_less_budget_never_saves_more():
    model = nn.Sequential(
        *(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 32)),
        *(nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 8), nn.Softmax(-1)),
    )
    joint = joint_of(model.double().train(), [leaf(64, 16)])
    steps = [partition(joint, n / 40) for n in range(41)]
    saved = [each.saved_bytes for each in steps]
    assert saved == sorted(saved)
    assert len(set(saved)) > 5
    work = [each.operations for each in steps]
    assert work == sorted(work, reverse=True)
    assert saved[-1] == keep_all(joint).saved_bytes
    low, high = saved[0], saved[-1]
    assert all(s <= low + n / 40 * (high - low) for n, s in enumerate(saved))


@pytest.mark.parametrize("budget", [-0.1, 1.5, float("nan")])
def test_budgets_are_between_none_and_all(budget):
    joint = joint_of(lambda x: x.sin().sum(), [leaf(3)])
    with pytest.raises(ValueError, match="from 0 to 1"):
        partition(joint, budget)


def test_chains_are_no_longer_than_asked():
    def program(x, w):
        h = x @ w
        for _ in range(12):
            h = h.sin()
        return h.sum()

    joint = joint_of(program, [leaf(4, 4), leaf(4, 4)])
    free = partition(joint, costs=PartitionCosts(operations_per_byte=1000))
    assert saved_shapes(free).count((4, 4)) == 3, "x, w and their product"
    for longest in (1, 3, 5):
        costs = PartitionCosts(operations_per_byte=1000, longest_chain=longest)
        backward = partition(joint, costs=costs).backward
        depth: dict[object, int] = {}
        for node in backward.graph.nodes:
            if str(node.target) == "aten.sin.default":
                depth[node] = 1 + depth.get(node.args[0], 0)
        assert max(depth.values()) == longest


def test_what_the_caller_may_change_is_saved_as_a_copy_unless_eager_saves_it():
    def program(x, w):
        y = x * 2  # the caller gets it, and eager does not save it
        return y, (y * w).sin()

    x, w = leaf(100), leaf(100)
    for budget in BUDGETS:
        gm = trace(program)
        joint = to_joint(gm, [x, w])
        parts = partition(joint, budget)
        run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
        _, z = run(x * 1, w)
        wanted = torch.autograd.grad(program(x, w)[1].sum(), [x, w])
        got = torch.autograd.grad(z.sum(), [x, w])
        torch.testing.assert_close(got, wanted)


class Square(torch.autograd.Function):
    """Whose backward computes what the program below returns."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x * 2 * grad


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_result_that_the_backward_happens_to_compute_too_may_change(budget):
    def program(x):
        return Square.apply(x), x * 2

    joint = joint_of(program, [leaf(3)])
    parts = partition(joint, budget)
    forward, backward = parts.forward.module(), parts.backward.module()
    run = wrap_training(joint, parts, forward, backward, trace(program))
    x = leaf(3)
    squares, doubled = run(x)
    doubled.mul_(3)
    (grad,) = torch.autograd.grad(squares.sum(), x)
    torch.testing.assert_close(grad, 2 * x)


def test_results_in_another_shape_are_saved_as_they_are():
    def program(x, w):
        return torch.tanh(x @ w).view(2, 2, 5)

    parts = partition(joint_of(program, [leaf(4, 3), leaf(3, 5)]))
    assert parts.saved_bytes == 0
    assert "aten.clone.default" not in targets(parts.forward)
    assert (2, 2, 5) in saved_shapes(parts)


def test_what_is_computed_again_is_computed_where_it_is_used():
    def program(x, w):
        for _ in range(4):
            x = torch.tanh(0.5 * (x @ w).exp() ** 2)
        return x.sum()

    backward = partition(joint_of(program, [leaf(4, 4), leaf(4, 4)]), 0.3).backward
    names = targets(backward)
    first = next(n for n, name in enumerate(names) if "expand" in name)  # of the tangent
    assert any("exp" in name for name in names[first:]), print_aten(backward)


def updates_statistics(x, w, mean):
    h = x @ w
    mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
    return torch.sigmoid(h - mean) * h


PROGRAMS = {
    "gelu by hand": (gelu_by_hand, lambda: _both(leaf(5, 4), leaf(4, 6))),
    "dropout": (
        lambda x, w: F.dropout(torch.tanh(F.dropout(x @ w, 0.4).exp()), 0.3) * 2,
        lambda: _both(leaf(5, 4), leaf(4, 6)),
    ),
    "statistics that are written to": (
        updates_statistics,
        lambda: _both(leaf(5, 4), leaf(4, 6), plain(6)),
    ),
    "views and writes": (
        lambda x, w: ((x @ w).t().sin()[1:].mul_(w.t()[1:, :1]).exp(), x[:2].cos()),
        lambda: _both(leaf(5, 4), leaf(4, 6)),
    ),
}


def _both(*leaves):
    return list(leaves), list(leaves)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager_for_every_budget(name, budget):
    program, make = PROGRAMS[name]
    torch.manual_seed(0)
    gm = trace(program)
    recorded = to_joint(gm, make()[1])
    joint = recorded.replace_graph(run_passes(recorded.flat()).graph)
    parts = partition(joint, budget)
    verify(parts.forward)
    verify(parts.backward)
    run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
    assert_same(program, make, run=run)
    assert_same(program, make, run=run, twice=True)


def random_network(seed):
    chosen = random.Random(seed)
    count = chosen.randrange(1, 14)
    network, graph = Network(count), networkx.DiGraph()
    graph.add_nodes_from(["source", "sink"])

    def edge(tail, head, capacity):
        if capacity < INFINITE:
            old = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
            graph.add_edge(tail, head, capacity=old + capacity)
        else:
            graph.add_edge(tail, head, capacity=INFINITE)

    for vertex in range(count):
        network.from_source[vertex] = chosen.choice([0, 0, chosen.randrange(9)])
        network.to_sink[vertex] = chosen.choice([0, 0, chosen.randrange(9), INFINITE])
        edge("source", vertex, network.from_source[vertex])
        edge(vertex, "sink", network.to_sink[vertex])
    for _ in range(chosen.randrange(3 * count)):
        tail, head = chosen.randrange(count), chosen.randrange(count)
        capacity = chosen.choice([chosen.randrange(9), INFINITE])
        if tail != head and not graph.has_edge(tail, head):
            network.connect(tail, head, capacity)
            edge(tail, head, capacity)
    return network, graph


@pytest.mark.parametrize("seed", range(200))
def test_cuts_are_as_small_as_those_of_networkx_with_fewest_at_the_sink(seed):
    network, graph = random_network(seed)
    side = {n for n, there in enumerate(network.sink_side()) if there} | {"sink"}
    crossing = [d["capacity"] for u, v, d in graph.edges(data=True) if u not in side and v in side]
    wanted, _ = networkx.minimum_cut(graph, "source", "sink")
    assert sum(crossing) == wanted
    residual = networkx.algorithms.flow.preflow_push(graph, "source", "sink")
    reaching, waiting = {"sink"}, ["sink"]
    while waiting:
        head = waiting.pop()
        for tail in residual.predecessors(head):
            room = residual[tail][head]
            if room["capacity"] - room["flow"] > 0 and tail not in reaching:
                reaching.add(tail)
                waiting.append(tail)
    assert side == reaching


class Block(nn.Module):
    """A layer with all that grows networks of paths: a residual, dropout, a checkpoint or none."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1))
        self.again = again

    def forward(self, x):
        return x + (checkpointed(self.layers, x) if self.again else self.layers(x))


def checkpointed(layers, x):
    return checkpoint(layers, x, use_reentrant=False)


torch.fx.wrap("checkpointed")


def calls_of(work):
    """How many Python functions run during some work: seconds that no other process changes."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        result = work()
    finally:
        sys.setprofile(None)
    return count, result


@pytest.mark.parametrize("again", [False, True])
def test_tracing_and_partition_take_steps_in_proportion_to_layers(again):
    counts = []
    for depth in (2, 4, 8, 16):
        gm = trace(nn.Sequential(*(Block(again) for _ in range(depth))).train())
        x = torch.randn(4, 8, requires_grad=True)
        to_joint(gm, [x])  # fills caches
        tracing, recorded = calls_of(lambda gm=gm, x=x: to_joint(gm, [x]))
        improving, better = calls_of(lambda joint=recorded: run_passes(joint.flat()))
        joint = recorded.replace_graph(better.graph)
        splitting, _ = calls_of(lambda joint=joint: partition(joint))
        counts.append((tracing, improving, splitting))
    for less, more in itertools.pairwise(counts):
        assert all(m <= 2.15 * n for n, m in zip(less, more, strict=True)), counts


def test_masks_of_dropout_are_saved_as_booleans():
    joint = joint_of(lambda x: F.dropout(x, 0.5), [leaf(8, 4)])
    parts = partition(joint)
    assert [each.dtype for each in parts.backward.example_inputs] == [torch.bool, torch.float64]
    assert parts.saved_bytes == 8 * 4
    assert keep_all(joint).saved_bytes == 8 * 4 * 8


def test_the_table_says_what_is_saved_and_why():
    def program(x, w):
        return F.dropout(gelu_by_hand(x, w).exp() * x, 0.5)

    table = print_saved(partition(joint_of(program, [leaf(8, 4), leaf(4, 16)])))
    head, *rows, total = table.splitlines()
    assert head.split() == ["saved", "type", "bytes", "why", "line"]
    by_name = {row.split()[0]: row for row in rows}
    assert "f64[8, 16]" in by_name["mm"]
    assert "1.0 KiB" in by_name["mm"]
    assert "recomputing costs a matrix product" in by_name["mm"]
    assert "the caller's: an input" in by_name["x"]
    assert "bool[8, 4]" in by_name["bernoulli"]
    assert "would draw other random numbers" in by_name["bernoulli"]
    assert "held for the backward; computed again:" in total
    assert "tanh" in total
    kept = print_saved(keep_all(joint_of(gelu_by_hand, [leaf(8, 4), leaf(4, 16)])))
    assert kept.endswith("nothing is computed again")


def test_a_function_trains_with_less_memory():
    seen = []
    run = memory_efficient(gelu_by_hand, inspect=seen.append)
    assert_same(gelu_by_hand, lambda: _both(leaf(5, 4), leaf(4, 6)), run=run)
    assert len(seen) == 1
    assert_same(gelu_by_hand, lambda: _both(leaf(2, 4), leaf(4, 6)), run=run, twice=True)
    assert len(seen) == 2
    with torch.no_grad():
        run(leaf(7, 4), leaf(4, 6))
    run(plain(7, 4), plain(4, 6))
    assert len(seen) == 2
    with pytest.raises(TypeError, match="take tensors"):
        run(leaf(5, 4), 3)


def test_a_module_trains_with_less_memory_by_a_compiler_of_ones_own():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)).double()
    other = copy.deepcopy(model)
    compiled = []

    def compiler(gm, example_inputs):
        compiled.append((gm, len(example_inputs)))
        return gm

    run = memory_efficient(other, budget=0.0, compiler=compiler)
    for _ in range(2):
        x = torch.randn(6, 4, dtype=torch.float64)
        for each, call in ((model, model), (other, run)):
            call(x).square().sum().backward()
            torch.optim.SGD(each.parameters(), 0.1).step()
    assert len(compiled) == 2
    torch.testing.assert_close(other.state_dict(), model.state_dict())


@pytest.mark.parametrize("kind", ["efficient", "flash", "cudnn"])
def test_backwards_of_attention_draw_nothing_that_they_are_not_given(kind):
    forward = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention").default
    backward = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention_backward").default
    assert op_info(forward).random
    assert not op_info(backward).random


@pytest.mark.parametrize("geometry", [((17,), (0,)), ((4, 3), (6, 2)), ((3, 4), (1, 2))])
def test_copies_of_inputs_with_gaps_lie_as_copies_do(geometry):
    def program(x):
        return x.dist(x * 2)

    size, stride = geometry
    x = torch.randn(40, dtype=torch.float64).as_strided(size, stride).requires_grad_()
    gm = trace(program)
    joint, parts = parts_of(gm, [x])
    assert any(not isinstance(place, SavedInput) for place in parts.saved)
    run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
    (wanted,) = torch.autograd.grad(program(x), x)
    (got,) = torch.autograd.grad(run(x), x)
    torch.testing.assert_close(got, wanted)


MOVES = (torch.ops.aten.gather.default, torch.ops.aten.abs.default)
"""What a comparison may do with what is saved: it rounds nothing."""


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: (x.sin() * y + 1).amax(1),
        lambda x, y: torch.fmod(x.sum(), x.exp() + 1).amin(0),
        lambda x, y: torch.linalg.vector_norm(x.exp() * y, float("inf"), 0),
        lambda x, y: torch.zeros(4, 5).scatter_reduce(1, (x > 0).long(), x.exp() * y, "amin"),
    ],
    ids=["maximum", "remainder", "norm", "scatter"],
)
@pytest.mark.parametrize("budget", [None, 0])
def test_what_is_compared_with_its_extreme_is_not_computed_again(program, budget):
    """Another rounding, and none would be equal to it."""
    x, y = leaf(4, 5).detach().float().requires_grad_(), leaf(4, 5).detach().float()
    _, parts = parts_of(trace(program), [x, y], budget)
    compares = [n for n in parts.backward.graph.nodes if "aten.eq.Tensor" in str(n.target)]
    for operand in (each for node in compares for each in node.all_input_nodes):
        while operand.op != "placeholder":
            assert is_view(operand) or operand.target in MOVES, print_aten(parts.backward)
            operand = operand.args[0]
