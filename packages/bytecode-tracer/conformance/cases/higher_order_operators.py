"""Torch's operators that take functions: scans, branches, maps."""

from __future__ import annotations

import torch
from torch._higher_order_ops.associative_scan import associative_scan

from conformance.declare import case, t

SCALE = 2.0


def joined(first, second):
    return {"a": first["a"] * second["a"], "b": second["a"] * first["b"] + second["b"]}


@case(lambda: [(t(4, 5),), (t(7, 3),), (t(1, 2),)])
def running_sum(x):
    return associative_scan(lambda a, b: a + b, x * 2, 0, combine_mode="generic")


@case(lambda: [(t(4, 5), 1, True), (t(4, 5), 0, False), (t(3, 6), -1, True)])
def running_maximum(x, dim, reverse):
    return associative_scan(torch.maximum, x, dim, reverse=reverse, combine_mode="generic") + 1


@case(lambda: [(t(5, 3), t(5, 3)), (t(2, 4), t(2, 4))])
def linear_recurrence(gate, x):
    states = associative_scan(joined, {"a": gate.sigmoid(), "b": x}, 0, combine_mode="generic")
    return states["b"] * gate, states


@case(lambda: [(t(4, 5),), (t(6, 2),)])
def of_what_a_global_scales(x):
    global SCALE
    SCALE = SCALE + x.shape[0]
    return associative_scan(lambda a, b: a + b, x * SCALE, 1, combine_mode="generic")


@case(lambda: [(t(4, 5, grad=True),), (t(3, 2, grad=True),)])
def with_gradients(x):
    y = associative_scan(lambda a, b: a * b, x.sigmoid(), 0, combine_mode="generic")
    (found,) = torch.autograd.grad(y.sum(), x)
    return y, found


@case(lambda: [(t(4), 3), (torch.zeros(0, 2), 0), (t(3), 0)])
def what_is_refused(x, dim):
    return associative_scan(lambda a, b: a + b, x, dim, combine_mode="generic")


@case(lambda: [(t(4),), (t(4),)])
def modes_that_a_cpu_lacks(x):
    return associative_scan(lambda a, b: a + b, x, 0)


@case(lambda: [(t(4, 5), True), (t(4, 5), False), (t(2, 2), 3)])
def branches_of_numbers(x, which):
    return torch.cond(which, lambda x: x + 1, lambda x: x.sin(), (x * 2,)) * 3
