"""Operators that write over what nothing needs any more, and near misses."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import assert_like_eager, trace

from plait_fx_passes import (
    DEFAULT_PASSES,
    IN_PLACE_PASSES,
    PassError,
    optimize,
    run_passes,
    to_aten,
    verify,
    wrap_runtime,
)

PASSES = (*DEFAULT_PASSES, *IN_PLACE_PASSES)
aten = torch.ops.aten


def numbers():
    torch.manual_seed(0)
    return [torch.randn(2, 16, 4), torch.randn(2, 2, 4), torch.tensor([3, 9])]


def in_place(program, *inputs, passes=PASSES):
    """The names of calls that write; values, strides and aliasing are eager's to the last bit."""
    given = list(inputs) or numbers()
    gm = trace(program)
    with torch.no_grad():
        graph = run_passes(to_aten(gm, given), passes, verify_each=True)
        assert_like_eager("in place", wrap_runtime(graph, graph.module()), gm, given, 0.0)
        module = optimize(gm, given, passes)
        assert_like_eager("module", module, gm, given, 0.0)
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return [name.removeprefix("aten.") for name in names if name.split(".")[1].endswith("_")]


WRITTEN = {
    "index_copy_": lambda x, y, at: x.index_copy_(1, at, y).sum(),
    "index_put_": lambda x, y, at: aten.index_put_(x, [None, at], y).sum(),
    "index_add_": lambda x, y, at: x.index_add_(1, at, y, alpha=2) * 2,
    "index_fill_": lambda x, y, at: x.index_fill_(1, at, 2.0) * 2,
    "scatter_": lambda x, y, at: x.scatter_(1, at.view(1, 2, 1).expand(2, 2, 4), y) * 2,
    "scatter_add_": lambda x, y, at: x.scatter_add_(1, at.view(1, 2, 1).expand(2, 2, 4), y) * 2,
    "add_": lambda x, y, at: x.add_(1).sum(),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_inputs_are_written_to_themselves(name):
    assert [each.split(".")[0] for each in in_place(WRITTEN[name])] == [name]


def test_parts_are_copied_to():
    def program(x, y, at):
        x[:, 2:4].copy_(y)
        x[:, 7].fill_(1.0)
        x[0].diagonal()[1:3].zero_()
        return x.sum(1)

    assert set(in_place(program)) >= {"copy_.default"}


def test_writes_come_one_after_another():
    def program(x, y, at):
        x.index_copy_(1, at, y)
        x.mul_(2)
        return x.index_add_(1, at, y).exp()

    assert in_place(program) == ["index_copy_.default", "mul_.Tensor", "index_add_.default"]


def test_values_of_the_programs_own_are_written_over():
    def program(x, y, at):
        return torch.relu((x @ x.transpose(1, 2)) * 2) + 1

    assert in_place(program) == ["mul_.Tensor", "relu_.default", "add_.Tensor"]


def test_results_that_are_nobody_elses_may_be_made_in_other_memory():
    made = in_place(lambda x, y, at: ((x + 1).index_copy(1, at, y), y * 2))
    assert made == ["index_copy_.default"]


KEPT = {
    "read later": lambda x, y, at: ((z := x + 1).relu(), z @ z.transpose(1, 2)),
    "read through a view later": lambda x, y, at: ((z := x + 1).relu(), z[1].sum(0)),
    "a view that is read later": lambda x, y, at: ((z := x + 1)[0].relu(), z.sum(0)),
    "an input": lambda x, y, at: x.relu(),
    "a view of an input": lambda x, y, at: x[0].relu(),
    "returned too": lambda x, y, at: ((z := x + 1), z.relu()),
    "a view of it is returned": lambda x, y, at: ((z := x + 1)[0], z.relu()),
    "of another dtype": lambda x, y, at: (at * 2) / 3,
    "of another shape": lambda x, y, at: (y[:, :1] + 1) * y,
    "overlapping": lambda x, y, at: (y[:, :1] + 1).expand(2, 5, 4).relu(),
    "twice": lambda x, y, at: (z := x + 1) * z,
    "with a view of itself": lambda x, y, at: (z := x @ x.transpose(1, 2)) * z.transpose(1, 2),
    "an input that is not written": lambda x, y, at: y.index_copy(1, at - at, y),
    "what is copied to the input is returned": lambda x, y, at: x.index_copy_(1, at, y).clone(),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_needed_stays(name):
    assert in_place(KEPT[name]) == []


def test_the_last_that_reads_a_value_writes_over_it():
    assert in_place(lambda x, y, at: ((z := x + 1).relu(), z * 2)) == ["mul_.Tensor"]


def test_an_input_that_is_read_later_is_copied_back():
    def program(x, y, at):
        before = x[:, :2]
        kept = before * 1
        x.index_copy_(1, at, y)
        return kept, x[:, :2] * 2

    def later(x, y, at):
        z = x.index_copy(1, at, y)
        w = x.exp()
        x.copy_(z)
        return w

    assert in_place(program) == ["index_copy_.default"]
    assert in_place(later) == []


def test_results_do_not_look_at_what_is_written_to():
    def program(x, y, at):
        before = x[:]
        x.clamp_(-1, 1)
        part = x[0, 1:3].clone()
        return before, part, part * 2, x

    in_place(program)


def test_inputs_that_share_memory_are_not_written_over():
    memory = torch.randn(2, 16, 4)
    given = memory, memory[:, :2], torch.tensor([1, 2])
    in_place(lambda x, y, at: (x.mul_(2), y.sum(0))[1], *given)  # y sees what becomes of x
    in_place(lambda x, y, at: (y.mul_(2), x.sum(0))[1], *given)


def test_an_input_that_is_written_to_through_data_is_copied_to():
    def program(x, y, at):
        x.data.mul_(2)
        return x.sum()

    assert in_place(program) == []


def test_random_numbers_and_wholes_are_left():
    torch.manual_seed(0)
    gm = trace(lambda x: torch.bernoulli(x * 0 + 0.5) + torch.rand_like(x))
    graph = run_passes(to_aten(gm, [torch.ones(4)]), PASSES, verify_each=True)
    torch.manual_seed(1)
    found = wrap_runtime(graph, graph.module())(torch.ones(4))
    torch.manual_seed(1)
    torch.testing.assert_close(found, gm(torch.ones(4)))


def test_operators_of_the_users_get_what_they_write_to():
    seen = []
    with torch.library._scoped_library("in_place_test", "FRAGMENT") as library:
        library.define("fill(Tensor(a!) x, Tensor y) -> ()")
        library.define("both(Tensor(a!) x, Tensor y, Tensor(b!) z) -> Tensor")

        def fill(x, y):
            seen.append(x.data_ptr())
            x.copy_(y * 2)

        def both(x, y, z):
            seen.append(x.data_ptr())
            x.add_(y)
            z.mul_(y)
            return x + z

        library.impl("fill", fill, "CPU")
        library.impl("both", both, "CPU")
        torch.library.register_fake("in_place_test::fill", lambda x, y: None, lib=library)
        torch.library.register_fake(
            "in_place_test::both", lambda x, y, z: torch.empty_like(x), lib=library
        )
        ops = torch.ops.in_place_test

        def program(x, y, at):
            ops.fill(x, x.exp())
            one, other = y + 1, y + 2
            made = ops.both(one, y, other)
            return x.sum(), made * 2, one * 3, other

        x, y, at = numbers()
        with torch.no_grad():
            gm = trace(program)
            graph = run_passes(to_aten(gm, [x, y, at]), PASSES, verify_each=True)
            names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
            assert "in_place_test.fill.default" in names
            other, expected = x.clone(), gm(x.clone(), y, at)
            eager = x.clone()
            gm(eager, y, at)
            seen.clear()
            found = wrap_runtime(graph, graph.module())(other, y, at)
            assert seen[0] == other.data_ptr()
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(other, eager)


def test_what_a_collective_may_still_send_is_kept():
    ops = torch.ops._c10d_functional

    def program(x, y):
        sent = x * 2
        started = ops.all_gather_into_tensor(sent, 2, "0")
        other = torch.relu(sent)
        x.add_(1)
        return ops.wait_tensor(started), other, ops.wait_tensor(ops.all_reduce(y, "sum", "0"))

    graph = to_aten(trace(program), [torch.ones(4), torch.ones(4)])
    names = [str(node.target) for node in run_passes(graph, PASSES).graph.nodes]
    assert "aten.relu.default" in names
    assert "aten.add_.Tensor" in names

    def of_an_input(x):
        started = ops.all_gather_into_tensor(x, 2, "0")
        x.add_(1)
        return ops.wait_tensor(started)

    graph = run_passes(to_aten(trace(of_an_input), [torch.ones(4)]), PASSES)
    assert "aten.add_.Tensor" not in [str(node.target) for node in graph.graph.nodes]


def test_it_is_the_last_pass():
    graph = to_aten(trace(lambda x: (x + 1).relu()), [torch.ones(3)])
    with pytest.raises(ValueError, match="last pass"):
        run_passes(graph, (*IN_PLACE_PASSES, *DEFAULT_PASSES))
    made = run_passes(graph, PASSES)
    verify(made)
    with pytest.raises(PassError, match="writes in place"):
        run_passes(made)
    assert run_passes(graph, PASSES, fuel=0).graph.find_nodes(
        op="call_function", target=aten.relu.default
    )
    left = run_passes(graph, PASSES, disabled={"in-place"})
    assert left.graph.find_nodes(op="call_function", target=aten.relu.default)


def test_versions_count_writes():
    gm = trace(lambda x: x.mul_(2).sum())
    x = torch.ones(4)
    run = wrap_runtime(*(lambda g: (g, g.module()))(run_passes(to_aten(gm, [x]), PASSES)))
    before = x._version
    run(x)
    assert x._version > before
