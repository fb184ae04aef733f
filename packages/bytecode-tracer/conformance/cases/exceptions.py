"""Exceptions: raised, caught, chained, grouped; tracebacks."""

from __future__ import annotations

import sys
import traceback

import torch
from torch import nn

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


def parts(error):
    """What of an exception is seen without its traceback."""
    fields = ("name", "obj", "path", "errno", "strerror", "filename", "value", "code", "msg")
    found = {name: getattr(error, name, "none") for name in fields}
    return type(error).__name__, error.args, str(error), found


@case(with_x(0, 1, 2, 3, 4, 5, 6, 7, 8))
def fields_of_builtin_exceptions(x, n):
    makers = [
        lambda: AttributeError("text", name="a", obj=x),
        lambda: NameError("text", name="a"),
        lambda: ImportError("text", name="a", path="b"),
        lambda: OSError(2, "no such file", "name"),
        lambda: OSError("only text"),
        lambda: StopIteration(x),
        lambda: SystemExit(n),
        lambda: KeyError("k", n),
        lambda: BlockingIOError(11, "again", 5),
    ]
    made = makers[n]()
    return made, parts(made), x + n


@case(with_x(1, 2))
def fields_of_raised_exceptions(x, n):
    found = []
    actions = [
        lambda: x.missing,
        lambda: n.missing,
        lambda: undefined_name,  # noqa: F821  # meant
        lambda: [][n],
        lambda: {}[n],
        lambda: int("no"),
        lambda: next(iter(())),
        lambda: n / 0,
    ]
    for action in actions:
        try:
            action()
        except Exception as error:
            found.append((type(error).__name__, str(error), getattr(error, "name", "none")))
    return found, x * n


@case(with_x(1, 2))
def syntax_and_unicode_errors(x, n):
    first = SyntaxError("bad", ("file.py", n, 4, "text"))
    second = UnicodeDecodeError("utf-8", b"abc", n, n + 1, "reason")
    first.lineno = n + 5
    return first, first.lineno, first.text, str(first), second, str(second), second.start, x + n


class Located(OSError):
    def __init__(self, number, place):
        super().__init__(number, "located", place)
        self.place = place


class Wrapped(AttributeError):
    def __init__(self, owner):
        super().__init__("wrapped", name="w", obj=owner)


@case(with_x(2, 13))
def subclasses_of_builtin_exceptions(x, n):
    one, two = Located(n, "here"), Wrapped(x)
    return type(one).__name__, one.errno, one.filename, one.args, two.name, two.obj is x, two, one


@case(with_x(0, 1, 2))
def setters_of_exceptions(x, n):
    error = ValueError(1)
    actions = [
        lambda: setattr(error, "__traceback__", 5),
        lambda: setattr(error, "__cause__", 5),
        lambda: setattr(error, "__context__", "text"),
    ]
    try:
        actions[n]()
    except TypeError as found:
        text = str(found)
    error.args = [n, 2]
    error.__cause__ = KeyError(n)
    return text, error.args, error.__suppress_context__, error.__cause__, repr(error), x + n


@case(with_x(1, 2), traceback=True)
def raised_from_in_handler(x, n):
    try:
        [][n]
    except IndexError as error:
        raise ValueError("from", n) from error


def lines_of(error):
    entries = traceback.extract_tb(error.__traceback__)
    return [(entry.name, entry.line) for entry in entries if "conformance" in entry.filename]


@case(with_x(1, 2), then=lambda error: (lines_of(error), lines_of(error.__context__)))
def caught_exception_keeps_its_traceback(x, n):
    try:
        try:
            fail(KeyError, n)
        except KeyError:
            fail(ValueError, x + n)
    except ValueError as error:
        saved = error
    return saved


@case(with_x(1, 2))
def traceback_seen_inside(x, n):
    try:
        fail(KeyError, n)
    except KeyError as error:
        entry = error.__traceback__
        found = [entry.tb_frame.f_code.co_name, entry.tb_next.tb_frame.f_code.co_name]
        found += [entry.tb_next.tb_lineno - entry.tb_lineno, entry.tb_next.tb_next]
        found.append(entry is error.__traceback__)
        same = error.with_traceback(None)
    traceback.clear_frames(entry)
    return found, same.__traceback__, sys.exc_info(), x + n


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


def leaves(error):
    if isinstance(error, BaseExceptionGroup):
        return [error.message, *map(leaves, error.exceptions)]
    return repr(error)


def grouped(n):
    return ExceptionGroup(
        "outer", [ValueError(n), ExceptionGroup("inner", [KeyError(n), ValueError(7)]), OSError(n)]
    )


@case(with_x(1, 2))
def group_split_and_subgroup(x, n):
    group = grouped(n)
    group.add_note("noted")
    some, rest = group.split(ValueError)
    few = group.subgroup(lambda e: isinstance(e, KeyError))
    none, whole = group.split(AssertionError)
    made = [leaves(part) for part in (some, rest, few, whole)]
    return made, some.__notes__, some.__notes__ is group.__notes__, none, whole is group, str(group)


