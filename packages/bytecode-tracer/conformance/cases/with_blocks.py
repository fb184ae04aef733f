"""Context managers: user-defined, of contextlib, several, nested, raising, crossed by breaks."""

from __future__ import annotations

import contextlib

from conformance.declare import case, t, with_x

LOG = []


class Manager:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow
        self.events = []

    def __enter__(self):
        self.events.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.events.append(("exit", kind and kind.__name__, str(error)))
        return self.swallow


@contextlib.contextmanager
def scaled(items, value):
    items.append(value)
    try:
        yield value * 2
    finally:
        items.append(-value)


@contextlib.contextmanager
def logged(name):
    LOG.append(name)
    yield
    LOG.append(f"/{name}")


@case(with_x(1, 2))
def user_manager(x, n):
    with Manager("a") as made:
        y = x + n
    return y, made.events


@case(lambda: [(t(2), Manager("a")), (t(2), Manager("b")), (t(3), Manager("a", True))])
def manager_as_argument(x, manager):
    with manager as inner:
        y = x * 2
    return y, inner is manager, inner.name


@case(with_x(True, False))
def swallows_exception(x, swallow):
    manager = Manager("a", swallow)
    with manager:
        x = x + 1
        raise ValueError("inside")
    return x, manager.events


@case(lambda: [(t(2), Manager("a")), (t(2), Manager("a", True))])
def exception_leaves_manager(x, manager):
    with manager:
        raise KeyError("inside")
    return x


@case(with_x(1, 2))
def generator_manager(x, n):
    items = []
    with scaled(items, n) as value:
        y = x * value
    return y, items


@case(with_x(1, 2))
def generator_manager_with_exception(x, n):
    items = []
    try:
        with scaled(items, n):
            raise ValueError(n)
    except ValueError:
        items.append("caught")
    return x, items


@case(with_x(1, 2))
def several_managers(x, n):
    items = []
    with scaled(items, n) as a, scaled(items, n + 1) as b:
        y = x * a + b
    return y, items


@case(with_x(1, 2))
def parenthesized_managers(x, n):
    items = []
    with (
        scaled(items, n) as a,
        scaled(items, a) as b,
    ):
        return x * b, items


@case(with_x(1, 2))
def return_inside(x, n):
    manager = Manager("a")

    def inner():
        with manager:
            return x + n

    return inner(), manager.events


@case(with_x(0, 1, 2))
def break_and_continue_inside(x, n):
    manager = Manager("a")
    for i in range(3):
        with manager:
            if i == n:
                continue
            if i == 2:
                break
            x = x + i
    return x, manager.events


@case(lambda: [(t(2),), (t(2),), (t(3),)])
def global_log(x):
    with logged("outer"), logged("inner"):
        y = x + len(LOG)
    return y


@case(with_x(1, 2))
def target_unpacked(x, n):
    @contextlib.contextmanager
    def pair():
        yield x, n

    with pair() as (a, b):
        return a * b


@case(with_x(1, 2))
def suppress(x, n):
    with contextlib.suppress(KeyError, IndexError):
        x = x + 1
        {}[n]
        x = x + 100
    return x


@case(with_x(1, None))
def null_context(x, n):
    with contextlib.nullcontext(n) as value:
        return x if value is None else x * value


@case(with_x(1, 3))
def exit_stack(x, n):
    items = []
    with contextlib.ExitStack() as stack:
        values = [stack.enter_context(scaled(items, i)) for i in range(n)]
        stack.callback(items.append, "callback")
        y = x + sum(values)
    return y, items


@case(with_x(1, 2))
def closing(x, n):
    class Resource:
        closed = False

        def close(self):
            self.closed = True

    with contextlib.closing(Resource()) as resource:
        before = resource.closed
    return x * n, before, resource.closed


@case(with_x(1, 2))
def decorator_form(x, n):
    items = []

    @scaled(items, n)
    def inner(y):
        items.append("inside")
        return y + n

    return inner(x), inner(x), items


@case(with_x(1, 2))
def exception_in_enter(x, n):
    class Bad:
        def __enter__(self):
            raise RuntimeError("enter")

        def __exit__(self, *args):
            return True

    try:
        with Bad():
            return x
    except RuntimeError as error:
        return str(error), n


@case(with_x(1, 2))
def exception_in_exit(x, n):
    class Bad:
        def __enter__(self):
            return self

        def __exit__(self, *args):
            raise RuntimeError("exit")

    with Bad():
        x.add_(n)
    return x


@case(with_x(1, "a", None))
def not_a_manager(x, value):
    with value:
        return x


@case(with_x(1, 2))
def print_inside(x, n):
    manager = Manager("a")
    with manager:
        y = x + n
        print("inside", n)
        y = y * 2
    print("outside")
    return y, manager.events


@case(lambda: [(t(2),), (t(2, start=5),), (t(2),)])
def branch_on_data_inside(x):
    items = []
    with scaled(items, 1) as value:
        y = x + value
        if y.sum() > 3:
            y = y * 2
    return y, items


@case(with_x(1, 2))
def nested_in_try(x, n):
    manager = Manager("a")
    try:
        with manager:
            if n == 2:
                raise ValueError
            y = x
    except ValueError:
        y = x + 1
    finally:
        manager.events.append("finally")
    return y, manager.events


class Reentrant:
    def __init__(self):
        self.depth, self.deepest = 0, 0

    def __enter__(self):
        self.depth += 1
        self.deepest = max(self.depth, self.deepest)
        return self.depth

    def __exit__(self, *args):
        self.depth -= 1


@case(lambda: [(t(2), Reentrant()), (t(3), Reentrant())])
def reentrant(x, manager):
    with manager as a:
        with manager as b:
            y = x * a + b
    return y, manager.deepest


GLOBAL_MANAGER = Reentrant()


@case(lambda: [(t(2),), (t(2),)])
def manager_in_global(x):
    with GLOBAL_MANAGER as depth:
        return x * depth, GLOBAL_MANAGER.depth


@case(with_x(1, 2))
def redirected_output(x, n):
    import io

    into = io.StringIO()
    with contextlib.redirect_stdout(into):
        print("hidden", n)
    return x, into.getvalue()
