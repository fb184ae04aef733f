"""The contextlib module: managers, stacks, decorators, redirected output."""

from __future__ import annotations

import contextlib
import io

from conformance.declare import case, with_x


@contextlib.contextmanager
def scaled(value, log):
    log.append("enter")
    try:
        yield value * 2
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("exit")


class Managed(contextlib.ContextDecorator):
    log = []

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *error):
        self.log.append("out")
        return False


@case(with_x(1, 0))
def managers(x, n):
    log = []
    with scaled(n, log) as doubled, contextlib.suppress(ZeroDivisionError):
        if not n:
            raise ValueError("none")
        x = x * doubled
        1 // (n - 1)
        log.append("unreached")
    with contextlib.nullcontext(5) as five:
        x = x + five
    return x, log


@case(with_x(1, 2))
def exit_stack(x, n):
    log = []
    with contextlib.ExitStack() as stack:
        values = [stack.enter_context(scaled(i, log)) for i in range(n)]
        stack.callback(log.append, "called")
        stack.push(lambda *error: log.append(error[0] is None))
        kept = stack.pop_all()
        log.append("left")
    kept.close()
    return x * sum(values), log


@case(with_x(1, 2))
def decorators(x, n):
    Managed.log.clear()

    @Managed()
    def inner(y):
        Managed.log.append("run")
        return y * n

    @scaled(1, Managed.log)
    def other(y):
        return y + n

    class Closing:
        closed = False

        def close(self):
            self.closed = True

    with contextlib.closing(Closing()) as thing:
        pass
    return inner(x), other(x), list(Managed.log), thing.closed


@case(with_x(1, 2))
def redirected(x, n):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("n is", n)
    return x, out.getvalue()