@case(with_x(0, 1, 2))
def group_handled_in_parts(x, n):
    seen = []
    try:
        try:
            raise grouped(n)
        except* ValueError as part:
            seen.append(("value", leaves(part)))
            if n == 1:
                raise AssertionError(n) from None
        except* KeyError as part:
            seen.append(("key", leaves(part)))
            if n == 2:
                raise
    except ExceptionGroup as left:
        seen.append(("left", leaves(left)))
    return seen, x + n


@case(with_x(KeyError(1), ValueError(2), grouped(3), BaseExceptionGroup("b", [SystemExit(1)])))
def naked_exceptions_and_groups(x, error):
    try:
        raise error
    except* ValueError as part:
        seen = "value", leaves(part)
    except* KeyError as part:
        seen = "key", leaves(part)
    except* (OSError, SystemExit) as part:
        seen = "other", leaves(part)
    return seen, x + 1


class Labelled(ExceptionGroup):
    def __new__(cls, message, members, label):
        made = super().__new__(cls, message, members)
        made.label = label
        return made

    def derive(self, members):
        return Labelled(self.message, members, self.label)


@case(with_x("a", "b"))
def group_that_derives(x, label):
    group = Labelled("many", [ValueError(1), KeyError(2), ValueError(3)], label)
    some, rest = group.split(KeyError)
    try:
        raise group
    except* KeyError as part:
        seen = part.label, leaves(part)
    except* ValueError as part:
        other = type(part).__name__, part.label
    return some.label, rest.label, leaves(rest), seen, other, x + 1


@case(with_x(0, 1, 2, 3, 4))
def wrong_groups(x, n):
    makers = [
        lambda: ExceptionGroup("text", []),
        lambda: ExceptionGroup("text", [1]),
        lambda: ExceptionGroup("text", [KeyboardInterrupt()]),
        lambda: type(BaseExceptionGroup("text", [ValueError(n)])).__name__,
        lambda: ExceptionGroup("text"),
    ]
    try:
        return makers[n](), x
    except (TypeError, ValueError) as error:
        return type(error).__name__, str(error), x + n


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


SEEN: list[str] = []


@case(
    lambda: [(t(3), t(2, 2)), (t(3), torch.eye(2)), (t(3), -torch.eye(2)), (t(3), torch.eye(2))],
)
def error_that_only_the_run_knows(x, matrix):
    SEEN.append("before")
    try:
        found = torch.linalg.cholesky(matrix)
    except RuntimeError as error:
        SEEN.append(type(error).__name__)
        found = matrix * 0
    return x + found.sum()


@case(lambda: [(torch.tensor([0, 1]),), (torch.tensor([0, 9]),), (torch.tensor([1, 1]),)])
def index_that_only_the_run_knows(index):
    SEEN.append("before")
    with torch.no_grad():
        return torch.arange(3.0)[index] * 2


@case(lambda: [(t(3),), (t(3, dtype=torch.int64),), (t(3),)])
def in_place_operation_that_fails(x):
    SEEN.append("before")
    x *= torch.tensor(1.5)
    return x


@case(lambda: [(t(2, 3), t(3)), (t(3), t(2, 3)), (t(3), t(3))])
def in_place_operation_of_another_shape(x, y):
    SEEN.append("before")
    x.bitwise_and_(y) if x.dtype is torch.int64 else x.add_(y)
    return x


@case(lambda: [(t(2),), (t(3),)], traceback=True)
def truth_of_several(x):
    y = x + 1
    if y:
        return y
    return x


@case(lambda: [(t(3), t(3)), (t(1), t(3)), (t(3), t(3))])
def in_place_operation_on_shared_elements(x, y):
    SEEN.append("before")
    wide = torch.broadcast_tensors(x, y)[0]
    wide *= y
    return wide


@case(lambda: [(t(4), 0), (t(4), 1), (t(4), 0)])
def in_place_operation_on_overlapping_operands(x, start):
    SEEN.append("before")
    x[start : start + 3].add_(x[:3])
    return x


def _thrown_away():
    numbers = torch.tensor([1, 0])
    return [
        (t(2), torch.index_select, 0, numbers),
        (t(2), torch.index_select, 0, numbers + 9),
        (t(2, 2), torch.linalg.inv),
        (torch.zeros(2, 2), torch.linalg.inv),
        (numbers, torch.floor_divide, numbers),
        (numbers, torch.pow, -1),
        (numbers, torch.max),
        (numbers[:0], torch.max),
        (numbers, nn.functional.one_hot, 2),
        (numbers, nn.functional.one_hot, 1),
        (t(2, 2, dtype=torch.float64), nn.functional.linear, t(2, 2)),
        (numbers.bool(), torch.abs),
    ]


@case(_thrown_away)
def result_that_is_thrown_away(x, function, *rest):
    SEEN.append("before")
    function(x, *rest)
    SEEN.append("after")
    return x + x
