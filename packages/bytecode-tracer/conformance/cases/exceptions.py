"""Exceptions: raised, caught, chained; what runs on the way out."""

from __future__ import annotations

import sys

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


@case(with_x(0, 1))
def exception_state_cleared(x, n):
    try:
        fail(KeyError, n)
    except KeyError:
        inside = sys.exc_info()[0]
    return x, inside, sys.exc_info()[0]


@case(lambda: [(t(2),), (torch.tensor([0.0, 1.0]),), (t(2),)])
def raise_on_data(x):
    if (x == 0).any():
        raise ValueError("a zero")
    return 1 / x


@case(with_x(1, 2), traceback=True)
def raised_from_in_handler(x, n):
    try:
        [][n]
    except IndexError as error:
        raise ValueError("from", n) from error


@case(with_x(1, 2))
def what_is_being_handled(x, n):
    found = [sys.exception()]
    try:
        raise KeyError(n)
    except KeyError as outer:
        found.append(sys.exception() is outer)
        try:
            raise ValueError(n)
        except ValueError as inner:
            found += [sys.exception() is inner, inner.__context__ is outer]
            found.append(sys.exc_info()[:2] == (ValueError, inner))
        found.append(sys.exc_info()[1] is outer)
    return found, sys.exc_info(), x * n


@case(with_x(1, 2), drive=lambda program, *args: handling(program, *args))
def called_while_handling(x, n):
    found = [type(sys.exception()).__name__, sys.exc_info()[1].args]
    try:
        fail(ValueError, n)
    except ValueError as error:
        found.append(error.__context__ is sys.exception().__context__)
        found.append(type(error.__context__).__name__)
    return found, x + n


def handling(program, *args):
    first = program_outside(program, args)
    try:
        raise LookupError(len(args))
    except LookupError:
        return first, program(*args)


def program_outside(program, args):
    try:
        return program(*args)
    except AttributeError as error:
        return str(error)


@case(with_x(1, 2))
def same_exception_raised_again(x, n):
    error = ValueError(n)
    seen = []
    for kind in (KeyError, IndexError):
        try:
            try:
                raise kind(n)
            except LookupError:
                raise error
        except ValueError as caught:
            seen.append((caught is error, type(caught.__context__).__name__))
    return seen, x + n


@case(with_x(1, 2))
def circle_of_contexts(x, n):
    first, second = KeyError(1), ValueError(2)
    try:
        try:
            raise first
        except KeyError:
            raise second
    except ValueError:
        try:
            raise first
        except KeyError:
            pass
    return first.__context__ is second, second.__context__, x + n


@case(with_x(0, 1, 2, 3))
def wrong_raises(x, n):
    wrong = [5, int, "text", [ValueError]][n]
    found = []
    try:
        raise wrong
    except TypeError as error:
        found.append(str(error))
    try:
        raise ValueError from wrong
    except TypeError as error:
        found.append(str(error))
    try:
        raise
    except RuntimeError as error:
        found.append(str(error))
    return found, x + n


@case(with_x(1, 2))
def handlers_in_generators(x, n):
    def values():
        try:
            raise KeyError(n)
        except KeyError:
            yield type(sys.exception()).__name__
            yield type(sys.exception()).__name__

    found = []
    made = values()
    try:
        raise ValueError(n)
    except ValueError:
        found += [next(made), type(sys.exception()).__name__, next(made)]
    return found, sys.exception(), x + n
