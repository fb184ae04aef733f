"""Groups of exceptions: raised, split, handled in parts by `except*`."""

from __future__ import annotations

from conformance.declare import case, with_x


class ShapeError(ValueError):
    def __init__(self, shape, code=1):
        super().__init__(f"bad shape {shape}")
        self.code = code


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


def arguments_of(error):
    """What each exception of a chain was made with, and whether lists or tuples."""
    found = []
    while error is not None:
        found.append([type(argument).__name__ for argument in error.args])
        error = error.__context__
    return found


@case(with_x(0, 1, 2))
def arguments_of_groups_that_except_star_makes(x, n):
    try:
        try:
            raise KeyError(n) if n < 2 else ExceptionGroup("g", [KeyError(n), ValueError(n)])
        except* KeyError as group:
            held = type(group.args[1]).__name__
            if n:
                raise TypeError(held) from None
        except* ValueError:
            raise IndexError(n) from None
    except Exception as error:
        return arguments_of(error), x + n
    return held, x - n
