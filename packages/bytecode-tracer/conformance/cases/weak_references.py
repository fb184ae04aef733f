"""Weak references to objects of the caller and of the program, while they live and after."""

from __future__ import annotations

import gc
import sys
import time
import weakref

import torch
from torch import nn

from conformance.declare import case, scenario, t, with_x


class Thing:
    def __init__(self, value):
        self.value = value


class Node:
    """A tree whose nodes know their parent weakly."""

    def __init__(self, value, parent=None):
        self.value = value
        self.children = []
        self.parent = None if parent is None else weakref.ref(parent)
        if parent is not None:
            parent.children.append(self)

    def depth(self):
        above = None if self.parent is None else self.parent()
        return 0 if above is None else above.depth() + 1


KEPT = Thing(3)

OTHER = Thing(4)


def _alive_then_dead():
    thing = Thing(2)
    reference = weakref.ref(thing)
    yield (t(2), reference)
    thing.value = 3
    yield (t(2), reference)
    del thing
    yield (t(2), reference)


@case(_alive_then_dead)
def read_reference(x, reference):
    thing = reference()
    return x * 2 if thing is None else x * thing.value


def _only_in_a_list():
    for count in (1, 2, 1):
        items = [Thing(n) for n in range(count)]
        yield (t(2), items, weakref.ref(items[0]))


@case(_only_in_a_list)
def dropped_by_the_program(x, items, reference):
    before = reference() is not None
    items.clear()
    return before, reference() is None, x + 1


@case(_only_in_a_list)
def appended_to_what_holds_it(x, items, reference):
    items.append(5)
    found = reference()
    return found is items[0], found.value, x + 1


@case(_only_in_a_list)
def replaced_in_a_list(x, items, reference):
    items[0] = None
    return reference() is None, x * 2


class Holder:
    def __init__(self, thing):
        self.thing = thing
        self.table = {"thing": thing, "other": 1}


def _only_in_an_object():
    for value in (1, 2):
        holder = Holder(Thing(value))
        yield (t(2), holder, weakref.ref(holder.thing))


@case(_only_in_an_object)
def dropped_from_an_attribute(x, holder, reference):
    holder.thing = None
    half = reference() is not None
    del holder.table["thing"]
    return half, reference() is None, x


@case(_only_in_an_object)
def held_by_a_variable(x, holder, reference):
    thing = holder.thing
    holder.thing = None
    holder.table.clear()
    return reference() is thing, thing.value * x


@case(_only_in_an_object)
def written_beside_it(x, holder, reference):
    holder.table["new"] = 2
    holder.fresh = [1]
    return reference() is holder.thing, x * reference().value


def _two_references():
    one, two = Thing(1), Thing(2)
    yield (t(2), weakref.ref(one), weakref.ref(two))
    yield (t(2), weakref.ref(one), weakref.ref(one))
    yield (t(2), weakref.ref(two), weakref.ref(one))


@case(_two_references)
def compared(x, left, right):
    return left == right, left != right, left is right, left() is right(), x


@case(lambda: [(t(2), weakref.ref(KEPT)), (t(2), weakref.ref(OTHER))])
def reference_made_again(x, reference):
    again = weakref.ref(reference())
    return again is reference, again == reference, again() is KEPT, x


@case(lambda: [(t(2), KEPT), (t(2), OTHER), (t(2), KEPT)])
def referred_argument(x, thing):
    reference = weakref.ref(thing)
    return reference() is thing, x * reference().value, reference


@case(lambda: [(t(2), 5), (t(2), "text"), (t(2), KEPT), (t(2), (1,))])
def what_cannot_be_referred_to(x, value):
    try:
        return weakref.ref(value)() is value, x
    except TypeError as error:
        return str(error), x


class Bound:
    def __init__(self, scale):
        self.scale = scale

    def apply(self, x):
        return x * self.scale


def _methods():
    first, second = Bound(2), Bound(3)
    yield (t(2), weakref.WeakMethod(first.apply))
    yield (t(2), weakref.WeakMethod(second.apply))
    del second
    reference = weakref.WeakMethod(first.apply)
    del first
    yield (t(2), reference)


@case(_methods)
def weak_method(x, reference):
    method = reference()
    return x if method is None else method(x)


class Linked:
    def __init__(self, thing):
        self.link = weakref.proxy(thing)


def _proxies():
    first, second = Thing(2), Thing(3)
    yield (t(2), Linked(first))
    yield (t(2), Linked(second))


@case(_proxies)
def proxy_of_an_argument(x, linked):
    try:
        return x * linked.link.value
    except ReferenceError as error:
        return str(error)


@case(with_x(1, 2))
def made_and_alive(x, n):
    thing = Thing(n)
    reference = weakref.ref(thing)
    return reference() is thing, reference().value * x, type(reference).__name__


