"""The standard library's state: random generators, contexts, locks, logs, the environment, time."""

from __future__ import annotations

import contextvars
import copy
import logging
import os
import os.path
import pathlib
import platform
import queue
import random
import sys
import threading
import time
import warnings

from conformance.declare import case, scenario, t, with_x

LEVEL = contextvars.ContextVar("LEVEL", default=1)
LOCK = threading.Lock()
AGAIN = threading.RLock()
COUNTS = {"calls": 0}

# Random numbers.


@case(with_x(1, 2))
def module_functions(x, n):
    a = random.random(), random.uniform(0, n), random.randint(0, n), random.gauss(0, n)
    b = (
        random.choice([1, 2, 3]),
        random.randrange(10),
        random.getrandbits(8),
        random.betavariate(1, n),
    )
    return x * a[0], a, b, random.expovariate(n), random.normalvariate(), random.triangular()


@case(with_x([1, 2, 3, 4], [7, 8]))
def shuffled(x, items):
    random.shuffle(items)
    return (
        x * items[0],
        items,
        random.sample(items, 2),
        random.choices(items, [1] * len(items), k=2),
    )


@case(with_x(0, 3, 0))
def seeded(x, n):
    random.seed(n or 1)
    first = random.random()
    state = random.getstate()
    second = random.random()
    random.setstate(state)
    return x * first, second, random.random() == second


@case(with_x(0, 3, 0))
def generator_made_inside(x, n):
    own = random.Random(n or 1)
    items = list(range(4))
    own.shuffle(items)
    return x * own.random(), own.randint(0, 9), own.choice("abc"), items, own.gauss(0, 1)


@case(with_x(0, 3, 0))
def generator_returned(x, n):
    own = random.Random(n or 1)
    own.random()
    return x, own.random(), own.getstate()


@case(lambda: [(t(2), random.Random(1)), (t(2), random.Random(2)), (t(3), random.Random(1))])
def generator_argument(x, own):
    if own.random() < 0.5:
        x = x + 1
    return x * own.random(), own.randrange(5), own.sample(range(9), 2)


@scenario(lambda: [(t(2),), (t(2),), (t(2),), (t(2),)])
def generator_kept():
    class Layer:
        def __init__(self):
            self.random = random.Random(5)

        def __call__(self, x):
            return x * self.random.uniform(0, 1), self.random.getrandbits(16)

    return Layer()


@case(lambda: [(t(2), 0.5), (t(2), 0.5), (t(2), 0.5), (t(2), 0.5)])
def skipped_at_random(x, rate):
    for layer in range(3):
        if random.uniform(0, 1) < rate:
            continue
        x = x * 2 + layer
    return x


@case(lambda: [(t(2),), (t(2),), (t(2),)])
def number_as_data(x):
    return x * random.random() + random.uniform(1, 2)


@case(with_x(1, 2))
def drawn_around_an_effect(x, n):
    items = [random.random()]
    items.append(random.randint(0, n))
    x.add_(1)
    items.append(random.random())
    return x, items


# Context variables.


@case(with_x(1, 2))
def variable_read(x, n):
    token = LEVEL.set(n)
    try:
        return x * LEVEL.get(), token.old_value is contextvars.Token.MISSING
    finally:
        LEVEL.reset(token)


@case(lambda: ((LEVEL.set(n), (t(2),))[1] for n in (1, 2, 1)))
def variable_of_outside(x):
    return x * LEVEL.get()


@case(with_x(1, 2))
def run_in_context(x, n):
    context = contextvars.copy_context()

    def inner():
        LEVEL.set(n + 10)
        return LEVEL.get()

    found = context.run(inner)
    return x * found, LEVEL.get(), context[LEVEL]


# Logs and warnings.


RECORDS = []


class Keep(logging.Handler):
    def emit(self, record):
        RECORDS.append((record.levelname, record.getMessage()))


LOGGER = logging.getLogger("conformance.cases.standard_world")
LOGGER.handlers[:] = [Keep()]
LOGGER.setLevel(logging.INFO)
LOGGER.propagate = False


@case(with_x(1, 2), then=lambda result: (result, list(RECORDS)))
def logged(x, n):
    LOGGER.info("start %d", n)
    y = x * n
    LOGGER.debug("unseen %s", n)
    LOGGER.warning("shape %s", tuple(y.shape))
    LOGGER.log(logging.ERROR, "done")
    return y, LOGGER.isEnabledFor(logging.DEBUG), LOGGER.getEffectiveLevel()


@case(with_x(1, 2), then=lambda result: (result, list(RECORDS)))
def logged_child(x, n):
    child = logging.getLogger("conformance.cases.standard_world.child")
    child.info("child %d", n)
    if LOGGER.isEnabledFor(logging.INFO):
        LOGGER.info("enabled", extra={"n": n})
    return x * n


