"""Closures: free variables, nonlocal, cells that change between calls."""

from __future__ import annotations

from conformance.declare import case, scenario, t, with_x


@case(with_x(1, 2))
def nonlocal_counter(x, n):
    count = 0

    def bump():
        nonlocal count
        count += n
        return count

    return x * bump() + bump(), count


@case(with_x(1, 2))
def cell_shared_by_two(x, n):
    value = n

    def read():
        return value

    def write(new):
        nonlocal value
        value = new

    before = read()
    write(x)
    return before, read() is x, value


@case(with_x(1, 2), then=lambda pair: (pair[0](), pair[1](5), pair[0]()))
def closures_returned_share_cell(x, n):
    def read():
        return value

    def write(new):
        nonlocal value
        value = value + new
        return value

    value = x + n
    return read, write


@scenario(lambda: [(t(2),), (t(2),), (t(3),)])
def counter():
    count = 0

    def program(x):
        nonlocal count
        count += 1
        return x * count

    return program


@scenario(lambda: [(t(2),), (t(2),), (t(3),)])
def tensor_accumulated_in_cell():
    total = None

    def program(x):
        nonlocal total
        total = x.sum() if total is None else total + x.sum()
        return total

    return program


def _cell_changes(write):
    for value in (1, 2, 2.0, "a", None, 1):
        write(value)
        yield (t(2),)


@scenario(_cell_changes)
def cell_changed_from_outside():
    value = 0

    def write(new):
        nonlocal value
        value = new

    def program(x):
        return x * value if isinstance(value, int | float) else (x, value)

    return program, write


def _cell_functions(write):
    for function in (lambda y: y + 1, lambda y: y + 2, abs):
        write(function)
        yield (t(2),)


@scenario(_cell_functions)
def function_in_cell_replaced():
    function = None

    def write(new):
        nonlocal function
        function = new

    def program(x):
        return function(x)

    return program, write


def _cell_lists(items):
    yield (t(2),)
    items.append(3)
    yield (t(2),)
    items[0] = 7
    yield (t(2),)
    items.clear()
    yield (t(2),)


@scenario(_cell_lists)
def list_in_cell_changed():
    items = [1, 2]

    def program(x):
        for item in items:
            x = x + item
        return x, len(items)

    return program, items


def _cell_tensors(write):
    for value in (t(2), t(3), t(2).double(), t(2, grad=True)):
        write(value)
        yield (2,)


@scenario(_cell_tensors)
def tensor_in_cell_replaced():
    weight = None

    def write(new):
        nonlocal weight
        weight = new

    def program(n):
        return weight * n, weight

    return program, write


@scenario(lambda state: _emptied(*state))
def cell_emptied():
    value = 3

    def empty():
        nonlocal value
        del value

    def fill(new):
        nonlocal value
        value = new

    def program(x):
        return x + value

    return program, (empty, fill)


def _emptied(empty, fill):
    yield (t(2),)
    empty()
    yield (t(2),)
    fill(4)
    yield (t(2),)


@case(with_x(1, 2))
def three_levels(x, n):
    a = n

    def middle():
        b = a + 1

        def inner():
            nonlocal a, b
            a, b = b, a
            return a * 10 + b

        return inner

    return x + middle()(), a


@case(with_x(3, 2))
def loop_variable_captured(x, n):
    made = []
    for i in range(n):

        def use(scale=i):
            return x * scale + i

        made.append(use)
    return [use() for use in made]


@case(with_x(1, 2))
def argument_in_cell_rebound(x, n):
    def shift():
        nonlocal x
        x = x + n

    shift()
    shift()
    return x


@case(with_x(1, 2))
def deleted_cell(x, n):
    value = n

    def read():
        return value  # noqa: F821

    first = read()
    del value
    try:
        return read()
    except NameError as error:
        return first, str(error), type(error)


@case(with_x(1, 2))
def cell_objects(x, n):
    def inner():
        return x, n

    return [cell.cell_contents for cell in inner.__closure__], inner.__code__.co_freevars


@case(with_x(1, 2))
def class_body_sees_cell(x, n):
    class Local:
        scale = n * 2

        def run(self):
            return x * self.scale + n

    return Local().run()


@case(with_x(1, 3))
def recursive_closure(x, n):
    def walk(k):
        return x if k == 0 else walk(k - 1) + n

    return walk(n)


@case(with_x(1, 3))
def closure_over_comprehension(x, n):
    return [f(x) for f in [lambda y, i=i: y + i + n for i in range(2)]]


@case(lambda: [(t(2), [1, 2]), (t(2), [1, 2, 3]), (t(2), [])])
def accumulator(x, items):
    def adder():
        total = 0

        def add(value):
            nonlocal total
            total += value
            return total

        return add

    add = adder()
    return x + sum(add(item) for item in items), add(0)
