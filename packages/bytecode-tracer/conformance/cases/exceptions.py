"""Exceptions: raised, caught, chained, grouped; tracebacks."""

from __future__ import annotations

import torch

from conformance.declare import case, only, t, with_x


class ShapeError(ValueError):
    def __init__(self, shape, code=1):
        super().__init__(f"bad shape {shape}")
        self.code = code


class Quiet(Exception):
    def __str__(self):
        return "quiet"


def fail(kind, *args):
    raise kind(*args)


@case(with_x(1, 0, 2))
def raise_if(x, n):
    if n == 0:
        raise ValueError("zero", n)
    return x / n


@case(with_x(1, 0, 2))
def caught_in_function(x, n):
    try:
        if n == 0:
            raise ValueError("zero")
        y = x / n
    except ValueError as error:
        y = x
        message = str(error)
    else:
        message = "fine"
    finally:
        x = x + 1
    return y, message, x


@case(with_x(0, 1, 2, 3))
def chosen_handler(x, n):
    kinds = [KeyError, IndexError, ShapeError, None]
    try:
        if kinds[n]:
            fail(kinds[n], n)
    except (KeyError, IndexError) as error:
        return x, type(error).__name__, error.args
    except ValueError as error:
        return x, error.code, str(error)
    return x


@case(with_x(0, 1))
def caught_across_frames(x, n):
    def middle():
        fail(ShapeError if n else Quiet, *([(1, 2)] if n else []))

    try:
        middle()
    except Exception as error:
        return x, str(error), type(error)


@case(with_x(0, 1), traceback=True)
def leaves_across_frames(x, n):
    def inner():
        y = x + 1
        fail(KeyError if n else IndexError, n)
        return y

    return inner()


@case(with_x(0, 1))
def finally_runs_and_exception_leaves(x, n):
    try:
        x.add_(1)
        if n:
            raise RuntimeError("after the change")
    finally:
        x.mul_(2)
    return x


@case(with_x(0, 1, 2))
def return_in_finally(x, n):
    try:
        if n == 1:
            raise ValueError
        return x
    finally:
        if n:
            return n


@case(with_x(0, 1))
def finally_with_continue(x, n):
    seen = []
    for i in range(3):
        try:
            if i == n:
                continue
            seen.append(i)
        finally:
            seen.append("f")
    return x, seen


@case(with_x(0, 1))
def reraised(x, n):
    try:
        fail(KeyError, n)
    except KeyError:
        x.add_(1)
        raise


@case(with_x(0, 1))
def raised_from(x, n):
    try:
        fail(KeyError, n)
    except KeyError as error:
        raise ShapeError((n,)) from error


@case(with_x(0, 1))
def raised_from_none(x, n):
    try:
        fail(KeyError, n)
    except KeyError:
        raise ShapeError((n,)) from None


@case(with_x(0, 1))
def implicit_context(x, n):
    try:
        fail(KeyError, n)
    except KeyError:
        return {}[n]


@case(with_x(0, 1))
def context_and_cause_seen_inside(x, n):
    try:
        try:
            fail(KeyError, n)
        except KeyError as first:
            raise ShapeError(n) from first
    except ShapeError as error:
        cause, context = error.__cause__, error.__context__
        return x, cause is context, repr(cause), error.__suppress_context__


@case(with_x(0, 1, 2))
def nested_try(x, n):
    log = []
    try:
        try:
            if n:
                fail([None, KeyError, ValueError][n], n)
            log.append("body")
        except KeyError:
            log.append("inner")
        finally:
            log.append("finally")
    except ValueError:
        log.append("outer")
    return x, log


@case(with_x(0, 1))
def name_of_handler_is_deleted(x, n):
    error = "before"
    try:
        fail(KeyError, n)
    except KeyError as error:
        pass
    try:
        return x, error
    except UnboundLocalError as gone:
        return x, str(gone)


@case(with_x(True, False))
def assertions(x, flag):
    assert x.dim() == 2
    assert flag, f"flag is {flag}"
    return x


@case(lambda: [(t(2, 3),), (t(3),), (t(2, 3),)])
def assertion_on_shape(x):
    assert x.dim() == 2, x.shape
    return x + 1


@case(with_x(1, 0))
def division_by_zero(x, n):
    try:
        return x + 1 // n
    except ZeroDivisionError as error:
        return str(error)


