"""Buffers that a training program changes: written by the compiled forward itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import plait


class Network(nn.Module):
    """Two batch norms, with operators of torch's after each, and a lookup that may fail."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8, momentum=momentum) for _ in range(2))
        self.embedding = nn.Embedding(5, 8)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x, index):
        self.calls += 1
        x = torch.relu(self.norms[0](self.first(x)))
        x = torch.relu(self.norms[1](self.second(x)))
        return (x.mean((2, 3)) * self.embedding(index)).square().sum() + self.calls.sum()


def pair():
    torch.manual_seed(0)
    model = Network()
    return model, copy.deepcopy(model)


class Copies(TorchFunctionMode):
    """Counts what Python copies into tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") == "copy_"
        return function(*args, **(kwargs or {}))


def assert_equal(model, wanted):
    for one, other in zip(model.buffers(), wanted.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("backend", ["plait", "python"])
def test_buffers_of_training_are_written_by_the_program(backend):
    model, wanted = pair()
    fast = plait.compile(lambda x, index: model(x, index), backend=backend)
    index = torch.tensor([0, 4])
    places = [each.data_ptr() for each in model.buffers()]
    for number in range(3):
        x = torch.randn(2, 3, 8, 8)
        changes = []
        for run, module in ((fast, model), (wanted, wanted)):
            versions = [each._version for each in module.buffers()]
            run(x, index).backward()
            changes.append(
                [b._version - v for b, v in zip(module.buffers(), versions, strict=True)]
            )
        assert_equal(model, wanted)
        assert changes[0] == changes[1], number
    assert places == [each.data_ptr() for each in model.buffers()]
    (graph, *_) = plait.report(fast).graphs
    assert graph.record.reason is None


@pytest.mark.parametrize("backend", ["plait", "python"])
def test_a_backward_may_come_after_other_calls_in_training(backend):
    """As where a network judges what is real and what is not: batch norm's kernel updates its
    statistics without autograd's knowledge, which saves them and does not use them."""
    model, wanted = pair()
    fast = plait.compile(lambda x, index: model(x, index), backend=backend)
    index = torch.tensor([0, 4])
    for _ in range(2):
        one, two = torch.randn(2, 2, 3, 8, 8)
        (fast(one, index) - fast(two, index)).backward()
        (wanted(one, index) - wanted(two, index)).backward()
        assert_equal(model, wanted)


def test_a_program_that_fails_has_changed_no_buffer():
    """So eager, which takes over, changes them once, and raises."""
    model, wanted = pair()
    fast = plait.compile(lambda x, index: model(x, index))
    x = torch.randn(2, 3, 8, 8)
    for index in (torch.tensor([0, 4]), torch.tensor([0, 5]), torch.tensor([1, 1])):
        errors = []
        for run in (fast, wanted):
            try:
                run(x, index).backward()
            except IndexError as error:
                errors.append(str(error))
        assert len(errors) in (0, 2)
        assert_equal(model, wanted)


def test_second_derivatives_and_second_backwards_change_no_buffer():
    model, wanted = (each.double() for each in pair())
    fast = plait.compile(lambda x, index: model(x, index))
    x, index = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 4])
    for run, module in ((fast, model), (wanted, wanted)):
        loss = run(x, index)
        weights = list(module.first.parameters())
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        sum(each.square().sum() for each in gradients).backward(retain_graph=True)
        loss.backward()
    assert_equal(model, wanted)


def test_a_backward_that_reads_what_was_written_meets_eagers_values():
    """The gradient of a product needs a buffer as it was; autograd refuses where eager does."""

    def program(buffer, weight):
        result = (buffer * weight).sum()
        with torch.no_grad():
            buffer.mul_(2)
        return result

    def late(buffer, weight):
        with torch.no_grad():
            buffer.mul_(2)
        return (buffer * weight).sum()

    for each in (program, late):
        found = []
        for run in (each, plait.compile(each)):
            buffer, weight = torch.arange(4.0), torch.ones(4, requires_grad=True)
            result = run(buffer, weight)
            try:
                found.append(torch.autograd.grad(result, weight)[0])
            except RuntimeError as error:
                found.append(str(error)[:60])
            found.append(buffer)
        assert str(found[:2]) == str(found[2:]), each.__name__


def test_python_copies_nothing():
    model, _ = pair()
    fast = plait.compile(lambda x, index: model(x, index))
    x, index = torch.randn(2, 3, 8, 8), torch.tensor([0, 4])
    fast(x, index).backward()
    record = plait.report(fast).graphs[0].record
    given = [*model.parameters(), *model.buffers(), x, index]
    by_shape = {}
    for each in given:
        by_shape.setdefault((each.shape, each.dtype), []).append(each)
    wanted = [n.meta["val"] for n in record.captured.graph.find_nodes(op="placeholder")]
    inputs = [by_shape[each.shape, each.dtype].pop(0) for each in wanted]
    with Copies() as copies:
        record.run(*inputs)
    assert copies.count == 0


def test_statistics_change_between_a_call_and_its_backward():
    """Eager's backward of a call in evaluation reads them as they are by then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).double()
    wanted = copy.deepcopy(model)
    x = torch.randn(6, 3, dtype=torch.float64)
    for each in (wanted, model):
        run = each if each is wanted else plait.compile(each)
        each.eval()
        loss = run(x).square().sum()
        each.train()
        with torch.no_grad():
            run(x * 2)
        loss.backward()
    assert_equal(model, wanted)
