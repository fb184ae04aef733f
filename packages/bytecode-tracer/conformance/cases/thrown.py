"""Exceptions thrown into generators: their contexts and tracebacks."""

from __future__ import annotations

import contextlib

from conformance.declare import case, only, with_x


def history(error):
    """What an exception tells of how it came to be."""
    contexts, places = [], []
    entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if not code.co_filename.endswith(("contextlib.py", "dispatch.py", "entries.py")):
            places.append((code.co_name, entry.tb_lineno - code.co_firstlineno))
        entry = entry.tb_next
    one = error
    while one is not None and len(contexts) < 9:
        contexts.append((type(one).__name__, str(one), one.__suppress_context__))
        one = one.__context__
    return contexts, places


def steps(n):
    """Waits, handling an exception or not."""
    try:
        if n == 3:
            try:
                raise KeyError(n)
            except KeyError:
                yield 1
        else:
            yield 1
    finally:
        if n > 1:
            raise ValueError(n)


@case(with_x((1, False), (1, True), (2, False), (2, True), (3, False), (3, True)))
def while_the_caller_handles_another(x, given):
    n, started = given
    waiting, seen = steps(n), []
    try:
        raise RuntimeError("outer")
    except RuntimeError:
        if started:
            next(waiting)
        for text in ("first", "again"):
            try:
                waiting.throw(TypeError(text))
            except (TypeError, ValueError) as error:
                seen.append(history(error))
    return seen, x * n


def inner():
    yield 1


def outer(fails):
    try:
        yield from inner()
    except TypeError:
        if fails:
            raise ValueError from None
        yield 2


@case(only(False, True))
def into_what_a_generator_waits_for(fails):
    waiting, seen = outer(fails), []
    try:
        raise KeyError("handled")
    except KeyError:
        next(waiting)
        for kind in (TypeError, IndexError):
            try:
                seen.append(waiting.throw(kind("thrown")))
            except (ValueError, IndexError) as error:
                seen.append(history(error))
    return seen


@contextlib.contextmanager
def replacing(error):
    try:
        yield
    finally:
        raise error


@case(with_x(1, 2, 3))
def managers_that_each_raise_another(x, count):
    try:
        with contextlib.ExitStack() as stack:
            for n in range(count):
                stack.enter_context(replacing(ValueError(n)))
            raise KeyError("first")
    except (ValueError, KeyError) as error:
        return history(error)[0], x


@contextlib.contextmanager
def passing():
    yield


@case(only(StopIteration("a"), RuntimeError("b"), ValueError("c")))
def manager_that_lets_pass(raised):
    try:
        with passing():
            raise raised
    except type(raised) as error:
        return error is raised, history(error)
