"""Output: print, logging, warnings, input to files in memory; all in order."""

from __future__ import annotations

import io
import logging
import sys
import warnings

from conformance.declare import case, t, with_x

RECORDS = []
LOGGER = logging.getLogger("conformance.cases.printing")


class Keep(logging.Handler):
    def emit(self, record):
        RECORDS.append((record.levelname, record.getMessage()))


LOGGER.handlers[:] = [Keep()]
LOGGER.setLevel(logging.INFO)
LOGGER.propagate = False


class Talking:
    def __str__(self):
        print("asked")
        return "talking"


@case(with_x(1, "a", None))
def prints(x, value):
    print("before", value)
    y = x + 1
    print("after", y.shape, sep="|", end="!\n")
    return y


@case(lambda: [(t(2),), (t(2, start=5),)])
def prints_values(x):
    y = x * 2
    print(y)
    print(f"sum {y.sum()} item {y[0].item():.2f}")
    return y


@case(with_x(0, 3))
def prints_in_loop(x, n):
    for i in range(n):
        x = x + i
        print(i, end=" ")
    return x


@case(with_x(1, 2))
def prints_in_helper(x, n):
    def helper(y):
        print("helper", n)
        return y * n

    return helper(x) + helper(x)


@case(with_x(True, False))
def prints_sometimes(x, flag):
    if flag:
        print("flag")
    return x + 1


@case(with_x(1, 0))
def prints_then_raises(x, n):
    print("start")
    try:
        y = 1 // n
        print("fine")
    except ZeroDivisionError as error:
        print("error", error)
        raise
    finally:
        print("finally")
    return x * y


@case(with_x(1, 2))
def prints_object(x, n):
    print(Talking(), {"n": n}, [Talking])
    return x


@case(with_x(1, 2))
def print_and_mutation_in_order(x, n):
    items = []
    print(items)
    items.append(n)
    print(items)
    x.add_(1)
    print(x[0, 0] > 0)
    return items


@case(with_x(1, 2))
def prints_to_file(x, n):
    into = io.StringIO()
    print("inside", n, file=into)
    into.write("more")
    return into.getvalue(), x


@case(with_x(1, 2))
def writes_to_stdout(x, n):
    sys.stdout.write(f"written {n}\n")
    return x * 2


@case(with_x(1, 2))
def logs(x, n):
    LOGGER.info("value %d", n)
    y = x + n
    LOGGER.debug("hidden")
    LOGGER.warning("shape %s", tuple(y.shape))
    return y


def _levels():
    for level in (logging.INFO, logging.ERROR, logging.INFO):
        LOGGER.setLevel(level)
        yield (t(2),)


@case(_levels)
def log_level_changes(x):
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("enabled")
        x = x + 1
    return x


@case(with_x(1, 2))
def warns(x, n):
    warnings.warn(f"value {n}", UserWarning, stacklevel=1)
    y = x + n
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    return y


@case(with_x(1, 2))
def warnings_caught(x, n):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("inside", stacklevel=1)
    return x * n, [str(w.message) for w in caught]


@case(with_x(1, 2))
def warning_as_error(x, n):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("fatal", stacklevel=1)
        except UserWarning as error:
            return str(error), x * n


@case(with_x(1, 2))
def string_io(x, n):
    stream = io.StringIO("a\nb\n")
    return [line.strip() * n for line in stream], stream.read(), x


@case(with_x(1, 2))
def print_between_gradients(x, n):
    y = x.clone().requires_grad_()
    z = (y * n).sum()
    print("backward")
    z.backward()
    return y.grad


@case(lambda: [(t(2), 1), (t(2), 2), (t(3), 3), (t(2), 3)])
def prints_numbers_that_change(x, n):
    print("n", n, [1, "a", (2, None)], {"k": 1.5}, x.shape)
    LOGGER.info("shape %s n %d", tuple(x.shape), n)
    items = [1]
    print(items)
    items.append(2)
    print(items, Talking())
    return x * n


@case(lambda: [(t(2), 1), (t(2), 1), (t(2), 2)])
def warns_in_order(x, n):
    print("before")
    warnings.warn("careful", stacklevel=1)
    print("between")
    helper_that_warns(n)
    return x * n


def helper_that_warns(n):
    warnings.warn(f"deprecated {n}", DeprecationWarning, stacklevel=2)


def levels():
    for level in (logging.INFO, logging.ERROR, logging.INFO):
        LOGGER.setLevel(level)
        yield (t(2),)
    LOGGER.setLevel(logging.INFO)


@case(levels)
def asks_for_levels(x):
    if LOGGER.isEnabledFor(logging.INFO):
        x = x + 1
        LOGGER.info("enabled", extra={"more": 1})
    return x
