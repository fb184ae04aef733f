"""Backward hooks of modules: traced into the graph where they only compute, else left to Python."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case, scenario, t
from conformance.gradients import go_backward as _backward
from conformance.gradients import go_backward_twice as _twice
from conformance.hooked import Scaled, net_with
from conformance.hooked import linear as _linear
from conformance.hooked import needing_gradients as _grads
from conformance.hooked import without_gradients as _without


class Several(nn.Module):
    def forward(self, x, y):
        return x * y, "text", (x + y).detach()


class Calling(nn.Module):
    """A module whose forward is given."""

    def __init__(self, hooked, function):
        super().__init__()
        self.hooked, self.function = hooked, function

    def forward(self, *args):
        return self.function(self.hooked, *args)


def _doubled(module, inputs, outputs):
    return (inputs[0] * 2, *inputs[1:])


def _clipped(module, outputs):
    return tuple(None if grad is None else grad.clamp(-0.5, 0.5) for grad in outputs)


def _net(**hooks):
    made = net_with(**hooks)
    return made, made


@scenario(lambda net: _grads(), then=_backward)
def full_hook():
    return _net(full=[_doubled])


@scenario(lambda net: _grads(), then=_backward)
def pre_hook():
    return _net(pre=[_clipped])


@scenario(lambda net: _grads(), then=_backward)
def both_kinds():
    return _net(pre=[_clipped, lambda m, go: [go[0] * 3]], full=[_doubled, lambda m, gi, go: None])


@scenario(lambda net: _grads(), then=_backward)
def uses_gradients_of_outputs():
    return _net(full=[lambda m, gi, go: (gi[0] + go[0].sum(),)], pre=[_clipped])


@scenario(lambda net: _grads(), then=_backward)
def returns_nothing():
    return _net(full=[lambda m, gi, go: None], pre=[lambda m, go: None])


@scenario(lambda net: _without(), then=_backward)
def input_without_gradient():
    net, _ = _net(full=[_doubled])
    net.first.register_full_backward_hook(lambda m, gi, go: None)
    return net, net


@scenario(lambda net: _without(), then=_backward)
def inner_input_without_gradient():
    return _net(full=[_doubled], pre=[_clipped])


@scenario(lambda net: _grads(), then=_backward)
def records_what_it_sees():
    seen = []
    net, _ = _net(full=[lambda m, gi, go: seen.append(go[0].clone())])
    return net, (net, seen)


@scenario(lambda net: _grads(), then=_backward)
def reads_the_module():
    return _net(full=[lambda m, gi, go: (gi[0] * m.factor,)])


def _factors(net):
    for number, args in enumerate(_grads()):
        net.hooked.factor = number + 1.0
        yield args


@scenario(_factors, then=_backward)
def reads_what_changes():
    return _net(full=[lambda m, gi, go: (gi[0] * m.factor,)])


SCALE = 2.0


def _globals(net):
    global SCALE
    for number, args in enumerate(_grads()):
        SCALE = number + 1.0
        yield args


@scenario(_globals, then=_backward)
def reads_a_global():
    return _net(full=[lambda m, gi, go: (gi[0] * SCALE,)])


def _other_hooks(net):
    hooks = net.hooked._backward_hooks  # by numbers that do not count the hooks of tensors
    for factor, args in zip((1.0, 2.0, None), _grads(), strict=True):
        hooks.clear()
        if factor is not None:
            hook = eval(f"lambda m, gi, go: (gi[0] * {factor},)", {})
            net.hooked.register_full_backward_hook(hook)
            hooks[int(factor)] = hooks.popitem()[1]
        yield args


@scenario(_other_hooks, then=_backward)
def hooks_come_and_go():
    return _net()


@scenario(lambda net: _grads(), then=_backward)
def several_results():
    hooked = Several()
    hooked.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2, gi[1] * go[0]))
    hooked.register_full_backward_pre_hook(_clipped)
    net = Calling(hooked, lambda hooked, x: hooked(x * 2, x + 1)[0])
    return net, net


class Pair(nn.Module):
    def forward(self, x):
        return x * 2, x.sin()


@scenario(lambda net: _grads(), then=_backward)
def two_results_of_which_one_is_used():
    hooked = Pair()
    hooked.register_full_backward_hook(lambda m, gi, go: (gi[0] * (2 if go[1] is None else 3),))
    net = Calling(hooked, lambda hooked, x: hooked(x * 2)[0] if x.shape[0] > 2 else sum(hooked(x)))
    return net, net


@scenario(lambda net: [(*args, "k") for args in _grads()], then=_backward)
def other_arguments():
    hooked = Scaled()
    hooked.register_full_backward_hook(_doubled)
    net = Calling(hooked, lambda hooked, x, key: hooked(x * 1, x if key == "k" else None, bias=1.0))
    return net, net


@scenario(lambda net: [(t(2, 3, grad=True), on) for on in (True, False, True)], then=_backward)
def without_gradients():
    hooked = Scaled()
    hooked.register_full_backward_hook(_doubled)

    class Switched(nn.Module):
        def forward(self, x, on):
            with torch.set_grad_enabled(on):
                return hooked(x * 2)

    return Switched(), hooked


@scenario(lambda net: [(t(2, 3, grad=True),) for _ in range(3)], then=_backward)
def no_gradients_inside():
    class Inner(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                return x * 2

    return _net(full=[_doubled], hooked=Inner())


@scenario(lambda net: [(t(2, 3, grad=True), n) for n in (1, 2, 1)], then=_backward)
def breaks_inside():
    class Printing(nn.Module):
        def forward(self, x):
            y = x * 2
            if float(y.sum()) > 1000:
                return y
            return y.sin()

    hooked = Printing()
    hooked.register_full_backward_hook(_doubled)
    hooked.register_full_backward_pre_hook(_clipped)

    class Around(nn.Module):
        def forward(self, x, n):
            return hooked(x * n) + 1

    return Around(), hooked


@scenario(lambda net: _grads(), then=_backward)
def in_place_on_what_it_gives():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.hooked = Scaled()
            self.hooked.register_full_backward_hook(_doubled)

        def forward(self, x):
            y = self.hooked(x * 1)
            try:
                y.add_(1)
            except RuntimeError:
                y = y + 2
            return y

    made = Around()
    return made, made


@scenario(lambda net: _grads(), then=_twice)
def differentiated_twice():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.hooked = Scaled()
            self.hooked.register_full_backward_hook(lambda m, gi, go: (gi[0] * go[0],))

        def forward(self, x):
            return self.hooked(x * x), x

    made = Around()
    return made, made


@scenario(lambda net: _grads())
def backward_in_the_call():
    net, _ = _net(full=[_doubled], pre=[_clipped])

    def step(x):
        loss = net(x).square().sum()
        loss.backward()
        return loss.detach()

    return step, net


@scenario(lambda net: _grads())
def gradients_in_the_call():
    net, _ = _net(full=[_doubled], pre=[_clipped])

    def step(x):
        return torch.autograd.grad(net(x).square().sum(), [x, net.first.weight])

    return step, net


@case(_grads, then=_backward)
def of_a_module_that_the_code_makes(x):
    handles = [
        nn.modules.module.register_module_full_backward_hook(_doubled),
        nn.modules.module.register_module_full_backward_pre_hook(_clipped),
    ]
    try:
        return _linear()(x * 2)
    finally:
        for handle in handles:
            handle.remove()


def _with_global(net):
    for number, args in enumerate(_grads()):
        handle = None
        if number != 1:
            handle = nn.modules.module.register_module_full_backward_hook(_doubled)
        yield args
        if handle is not None:
            handle.remove()


@scenario(_with_global)
def global_hooks_around():
    net, _ = _net()

    def step(x):
        loss = net(x * 2).square().sum()
        loss.backward()
        return loss.detach()

    return step, net


@scenario(lambda net: _grads(), then=_backward)
def raises_in_the_hook():
    def refused(module, inputs, outputs):
        raise ValueError("refused")

    net, _ = _net(full=[refused])

    class Around(nn.Module):
        def forward(self, x):
            y = net(x)
            try:
                y.sum().backward()
            except ValueError as error:
                return str(error), y.detach()
            return y

    return Around(), net


@scenario(lambda net: _grads(), then=_backward)
def wrong_number_of_gradients():
    net, _ = _net(full=[lambda m, gi, go: (gi[0], gi[0])])

    def step(x):
        y = net(x)
        try:
            y.sum().backward()
        except RuntimeError as error:
            return str(error)
        return y

    return step, net
