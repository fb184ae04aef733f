"""Assignments: unpacking, chains, targets of all kinds, walrus, order of evaluation."""

from __future__ import annotations

from conformance.declare import case, only, t, with_x


class Box:
    pass


@case(only((1, 2, 3), [4, 5, 6], "abc", {"a": 1, "b": 2, "c": 3}))
def three_from_any(items):
    a, b, c = items
    return c, b, a


@case(only((1, 2, 3), [4], "abcd", []))
def starred(items):
    try:
        first, *middle, last = items
    except ValueError as error:
        return str(error)
    return first, middle, last


@case(only([1, [2, (3, 4)]], (5, "x(")))
def nested(items):
    try:
        a, [b, (c, d)] = items
    except (ValueError, TypeError) as error:
        return type(error)
    return d, c, b, a


@case(only((1, 2), (1, 2, 3), (1,), 5))
def wrong_counts(items):
    a, b = items
    return a + b


@case(with_x(1, 2))
def chained_targets(x, n):
    a = b = c = [n]
    a.append(x)
    return a is b is c, c


@case(with_x(1, 2))
def swap_and_rotate(x, n):
    a, b, c = x, n, "c"
    a, b, c = c, a, b
    return a, b, c


@case(with_x(0, 1))
def subscript_and_attribute_targets(x, n):
    items, box = [0, 0, 0], Box()
    items[n], box.value, *box.rest = x, n, 1, 2
    return items, box.value, box.rest


@case(with_x(0, 1))
def order_of_assignment(x, n):
    i, items = n, ["a", "b", "c"]
    i, items[i] = i + 1, x
    return i, items


@case(with_x(1, 5))
def walrus_in_conditions(x, n):
    if (m := n * 2) > 5 and (k := m + 1):
        return x + m, k
    return x, m


@case(with_x(3, 1))
def walrus_in_while(x, n):
    total = 0
    while (n := n - 1) >= 0:
        total += n
    return x + total, n


@case(with_x([1, 2], [3]))
def star_in_displays(x, items):
    return [*items, x], (*items, *items), {*items, 9}, {"k": x, **{"j": 1}}


@case(with_x({"a": 1}, {"a": 2, "b": 3}))
def star_in_dicts(x, table):
    return {**table, "a": x}, {"a": x, **table}, list({**table, "z": 0})


@case(with_x(1, 2))
def augmented_targets(x, n):
    items, box = [x, n], Box()
    box.value = n
    box.value += 5
    items[1] *= 10
    items[0] += n
    return items, box.value, items[0] is x


@case(with_x(1, 2))
def augmented_with_effects(x, n):
    calls, table = [], {"k": n}

    def key():
        calls.append("key")
        return "k"

    table[key()] += 3
    return table, calls, x


@case(lambda: [((t(2), t(3)),), ((t(2), (t(3), 1)),)])
def loop_targets(pair):
    out = []
    for out_item, *rest in [pair, (1, 2, 3)]:
        out.append((out_item, rest))
    return out


@case(with_x(1, 2))
def delete_targets(x, n):
    items, table = [1, 2, 3], {"a": 1, "b": 2}
    del items[0], table["a"], n
    return items, table, x


@case(with_x((1, 2), (3,)))
def star_in_return_and_subscript(x, items):
    table = {(1, 2, 0): "found"}
    return *items, table.get((*items, 0)), x


@case(with_x([1, 2, 3], [4, 5]))
def unpack_in_comprehension_and_call(x, items):
    def first(a, *rest):
        return a, rest

    return first(*items), [a for a, *_ in [items, items]], x


@case(with_x(1, 2))
def annotated_assignment(x, n):
    value: int = n
    other: "undefined"  # noqa: F821, F842
    return x * value


@case(with_x(1, 2))
def unpack_evaluates_in_order(x, n):
    log = []

    def note(value):
        log.append(value)
        return value

    a, b = note(n), note("b")
    {note("k1"): note(1), note("k2"): note(2)}
    note(3) + note(4)
    return log, a, b, x
