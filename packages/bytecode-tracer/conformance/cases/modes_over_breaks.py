"""Function modes of torch over graph breaks, around calls, and with devices among them."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.declare import case, scenario, t


def _plain():
    return [(t(3),), (t(2),), (t(3, start=2),)]


class Scaled(TorchFunctionMode):
    """The sine times a factor."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.sin else result


class Recording(TorchFunctionMode):
    def __init__(self, seen, name="a"):
        super().__init__()
        self.seen, self.name = seen, name

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append((self.name, getattr(func, "__name__", ""), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Negating(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.ops.aten.sin.default else result


def _broken(x):
    """One graph break."""
    print(x.sum() > 1e6)
    return x


@case(_plain)
def break_inside(x):
    with Scaled(3):
        y = torch.sin(x)
        _broken(x)
        z = torch.sin(y) + 1
    return z, torch.sin(z)


@case(_plain)
def break_inside_nested(x):
    with Scaled(3):
        with Scaled(5.0):
            y = torch.sin(x)
            _broken(x)
            y = torch.sin(y)
        y = torch.sin(y)
    return torch.sin(y)


def _under(x):
    with Scaled(3):
        y = torch.sin(x)
        _broken(y)
        return torch.sin(y) + 1


@case(_plain)
def break_inside_a_function(x):
    return _under(x) * torch.sin(x)


@case(_plain)
def break_in_a_loop_inside(x):
    with Scaled(2.0):
        for _ in range(3):
            x = torch.sin(x)
            _broken(x)
    return torch.sin(x)


@case(_plain)
def two_breaks_inside(x):
    with Scaled(2.0):
        x = _broken(torch.sin(x))
        x = torch.cos(x) + torch.sin(x)
        x = _broken(x)
        x = torch.sin(x)
    return x


@case(_plain)
def mode_with_state_over_a_break(x):
    seen = []
    with Recording(seen):
        y = torch.sin(x)
        _broken(x)
        y = y + torch.cos(y)
    return y, seen


@case(lambda: [(t(3), []), (t(2), []), (t(3, start=2), [])])
def records_to_an_argument_over_a_break(x, seen):
    with Recording(seen):
        y = torch.sin(x)
        _broken(x)
        y = y + torch.cos(y)
    return y


@case(lambda: [(t(3), f) for f in (2.0, 2.0, 3.0)])
def state_of_the_mode_changes(x, factor):
    with Scaled(factor) as mode:
        y = torch.sin(x)
        _broken(x)
        mode.factor += 1
        y = torch.sin(y)
        _broken(x)
        y = torch.sin(y)
    return y, mode.factor


@case(_plain)
def error_after_a_break_inside(x):
    try:
        with Scaled(2.0):
            y = torch.sin(x)
            _broken(x)
            torch.sin(y).view(7)
    except RuntimeError:
        return torch.sin(x)


@case(_plain)
def error_raised_after_a_break_inside(x):
    with Scaled(2.0):
        y = torch.sin(x)
        _broken(x)
        if torch.sin(y).dim() == 1:
            raise ValueError("one dimension")


@case(lambda: [(t(3), torch.tensor([p])) for p in (0, 7, 1)])
def fails_late_after_a_break_inside(x, places):
    with Scaled(2.0):
        y = torch.sin(x)
        _broken(x)
        x.add_(1)
        return torch.index_select(torch.sin(y), 0, places)


@case(_plain)
def break_with_no_grad_inside(x):
    with torch.no_grad(), Scaled(2.0), torch.autocast("cpu"):
        y = torch.sin(x)
        _broken(x)
        y = torch.sin(y) + torch.is_grad_enabled()
    return y


@case(_plain)
def generator_under_a_mode(x):
    def rows():
        with Scaled(2.0):
            yield torch.sin(x)
            _broken(x)
            yield torch.sin(x) + 1

    return [torch.sin(row) for row in rows()]


@case(_plain)
def exit_stack_over_a_break(x):
    with contextlib.ExitStack() as stack:
        for factor in (2.0, 3.0):
            stack.enter_context(Scaled(factor))
        y = torch.sin(x)
        _broken(x)
        y = torch.sin(y)
    return torch.sin(y)


@case(_plain)
def functions_off_over_a_break(x):
    with Scaled(2.0):
        with torch._C.DisableTorchFunction():
            y = torch.sin(x)
            _broken(x)
            y = torch.sin(y)
        return torch.sin(y)


# Around the call.


def _around(make):
    def drive(function, x, seen, *rest):
        with contextlib.ExitStack() as stack:
            for mode in make(seen):
                stack.enter_context(mode)
            try:
                result = function(x, *rest)
            finally:
                after = len(torch.overrides._get_current_function_mode_stack())
        return result, list(seen), after

    return drive


def _recorded():
    return [(t(3), []), (t(2), []), (t(3, start=2), [])]


@case(_recorded, drive=_around(lambda seen: [Recording(seen)]))
def break_under(x):
    y = _broken(torch.sin(x))
    return y + torch.cos(y)


@case(_recorded, drive=_around(lambda seen: [Scaled(3.0), Scaled(2.0)]))
def nested_under(x):
    y = _broken(torch.sin(x))
    with Scaled(5.0):
        y = _broken(torch.sin(y))
    return torch.sin(y)


@case(_recorded, drive=_around(lambda seen: [torch.device("meta"), Recording(seen)]))
def mode_over_a_device(x):
    return x + 1, torch.zeros(2).device.type, torch.ones(2, device="cpu")


@case(_recorded, drive=_around(lambda seen: [Recording(seen), torch.device("meta")]))
def device_over_a_mode(x):
    y = torch.zeros(2).device.type
    _broken(x)
    return x + 1, y, torch.zeros(2).device.type


@case(_recorded, drive=_around(lambda seen: [Scaled(2.0)] if len(seen) == 0 else []))
def other_modes_next_time(x):
    seen = torch.sin(x)
    return seen


def _other_modes():
    for number, factor in enumerate((2.0, None, 3.0, 2.0)):
        yield t(3), factor, number


def _changing(function, x, factor, number):
    with contextlib.nullcontext() if factor is None else Scaled(factor):
        return function(x)


@case(_other_modes, drive=_changing)
def modes_come_and_go(x):
    y = _broken(torch.sin(x))
    return torch.sin(y)


@case(_recorded, drive=_around(lambda seen: [Negating()]))
def dispatch_mode_around(x):
    y = _broken(torch.sin(x))
    return torch.sin(y)


@case(_plain)
def dispatch_mode_over_a_break(x):
    with Negating():
        y = torch.sin(x)
        _broken(x)
        y = torch.sin(y)
    return torch.sin(y)


# Devices.


@case(lambda: [(3, "cpu"), (3, "meta"), (2, "meta")])
def device_over_a_break(n, name):
    with torch.device(name):
        a = torch.zeros(n)
        print(a.device.type, torch.ones(1, device="cpu").sum() > 3)
        b = torch.ones(n)
    return a.device.type, b.device.type, torch.empty(n).device.type


@case(_plain)
def device_inside_a_mode(x):
    seen = []
    with Recording(seen), torch.device("meta"):
        a = torch.zeros(3)
    return a.device.type, seen, x + 1


@case(_plain)
def mode_inside_a_device(x):
    seen = []
    with torch.device("meta"), Recording(seen):
        a = torch.zeros(3)
        b = torch.zeros(3, device="cpu")
    return a.device.type, b, seen, x + 1


@case(_plain)
def mode_and_device_over_a_break(x):
    with torch.device("meta"), Scaled(2.0):
        y = torch.sin(x)
        _broken(x)
        return torch.sin(y), torch.zeros(2).device.type


def _default_device(function, x, name):
    torch.set_default_device(name)
    try:
        return function(x, name), str(torch.get_default_device())
    finally:
        torch.set_default_device(None)


@case(lambda: [(t(3), None), (t(3), "meta"), (t(3), "cpu")], drive=_default_device)
def default_device_around(x, name):
    y = torch.zeros(3).device.type
    _broken(x)
    return x * 2, y, torch.ones(2).device.type, str(torch.get_default_device())


@case(lambda: [(t(3), None), (t(3), "meta"), (t(3), "cpu")], drive=_default_device)
def default_device_around_and_a_mode(x, name):
    with Scaled(2.0):
        y = torch.zeros(3).device.type
        _broken(x)
        return torch.sin(x), y, torch.ones(2).device.type


@case(lambda: [(t(3), "cpu"), (t(3), "meta"), (t(3), "meta")])
def default_device_set(x, name):
    torch.set_default_device(name)
    y = torch.zeros(3)
    torch.set_default_device(None)
    return y.device.type, torch.zeros(2), x + 1


@case(lambda: [(t(3), "cpu"), (t(3), "meta"), (t(3), "meta")], drive=_default_device)
def default_device_changed(x, name):
    before = torch.zeros(1).device.type
    torch.set_default_device("cpu" if name == "meta" else "meta")
    return before, torch.zeros(3).device.type, x + 1, str(torch.get_default_device())


@scenario(lambda *_: _plain())
def module_under_a_mode():
    layer = nn.Linear(2, 2)

    def program(x):
        with Scaled(2.0):
            y = layer(torch.sin(torch.ones(1, 2)))
            _broken(x)
            return layer(y) + torch.sin(x).sum()

    return program


@case(lambda: [(t(3), torch.tensor([p])) for p in (0, 7, 1)], drive=_default_device)
def fails_in_the_graph_after_a_break(x, places):
    try:
        with Scaled(2.0):
            y = torch.sin(x)
            _broken(x)
            return torch.index_select(torch.sin(y), 0, places)
    finally:
        print(len(torch.overrides._get_current_function_mode_stack()))


@case(lambda: [(t(3), torch.tensor([p])) for p in (0, 7, 1)])
def fails_in_a_graph_that_writes_after_a_break(x, places):
    with torch.device("cpu"), Scaled(2.0):
        y = torch.sin(x)
        _broken(x)
        y.add_(1)
        return torch.index_select(torch.sin(y), 0, places)


@case(lambda: [(t(3), "meta"), (t(3), "cpu"), (t(3), None)])
def default_device_over_a_break(x, name):
    torch.set_default_device(name)
    y = torch.zeros(2)
    _broken(x)
    z = torch.ones(2)
    torch.set_default_device(None)
    return y.device.type, z.device.type, torch.zeros(2).device.type


@case(lambda: [(t(3), "meta"), (t(3), "cpu")])
def default_device_in_a_mode(x, name):
    with Scaled(2.0):
        torch.set_default_device(name)
        y = torch.zeros(2)
        _broken(x)
        z = torch.sin(torch.ones(2))
    w = torch.zeros(2)
    torch.set_default_device(None)
    return y.device.type, z.device.type, w.device.type, torch.sin(x)


@case(lambda: [(t(3), "meta"), (t(3), "cpu")])
def default_device_in_a_device(x, name):
    with torch.device("cpu"):
        torch.set_default_device(name)
        y = torch.zeros(2)
        torch.set_default_device(None)
    return y.device.type, torch.sin(x)


@case(_plain)
def mode_left_before_a_break(x):
    with Scaled(2.0):
        y = torch.sin(x)
    _broken(x)
    with Scaled(3.0):
        return torch.sin(y)


@case(_plain)
def mode_of_a_break_in_its_own_code(x):
    class Telling(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.cos:
                _broken(result)
            return result

    with Telling(), Scaled(2.0):
        return torch.cos(torch.sin(x)) + torch.sin(x)


@case(_plain)
def entered_by_hand(x):
    mode = Scaled(2.0)
    mode.__enter__()
    y = torch.sin(x)
    _broken(x)
    z = torch.sin(y)
    mode.__exit__(None, None, None)
    return z, torch.sin(y)


def _nested_call(x):
    _broken(x)
    with Scaled(7.0):
        return torch.sin(_broken(x))


@case(_plain)
def callers_with_modes(x):
    with Scaled(2.0):
        y = _nested_call(x)
        z = torch.sin(x)
    return y, z, torch.sin(x)
