"""Modules that change between the calls: what guards must notice."""

from __future__ import annotations

import copy

import torch
from torch import nn

from conformance.declare import call, scenario, t


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
        self.table = nn.ModuleDict({"a": nn.Identity()})
        self.register_buffer("shift", None)
        self.register_buffer("scale", torch.ones(3))
        self.mode = "plain"

    def forward(self, x, *, twice=False):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        for name, layer in self.table.items():
            x = layer(x) + len(name)
        if self.shift is not None:
            x = x + self.shift
        if self.training:
            x = x * 2
        return (x + x if twice else x) * self.scale


def changing(sets):
    """Declare a case of a Model that `sets` changes before each call."""

    def program():
        made = Model()
        return made, made

    program.__name__ = program.__qualname__ = sets.__name__.strip("_")
    scenario(sets)(program)


X = (2, 3)


@changing
def buffers_come_and_go(model):
    yield (t(*X),)
    model.shift = torch.ones(3)
    yield (t(*X),)
    model.shift = torch.ones(3, dtype=torch.float64)
    yield (t(*X),)
    model.shift = None
    yield (t(*X),)
    model.scale = torch.full((1,), 3.0)
    yield (t(*X),)
    del model._buffers["scale"]
    model.scale = 7
    yield (t(*X),)
    del model.scale
    model.register_buffer("scale", torch.ones(3))


@changing
def gradients_switched_on_and_off(model):
    yield (t(*X),)
    model.requires_grad_(False)
    yield (t(*X),)
    model.first.bias.requires_grad_(True)
    yield (t(*X),)
    yield (t(*X, grad=True),)
    with torch.no_grad():
        yield (t(*X),)
    model.requires_grad_(True)


@changing
def submodules_replaced(model):
    yield (t(*X),)
    before = model.first
    model.first = nn.Linear(3, 3)
    yield (t(*X),)
    model.first = nn.Sequential(before, nn.ReLU())
    yield (t(*X),)
    model.first = nn.Identity()
    yield (t(*X),)
    model._modules["first"] = before
    yield (t(*X),)


@changing
def lists_and_dicts_of_modules_change(model):
    yield (t(*X),)
    model.layers.append(nn.ReLU())
    yield (t(*X),)
    model.layers[0] = nn.Identity()
    yield (t(*X),)
    model.table["bc"] = nn.Sigmoid()
    yield (t(*X),)
    model.table["a"] = nn.Tanh()
    yield (t(*X),)
    del model.table["bc"]
    model.layers = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
    yield (t(*X),)


@changing
def training_of_parts(model):
    yield (t(*X),)
    model.eval()
    yield (t(*X),)
    model.layers.train()
    yield (t(*X),)
    model.train()
    yield call(t(*X), twice=True)


def _hook(module, args, result):
    return result * 3


@changing
def hooks_come_and_go(model):
    yield (t(*X),)
    first = model.first.register_forward_hook(_hook)
    yield (t(*X),)
    second = model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    yield (t(*X),)
    first.remove()
    yield (t(*X),)
    third = model.layers[1].register_full_backward_hook(lambda module, grads, out: None)
    yield (t(*X),)
    second.remove()
    third.remove()
    everywhere = nn.modules.module.register_module_forward_hook(_hook)
    yield (t(*X),)
    everywhere.remove()
    yield (t(*X),)


@changing
def parameters_pointed_elsewhere(model):
    yield (t(*X),)
    weight = model.first.weight
    weight.data = torch.eye(3)
    yield (t(*X),)
    weight.data = torch.arange(9.0).reshape(3, 3).T
    yield (t(*X),)
    model.first.weight = nn.Parameter(torch.ones(3, 3))
    yield (t(*X),)
    model.first.bias = None
    yield (t(*X),)
    model.first.weight = model.layers[0].weight
    yield (t(*X),)
    model.first.bias = nn.Parameter(torch.zeros(3))
    model.first.weight = weight


@changing
def moved_and_back(model):
    yield (t(*X),)
    model.double()
    yield (t(*X).double(),)
    model.to(torch.float32)
    yield (t(*X),)
    model.half()
    model.float()
    yield (t(*X),)


@changing
def forward_of_part_replaced(model):
    yield (t(*X),)
    model.first.forward = lambda x: x * 5
    yield (t(*X),)
    del model.first.forward
    yield (t(*X),)
    model.first.__class__ = Doubled
    yield (t(*X),)
    model.first.__class__ = nn.Linear


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@changing
def tied_and_untied(model):
    yield (t(*X),)
    kept = model.layers[0]
    model.layers[0] = model.first
    yield (t(*X),)
    model.layers[0] = copy.deepcopy(model.first)
    yield (t(*X),)
    model.layers[0] = kept


class Counting(nn.Module):
    def __init__(self, other=None):
        super().__init__()
        self.count = 0
        self.register_buffer("seen", torch.zeros(()))
        self.other = other

    def forward(self, x):
        self.count += 1
        self.seen.add_(1)
        if self.other is not None:
            x = self.other(x)
        return x * self.count + self.seen


def _counting(model):
    yield (t(*X),)
    yield (t(*X),)
    model[1] = model[0]
    yield (t(*X),)
    model[1] = Counting()
    yield (t(*X),)
    model[1].seen = model[0].seen
    yield (t(*X),)


@scenario(_counting)
def one_module_in_two_places():
    made = nn.Sequential(Counting(), Counting(Counting()))
    return made, made


def _pairs(state):
    first, second = Counting(), Counting()
    yield (first, second, t(*X))
    yield (first, first, t(*X))
    yield (second, first, t(*X))
    second.seen = first.seen
    yield (second, first, t(*X))


@scenario(_pairs)
def one_module_for_two_arguments():
    def program(one, other, x):
        one.count += 1
        other.count += 1
        return one(x) + other(x), one.count, other.count

    return program, [0]


def _lists(state):
    first, second = [1], [1]
    yield (t(*X), first, second)
    yield (t(*X), first, first)
    yield (t(*X), second, first)


@scenario(_lists)
def one_list_for_two_arguments():
    def program(x, one, other):
        one.append(len(other))
        other.append(len(one))
        return x * len(one), one[-1], other

    return program, [0]


@scenario(_lists)
def one_list_in_a_dict_of_two():
    def program(x, one, other):
        table = {"a": one, "b": other}
        table["a"].append(5)
        return x * len(table["b"]), table["a"] is table["b"]

    return program, [0]


def _parameters(state):
    first, second = nn.Parameter(t(3)), nn.Parameter(t(3))
    first.grad, second.grad = torch.ones(3), torch.ones(3)
    yield (first, second)
    first.grad = torch.ones(3)
    yield (first, first)
    yield (second, first)


@scenario(_parameters)
def one_parameter_for_two_arguments():
    def program(one, other):
        one.grad = None
        return other.grad is None, one.grad is None

    return program, [0]
