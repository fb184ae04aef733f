"""The interpreter itself: its builtins, limits, collector, frames, and the words of its errors."""

from __future__ import annotations

import builtins
import gc
import operator
import sys

from conformance.declare import case, t, with_x


def cell_of(*value):
    def inner():
        return held

    if value:
        held = value[0]
    return inner.__closure__[0]


@case(with_x(0, 1, 0))
def builtins_that_the_program_replaces(x, n):
    def count():
        return len([1, 2, 3])

    before = count()
    kept = builtins.len
    if n:
        builtins.len = lambda values: 7
    try:
        return x + count(), before
    finally:
        builtins.len = kept


@case(with_x(0, 1))
def names_of_builtins_are_not_attributes_of_the_module(x, n):
    class Made:
        del __annotations__  # noqa: F821  # the class statement makes it
        try:
            y: int = n
            found = "annotated"
        except NameError as error:
            found = str(error)
        z: str = ""

    return x, Made.found


@case(with_x(0, 1))
def builtins_of_functions(x, n):
    def made():
        return n

    outer = cell_of.__builtins__
    return x, made.__builtins__ is outer, "len" in outer


@case(with_x(1, 2))
def numbers_too_long_to_write(x, n):
    large = 7 ** (3000 * n)
    x.untyped_storage()
    try:
        text = str(large)
    except ValueError as error:
        text = str(error)[:20]
    return x, large % 1000, len(text)


@case(lambda: [(t(2), 7**3000), (t(2), 7**3000), (t(2), 7**6000)])
def long_numbers_as_arguments(x, number):
    return x * (number % 10), {number: 1}[number]


@case(with_x(1, 2))
def recursion_at_its_limit(x, n):
    def deeper(count):
        return deeper(count + 1)

    limit = sys.getrecursionlimit()
    depth = 1
    while True:
        try:
            sys.setrecursionlimit(depth)
        except RecursionError:
            depth += 1
        else:
            break
    sys.setrecursionlimit(depth + 10 * n)
    try:
        deeper(0)
    except RecursionError:
        found = "too deep"
    finally:
        sys.setrecursionlimit(limit)
    return x, found


@case(with_x(0, 1, 0))
def breaks_while_builtins_are_replaced(x, n):
    kept = builtins.len
    if n:
        builtins.len = lambda values: 7
    try:
        x.untyped_storage()
        return x + len([1, 2])
    finally:
        builtins.len = kept


@case(with_x(1, 2))
def thresholds_of_the_collector(x, n):
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10 + n)
    try:
        return x, gc.get_threshold()
    finally:
        gc.set_threshold(*before)


class Passing:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False


def raised_again():
    try:
        raise KeyError("k")
    except Exception:
        raise


def raised_within_with():
    with Passing():
        x = 1
        raise KeyError("k")
    return x


def raised_before_finally():
    x = 0
    try:
        raise KeyError("k")
    finally:
        x += 1
        x += 2


def raised_past_a_handler():
    try:
        raised_again()
    except ValueError:
        pass
    return 3


@case(with_x(0, 1, 2, 3))
def lines_of_frames_that_an_exception_has_left(x, n):
    functions = (raised_again, raised_within_with, raised_before_finally, raised_past_a_handler)
    try:
        functions[n]()
    except KeyError as error:
        entry = error.__traceback__.tb_next
    found = []
    while entry is not None:
        frame = entry.tb_frame
        start = frame.f_code.co_firstlineno
        found.append((entry.tb_lineno - start, frame.f_lineno - start))
        entry = entry.tb_next
    return x, found


@case(with_x(0, 1, 2))
def calls_that_fail_in_the_interpreters_words(x, n):
    calls = (lambda: iter(n, 2), lambda: operator(), lambda: x.shape())
    try:
        return x, calls[n]()
    except TypeError as error:
        return x, str(error)
