"""Exceptions as objects: their fields, notes, texts and tracebacks."""

from __future__ import annotations

import sys
import traceback

from conformance.declare import case, with_x


class ShapeError(ValueError):
    def __init__(self, shape, code=1):
        super().__init__(f"bad shape {shape}")
        self.code = code


def fail(kind, *args):
    raise kind(*args)


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
