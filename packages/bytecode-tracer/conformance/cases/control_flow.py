"""Branches and loops over known values, shapes and data."""

from __future__ import annotations

import torch

from conformance.declare import case, shapes, t, with_x


@case(with_x(1, 2, 3, 7))
def if_elif_else(x, n):
    if n == 1:
        y = x + 1
    elif n == 2:
        y = x * 2
    elif n > 5:
        y = -x
    else:
        y = x
    return y


@case(with_x(True, False, 1, 0, None, "a"))
def flag(x, value):
    if value:
        x = x + 1
    return x if not value else x * 2


@case(with_x(5, 3, 0))
def while_with_break(x, n):
    i = 0
    while True:
        if i >= n:
            break
        i += 1
        if i == 2:
            continue
        x = x + i
    else:
        x = x * 100
    return x, i


@case(with_x(3, 0))
def while_else(x, n):
    while n:
        n -= 1
    else:
        x = x + 1
    return x


@case(with_x(2, 4))
def nested_loops(x, n):
    total = 0
    for i in range(n):
        for j in range(i, n):
            if j == 3:
                break
            total += i * j
        else:
            total += 100
    return x + total


@case(shapes((2, 3), (4, 3), (2, 5), (1, 1), (2, 3)))
def branch_on_shape(x):
    if x.shape[0] == 2:
        return x.sum(0)
    return x.sum(1) if x.size(1) > 2 else x.mean()


@case(shapes((2, 3), (6,), (1, 2, 3), (), (2, 3)))
def branch_on_rank(x):
    if x.dim() == 2:
        return x.t()
    if x.ndim == 1:
        return x.flip(0)
    return x.reshape(-1)


@case(lambda: [(t(2),), (t(2).double(),), (t(2, dtype=torch.int64),), (t(2),)])
def branch_on_dtype(x):
    if x.dtype is torch.float32:
        return x + 1
    return x * 2 if x.is_floating_point() else x // 2


@case(lambda: [(t(2),), (t(2, grad=True),), (t(2),)])
def branch_on_requires_grad(x):
    return x * 2 if x.requires_grad else x + 1


@case(lambda: [(t(2, 3),), (t(3, 2).t(),), (t(2, 6)[:, ::2],), (t(2, 3),)])
def branch_on_contiguity(x):
    return x + 1 if x.is_contiguous() else (x.contiguous(), x.stride())


@case(lambda: [(t(2),), (t(2, start=1),), (t(2, start=-9),), (t(2),)])
def branch_on_data(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


@case(lambda: [(t(2),), (t(2, start=1),), (t(2, start=-9),)])
def nested_branch_on_data(x):
    y = x + 1
    if y[0] > 0:
        if y[1] > 1:
            y = y * 2
        else:
            y = y - 2
    return y + 1


@case(lambda: [(t(3),), (t(3, start=2),), (t(3, start=9),)])
def while_on_data(x):
    steps = 0
    while x.sum() < 10:
        x = x + 1
        steps += 1
    return x, steps


@case(lambda: [(t(3),), (t(3, start=2),)])
def loop_with_data_dependent_break(x):
    out = []
    for i in range(4):
        y = x * i
        if y.max() > 2:
            break
        out.append(y)
    return out, i


@case(lambda: [(torch.tensor(1),), (torch.tensor(0),), (torch.tensor(True),), (torch.tensor(2.5),)])
def truth_of_tensor(x):
    return "yes" if x else "no", not x, x and 5, bool(x)


@case(lambda: [(t(2),), (t(1),), (t(0),)])
def truth_of_larger_tensor(x):
    return x + 1 if x else x


@case(with_x(None, "a", 1))
def is_none(x, value):
    return x if value is None else (x, value)


@case(with_x(2, 3))
def try_in_loop(x, n):
    out = []
    for i in range(n + 1):
        try:
            out.append(6 // (i - 1))
        except ZeroDivisionError:
            out.append("zero")
            continue
    return out, x


@case(with_x(0, 1, 2, 3))
def state_machine(x, n):
    state = "start"
    for step in range(n):
        if state == "start":
            state, x = "middle", x + 1
        elif state == "middle":
            state, x = "end", x * 2
        else:
            state = "start"
    return state, x


@case(with_x(10, 97, 1))
def number_theory(x, n):
    def is_prime(k):
        return k > 1 and all(k % d for d in range(2, int(k**0.5) + 1))

    return x * len([k for k in range(n) if is_prime(k)])


@case(with_x(0, 5, 9))
def fibonacci(x, n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return x + a


@case(with_x([3, 1, 2], [1], []))
def bubble_sort(x, items):
    for i in range(len(items)):
        for j in range(len(items) - 1 - i):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items, x


@case(with_x(4, 3))
def large_loop(x, n):
    for i in range(30):
        x = x + (i % n)
    return x


@case(with_x(1, 2))
def pass_and_ellipsis(x, n):
    if n == 1:
        pass
    else:
        ...
    for _ in ():
        x = None
    return x


@case(lambda: [(t(3), t(3)), (t(3), t(4)[1:]), (t(3), t(2))])
def branch_on_equal(a, b):
    if torch.equal(a, b):
        return a + b
    return a - 1


@case(lambda: [(t(3),), (t(3, start=1),)])
def data_in_boolean_operators(x):
    if x.min() > 0 and x.max() < 9 or x.numel() == 0:
        return x + 1
    return x


@case(lambda: [(t(3),), (t(3, start=1),)])
def data_in_assert(x):
    assert (x > 0).all(), "all must be positive"
    return x * 2


@case(lambda: [(t(3),), (t(3, start=1),), (t(3, start=-9),)])
def conditional_expression_on_data(x):
    y = x * 2 if x.mean() > 0 else x * 3
    return [y, "pos" if (x > 0).any() else "neg"]


@case(with_x([None, None, 3], [5], [None, "a"]))
def while_none(x, items):
    value = None
    while value is None:
        value = items.pop(0)
    return x, value, items


@case(with_x([1, 2, None], [None]))
def while_not_none(x, items):
    value = items.pop(0)
    while value is not None:
        x = x + value
        value = items.pop(0)
    return x
