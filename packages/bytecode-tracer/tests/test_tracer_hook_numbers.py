"""Hooks that break, of many modules: what goes on after them serves all that are alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from tracer_oracle import compiled

from plait_bytecode_tracer import CompiledFunction

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Layer(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) * self.factor)


class Switched(Layer):
    way: object = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (2 if self.way is None else 3 if self.way else 4)


class Counting(Layer):
    wanted = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hooks = self._forward_hooks
        numbers = [*hooks]
        found = {number: place for place, number in enumerate(numbers)}
        x = super().forward(x) + len(found)
        copies = (dict(hooks), set(hooks), {**hooks}, hooks.copy(), dict.fromkeys(hooks), found)
        for place, each in enumerate(copies):
            x = x + 2**place * (self.wanted in each)
        if self.wanted in hooks:
            x = x * 2 + numbers.index(self.wanted)
        if numbers and numbers[0] % 2:
            x = x - 1
        return x + (hooks.get(self.wanted) is None)


class Copying(Layer):
    """It asks one copy of a table whether it has a number, which one layer's has."""

    place = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hooks = self._forward_hooks
        found: Any
        if self.place == 0:
            found = dict(hooks)
        elif self.place == 1:
            found = set(hooks)
        elif self.place == 2:
            found = {**hooks}
        elif self.place == 3:
            found = hooks.copy()
        else:
            found = dict.fromkeys(hooks)
        return super().forward(x) + (3 in found) * 2