@case(with_x(1, 0), then=lambda result: (result, list(RECORDS)))
def logged_exception(x, n):
    try:
        return x * (1 // n)
    except ZeroDivisionError:
        LOGGER.exception("failed with %d", n)
        return x


@case(with_x(1, 2))
def warned(x, n):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(f"careful {n}", UserWarning, stacklevel=2)
    return x * len(caught), [str(one.message) for one in caught]


@case(with_x(1, 2))
def warned_outside(x, n):
    warnings.warn("deprecated", DeprecationWarning)
    y = x * n
    warnings.warn(f"value {n}")
    return y


@case(with_x(1, 2))
def warnings_ignored(x, n):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("unseen")
        return x * n


# Locks.


@case(with_x(1, 2))
def lock_of_caller(x, n):
    with LOCK:
        COUNTS["calls"] += n
        x = x * COUNTS["calls"]
    return x, LOCK.locked(), COUNTS


@case(with_x(1, 0))
def lock_and_error(x, n):
    try:
        with LOCK:
            x = x * (1 // n)
    except ZeroDivisionError:
        return x, LOCK.locked()
    return x, "fine"


@case(with_x(1, 2))
def lock_entered_again(x, n):
    with AGAIN:
        with AGAIN:
            COUNTS["calls"] += 1
        x = x + n
    return x


class Cached:
    def __init__(self):
        self.lock = threading.Lock()
        self.table = {}

    def get(self, key, make):
        with self.lock:
            if key not in self.table:
                self.table[key] = make(key)
            return self.table[key]


@scenario(lambda: [(t(2), 1), (t(2), 2), (t(2), 1)])
def lock_of_object():
    cached = Cached()

    def program(x, n):
        return x * cached.get(n, lambda key: key + 1), cached

    return lambda x, n: (program(x, n)[0], dict(cached.table), cached.lock.locked())


@case(with_x(1, 2))
def lock_made_inside(x, n):
    lock = threading.Lock()
    with lock:
        held = lock.locked()
        x = x * n
    return x, held, lock.locked(), lock.acquire(), lock.acquire(blocking=False)


@case(with_x(1, 2))
def lock_watched(x, n):
    class Watching:
        def __setattr__(self, name, value):
            object.__setattr__(self, name, (value, LOCK.locked()))

    watching = Watching()
    with LOCK:
        watching.a = n
    watching.b = n
    return x, watching.a, watching.b


@case(with_x(1, 2))
def acquired_by_hand(x, n):
    LOCK.acquire()
    try:
        x = x * n
    finally:
        LOCK.release()
    return x, LOCK.locked()


@case(with_x(1, 2))
def event_and_queue(x, n):
    event = threading.Event()
    event.set()
    waiting = queue.Queue()
    waiting.put(x * n)
    return waiting.get(), event.is_set(), waiting.empty()


@case(with_x(1, 2))
def local_of_thread(x, n):
    local = threading.local()
    local.value = n
    return x * local.value, threading.current_thread() is threading.main_thread()


# Time and the environment.


@case(with_x(1, 2))
def timed(x, n):
    start = time.perf_counter()
    y = x * n
    taken = time.perf_counter() - start
    return y, taken >= 0, time.time() > 1e9, time.monotonic_ns() > 0


@case(with_x(1, 2))
def slept(x, n):
    time.sleep(0)
    return x * n


@case(with_x(0, 86400))
def clock(x, n):
    return x, time.gmtime(n).tm_mday, time.strftime("%Y", time.gmtime(n))


def environments():
    for value in ("1", "2", None, "1"):
        if value is None:
            os.environ.pop("CONFORMANCE_SCALE", None)
        else:
            os.environ["CONFORMANCE_SCALE"] = value
        yield (t(2),)
    os.environ.pop("CONFORMANCE_SCALE", None)


@case(environments)
def environment_read(x):
    scale = int(os.environ.get("CONFORMANCE_SCALE", "5"))
    return x * scale, "CONFORMANCE_SCALE" in os.environ, os.getenv("CONFORMANCE_SCALE")


@case(environments)
def environment_by_key(x):
    try:
        return x * int(os.environ["CONFORMANCE_SCALE"])
    except KeyError as error:
        return x, str(error)


@case(with_x("1", "2"))
def environment_written(x, value):
    os.environ["CONFORMANCE_OTHER"] = value
    found = os.environ["CONFORMANCE_OTHER"]
    del os.environ["CONFORMANCE_OTHER"]
    return x * int(found), "CONFORMANCE_OTHER" in os.environ


@case(with_x("a/b.txt", "/c"))
def paths(x, path):
    joined = os.path.join("root", path)
    parts = os.path.split(path), os.path.splitext(path), os.path.basename(path)
    return x * len(joined), joined, parts, os.path.normpath("a/../b"), os.path.dirname(path)


@case(with_x("a/b.txt", "/c"))
def path_objects(x, path):
    made = pathlib.PurePosixPath(path)
    return x, made.name, made.suffix, str(made / "d"), made.parent == pathlib.PurePosixPath("a")


@case(with_x(1, 2))
def files_that_exist(x, n):
    return x * n, os.path.exists("/"), os.path.isdir("/nowhere"), os.path.isfile("/")


@case(with_x(1, 2))
def interpreter(x, n):
    return x * n, sys.version_info >= (3, 8), sys.platform, sys.maxsize, platform.system(), os.name


@case(with_x(1, 2))
def modules_looked_up(x, n):
    return x * n, "os" in sys.modules, sys.modules["time"] is time, sys.byteorder, os.sep


@case(with_x(1, 2))
def process(x, n):
    return x, os.getpid() == os.getpid(), len(os.getcwd()) > 0, threading.get_ident() > 0


# The tables of `copy`.


class Copied:
    def __init__(self, value):
        self.value = value


def _tables(x):
    """Calls with other ways of copying put into the tables, and taken out again."""

    def call():
        return t(2, 3), [1, [2, 3]], Copied([4])

    yield call()
    for table, kind, way in (
        (vars(copy)["_copy_dispatch"], list, lambda value: ["another", *value]),
        (vars(copy)["_copy_dispatch"], Copied, lambda value: "copied"),
        (vars(copy)["_deepcopy_dispatch"], list, lambda value, memo: ["deep", *value]),
        (vars(copy)["_deepcopy_dispatch"], Copied, lambda value, memo: value),
    ):
        before = dict(table)
        table[kind] = way
        try:
            yield call()
        finally:
            table.clear()
            table.update(before)
        yield call()


@scenario(_tables)
def patched_ways_of_copying():
    def program(x, values, held):
        return x + 1, copy.copy(values), copy.deepcopy(values), copy.copy(held), copy.deepcopy(held)

    return program, ["state"]
