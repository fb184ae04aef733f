"""User containers: `__getitem__`, `__len__`, `__iter__`, `__contains__` and the like."""

from __future__ import annotations

import collections.abc

import torch

from conformance.declare import case, only, t, with_x


class Bag:
    def __init__(self, *items):
        self.items = list(items)
        self.log = []

    def __getitem__(self, key):
        self.log.append(key)
        return self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __delitem__(self, key):
        del self.items[key]

    def __len__(self):
        return len(self.items)

    def __contains__(self, item):
        return any(item is own for own in self.items)

    def __reversed__(self):
        return iter(self.items[::-1])


class Points(collections.abc.Sequence):
    def __init__(self, *values):
        self.values = values

    def __getitem__(self, index):
        return self.values[index]

    def __len__(self):
        return len(self.values)


class Frame(collections.abc.MutableMapping):
    def __init__(self, **columns):
        self.columns = columns

    def __getitem__(self, name):
        return self.columns[name]

    def __setitem__(self, name, value):
        self.columns[name] = value

    def __delitem__(self, name):
        del self.columns[name]

    def __iter__(self):
        return iter(self.columns)

    def __len__(self):
        return len(self.columns)


@case(lambda: [(Bag(t(2), 1),), (Bag(t(3), 2),), (Bag(t(2), 3, 4),)])
def item_access(bag):
    bag[1] = bag[0] * bag[1]
    return bag[-1], len(bag), bag.log


@case(lambda: [(Bag(t(2), 1, 2),), (Bag(t(3), 2),)])
def slices_and_deletion(bag):
    part = bag[1:]
    del bag[0]
    return part, bag.items, bag.log


@case(lambda: [(Bag(t(2), 1), t(2)), (Bag(1), t(2))])
def membership(bag, x):
    bag.items.append(x)
    return x in bag, 5 in bag, bag.items[0] in bag


@case(lambda: [(Bag(1, 2), t(2)), (Bag(3), t(2)), (Bag(), t(2))])
def iteration_and_truth(bag, x):
    return [x * item for item in bag], bool(bag), list(reversed(bag)), (x if bag else None)


@case(lambda: [(Points(1, 2, 1), t(2)), (Points(4), t(2))])
def sequence_mixins(points, x):
    return points.count(1), 1 in points, list(reversed(points)), [x + p for p in points]


@case(lambda: [(Points(1, 2), 2), (Points(1, 2), 9)])
def sequence_index(points, value):
    return points.index(value)


@case(lambda: [(Frame(a=t(2), b=1),), (Frame(a=t(3)),)])
def mapping_mixins(frame):
    frame.update(c=3)
    frame.setdefault("d", 4)
    popped = frame.pop("b", "none")
    return popped, list(frame.items()), frame.get("a") * 2, frame == Frame(a=1)


@case(lambda: [(Frame(a=1, b=2), t(2)), (Frame(b=2, a=1), t(2)), (Frame(a=3), t(2))])
def unpack_mapping(frame, x):
    def named(**values):
        return {key: x * value for key, value in values.items()}

    return named(**frame), {**frame}, list(frame.keys())


@case(lambda: [(Bag(1, 2),), (Bag(t(2), 3),), (Bag(1, 2, 3),)])
def unpack_user_sequence(bag):
    try:
        a, b = bag
    except ValueError as error:
        return str(error)
    return b, a


@case(with_x(2, 3))
def grid_with_tuple_keys(x, n):
    class Grid:
        def __init__(self):
            self.cells = {}

        def __getitem__(self, key):
            return self.cells.get(key, 0)

        def __setitem__(self, key, value):
            self.cells[key] = value

    grid = Grid()
    grid[1, n] = x
    grid[...] = "all"
    grid[1:n, ::2] = 5
    return grid[1, n] is x, grid[0, 0], grid[...], len(grid.cells)


class Hostile:
    """Raises or lies in every comparison."""

    def __eq__(self, other):
        raise RuntimeError("compared")

    def __bool__(self):
        raise RuntimeError("asked for truth")

    __hash__ = None

    def __len__(self):
        return -1


