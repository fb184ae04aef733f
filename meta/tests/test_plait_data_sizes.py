"""Sizes that depend on data: one capture, whose parts are compiled once for all such sizes."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn

import plait

CALLS = [
    [1.0, -2, 3, 4, 5, -1],
    [-1.0, -2, -3, -4, -5, -1],
    [-1.0, -2, 3, -4, -5, -1],
    [1.0, 2, 3, 4, 5, -1],
    [1.0, 2, 3, 4, 5, 6],
]
"""Of these 4, 0, 1, 5 and 6 numbers are positive."""


def chosen(x):
    return x[x > 0] * 2 + 1


def places(x):
    found = (x > 0).nonzero()
    return torch.arange(found.shape[0]) + found[:, 0], found.shape[0] * 2 + 1, x.cos()


def several_ways(x):
    values = torch.masked_select(x, x > 0)
    repeated = torch.repeat_interleave(x, (x > 0).long())
    counts = torch.bincount((x > 0).long()).float()
    distinct, inverse, count = torch.unique(x.int(), return_inverse=True, return_counts=True)
    parts = values * 2, repeated + 1, counts / 6, distinct.float() @ count.float()
    return *parts, distinct[inverse], torch.argwhere(x > 0), torch.where(x > 0)


def made_of_a_size(x):
    y = x[x > 0]
    n = y.shape[0]
    made = torch.arange(n), torch.zeros(n, 2) + y[:, None], torch.ones(n // 2), torch.eye(n)
    return *made, x.new_full((n + 1,), 3.0), nn.functional.pad(y, (0, n)), n


def nested(x):
    y = x[x > 0]
    z = y[y > 2]
    return z.sum(), z * y.shape[0], torch.zeros(y.shape[0], z.shape[0]) + z


def joined(x):
    a, b = x[x > 0], x[x <= 0]
    return torch.cat([a * 2, b]), torch.cat([a, b]).view(2, 3), torch.stack([a, a]), a[:, None] * b


def viewed(x):
    w = x[x > 0].unsqueeze(1) * torch.ones(4)
    flat = w.view(-1), w.view(-1, 2), w.t().reshape(-1), w.flatten().view(-1, 4)
    return *flat, w.mean(0), w.softmax(0), nn.functional.layer_norm(w, (4,))


def cut_off(x):
    y = x[x > 0]
    return y[:2], y[1:], y[::2], y.sort()[0], y.cumsum(0), y.flip(0)


def squeezed(x):
    y = x[x > 0].squeeze()
    return y.dim(), y + 1


def same_mask(x):
    mask = x > 0
    return x[mask] * mask.nonzero()[:, 0], x[mask] + x[mask].cos()


def broadcast(x):
    return x[x > 0] + torch.arange(6.0)


def broadcast_with_another(x):
    return x[x > 0] + x[x < 0]


def greatest(x):
    return x[x > 0].max()


def first(x):
    return x[x > 0][0]


def top(x):
    return x[x > 0].topk(2)[0]


def expected(x):
    y = x[x > 0]
    torch._check(y.shape[0] >= 2)
    return y * 3 if y.shape[0] >= 2 else y


def experts(x):
    out = torch.zeros(6)
    for expert in range(3):
        own = (x.abs().long() % 3 == expert).nonzero().squeeze(1)
        out = out.index_add(0, own, x[own] * (expert + 1))
    return out


def written_before(x):
    x.add_(1)
    return x[x > 0] * 2


def written_after(x):
    y = x[x > 0]
    x.mul_(2)
    return y * 2


def written_between(x):
    y = x[x > 0]
    x.mul_(2)
    return y.squeeze() * 2


def written_to_places(x):
    y = x[x > 0]
    x[x > 0] = y.flip(0) * 3
    return y, x.masked_scatter(x > 0, y)


def maybe_a_copy(x):
    y = x[x > 0].view(1, -1)
    z = y.t().contiguous()
    z.add_(1)
    return y, z


def drawn(x):
    y = x[torch.rand(6) > 0.5]
    return y + torch.rand(y.shape[0]), torch.rand(3)


def drawn_in_vain(x):
    noise = torch.rand(3)
    y = torch.masked_select(x, x > 0).squeeze()
    return noise, y * 2, y.dim(), torch.rand(2)


def counted(x):
    y = x[x > 0]
    return y * y.sum().item(), y.sum().item()


def of_an_array(x):
    return x.numpy()[x.numpy() > 0] * 2


WHOLE = [
    *(chosen, places, several_ways, made_of_a_size, nested, joined, viewed, cut_off, squeezed),
    *(same_mask, broadcast, broadcast_with_another, greatest, first, top, expected, experts),
    *(written_before, written_after, written_to_places, maybe_a_copy, drawn, drawn_in_vain),
    *(counted, of_an_array),
]


def outcome(run, x):
    """What a call gives or raises, with its input and the state of the generator afterwards."""
    torch.manual_seed(3)
    try:
        found = run(x)
    except Exception as error:
        found = type(error), str(error)
    return found, x, torch.get_rng_state()


def described(value):
    """A value with the strides of its tensors."""
    if isinstance(value, torch.Tensor):
        return value, value.stride(), value.dtype
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return type(value)(map(described, value)) if isinstance(value, tuple) else value


def same(found, wanted):
    if not isinstance(wanted, (torch.Tensor, tuple)):
        assert found == wanted
    elif isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        torch.testing.assert_close(found, wanted, equal_nan=True)


def compare(compiled, program):
    for numbers in CALLS:
        x = torch.tensor(numbers)
        found, wanted = outcome(compiled, x.clone()), outcome(program, x.clone())
        same(described(found), described(wanted))


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
@pytest.mark.sampled(3)
def test_sizes_of_all_kinds_are_right_in_one_graph(program):
    compare(plait.compile(program, fullgraph=True), program)


@pytest.mark.parametrize(
    "program",
    [chosen, made_of_a_size, joined, written_between, written_after],
    ids=lambda each: each.__name__,
)
@pytest.mark.sampled(2)
def test_inputs_of_open_sizes_are_right_too(program):
    compiled = plait.compile(program, dynamic=True)
    compare(compiled, program)


def test_one_program_serves_all_sizes_but_0_and_1():
    compiled = plait.compile(chosen, fullgraph=True)
    for count in (5, 9, 2, 70, 1, 0, 33, 1, 0, 8):
        x = torch.arange(100.0) - 99 + count
        torch.testing.assert_close(compiled(x), chosen(x))
    report = plait.report(compiled)
    assert [graph.outcome for graph in report.graphs] == ["compiled"] * 4
    assert ".part" in report.graphs[1].name


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda y: y + 1 if y.shape[0] > 3 else y - 1, "GB0003"),
        (lambda y: sum(v for v in y), "GB0008"),
        (lambda y: y.stride(), "GB0004"),
        (lambda y: y.is_contiguous(), "GB0004"),
    ],
)
def test_what_python_asks_of_such_a_size_breaks_there(ask, code):
    def program(x):
        return ask(x[x > 0] * 2)

    compiled = plait.compile(program)
    compare(compiled, program)
    assert compiled.breaks[0].code == code


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, y):
        chosen = self.linear(x[x > 0].unsqueeze(1))
        self.calls.add_(1)
        picked = torch.masked_select(y * x, y > 0)
        return chosen.tanh().sum(1), picked * chosen.sum()


def test_gradients_flow_through_what_is_chosen():
    torch.manual_seed(0)
    mine = Layer().double()
    other = copy.deepcopy(mine)
    compiled = plait.compile(mine, fullgraph=True)
    for numbers in CALLS:
        inputs = []
        for run, layer in ((compiled, mine), (other, other)):
            x = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
            results = run(x, x.flip(0) * 2)
            sum(each.sin().sum() for each in results).backward()
            inputs.append((*results, x.grad, layer.linear.weight.grad, layer.calls))
        same(*inputs)


def test_threads_have_sizes_of_their_own():
    compiled = plait.compile(joined)
    errors = []

    def calls(count):
        try:
            for _ in range(5):
                x = torch.arange(6.0) - 5.5 + count
                same(compiled(x), joined(x))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=calls, args=(count,)) for count in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
