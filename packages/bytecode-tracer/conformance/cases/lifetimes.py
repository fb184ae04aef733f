"""weakref, del, context variables, copies."""

from __future__ import annotations

import contextvars
import copy
import pickle
import weakref

import torch
from torch import nn

from conformance.declare import case, t, with_x

LEVEL = contextvars.ContextVar("LEVEL", default=1)


class Thing:
    def __init__(self, value):
        self.value = value
        self.inner = [value]


class Custom:
    def __init__(self, value):
        self.value = value

    def __copy__(self):
        return Custom("copied")

    def __deepcopy__(self, memo):
        return Custom("deep")


THING = Thing(3)
REF = weakref.ref(THING)
FINALIZED = []


@case(with_x(1, 2))
def weak_reference_alive(x, n):
    thing = Thing(n)
    ref = weakref.ref(thing)
    return ref() is thing, ref().value * x


@case(with_x(1, 2))
def weak_reference_dead(x, n):
    thing = Thing(n)
    ref = weakref.ref(thing)
    del thing
    return ref() is None, x


def _reference():
    yield (t(2),)
    THING.value = 5
    yield (t(2),)


@case(_reference)
def global_reference(x):
    return x * REF().value


def _dying_argument():
    thing = Thing(2)
    ref = weakref.ref(thing)
    yield (t(2), ref)
    del thing
    yield (t(2), ref)


@case(_dying_argument)
def reference_argument(x, ref):
    thing = ref()
    return x if thing is None else x * thing.value


@case(with_x(1, 2))
def weak_containers(x, n):
    thing = Thing(n)
    table = weakref.WeakKeyDictionary({thing: x})
    values = weakref.WeakValueDictionary(a=thing)
    return table[thing], len(table), values["a"] is thing, thing in weakref.WeakSet([thing])


@case(with_x(1, 2))
def proxy(x, n):
    thing = Thing(n)
    made = weakref.proxy(thing)
    return made.value * x, type(made).__name__


@case(with_x(1, 2))
def finalizer(x, n):
    thing = Thing(n)
    weakref.finalize(thing, FINALIZED.append, n)
    del thing
    return x, len(FINALIZED)


class Counted:
    alive = 0

    def __init__(self):
        Counted.alive += 1

    def __del__(self):
        Counted.alive -= 1


@case(with_x(1, 2))
def destructor(x, n):
    items = [Counted() for _ in range(n)]
    during = Counted.alive
    del items
    return during, Counted.alive, x


@case(with_x(1, 2))
def context_variable_set(x, n):
    token = LEVEL.set(n * 10)
    inside = LEVEL.get()
    LEVEL.reset(token)
    return x * inside, LEVEL.get()


def _levels():
    for value in (1, 5, 1):
        token = LEVEL.set(value)
        yield (t(2),)
        LEVEL.reset(token)


@case(_levels)
def context_variable_read(x):
    return x * LEVEL.get()


@case(with_x(1, 2))
def context_run(x, n):
    def inner(k):
        LEVEL.set(k)
        return LEVEL.get()

    context = contextvars.copy_context()
    return context.run(inner, n + 7), LEVEL.get(), context[LEVEL], x


@case(with_x(1, 2))
def unset_context_variable(x, n):
    local = contextvars.ContextVar("local")
    try:
        local.get()
    except LookupError:
        return local.get(n), x


@case(lambda: [([t(2), [1]],), ([t(3), [2, 3]],)])
def shallow_copy(items):
    copied = copy.copy(items)
    copied.append("new")
    return copied, copied[0] is items[0], copied[1] is items[1], len(items)


@case(lambda: [([t(2), [1]],), ({"a": [t(3)]},)])
def deep_copy(items):
    copied = copy.deepcopy(items)
    return copied, copied is items