@case(lambda: [(t(2), Hostile()), (t(3), Hostile()), (t(2), 1)])
def hostile_object_passed_through(x, value):
    return x + 1, value


@case(lambda: [(t(2), [Hostile(), 1]), (t(3), [2, Hostile()]), (t(2), [1, 2])])
def hostile_object_in_list(x, items):
    items.append(x)
    return items[0], x * 2


@case(lambda: [(t(2), Hostile()), (t(2), [])])
def hostile_truth(x, value):
    try:
        return x if value else -x
    except RuntimeError as error:
        return str(error)


@case(lambda: [(t(2), Hostile()), (t(2), "a")])
def hostile_equality(x, value):
    try:
        return value == 1
    except RuntimeError as error:
        return str(error), x


class Liar:
    """Equal to everything, of any hash."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


@case(lambda: [(t(2), 1), (t(2), Liar()), (t(2), 1)])
def liar_after_number(x, value):
    return x * value if isinstance(value, int) else (x, value == "anything")


@case(lambda: [(t(2), "a"), (t(2), Liar()), (t(2), None), (t(2), Liar())])
def liar_after_string(x, value):
    return (x + 1, "is a") if value == "a" else (x - 1, "is not")


class AnyAttribute:
    def __getattr__(self, name):
        return name.upper()


@case(lambda: [(t(2), AnyAttribute()), (t(3), AnyAttribute())])
def any_attribute(x, value):
    return value.anything, hasattr(value, "shape"), x


class FakeInt:
    __class__ = int

    def __index__(self):
        return 3


@case(lambda: [(t(4), 3), (t(4), FakeInt()), (t(4), 2)])
def lies_about_its_class(x, value):
    return isinstance(value, int), type(value).__name__, x[value]


@case(only([1, 2, 3], [4]))
def iterable_with_state(items):
    class Once:
        def __init__(self):
            self.left = list(items)

        def __iter__(self):
            while self.left:
                yield self.left.pop(0)

    once = Once()
    return list(once), list(once)


class Named:
    log = []

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        self.log.append(("hash", self.name))
        return len(self.name)

    def __eq__(self, other):
        self.log.append(("eq", self.name))
        return isinstance(other, Named) and self.name == other.name


@case(lambda: [("a", "b"), ("a", "a"), ("a", "bc"), ("", "")])
def own_hash_and_equality(one, other):
    Named.log.clear()
    first, second = Named(one), Named(other)
    table = {first: 1}
    found = second in table, table.get(second), table.setdefault(second, 3)
    members = {first, second, first}
    return found, len(table), len(members), list(Named.log), [k.name for k in table]


class Plain:
    def __init__(self, tag):
        self.tag = tag


def _twice(tag):
    made = Plain(tag)
    return made, made


@case(lambda: [(Plain(1), Plain(2)), (Plain(3), Plain(3)), _twice(4), (Plain(5), Plain(6))])
def arguments_as_keys(a, b):
    table = {a: "first"}
    table[b] = "second"
    return table[a], len(table), len({a, b}), (a, b) in {(b, a): 0}


@case(with_x(1, 2))
def tuples_of_objects_as_keys(x, n):
    made = Plain(n)
    table = {(made, 1): "one", (x.dtype, None): "dtype", (Plain, n): "class", frozenset({n}): 0}
    table[made, 1] += "!"
    return table[(made, 1)], table[(x.dtype, None)], (Plain, n) in table, (Plain(n), 1) in table


@case(with_x([1], {"a": 1}, {1}))
def unhashable_keys(x, value):
    found = []
    for key in (value, (1, value), [value]):
        try:
            found.append({key: x})
        except TypeError as error:
            found.append(str(error))
    try:
        return found, {1, 2}.add(value)
    except TypeError as error:
        return found, str(error)


class Equal:
    def __eq__(self, other):
        return True


@case(only(1, 2))
def equality_without_hash(n):
    try:
        return {Equal(): n}
    except TypeError as error:
        return str(error)


@case(with_x(len, print, min))
def functions_as_keys(x, function):
    table = {len: "len", print: "print", Plain: "class", torch: "module"}
    return table.get(function, "none"), table[torch], {function: x}


class Counting:
    """Counts how often it is hashed and compared."""

    def __init__(self, value):
        self.value, self.hashed, self.compared = value, 0, 0

    def __hash__(self):
        self.hashed += 1
        return 42

    def __eq__(self, other):
        self.compared += 1
        return id(self) == id(other) or self.value == other.value


@case(with_x(2, 3))
def counted_hashes_and_comparisons(x, n):
    one, two = Counting(n), Counting(n + 1)
    table = {one: 5}
    table.setdefault(two, [])
    return one.hashed, two.hashed, one.compared + two.compared, len(table), x * n


@case(with_x(2, 3))
def sets_searched_in_sets(x, n):
    group, wanted = {frozenset([n]), 1}, {n}
    found = wanted in group
    group.discard(wanted)
    try:
        group.add(wanted)
    except TypeError as error:
        return found, group, str(error), hasattr(frozenset(group), "add"), x


class WithNew:
    def __new__(cls, *args):
        return super().__new__(cls, *args)


class Nothing:
    pass


@case(with_x(2, 3))
def arguments_that_object_does_not_take(x, n):
    found = []
    for make in (
        lambda: Nothing(n),
        lambda: Nothing.__new__(Nothing, n),
        lambda: object.__new__(WithNew, n),
        lambda: object.__init__(Nothing(), n),
        lambda: WithNew(n),
    ):
        try:
            found.append(type(make()).__name__)
        except TypeError as error:
            found.append(str(error))
    return found, x * n


class Marked(set):
    """A set of a class of its own."""


class Sealed(frozenset):
    """A frozenset of a class of its own."""


class Holder:
    """It shows what it holds."""

    value = None

    def __repr__(self):
        return repr(self.value)


@case(with_x(1, 2))
def sets_of_own_classes_show_their_class(x, n):
    inside = Holder()
    circle = Marked([inside])
    inside.value = circle
    texts = repr(Marked([n])), repr(Sealed([n])), repr(Marked()), str(Sealed()), f"{Marked([n])}"
    return texts, repr(circle), x


@case(with_x(1, 2, 3))
def sets_stand_for_their_elements(x, n):
    held = {frozenset([1]), frozenset([2])}
    marked = Marked(held)
    found = [Marked([n]) in held, {n} in marked, Sealed([n]) in held]
    wanted = Marked([n])
    try:
        marked.remove(wanted)
    except KeyError as error:
        found.append(error.args[0] is wanted)
    held.discard(Marked([n]))
    return found, len(held), len(marked), x


class Alias:
    """Equal to a text, and found under it."""

    def __init__(self, text):
        self.text = text

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return self.text == (other.text if isinstance(other, Alias) else other)


class Name(str):
    """A text of a class of its own."""


@case(with_x("a", "key", "b"))
def keys_equal_to_texts(x, text):
    by_alias, by_name = {"a": 1, Alias("key"): 2}, {"a": 1, Name("key"): 2}
    found = [
        table.get(kind(text), "nothing")
        for table in (by_alias, by_name)
        for kind in (str, Name, Alias)
    ]
    return found, Alias(text) == Name(text), Name(text) == Alias(text), x


class Renaming(dict):
    """A dict whose `keys` tell something else."""

    def keys(self):
        return ["other"]

    def __getitem__(self, key):
        return f"item {key}"


class Iterating(Renaming):
    """Python believes `keys` where the class iterates in its own way."""

    def __iter__(self):
        return iter(["another"])


@case(with_x(Renaming(a=1), Iterating(a=1)))
def dicts_copied_past_their_class(x, given):
    made = type(given)(b=2)
    merged: dict = {}
    merged.update(made)
    return dict(given), {**given}, merged, dict(made), x


@case(with_x("k", "j"))
def views_of_own_dicts(x, key):
    given = Renaming(a=1)
    keys, pairs = dict.keys(given), given.items()
    shown = pairs.mapping
    dict.__setitem__(given, key, 2)
    plain: dict = {}
    first = plain.values().mapping
    plain[key] = x
    return given, keys, pairs, shown, shown == given, first, first == plain