class Emptying(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._forward_hooks:
            self._forward_hooks.popitem()
        return super().forward(x) + len(self._forward_hooks)


class Net(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x + 1


class Watcher:
    """What is done around a layer, by Python."""

    def __init__(self, name: int, log: list[Any]) -> None:
        self.name, self.log = name, log

    def before(self, module: nn.Module, args: Any) -> Any:
        time.sleep(0)  # it breaks
        self.log.append(("before", self.name))
        return (args[0] * 1.5,)

    def after(self, module: nn.Module, args: Any, result: Any) -> Any:
        time.sleep(0)
        self.log.append(("after", self.name, float(result.sum())))
        return result - self.name

    def after_named(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        time.sleep(0)
        self.log.append(("named", self.name, sorted(kwargs)))
        return result + self.name


def watched(count: int, log: list[Any], **options: Any) -> Net:
    torch.manual_seed(0)
    net = Net([Layer() for _ in range(count)])
    for n, layer in enumerate(net.layers):
        watcher = Watcher(n, log)
        layer.register_forward_pre_hook(watcher.before)
        layer.register_forward_hook(watcher.after, **options)
    return net


def sizes(made: CompiledFunction) -> list[int]:
    return [len(each.entries) for each in made.family()]


def has_refused(made: CompiledFunction) -> bool:
    """Whether a call has been refused a further specialisation."""
    return any(each.limits.is_exhausted or each.limits.full for each in made.family())


class Twins:
    """A net as it is and compiled, each with a log; they are changed alike."""

    def __init__(self, make: Callable[[list[Any]], Net], **options: Any) -> None:
        self.logs: list[list[Any]] = [[], []]
        self.nets = [make(log) for log in self.logs]
        net = self.nets[1]
        self.made = compiled(lambda x: net(x), **options)

    def agree(self, times: int = 2) -> None:
        for _ in range(times):
            for log in self.logs:
                log.clear()
            expected = self.nets[0](X)
            assert torch.equal(self.made(X), expected)
            assert self.logs[0] == self.logs[1]

    def change(self, change: Callable[[Net, list[Any]], Any]) -> None:
        for net, log in zip(self.nets, self.logs, strict=True):
            change(net, log)


@pytest.mark.parametrize("always", [False, True])
def test_layers_that_are_alike_share_what_goes_on_after_their_hooks(always: bool) -> None:
    twins = Twins(lambda log: watched(12, log, always_call=always))
    twins.agree()
    before = sizes(twins.made)
    assert not has_refused(twins.made)
    assert always or max(before) <= 3, before
    twins.agree()
    assert sizes(twins.made) == before


def test_a_hook_that_comes_or_goes_later_is_noticed() -> None:
    twins = Twins(lambda log: watched(10, log))
    twins.agree()

    def add(net: Net, log: list[Any]) -> None:
        net.layers[4].register_forward_hook(Watcher(40, log).after)
        net.layers[6].register_forward_pre_hook(Watcher(60, log).before, prepend=True)

    def remove(net: Net, log: list[Any]) -> None:
        net.layers[4]._forward_hooks.popitem()
        net.layers[5]._forward_hooks.clear()
        net.layers[2]._forward_pre_hooks.clear()

    def replace(net: Net, log: list[Any]) -> None:
        layer = net.layers[3]
        layer._forward_hooks.clear()
        layer.register_forward_hook(Watcher(30, log).after_named, with_kwargs=True)
        net.layers[7]._forward_hooks.clear()
        net.layers[7].register_forward_hook(lambda module, args, result: result * 3)

    def turn(net: Net, log: list[Any]) -> None:
        net.layers[6]._forward_pre_hooks.move_to_end(next(iter(net.layers[6]._forward_pre_hooks)))
        net.layers[0], net.layers[3] = net.layers[3], net.layers[0]

    for change in (add, remove, replace, turn):
        twins.change(change)
        twins.agree()
    assert not has_refused(twins.made)


def test_tables_say_of_each_number_what_is_passed_to_its_hook() -> None:
    """The numbers are the same in kind and order; what other tables have under them is not."""

    def make(log: list[Any]) -> Net:
        torch.manual_seed(0)
        net = Net([Layer() for _ in range(8)])
        for n, layer in enumerate(net.layers):
            watcher = Watcher(n, log)
            first, last = watcher.after, watcher.after_named
            for named in (n & 1, n & 2):
                layer.register_forward_hook(last if named else first, with_kwargs=bool(named))
        return net

    twins = Twins(make)
    twins.agree()

    def swap(net: Net, log: list[Any]) -> None:
        """The table that tells is changed, and no hook is."""
        layer = net.layers[1]
        watcher = Watcher(100, log)
        numbers = list(layer._forward_hooks)
        for number, named in zip(numbers, (False, True), strict=True):
            layer._forward_hooks[number] = watcher.after_named if named else watcher.after
        layer._forward_hooks_with_kwargs.clear()
        layer._forward_hooks_with_kwargs[numbers[1]] = True

    twins.change(swap)
    twins.agree()
    assert not has_refused(twins.made)


def test_numbers_whose_values_matter_are_guarded() -> None:
    def make(log: list[Any]) -> Net:
        net = watched(3, log)
        torch.manual_seed(1)
        for n, layer in enumerate(list(net.layers)):
            other = Counting()
            for name in ("_forward_hooks", "_forward_pre_hooks"):
                hooks = getattr(layer, name)
                # Both nets have the same numbers.
                getattr(other, name).update({2 * n + k: h for k, h in enumerate(hooks.values())})
            net.layers[n] = other
        return net

    twins = Twins(make, recompile_limit=32)
    twins.agree()
    for wanted in (0, 2, 1, 4, 5):
        twins.change(lambda net, log, n=wanted: setattr(net.layers[1], "wanted", n))
        twins.agree(1)

    def renumber(net: Net, log: list[Any]) -> None:
        for n, layer in enumerate(net.layers):
            (hook,) = layer._forward_hooks.values()
            layer._forward_hooks.clear()
            layer._forward_hooks[7 - n] = hook

    twins.change(renumber)
    for wanted in (6, 7):
        twins.change(lambda net, log, n=wanted: setattr(net.layers[1], "wanted", n))
        twins.agree(1)


@pytest.mark.parametrize("place", range(5))
def test_copies_of_tables_have_numbers(place: int) -> None:
    def make(log: list[Any]) -> Net:
        net = watched(5, log)
        for n, layer in enumerate(net.layers):
            layer._forward_hooks[n] = layer._forward_hooks.popitem()[1]
            layer.__class__ = Copying
            layer.place = place
        return net

    twins = Twins(make, recompile_limit=32)
    twins.agree()


def test_tables_that_a_module_empties_are_empty() -> None:
    def make(log: list[Any]) -> Net:
        net = watched(6, log)
        for layer in net.layers:
            layer.__class__ = Emptying
        return net

    twins = Twins(make)
    twins.agree(2)
    assert not any(layer._forward_hooks for net in twins.nets for layer in net.layers)


def test_tables_that_a_hook_changes_are_changed_where_they_are() -> None:
    class Leaving(Watcher):
        handle: Any = None
        shifts = False

        def before(self, module: nn.Module, args: Any) -> Any:
            found = super().before(module, args)
            if self.shifts:
                module._forward_hooks.move_to_end(self.handle.id, last=False)
            elif self.handle is not None:
                self.handle.remove()
                self.handle = None
            return found

    def make(log: list[Any]) -> Net:
        torch.manual_seed(0)
        net = Net([Layer() for _ in range(10)])
        for n, layer in enumerate(net.layers):
            watcher = Leaving(n, log)
            layer.register_forward_pre_hook(watcher.before)
            handles = [layer.register_forward_hook(Watcher(10 * n + k, log).after) for k in (0, 1)]
            watcher.handle = handles[n % 3 == 1] if n % 3 else None
            watcher.shifts = n > 6 and bool(n % 3)
        return net

    twins = Twins(make)
    twins.agree(3)
    counts = [[len(layer._forward_hooks) for layer in net.layers] for net in twins.nets]
    assert counts[0] == counts[1]


def test_layers_of_many_kinds_have_specialisations_of_their_own() -> None:
    def make(log: list[Any]) -> Net:
        torch.manual_seed(0)
        net = Net([type(f"Layer{n}", (Layer,), {})(1 + n / 8) for n in range(12)])
        for n, layer in enumerate(net.layers):
            layer.register_forward_hook(Watcher(n, log).after)
        return net

    twins = Twins(make, recompile_limit=3)
    twins.agree()
    before = sizes(twins.made)
    assert max(before) >= 11, before
    assert not has_refused(twins.made)
    twins.agree()
    assert sizes(twins.made) == before


def test_the_limit_of_one_layer_is_not_that_of_others() -> None:
    def make(log: list[Any]) -> Net:
        torch.manual_seed(0)
        net = Net([Switched() for _ in range(3)])
        for n, layer in enumerate(net.layers):
            layer.register_forward_pre_hook(Watcher(n, log).before)
        return net

    twins = Twins(make, recompile_limit=3)
    for way in (None, True, False, "text", 2.5):
        twins.change(lambda net, log, way=way: setattr(net.layers[1], "way", way))
        twins.agree(1)
    assert has_refused(twins.made)
    before = sum(sizes(twins.made))
    twins.change(lambda net, log: setattr(net.layers[0], "way", ()))
    twins.agree(1)
    assert sum(sizes(twins.made)) > before
