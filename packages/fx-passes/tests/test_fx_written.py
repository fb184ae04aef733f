"""Operators of a user's that write to arguments, as functional ones in a graph."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import plait_fx_passes as fx_passes

calls: list[tuple[str, list[float]]] = []


@torch.library.custom_op("written_tests::collect", mutates_args={"into"})
def collect(into: torch.Tensor, x: torch.Tensor, name: str = "") -> None:
    calls.append((name, into.flatten().tolist()))
    into.add_(x.sin())


@torch.library.custom_op("written_tests::spread", mutates_args={"into", "other"})
def spread(
    into: list[torch.Tensor],
    x: torch.Tensor,
    other: torch.Tensor | None,
    *,
    scale: float = 2.0,
) -> torch.Tensor:
    for each in into:
        each.add_(x * scale)
    if other is not None:
        other.mul_(scale)
    return x.cos()


@torch.library.custom_op("written_tests::into", mutates_args={"made"})
def into(made: torch.Tensor, x: torch.Tensor) -> None:
    calls.append(("into", x.flatten().tolist()))
    made.copy_(x.sin())


spread.register_fake(lambda into, x, other, *, scale=2.0: torch.empty_like(x))


@torch.library.custom_op("written_tests::add_to", mutates_args={"into", "other"})
def add_to(into: torch.Tensor, x: torch.Tensor, other: torch.Tensor | None = None) -> None:
    for each in (into, other):
        if each is not None:
            each.add_(x)


def takes_defaults():
    """Whether torch calls an operator that writes to an argument with a default, which it has.
    Torch 2.11 looks for it among those that were given."""
    try:
        add_to(torch.ones(2), torch.ones(2))
    except IndexError:
        return False
    return True


library = torch.library.Library("written_tests", "FRAGMENT")
library.define("swap(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!), Tensor)")
library.impl("swap", lambda x, y: (y.add_(x), x.mul_(2), x + y), "CompositeExplicitAutograd")
torch.library.register_fake(
    "written_tests::swap",
    lambda x, y: (y, torch.empty_like(x), torch.empty_like(x)),
    lib=library,
)


def returned(x, a, b):
    first, second, both = torch.ops.written_tests.swap(a, b)
    first.mul_(2)
    return first + second * both + x


def through_views(x, a, b):
    view = a.view(2, 2).t()
    collect(view, x.view(2, 2))
    collect(a[::2], x[:2])
    return view + 1


def views_of_fresh_memory(x, a, b):
    made = x.new_empty(2, 4)
    into(made[0], x)
    into(made.t()[:, 1], a * 2)
    into(made[0], b)
    return made + 1


def sizes_of_fresh_memory(x, a, b):
    made = x.new_empty_strided((2, 2), (1, 2), dtype=torch.float64)
    into(made, x.view(2, 2))
    return made + 1


def own_memory(x, a, b):
    made = x * 2
    collect(made, a)
    return made + 1


PROGRAMS = {
    "between": lambda x, a, b: (collect(a, x * 2), collect(a, (a * 2).relu()), x + a)[-1],
    "list": lambda x, a, b: spread([a, b], x.sin(), None) + a,
    "optional": lambda x, a, b: spread([a], x, b, scale=3.0) * b,
    "expanded source": lambda x, a, b: (collect(a, x[:1].expand(4)), a * 2)[-1],
    "returned": returned,
    "views": through_views,
    "own memory": own_memory,
    "fresh": lambda x, a, b: (made := torch.empty_like(x), into(made, x), made * 2)[-1],
    "views of fresh memory": views_of_fresh_memory,
    "sizes of fresh memory": sizes_of_fresh_memory,
    "halves of one": lambda x, a, b: (spread([a[:2], a[2:]], x[:2], None), a * 2)[-1],
    **(
        {"default": lambda x, a, b: (add_to(a, x), add_to(b, x, x * 2), a)[-1]}
        if takes_defaults()
        else {}
    ),
    "columns of one": lambda x, a, b: (spread([a[::2]], x[:2], a[1::2]), a * 2)[-1],
}


def captured(program):
    return fx.symbolic_trace(program)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(4, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_operator_is_called_with_copies_in_order(name):
    graph = fx_passes.to_aten(captured(PROGRAMS[name]), inputs())
    fx_passes.verify(graph)
    found, expected = inputs(), inputs()
    calls.clear()
    value = PROGRAMS[name](*expected)
    in_eager = list(calls)
    calls.clear()
    assert torch.equal(fx_passes.wrap_runtime(graph, graph.module())(*found), value)
    assert all(map(torch.equal, found, expected))
    assert calls == in_eager


def test_fresh_memory_is_neither_made_nor_copied_before_the_call():
    def program(x, a, b):
        made = torch.empty_like(x.view(2, 2).t())
        into(made, a.view(2, 2))
        into(made[0], b[:2])
        return made * 2

    graph = fx_passes.to_aten(captured(program), inputs())
    graph = fx_passes.run_passes(graph)
    assert not [node for node in graph.graph.nodes if "empty" in str(node.target)]
    first, second = [n for n in graph.graph.nodes if fx_passes.is_written_variant(n.target)]
    assert first.args[:2] == ([2, 2], [1, 2])
    assert "made_size" not in str(second.target._schema)
    found = fx_passes.wrap_runtime(graph, graph.module())(*inputs())
    assert torch.equal(found, program(*inputs()))


def test_no_call_is_left_out_moved_or_merged():
    def program(x, a, b):
        first, second = torch.zeros(2), torch.zeros(2)
        for into, name in ((first, "one"), (second, "two"), (first, "one"), (second, "unused")):
            collect(into, x[:2], name)
        return x + 1

    graph = fx_passes.run_passes(fx_passes.to_aten(captured(program), inputs()))
    calls.clear()
    fx_passes.wrap_runtime(graph, graph.module())(*inputs())
    assert [name for name, _ in calls] == ["one", "two", "one", "unused"]


@pytest.mark.parametrize(
    "program",
    [
        lambda x, a, b: (spread([a, a[1:]], x[1:], None), a)[-1],
        lambda x, a, b: (collect(a, a), a)[-1],
        lambda x, a, b: (collect(a[:1].expand(4), x), a)[-1],
    ],
)
def test_memory_that_is_written_to_twice_or_read_is_refused(program):
    with pytest.raises(fx_passes.AtenTraceError, match="writes to"):
        fx_passes.to_aten(captured(program), inputs())


def test_gradients_flow_around_a_call():
    def program(x, a, b):
        hidden = torch.tanh(x)
        spread([a], x.detach(), None)
        return (hidden * a).sum()

    examples = [inputs()[0].requires_grad_(), *inputs()[1:]]
    joint = fx_passes.to_joint(captured(program), examples)
    fx_passes.verify(joint.flat())
    forward = fx_passes.partition(joint).forward
    assert "plait_written" in fx_passes.print_aten(forward)


@torch.library.custom_op("written_tests::halfway", mutates_args={"into", "other"})
def halfway(into: torch.Tensor, x: torch.Tensor, other: list[torch.Tensor]) -> None:
    other[1].add_(1)
    into[:2] = x[:2]
    raise ValueError("halfway")


def test_an_error_tells_what_was_written():
    def program(x, a, b, c):
        a.mul_(2)
        halfway(a, x, [b, c])
        return a + b

    inputs = [torch.arange(4.0) + n for n in range(4)]
    graph = fx_passes.to_aten(fx.symbolic_trace(program), inputs)
    with pytest.raises(ValueError, match="halfway") as raised:
        fx_passes.wrap_runtime(graph, graph.module())(*inputs)
    partly = fx_passes.partly_written(raised.value)
    assert partly is not None
    assert partly.operator is torch.ops.written_tests.halfway.default
    into, b, c = partly.values
    assert into.tolist() == [0, 1, 6, 8]
    assert (b.tolist(), c.tolist()) == ([2, 3, 4, 5], [4, 5, 6, 7])
    assert inputs[1].tolist() == [1, 2, 3, 4]
    assert fx_passes.partly_written(ValueError()) is None
