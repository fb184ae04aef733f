"""Structural pattern matching."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import types

from conformance.declare import case, only, scenario, t, with_x


@dataclasses.dataclass
class Point:
    x: object
    y: object = 0


class Shape(enum.Enum):
    ROUND = 1
    SQUARE = 2


class Positional:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second


@case(with_x(0, 1, 2, "a", None, True))
def literals(x, value):
    match value:
        case 0:
            return x
        case 1 | 2:
            return x * 2
        case "a":
            return x + 1
        case None:
            return None
        case _:
            return "other"


@case(only([], [1], [1, 2], [1, 2, 3], (4, 5), "ab", {1: 2}))
def sequences(value):
    match value:
        case []:
            return "empty"
        case [a]:
            return a
        case [a, b]:
            return b, a
        case [a, *rest]:
            return a, rest
        case _:
            return "no sequence"


@case(only([1, 2, 3], [1, [2, 3]], [1, [2]], [0, 0]))
def nested_sequences(value):
    match value:
        case [a, [b, c]]:
            return a, b, c
        case [first, *_, last]:
            return first, last


@case(only({"kind": "a", "n": 1}, {"kind": "b"}, {"kind": "a"}, {}, {"n": 3, "z": 4}))
def mappings(value):
    match value:
        case {"kind": "a", "n": n}:
            return n
        case {"kind": kind, **rest}:
            return kind, rest
        case {"n": int(n), **rest}:
            return n, rest
        case {}:
            return "any mapping"


@case(lambda: [(Point(1, 2),), (Point(0),), (Point(t(2), 1),), (Point(1, 5),), (3,)])
def classes(value):
    match value:
        case Point(x=0, y=y):
            return "zero", y
        case Point(1, 2):
            return "one two"
        case Point(x, y):
            return x, y
        case _:
            return "no point"


@case(with_x(1, 1.5, "a", [1], True, None))
def builtin_classes(x, value):
    match value:
        case bool():
            return x, "bool"
        case int(n):
            return x * n
        case float() as f:
            return x + f
        case str(s):
            return s
        case list():
            return "list"
    return "none"


@case(with_x(1, 5, -1))
def guards(x, n):
    match n:
        case k if k > 3:
            return x * k
        case k if k < 0:
            return x - k
        case _:
            return x


@case(only(Shape.ROUND, Shape.SQUARE, 1))
def dotted_names(value):
    match value:
        case Shape.ROUND:
            return "round"
        case Shape.SQUARE:
            return "square"
    return "none"


@case(lambda: [(Positional(1, 2),), (Positional(2, 1),), (Positional(t(2), 3),)])
def match_args(value):
    match value:
        case Positional(1, second):
            return second
        case Positional(first, 1):
            return first
        case Positional(first, second):
            return first, second


@case(lambda: [(t(2, 3),), (t(4),), (t(1, 2, 3),), (t(2, 3),)])
def on_shape(x):
    match x.shape:
        case (n,):
            return x * n
        case (n, m):
            return x.reshape(m, n)
        case (_, *rest):
            return rest, x


@case(only([("add", 1), ("mul", 2)], [("neg",)], [("stop", 0), ("add", 5)]))
def interpreter(program):
    total = t(2)
    for step in program:
        match step:
            case ("add", n):
                total = total + n
            case ("mul", n):
                total = total * n
            case ("neg",):
                total = -total
            case ("stop", _):
                break
    return total


@case(with_x((1, "a"), ("a", 1), (1, 1)))
def or_patterns_with_names(x, pair):
    match pair:
        case (int(n), str(s)) | (str(s), int(n)):
            return x * n, s
        case (a, b) as whole:
            return whole, a + b


@case(with_x(1, 7))
def no_match_falls_through(x, n):
    match n:
        case 1:
            x = x + 1
    return x


@case(with_x(1 + 2j, -1, 1.5, b"x"))
def negative_complex_and_bytes(x, value):
    match value:
        case 1 + 2j:
            return "complex"
        case -1:
            return x
        case 1.5:
            return x * 2
        case b"x":
            return "bytes"


@case(lambda: [(Point(1, 2), 3), ("a", 1), (Point("a", 2), 3)])
def too_many_positional_patterns(value, n):
    match value:
        case Point(a, b, c):
            return a, b, c
    return n


class Row(collections.namedtuple("Row", ["left", "right"])):
    pass


class Stack(list):
    pass


class Table(dict):
    def __missing__(self, key):
        return "made up"


class Registered:
    """A sequence by registration only."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        return self.items[place]


collections.abc.Sequence.register(Registered)


class Settings(collections.abc.Mapping):
    def __init__(self, **items):
        self.items_ = items

    def __getitem__(self, key):
        return self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


def kind_of(value):
    match value:
        case [first, *rest]:
            return "sequence", first, len(rest)
        case {"a": a, **rest}:
            return "mapping", a, sorted(rest)
        case []:
            return "empty"
        case {}:
            return "empty mapping or other keys"
        case _:
            return "neither"


@case(lambda: [(Row(1, 2),), (Stack([1, 2]),), (Table(a=1, b=2),), (Registered(1, 2),)])
def subclasses_and_registered(value):
    return kind_of(value), kind_of(Row(1, t(2))), kind_of(Stack("ab")), kind_of(Table(b=1))


@case(lambda: [(Settings(a=1, b=2),), (Settings(b=3),), (Settings(),), (Settings(a=t(2)),)])
def mapping_of_the_user(value):
    return kind_of(value), kind_of(Settings(a=4))


@case(
    only(
        "ab",
        b"ab",
        bytearray(b"ab"),
        memoryview(b"ab").tolist(),
        range(3),
        {1, 2},
        collections.deque([1, 2]),
        types.SimpleNamespace(a=1),
        collections.OrderedDict(a=1),
        collections.defaultdict(list, b=1),
        frozenset([1]),
        None,
    )
)
def what_is_a_sequence(value):
    return kind_of(value), kind_of(iter([1]))