@case(lambda: [(Thing(t(2)),), (Thing(5),)])
def copies_of_objects(thing):
    shallow, deep = copy.copy(thing), copy.deepcopy(thing)
    shallow.value = "changed"
    return shallow.inner is thing.inner, deep.inner is thing.inner, deep.value, thing.value


@case(with_x(1, 2))
def own_copy_methods(x, n):
    made = Custom(n)
    return copy.copy(made).value, copy.deepcopy(made).value, copy.deepcopy([made, x])[1] is x


def _aliased():
    inner = [t(2)]
    return [([inner, inner],), ([inner, [t(2)]],)]


@case(_aliased)
def deep_copy_keeps_aliases(items):
    copied = copy.deepcopy(items)
    copied[0].append(1)
    return copied, items


@case(lambda: [(t(2, grad=True),), (t(3),)])
def copy_of_tensor(x):
    return copy.copy(x), copy.deepcopy(x), copy.copy(x) is x


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def copy_of_module(x):
    torch.manual_seed(1)
    module = nn.Linear(3, 2)
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.weight.zero_()
    return module(x), copied(x)


@case(with_x([1, {"a": (2, 3)}], "text"))
def pickled(x, value):
    return pickle.loads(pickle.dumps(value)), x


@case(lambda: [([1, 2], {"a": [1]}, t(2)), ([3], {}, t(2))])
def copy_methods(items, table, x):
    return items.copy(), table.copy()["a"] is table["a"] if table else None, set(items).copy(), x


@case(with_x(1, 2))
def copies_that_are_the_same(x, n):
    whole, nested, part = (n, x), (n, [x]), slice([n], 2)
    return (
        *(
            copy.copy(whole) is whole,
            copy.deepcopy((n, "a")),
            copy.deepcopy(nested)[1] is nested[1],
        ),
        *(copy.copy(frozenset([n])), copy.copy(nested) is nested, copy.deepcopy(part).start == [n]),
        copy.deepcopy(part).start is part.start,
    )


@case(lambda: [([1], [1]), _same_twice(), ([2], [2]), ([], [3])])
def ids_compared(a, b):
    seen = {id(a): "a"}
    seen.setdefault(id(b), "b")
    made = [a, b]
    return id(a) == id(b), len(seen), seen[id(made[1])], id(made) in seen, id(a) != id(made)


def _same_twice():
    made = [4]
    return made, made


@case(with_x([1, 2], [[3]], []))
def walk_that_remembers_ids(x, items):
    items.append(items)
    seen, found = set(), []

    def walk(value):
        if id(value) in seen:
            return
        seen.add(id(value))
        found.append(len(value))
        for inner in value:
            if isinstance(inner, list):
                walk(inner)

    walk(items)
    items.pop()
    return found, x


PROXIED = Thing(7)


@case(lambda: [(t(2), weakref.proxy(PROXIED)), (t(2), weakref.proxy(PROXIED))])
def proxy_of_the_caller(x, made):
    return x * made.value, hasattr(made, "other")


CLOSED = []


def waiting(x):
    try:
        yield x
        yield x + 1
    finally:
        CLOSED.append("closed")


@case(with_x({}, {"missing": 1}))
def generators_end_while_an_error_passes(x, named):
    """What the frame held is gone while its caller still has the error and its traceback."""
    for row in waiting(x):
        try:
            del named["missing"]
        finally:
            CLOSED.append(len(named))
        CLOSED.append(row.sum().item())
        named["other"].append(1)


@case(with_x({}, {"missing": 1}))
def things_end_while_an_error_passes(x, named):
    held = [Closing(named)]
    with Suppressing(held):
        held.pop().named["missing"]
        named["other"].append(1)


class Closing:
    def __init__(self, named):
        self.named = named

    def __del__(self):
        CLOSED.append("gone")


class Suppressing:
    def __init__(self, held):
        self.held = held

    def __enter__(self):
        return self

    def __exit__(self, *error):
        CLOSED.append(str(error[1]))
        return False
