"""Comprehensions of every kind, and the scopes that they make."""

from __future__ import annotations

from conformance.declare import case, only, t, with_x

SCALE = 2


@case(with_x([1, 2], [1, 2, 3], [], [1.5]))
def list_comprehension(x, items):
    return [x * item for item in items]


@case(with_x({"a": 1}, {"b": 1, "a": 2}, {}))
def dict_comprehension(x, table):
    return {key.upper(): x * value for key, value in table.items()}


@case(only([1, 2, 2], [3], []))
def set_comprehension(items):
    return {item * SCALE for item in items}


@case(with_x(2, 3))
def nested_loops(x, n):
    return [x + i * j for i in range(n) for j in range(i)]


@case(with_x(2, 3))
def nested_comprehension(x, n):
    return [[i + j for j in range(n)] for i in range(2)], x


@case(with_x(5, 6, 0))
def with_conditions(x, n):
    return [x * i for i in range(n) if i % 2 if i > 1]


@case(with_x(2, -2))
def conditional_expression(x, n):
    return [x if i > n else -x for i in range(3)]


@case(with_x(2, 3))
def variable_does_not_leak(x, n):
    i = "kept"
    values = [i for i in range(n)]
    return x, i, values


@case(with_x(2, 3))
def walrus_leaks(x, n):
    values = [last := i * n for i in range(3)]
    return x + last, values


@case(with_x(2, 3))
def closure_in_comprehension(x, n):
    return [f() for f in [lambda: x + i for i in range(n)]]


@case()
def over_rows_of_tensor(x):
    return [row.sum() for row in x], {i: row for i, row in enumerate(x)}


@case(lambda: [({"a": t(2), "b": t(3)},), ({"b": t(2)},), ({},)])
def dict_of_tensors(table):
    return {key: value + 1 for key, value in table.items() if key != "b"}


@case(with_x([(1, 2), (3, 4)], [(5, 6)], []))
def unpacking_target(x, pairs):
    return [x + a * b for a, b in pairs]


@case(with_x(["a", "b"], ["c"], ["a", 1]))
def method_calls(x, names):
    return [name.upper() for name in names]


@case(with_x(2, 3))
def condition_calls_function(x, n):
    seen = []

    def keep(i):
        seen.append(i)
        return i < n

    return [x + i for i in range(4) if keep(i)], seen


@case(with_x([1, 0], [2, 3]))
def exception_inside(x, items):
    try:
        return [x / (6 // item) for item in items]
    except ZeroDivisionError as error:
        return str(error)


class Scope:
    size = 3
    items = [0 for _ in range(size)]
    doubled = [value * 2 for value in items]


@case(with_x(1, 2))
def class_scope(x, n):
    class Local:
        base = [n, n + 1]
        squares = [value * value for value in base]

    return Local.squares, Scope.doubled, x


@case(lambda: [([t(2), t(3)],), ([t(2)],), ([],)])
def tensors_in_place(items):
    return [item.add_(1) for item in items]


@case(with_x("abc", "de", ""))
def over_string(x, text):
    return {c: x + ord(c) for c in text}, [c for c in reversed(text)]