@case(lambda: [(t(2),), (t(2, 2),), (t(1),)])
def tensors_are_no_sequences(x):
    match x + 1:
        case [_, _]:
            return "sequence"
        case {}:
            return "mapping"
        case object(shape=(n,)):
            return x * n
        case y:
            return y.sum()


def _registered_between():
    class Seen:
        def __len__(self):
            return 1

        def __getitem__(self, place):
            return [7][place]

    yield (Seen(),)
    yield (Seen(),)
    collections.abc.Sequence.register(Seen)
    yield (Seen(),)


@case(_registered_between)
def registered_between_calls(value):
    return kind_of(value)


@scenario(lambda seen: iter([(seen(),), (collections.abc.Mapping.register(seen)(),), (seen(),)]))
def registered_as_mapping_between_calls():
    class Seen:
        def get(self, key, default):
            return {"a": 3}.get(key, default)

        def keys(self):
            return ["a"]

        def __getitem__(self, key):
            return 3

    def program(value):
        match value:
            case {"a": a}:
                return "mapping", a
            case _:
                return "none"

    return program, Seen


@case(with_x([1, 2, 3, 4], [1, 2, 1, 2], [1], [0, [1, 2]]))
def star_in_every_place(x, items):
    match items:
        case [a, b, *middle, c] if c > 3:
            return x * c, a, b, middle
        case [*start, 1, 2] as whole:
            return start, whole
        case [a, *rest] if rest:
            return x, rest, a
        case [_, *_]:
            return "other"


class Wrong:
    __match_args__ = ["a"]
    a = 1


class Numbers:
    __match_args__ = ("a", 1)
    a = 1


def tried(match):
    try:
        return match()
    except TypeError as error:
        return str(error)


@case(lambda: [(Wrong(), Numbers()), (Numbers(), Wrong())])
def wrong_match_args(one, other):
    def of_wrong(value):
        match value:
            case Wrong(a):
                return a

    def of_numbers(value):
        match value:
            case Numbers(1, b):
                return b

    def twice(value):
        match value:
            case Point(1, x=b):
                return b

    def no_class(value):
        kind = value
        match value:
            case kind.real():
                return "real"

    return [
        tried(lambda: of_wrong(one)),
        tried(lambda: of_numbers(other)),
        tried(lambda: of_numbers(one)),
        tried(lambda: twice(Point(1, 2))),
        tried(lambda: no_class(3)),
    ]


class Circle:
    def __init__(self, radius):
        self.radius = radius

    @property
    def area(self):
        return self.radius * self.radius * 3

    def __getattr__(self, name):
        if name == "label":
            return f"circle {self.radius}"
        raise AttributeError(name)


@case(lambda: [(Circle(1),), (Circle(2),), (Circle(t(2)),), (3,)])
def computed_attributes(value):
    match value:
        case Circle(missing=_):
            return "missing"
        case Circle(radius=int(r), area=area, label=label):
            return r, area, label
        case Circle(area=area):
            return area
    return None


@case(lambda: [({"k": 1, "n": {"k": [1, {"z": 2}]}},), ({"k": 1, "n": {"k": [1, {"y": 2}]}},)])
def deeply_nested(value):
    match value:
        case {"k": int(k), "n": {"k": [_, {"z": z}], **inner}, **outer}:
            return k, z, inner, outer
        case {"n": {"k": [first, {"y": y}]}}:
            return first, y


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@case(with_x({Level.LOW: "low"}, {Level.HIGH: "high", 1: "one"}, {2: "two"}))
def dotted_keys(x, table):
    match table:
        case {Level.HIGH: value, Level.LOW: low}:
            return x, value, low
        case {Level.LOW: value}:
            return x + 1, value
        case {Level.HIGH: value}:
            return x + 2, value


@case(with_x(1, 2, -1))
def pattern_leaves_names_bound(x, n):
    match (n, "tail"):
        case (int(a), str(b)) if a > 1:
            found = "guarded"
        case (a, b) if a < 0:
            found = "negative"
        case _:
            found = "none"
    return x * a, b, found


@case(lambda: [(t(2), [("push", 1), ("add",)]), (t(2), [("push", 2), ("push", 3), ("add",)])])
def machine_with_state(x, program):
    stack = [x]
    while program:
        match program.pop(0), stack:
            case ("push", value), _:
                stack.append(x * value)
            case ("add",), [*below, a, b]:
                stack = [*below, a + b]
            case ("add",), [_]:
                return "underflow"
    return stack


@dataclasses.dataclass(frozen=True)
class Leaf:
    value: object


@dataclasses.dataclass(frozen=True)
class Node:
    left: object
    right: object
    op: str = dataclasses.field(default="+", kw_only=True)


def evaluate(tree):
    match tree:
        case Leaf(value):
            return value
        case Node(Leaf(a), Leaf(b), op="*"):
            return a * b
        case Node(left, right, op="+"):
            return evaluate(left) + evaluate(right)
        case Node(left, right, op="*"):
            return evaluate(left) * evaluate(right)
        case _:
            raise ValueError(f"no tree: {tree!r}")


def _trees():
    yield (t(2), Node(Leaf(1), Leaf(2)))
    yield (t(2), Node(Leaf(3), Node(Leaf(2), Leaf(2), op="*")))
    yield (t(2), Node(Node(Leaf(3), Leaf(1)), Node(Leaf(2), Leaf(2)), op="*"))


@case(_trees)
def trees_of_dataclasses(x, tree):
    return evaluate(Node(Leaf(x), tree)), evaluate(Node(tree, Leaf(x), op="*"))
