"""Graph breaks at every depth and in every construct: what follows goes on correctly."""

from __future__ import annotations

import collections
import time

import torch
from torch import nn

from conformance.declare import case, scenario, t, with_x

BREAKS_MEANT = True
STATE = {"count": 0}


def broken(x):
    """Python cannot be followed into: calls a C function with an effect of its own."""
    time.sleep(0)
    return x


@case(lambda: [(t(2),), (t(2, start=5),), (t(3),)])
def at_top_level(x):
    y = x + 1
    broken(y)
    return y * 2


@case(lambda: [(t(2),), (t(3),), (t(2),)])
def several_in_a_row(x):
    x = broken(x + 1)
    x = broken(x * 2)
    return broken(x - 3)


@case(lambda: [(t(2),), (t(3),)])
def with_values_on_the_stack(x):
    return [x + 1, broken(x * 2), x * 3, {"k": broken(x)}, (x, broken(x))]


@case(with_x(1, 2))
def inside_call_arguments(x, n):
    def combine(a, b, *, c, d=4):
        return a * b + c + d

    return combine(x, broken(n), c=broken(x * 2))


@case(lambda: [(t(2), 3), (t(2), 1), (t(2), 0)])
def in_for_loop(x, n):
    for i in range(n):
        x = x + i
        broken(x)
        x = x * 2
    return x


@case(lambda: [(t(2), [1, 2]), (t(2), [3]), (t(2), [])])
def in_loop_over_list(x, items):
    out = []
    for item in items:
        out.append(broken(x * item))
    return out


@case(with_x(3, 0))
def in_while_loop(x, n):
    while n > 0:
        x = broken(x) + n
        n -= 1
    return x


@case(with_x(2, 3))
def in_nested_loops(x, n):
    for i in range(n):
        for j in range(2):
            if j == 1:
                broken(x)
            x = x + i * j
    return x


@case(with_x({"a": 1, "b": 2}, {"c": 3}))
def in_loop_over_dict(x, table):
    for key, value in table.items():
        x = broken(x + value)
        table[key] = value + 1
    return x


@case(with_x([1, 2], [3]))
def in_loop_with_enumerate_and_zip(x, items):
    out = []
    for index, (a, b) in enumerate(zip(items, "xy")):
        broken(x)
        out.append((index, a * x, b))
    return out


@case(with_x(2, 3))
def in_comprehension(x, n):
    return [broken(x * i) for i in range(n)], {i: broken(i) for i in range(n)}


@case(with_x(2, 3))
def in_generator(x, n):
    def produce():
        for i in range(n):
            yield broken(x * i)

    return list(produce()), sum(broken(i) for i in range(n))


@case(with_x(1, 2))
def in_helper(x, n):
    def helper(y):
        z = y + n
        broken(z)
        return z * 2

    return helper(x) + 1


def level_three(x, n):
    y = x + n
    broken(y)
    return y * 3


def level_two(x, n):
    return level_three(x * 2, n) + 1


@case(with_x(1, 2))
def three_frames_deep(x, n):
    a = level_two(x, n)
    return a - level_two(a, n)


@case(with_x(1, 2))
def in_method(x, n):
    class Local:
        def __init__(self):
            self.seen = []

        def run(self, y):
            self.seen.append(y)
            broken(y)
            self.seen.append(n)
            return y + len(self.seen)

    local = Local()
    return local.run(x), local.seen


@case(with_x(0, 1))
def in_try(x, n):
    log = []
    try:
        x = x + 1
        broken(x)
        x = x / (1 if n else 2)
        if n:
            raise ValueError(n)
        log.append("body")
    except ValueError:
        broken(x)
        log.append("handler")
    else:
        log.append("else")
    finally:
        broken(x)
        log.append("finally")
    return x, log


class Manager:
    def __init__(self):
        self.events = []

    def __enter__(self):
        self.events.append("enter")
        return self

    def __exit__(self, *args):
        self.events.append("exit")


@case(with_x(1, 2))
def in_with_block(x, n):
    manager = Manager()
    with manager:
        y = x + n
        broken(y)
        y = y * 2
    return y, manager.events


@case(with_x(1, 2))
def in_two_with_blocks(x, n):
    a, b = Manager(), Manager()
    with a, b:
        with torch.no_grad():
            y = broken(x + n)
            z = y * 2
    return z, a.events, b.events, torch.is_grad_enabled()


@case(lambda: [(t(2, grad=True),), (t(3, grad=True),)])
def in_no_grad(x):
    with torch.no_grad():
        y = x * 2
        broken(y)
        z = y * 3
    return y, z, x * 4


@case(with_x(1, 2))
def with_closure_and_nonlocal(x, n):
    count = 0

    def bump(y):
        nonlocal count
        count += 1
        broken(y)
        count += 10
        return y * count

    return bump(x), bump(x), count


@case(with_x(1, 2))
def with_mutation_before_and_after(x, n):
    items, table = [x], {"n": n}
    items.append(n)
    x.add_(1)
    broken(items)
    items.append("after")
    table["x"] = x * 2
    x.mul_(2)
    return items, table