@case(with_x(1, 2))
def made_and_dropped(x, n):
    thing = Thing(n)
    reference = weakref.ref(thing)
    thing = None
    return reference() is None, x * n


@case(with_x(1, 2))
def one_reference_for_each_object(x, n):
    thing, other = Thing(n), Thing(n)
    first, second = weakref.ref(thing), weakref.ref(thing)
    return first is second, first == weakref.ref(other), first != second, x


@case(with_x(1, 2))
def returned_with_its_object(x, n):
    thing = Thing(x * n)
    reference = weakref.ref(thing)
    return thing, reference, reference() is thing


@case(with_x(1, 2), then=lambda result: (result[0]() is None, result[1]))
def returned_without_its_object(x, n):
    thing = Thing(x * n)
    return weakref.ref(thing), thing.value


@case(with_x(1, 3))
def tree_with_weak_parents(x, n):
    root = Node(x)
    node = root
    for step in range(n):
        node = Node(x + step, node)
    total = sum(child.value for child in root.children)
    return node.depth(), total, node.parent().value, root.parent


@case(with_x(1, 2))
def tree_that_loses_its_root(x, n):
    node = Node(n)
    for step in range(n):
        node = Node(step, node)
    return node.depth(), node.parent() is None, x


@case(with_x(1, 2))
def proxy_made(x, n):
    thing = Thing(n)
    made = weakref.proxy(thing)
    first = made.value * x
    del thing
    try:
        return first, made.value
    except ReferenceError:
        return first, "gone"


@case(with_x(1))
def cycle_collected(x, n):
    thing, other = Thing(n), Thing(n)
    thing.other, other.other = other, thing
    reference = weakref.ref(thing)
    del thing, other
    gc.collect()
    return reference() is None, x


@case(with_x(1, 2))
def dropped_after_a_break(x, n):
    thing = Thing(x * n)
    scaled = thing.value + 1
    time.perf_counter()
    reference = weakref.ref(thing)
    alive = reference() is thing
    del thing
    return alive, reference() is None, scaled


def _watch(thing):
    time.perf_counter()
    reference = weakref.ref(thing)
    del thing
    return reference() is None


@case(with_x(1, 2))
def temporary_of_a_call(x, n):
    kept = Thing(n)
    return _watch(Thing(x)), _watch(kept), x + 1


@case(with_x(1, 2))
def held_by_an_exception(x, n):
    def fail(thing):
        raise ValueError(thing.value)

    thing = Thing(n)
    reference = weakref.ref(thing)
    try:
        fail(thing)
    except ValueError as error:
        del thing
        held = reference() is not None
        found = error.args
    return held, found, reference() is None, x


@case(with_x(1, 2))
def held_by_a_closure(x, n):
    thing = Thing(n)
    reference = weakref.ref(thing)

    def scaled(y):
        return y * thing.value

    first = scaled(x)
    return first, reference() is thing, reference().value


@case(with_x(1, 2))
def held_by_a_generator(x, n):
    def values(thing):
        yield thing.value
        yield thing.value + 1

    made = Thing(n)
    reference = weakref.ref(made)
    running = values(made)
    first = next(running)
    del made
    held = reference() is not None
    second = next(running)
    del running
    return first, second, held, reference() is None, x


@case(with_x(1, 2))
def counted(x, n):
    items = [Thing(n)]
    before = sys.getrefcount(items[0])
    second = items[0]
    return sys.getrefcount(items[0]) - before, second.value, weakref.getweakrefcount(second), x


@case(with_x(1, 3))
def ids_of_temporaries(x, n):
    pairs = set(map(id, zip(range(n + 2), range(n + 2), strict=True)))
    kept = [*zip(range(n + 2), range(n + 2), strict=True)]
    return len(pairs), len(set(map(id, kept))), x


@case(with_x(1, 3))
def ids_of_what_is_held(x, n):
    things = [Thing(k) for k in range(n)]
    places = {id(thing): k for k, thing in enumerate(things)}
    return [places[id(thing)] for thing in reversed(things)], x


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.seen = 0

    def forward(self, x):
        def count(module, args, output):
            self.seen += 1
            return output + 1

        handle = self.inner.register_forward_hook(count)
        y = self.inner(x)
        handle.remove()
        return y + self.inner(x)


@scenario(lambda m: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def hook_registered_and_removed():
    torch.manual_seed(3)
    made = Hooked()
    return made, made


class Child(nn.Module):
    """It knows the module around it, which registers it, by a weak reference."""

    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, x):
        parent = self.parent()
        return x if parent is None else x * parent.scale


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.child = Child(self)

    def forward(self, x):
        return self.child(x) + 1


def _scales(module):
    yield (t(2),)
    module.scale = 5.0
    yield (t(2),)
    module.child.parent = weakref.ref(KEPT)
    KEPT.scale = 3.0
    yield (t(2),)


@scenario(_scales)
def module_that_knows_its_parent():
    made = Parent()
    return made, made
