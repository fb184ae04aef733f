"""Hooks of modules that do more than compute: record, print, read what changes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from conformance.declare import scenario, t
from conformance.gradients import go_backward as _backward
from conformance.hooked import Net, Scaled
from conformance.hooked import needing_gradients as _grads
from conformance.hooked import net_with as _net
from conformance.hooked import without_gradients as _without

# Backward hooks.


@scenario(lambda *_: _grads(), then=_backward)
def records_in_a_list():
    seen = []
    return _net(full=[lambda m, gi, go: seen.append(go[0].clone())]), seen


@scenario(lambda *_: _grads(), then=_backward)
def records_in_a_dict():
    seen = {}

    def hook(m, gi, go):
        seen["norm"] = gi[0].norm()
        seen["count"] = seen.get("count", 0) + 1

    net = _net(full=[hook])
    return net, seen


@scenario(lambda *_: _grads(), then=_backward)
def prints():
    return _net(full=[lambda m, gi, go: print("backward", type(m).__name__, gi[0].shape)])


@scenario(lambda *_: _grads(), then=_backward)
def prints_before_and_after():
    return _net(
        pre=[lambda m, go: print("before", go[0].shape)],
        full=[lambda m, gi, go: print("after", m.factor)],
    )


@scenario(lambda *_: _grads(), then=_backward)
def reads_the_module():
    return _net(full=[lambda m, gi, go: (gi[0] * m.factor,)])


@scenario(lambda *_: _grads(), then=_backward)
def reads_a_parameter_of_the_module():
    return _net(full=[lambda m, gi, go: (gi[0] @ m.inner.weight,)])


def _factors(net):
    for number, args in enumerate(_grads()):
        net.hooked.factor = number + 1.0
        yield args


@scenario(_factors)
def changed_between_forward_and_backward():
    net = _net(full=[lambda m, gi, go: (gi[0] * m.factor,)])
    return net, net


def _later(result):
    result[1].hooked.factor = 7.0
    _backward(result)


class Returning(Net):
    def forward(self, x):
        return super().forward(x), self


@scenario(_factors, then=_later)
def changed_before_backward():
    net = Returning(Scaled())
    net.hooked.register_full_backward_hook(lambda m, gi, go: (gi[0] * m.factor,))
    return net, net


SCALE = 2.0


def _globals(net):
    global SCALE
    for number, args in enumerate(_grads()):
        SCALE = number + 1.0
        yield args


@scenario(_globals, then=_backward)
def reads_a_global():
    net = _net(full=[lambda m, gi, go: (gi[0] * SCALE,)])
    return net, net


@scenario(lambda *_: _grads(), then=_backward)
def writes_to_the_module():
    def hook(m, gi, go):
        m.calls = getattr(m, "calls", 0) + 1
        m.last = gi[0].detach()

    net = _net(full=[hook])
    return net, net


@scenario(lambda *_: _grads(), then=_backward)
def branches_on_the_gradient():
    return _net(full=[lambda m, gi, go: (gi[0] / 2,) if gi[0].norm() > 1 else None])


class Pair(nn.Module):
    def forward(self, x):
        return x * 2, x.sin()


class UsesOne(nn.Module):
    def __init__(self, both=False):
        super().__init__()
        self.hooked, self.both = Pair(), both

    def forward(self, x):
        one, two = self.hooked(x * 1)
        return one * two if self.both else one + 1


@scenario(lambda *_: _grads(), then=_backward)
def several_results():
    net = UsesOne(True)
    net.hooked.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    return net


@scenario(lambda *_: _grads(), then=_backward)
def several_results_of_which_one_is_used():
    seen = []
    net = UsesOne()
    net.hooked.register_full_backward_hook(lambda m, gi, go: seen.append([g is None for g in go]))
    return net, seen


@scenario(lambda *_: _without(), then=_backward)
def input_without_gradient():
    net = Scaled()
    net.register_full_backward_hook(lambda m, gi, go: None)
    return net


@scenario(lambda *_: _without(), then=_backward)
def input_without_gradient_that_records():
    seen = []
    net = Scaled()
    net.register_full_backward_hook(lambda m, gi, go: seen.append((gi[0] is None, go[0].sum())))
    return net, seen


class Breaking(Scaled):
    def forward(self, x):
        y = self.inner(x)
        print(y.sum() > 1e6)
        return y.tanh() * 2


@scenario(lambda *_: _grads(), then=_backward)
def breaks_inside():
    return _net(full=[lambda m, gi, go: (gi[0] * 2,)], hooked=Breaking())


@scenario(lambda *_: _grads())
def backward_in_the_call_that_records():
    seen = []
    net = _net(full=[lambda m, gi, go: seen.append(go[0].sum())])

    def program(x):
        net(x).sum().backward()
        return x.grad

    return program, (net, seen)


@scenario(lambda *_: [(t(n, 3, grad=True),) for n in (2, 4, 5, 3)], then=_backward, dynamic=True)
def symbolic_sizes():
    return _net(full=[lambda m, gi, go: (gi[0] * 2,)])


@scenario(lambda *_: [(t(n, 3, grad=True),) for n in (2, 4, 5, 3)], then=_backward)
def sizes_that_change():
    return _net(full=[lambda m, gi, go: (gi[0] * 2,)])


def _globally(function, x):
    seen = []

    def hook(module, given, made):
        if not isinstance(module, Net):  # a compiled module is of a class of its own
            seen.append(type(module).__name__)

    handle = nn_module.register_module_full_backward_hook(hook)
    try:
        result = function(x)
        result.sum().backward()
    finally:
        handle.remove()
    return result, seen


@scenario(lambda *_: _grads(), drive=_globally)
def global_backward_hook_that_records():
    return _net()


# Forward hooks.


def _forward_hooks(function, x):
    seen = []
    handles = [
        nn_module.register_module_forward_hook(lambda m, i, o: seen.append(o.shape)),
        nn_module.register_module_forward_pre_hook(lambda m, i: seen.append(len(i))),
    ]
    try:
        return function(x), seen
    finally:
        for handle in handles:
            handle.remove()


@scenario(lambda *_: _without(), drive=_forward_hooks)
def global_forward_hooks_that_record():
    return _net()


@scenario(lambda *_: _without())
def forward_hooks_that_count():
    net = _net()
    net.hooked.count = 0

    def hook(m, i, o):
        m.count += 1
        m.seen.append(o.shape)
        return o + m.count

    net.hooked.register_forward_hook(hook)
    net.first.register_forward_pre_hook(lambda m, i: print("first", i[0].shape))
    return net, net


@scenario(lambda *_: _without())
def forward_hook_that_breaks():
    net = _net()
    net.hooked.register_forward_hook(lambda m, i, o: print(o.sum() > 1e6))
    net.last.register_forward_pre_hook(lambda m, i: (i[0] * 2,))
    return net


@scenario(lambda *_: _without())
def forward_hook_that_removes_itself():
    net = _net()

    def hook(m, i, o):
        handle.remove()
        return o * 2

    handle = net.hooked.register_forward_hook(hook)
    return net, net


@scenario(lambda *_: _without())
def hook_registered_and_removed_inside():
    net, seen = _net(), []

    def program(x):
        handle = net.hooked.register_forward_hook(lambda m, i, o: seen.append(o.sum()))
        y = net(x)
        handle.remove()
        return y + net(x)

    return program, (net, seen)


@scenario(lambda *_: _without())
def state_dict_hooks():
    net = _net()
    net._register_state_dict_hook(lambda m, d, prefix, meta: d.update(extra=torch.ones(1)))
    net.register_state_dict_pre_hook(lambda m, prefix, keep: print("saving", prefix))

    def program(x):
        state = net.state_dict()
        return sorted(state), net(x), state["first.weight"] * 2

    return program


@scenario(lambda *_: _without())
def load_state_dict_hooks():
    net = _net()
    net.register_load_state_dict_pre_hook(lambda m, d, prefix, *rest: d.pop("extra"))
    net.register_load_state_dict_post_hook(lambda m, keys: print(keys.missing_keys))

    def program(x):
        state = {k: v + 1 for k, v in net.state_dict().items()}
        state["extra"] = x
        net.load_state_dict(state)
        return net(x)

    return program, net


@scenario(lambda *_: _without())
def pre_hook_that_removes_itself():
    net, seen = _net(), []

    def hook(m, i):
        seen.append(i[0].shape)
        handle.remove()

    handle = net.register_forward_pre_hook(hook)
    return net, (net, seen)


@scenario(lambda *_: _without())
def hook_that_removes_another():
    net, seen = _net(), []
    handle = net.last.register_forward_hook(lambda m, i, o: o * 3)

    def hook(m, i, o):
        handle.remove()
        seen.append(len(net.last._forward_hooks))

    net.first.register_forward_hook(hook)
    return net, (net, seen)


@scenario(lambda *_: _without())
def hooks_taken_away_with_the_module():
    net = _net()
    handle = net.hooked.register_forward_hook(lambda m, i, o: o * 3)

    def program(x):
        net.hooked = nn.Identity()
        handle.remove()
        return net(x)

    return program, net


@scenario(lambda *_: _without())
def global_hook_removed_inside():
    net, seen = _net(), []

    def program(x):
        handle = nn_module.register_module_forward_hook(lambda m, i, o: seen.append(o.shape))
        y = net(x)
        handle.remove()
        return y + net(x)

    return program, (net, seen)


@scenario(lambda *_: _without())
def hooks_cleared_and_set_again():
    net, seen = _net(), []
    net.hooked.register_forward_hook(lambda m, i, o: o * 3)

    def program(x):
        hooks = dict(net.hooked._forward_hooks)
        net.hooked._forward_hooks.clear()
        y = net(x)
        net.hooked._forward_hooks.update(hooks)
        return y, net(x)

    return program, net