@case(lambda: [(t(2),), (t(2),), (t(3),)])
def with_globals(x):
    STATE["count"] += 1
    broken(x)
    STATE["count"] += 1
    return x * STATE["count"]


@case(with_x(1, 2))
def live_iterator(x, n):
    values = iter([1, 2, 3, 4])
    first = next(values)
    broken(first)
    return x * next(values), list(values)


@case(with_x(1, 2))
def live_generator(x, n):
    values = (x * i for i in range(4))
    first = next(values)
    broken(first)
    return first, next(values), list(values)


@case(with_x(1, 2))
def live_deque_and_set(x, n):
    queue, items = collections.deque([1, x], maxlen=3), {1, n}
    broken(queue)
    queue.append(n)
    items.add(5)
    return queue, items


@case(with_x(1, 2))
def live_function_and_lambda(x, n):
    def helper(y, k=n):
        return y * k

    square = lambda y: y * y  # noqa: E731
    broken(helper)
    return helper(x), square(x)


@case(with_x(1, 2))
def live_class_and_instance(x, n):
    class Local:
        scale = n

        def run(self, y):
            return y * self.scale

    local = Local()
    broken(local)
    local.scale += 1
    return local.run(x), Local.scale


@case(lambda: [(t(2), t(2)), (t(3), t(3))])
def aliases_across_break(x, y):
    items = [x, x, y]
    alias = items
    broken(items)
    alias.append(x)
    return items, items[0] is x, alias is items


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def views_across_break(x):
    row = x[0]
    broken(row)
    row.add_(10)
    return x.sum(), row


@case(lambda: [(t(2),), (t(2, start=5),), (t(2),)])
def branch_then_break(x):
    if x.sum() > 0:
        x = broken(x) + 1
    else:
        x = x - 1
    return x * 2


@case(lambda: [(t(2),), (t(3),)])
def item_then_shape(x):
    n = int(x.sum().item())
    y = torch.ones(abs(n) + 1)
    return y * x[0], n


@case(lambda: [(t(4),), (t(4, start=2),)])
def nonzero_then_more(x):
    index = (x > 0).nonzero()[:, 0]
    return x[index] * 2, len(index)


@case(with_x(1, 2))
def unused_result(x, n):
    broken(x)
    time.perf_counter()
    return n


@case(with_x(1, 2))
def break_in_default_and_decorator(x, n):
    def helper(y, k=broken(n)):
        return y * k

    return helper(x)


@case(with_x(1, 2))
def break_in_condition(x, n):
    if broken(n) == 1 and broken(x) is x:
        return x + 1
    return x - 1 if broken(n) else x


@case(with_x(1, 2))
def break_in_format_and_subscript(x, n):
    table = {n: x}
    return f"{broken(n)}", table[broken(n)] * 2


@case(with_x(1, 2))
def break_in_unpacking(x, n):
    a, *b = broken([x, n, 3])
    first, second = broken((a, b))
    return second, first


@case(with_x(1, 2))
def break_in_augmented_assignment(x, n):
    items = [1, 2]
    items[broken(0)] += broken(n)
    x += broken(1)
    return items, x


@case(with_x(1, 2))
def break_in_star_call(x, n):
    def gather(*args, **kwargs):
        return args, kwargs

    return gather(*broken([x, n]), **broken({"k": x}))


@case(with_x(1, 2))
def break_in_match(x, n):
    match broken((n, x)):
        case (1, y):
            return broken(y) + 1
        case (k, y) if broken(k) == 2:
            return y * k


@case(with_x(0, 1), traceback=True)
def raises_after_break(x, n):
    y = x + 1
    broken(y)
    if n:
        raise KeyError(n)
    return y


@case(with_x(1, 2))
def recursion_with_breaks(x, n):
    def walk(k):
        if k == 0:
            return broken(x)
        return walk(k - 1) + broken(k)

    return walk(n + 1)


@scenario(lambda m: [(t(2, 3),), (t(4, 3),)])
def in_module():
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.linear = nn.Linear(3, 3)
            self.count = 0

        def forward(self, x):
            self.count += 1
            y = self.linear(x)
            broken(y)
            self.last = y
            return y.relu() * self.count

    made = nn.Sequential(Local(), Local())
    return made, made


@case(with_x(1, 2))
def sorted_with_breaking_key(x, n):
    return sorted([3, n, 2], key=broken), list(map(broken, [x, n])), x


@case(with_x(1, 2))
def deleted_and_unset_variables(x, n):
    y = x + 1
    del y
    broken(x)
    if n == 2:
        z = 3
    try:
        return z
    except UnboundLocalError:
        return "unset", x


@case(with_x(1, 2))
def many_live_variables(x, n):
    a, b, c, d, e = 1, 2.5, "c", None, (x, n)
    f, g, h = [a], {b: c}, {d}
    broken(e)
    return a, b, c, d, e, f, g, h, e[0] is x