@case(with_x({"a": 1}, {"b": 1}))
def missing_key(x, table):
    try:
        return x * table["a"]
    except KeyError as error:
        return error.args, x


@case(with_x([1, 2], [1]))
def index_out_of_range(x, items):
    try:
        return x * items[1]
    except IndexError as error:
        return str(error)


@case(with_x("upper", "missing"))
def missing_attribute(x, name):
    try:
        return getattr("text", name)(), x
    except AttributeError as error:
        return str(error), error.name, error.obj


@case(with_x("1", "a", None))
def conversion(x, text):
    try:
        return x * int(text)
    except (TypeError, ValueError) as error:
        return type(error), str(error)


@case(lambda: [(t(2, 3), t(3)), (t(2, 3), t(2)), (t(2, 3), t(2, 3))])
def torch_error_caught(a, b):
    try:
        return a + b
    except RuntimeError as error:
        return str(error)


@case(lambda: [(t(2, 3), t(3, 2)), (t(2, 3), t(2, 3))])
def torch_error_leaves(a, b):
    a.add_(1)
    return a @ b


@case(with_x(1, "a", None, (1,)))
def unsupported_operand(x, value):
    return x + value


@case(with_x(0, 1))
def exception_groups(x, n):
    try:
        raise ExceptionGroup("many", [ValueError(n), KeyError(n), ShapeError(n)])
    except* ValueError as group:
        x = x + len(group.exceptions)
    except* KeyError as group:
        x = x * 2
    return x


@case(with_x(0, 1))
def exception_group_partly_handled(x, n):
    try:
        raise ExceptionGroup("many", [ValueError(n), KeyError(n)])
    except* KeyError:
        x.add_(1)


@case(with_x(0, 1))
def notes(x, n):
    try:
        fail(ValueError, n)
    except ValueError as error:
        error.add_note(f"n was {n}")
        raise


@case(with_x(0, 1))
def exception_as_value(x, n):
    made = ShapeError((n,), code=n)
    return x, made, isinstance(made, ValueError), made.code, repr(made)


@case(with_x(0, 1, 2))
def loop_with_retries(x, n):
    attempts = 0
    while True:
        try:
            attempts += 1
            if attempts <= n:
                raise OSError(attempts)
            return x * attempts
        except OSError:
            continue


@case(with_x(3, 1))
def break_inside_try(x, n):
    for i in range(5):
        try:
            if i == n:
                break
        finally:
            x = x + 1
    return x, i


@case(with_x(0, 1))
def bare_except_and_base_exception(x, n):
    try:
        fail(SystemExit if n else KeyboardInterrupt, n)
    except BaseException as error:
        return x, type(error).__name__
    return x


@case(with_x(0, 1))
def system_exit_leaves(x, n):
    x.add_(1)
    raise SystemExit(n)


@case(only(ValueError, ValueError("made"), KeyError, 3))
def raise_of_argument(what):
    raise what


@case(with_x(ValueError, KeyError, (ValueError, KeyError)))
def handler_from_argument(x, kinds):
    try:
        fail(KeyError, 1)
    except kinds:
        return x + 1


@case(with_x(0, 1))
def stop_iteration(x, n):
    values = iter([1] * n)
    try:
        return x + next(values)
    except StopIteration as stop:
        return x, stop.value


@case(with_x(0, 1))
def effects_before_exception(x, n):
    items = []
    try:
        items.append(x + 1)
        x.add_(1)
        fail(KeyError, n)
        items.append("never")
    except KeyError:
        items.append(n)
    return items


@case(with_x(0, 1), traceback=True)
def index_error_in_torch(x, n):
    y = x * 2
    if n:
        y = y.sum(dim=5)
    return y


@case(with_x(0, 1))
def exception_state_cleared(x, n):
    import sys

    try:
        fail(KeyError, n)
    except KeyError:
        inside = sys.exc_info()[0]
    return x, inside, sys.exc_info()[0]


@case(with_x(0, 1))
def not_implemented(x, n):
    class Base:
        def run(self):
            raise NotImplementedError(f"{type(self).__name__} {n}")

    try:
        return Base().run()
    except NotImplementedError as error:
        return str(error), x


@case(lambda: [(t(2),), (torch.tensor([0.0, 1.0]),), (t(2),)])
def raise_on_data(x):
    if (x == 0).any():
        raise ValueError("a zero")
    return 1 / x
