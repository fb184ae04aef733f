"""Objects copied, pickled and reduced: by their state, slots, arguments and own methods."""

from __future__ import annotations

import copy
import copyreg
import pickle

from conformance.declare import case, scenario, t, with_x


class Point:
    def __init__(self, a, b):
        self.a = a
        self.b = b


class Reduced:
    def __init__(self, a, note=""):
        self.a = a
        self.note = note

    def __reduce__(self):
        return Reduced, (self.a, "again")


class Stateful:
    def __init__(self, a):
        self.a = a
        self.cache = {}

    def __getstate__(self):
        return {"a": self.a}

    def __setstate__(self, state):
        self.a = state["a"]
        self.cache = {"fresh": True}


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Copying:
    def __init__(self, a):
        self.a = a

    def __copy__(self):
        return Copying(self.a + 1)

    def __deepcopy__(self, memo):
        made = Copying(copy.deepcopy(self.a, memo))
        memo[id(self)] = made
        return made


class NewArgs(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    def __getnewargs__(self):
        return tuple(self)


@case(with_x(1, 2))
def copies_of_made_objects(x, n):
    point = Point(n, [x, n])
    shallow, deep = copy.copy(point), copy.deepcopy(point)
    deep.b.append(3)
    return point.b, shallow.b is point.b, deep.b[1:], deep.a


@case(lambda: [(t(2), Point(1, [1])), (t(2), Point(2, [2, 3]))])
def copies_of_arguments(x, point):
    shallow, deep = copy.copy(point), copy.deepcopy(point)
    shallow.a = 9
    deep.b.append(7)
    return x * point.a, shallow, deep, point


@case(lambda: [(t(2), Reduced(1)), (t(2), Reduced(2))])
def copies_by_reduce(x, value):
    made = copy.copy(Reduced(x))
    return made.note, made.a is x, copy.deepcopy(value), copy.copy(value).note


@case(lambda: [(t(2), Stateful(1)), (t(2), Stateful([2]))])
def copies_by_state(x, value):
    made = copy.deepcopy(Stateful([3]))
    return made, copy.copy(value), copy.deepcopy(value).cache, x


@case(lambda: [(t(2), Slotted(1)), (t(2), Slotted([2]))])
def copies_of_slots(x, value):
    made = copy.copy(value)
    made.b = x
    deep = copy.deepcopy(Slotted([1]))
    return made.a, hasattr(value, "b"), deep.a, made.b is x


@case(lambda: [(t(2), Copying(1)), (t(2), Copying(3))])
def copies_by_own_methods(x, value):
    both = copy.deepcopy([value, value])
    return x * copy.copy(value).a, both[0] is both[1], both[0].a


@case(with_x(1, 2))
def copies_of_tuples(x, n):
    made = NewArgs(n, [x])
    other = copy.copy(made)
    return type(other) is NewArgs, other[0], other[1] is made[1], copy.deepcopy((n, [n]))


@case(with_x([1, [2]], [[3], 4]))
def deep_copy_with_memo(x, items):
    memo = {}
    first = copy.deepcopy(items, memo)
    second = copy.deepcopy([items, 5], memo)
    return x, first is second[0], first, second


@case(with_x([1, {"a": (2, "b")}], {"k": None}))
def pickled_values(x, value):
    data = pickle.dumps(value)
    back = pickle.loads(data)
    return x * len(back), back, back is value


@case(lambda: [(t(2), Point(1, [1])), (t(2), Point(2, "b"))])
def pickled_objects(x, point):
    back = pickle.loads(pickle.dumps(point))
    return x * back.a, back.b, type(back) is Point


@case(with_x(1, 2))
def pickled_made_objects(x, n):
    back = pickle.loads(pickle.dumps([Point(n, "a"), Stateful(n), Reduced(n)]))
    return x * back[0].a, back[1].cache, back[2].note


@case(with_x(1, 2))
def reduced_by_hand(x, n):
    parts = Reduced(n).__reduce__()
    function, args = parts
    other = Point(n, 2).__reduce_ex__(2)
    return x, function is Reduced, args, other[0] is copyreg.__newobj__, other[2]


@scenario(lambda: [(t(2), 1), (t(2), 2)])
def registered_reduction():
    class Foreign:
        def __init__(self, a):
            self.a = a

    copyreg.pickle(Foreign, lambda value: (Foreign, (value.a * 10,)))

    def program(x, n):
        return x * copy.copy(Foreign(n)).a

    return program
