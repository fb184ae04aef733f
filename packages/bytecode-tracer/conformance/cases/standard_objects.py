"""The standard library's ways with objects: copies, pickles, dataclasses, enums, functools..."""

from __future__ import annotations

import abc
import collections.abc
import contextlib
import copy
import copyreg
import dataclasses
import enum
import functools
import inspect
import io
import itertools
import pickle
import sys
import types
import typing

import torch

from conformance.declare import case, scenario, t, with_x

# Copies and pickles.


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


# Dataclasses.


@dataclasses.dataclass
class Settings:
    scale: float
    names: list = dataclasses.field(default_factory=list)
    level: int = 3
    hidden: int = dataclasses.field(default=0, repr=False, compare=False)


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Compact:
    a: int
    b: object = None


@dataclasses.dataclass
class Derived(Settings):
    start: dataclasses.InitVar[int] = 1
    total: float = dataclasses.field(init=False, default=0.0)
    kind: typing.ClassVar[str] = "derived"

    def __post_init__(self, start):
        self.total = self.scale + start


@dataclasses.dataclass
class Nest:
    inner: Settings
    rows: list
    table: dict


@case(with_x(1, 2))
def dataclass_made(x, n):
    made = Settings(n, ["a"])
    other = dataclasses.replace(made, level=n)
    return x * made.scale, made, other, made == Settings(n, ["a"]), repr(other)


@case(lambda: [(t(2), Settings(1.0)), (t(2), Settings(2.0, ["a"], 4))])
def dataclass_argument(x, settings):
    other = dataclasses.replace(settings, scale=5.0)
    settings.level += 1
    return x * settings.scale, other, dataclasses.asdict(settings), dataclasses.astuple(other)


@case(lambda: [(t(2), Version(1)), (t(2), Version(2, 5))])
def frozen_and_ordered(x, version):
    try:
        version.major = 3
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return (
        x * version.major,
        text,
        version < Version(1, 9),
        hash(version) == hash((1, 0)),
        max(version, Version(1, 1)),
    )


@case(lambda: [(t(2), Compact(a=1)), (t(2), Compact(a=2, b="b"))])
def slots_and_keywords(x, compact):
    made = Compact(a=3, b=x)
    return x * compact.a, made.b is x, dataclasses.replace(compact, a=7), hasattr(made, "__dict__")


@case(with_x(1, 4))
def init_variables(x, n):
    made = Derived(2.0, level=n, start=n)
    return x * made.total, made, Derived.kind, [f.name for f in dataclasses.fields(made)]


@case(with_x(1, 2))
def dataclass_as_dict(x, n):
    nest = Nest(Settings(n), [Settings(2), n], {"k": Version(n)})
    made = dataclasses.asdict(nest)
    plain = dataclasses.asdict(nest, dict_factory=lambda pairs: sorted(name for name, _ in pairs))
    return x, made, plain, dataclasses.astuple(nest), dataclasses.is_dataclass(nest)


@case(with_x(1, 2))
def dataclass_of_tensors(x, n):
    @dataclasses.dataclass
    class Pair:
        left: torch.Tensor
        right: torch.Tensor | None = None

        def both(self):
            return self.left + (0 if self.right is None else self.right)

    pair = Pair(x * n)
    bigger = dataclasses.replace(pair, right=x)
    shown = {field.name: getattr(bigger, field.name) for field in dataclasses.fields(bigger)}
    return pair.both(), bigger.both(), shown


@case(with_x(1, 2))
def made_dataclass(x, n):
    made = dataclasses.make_dataclass("Made", [("a", int), ("b", int, 5)])
    return x * made(n).b, made(n).a, [f.name for f in dataclasses.fields(made)]


# Enums.


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    ALIAS = 1

    @property
    def lower(self):
        return self.name.lower()


class Mode(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Word(str, enum.Enum):
    A = "a"
    B = "b"


@case(lambda: [(t(2), Color.RED), (t(2), Color.GREEN), (t(2), Color.ALIAS)])
def enum_argument(x, color):
    match color:
        case Color.RED:
            x = x + 1
        case Color.GREEN:
            x = x * 2
    return x, color.lower, color.value, Color["RED"] is color, [c.name for c in Color]


@case(with_x(1, 2, 3))
def enum_by_value(x, n):
    try:
        color = Color(n)
    except ValueError as error:
        return x, str(error)
    return x * color.value, color in Color, len(Color), list(Color.__members__), repr(color)


@case(lambda: [(t(2), Mode.READ), (t(2), Mode.BOTH), (t(2), Mode(0))])
def flags(x, mode):
    if Mode.WRITE in mode:
        x = x + 1
    return x, mode | Mode.WRITE, mode & Mode.READ, ~mode, bool(mode), mode ^ Mode.BOTH, mode.name


@case(lambda: [(t(2), Level.LOW, Word.A), (t(2), Level.HIGH, Word.B)])
def enums_of_values(x, level, word):
    return x * level, level < 5, max(level, 3), word.upper(), {"a": 1}.get(word), f"{level}"


@case(with_x(1, 2))
def iterating_flags(x, n):
    mode = Mode(n) | Mode.READ
    return x, [part.name for part in mode], len(mode), mode.value, str(mode)


@case(with_x(1, 2))
def enum_made_inside(x, n):
    Kind = enum.Enum("Kind", ["A", "B"])
    return x * Kind(n).value, Kind(n).name


# typing, abc, types, inspect.


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def name(self): ...


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side**2

    @property
    def name(self):
        return "square"


@typing.runtime_checkable
class Sized(typing.Protocol):
    def area(self): ...


class Row(typing.NamedTuple):
    a: torch.Tensor
    b: int = 2


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, value: T):
        self.value = value


@case(lambda: [(t(2), Square(2)), (t(2), Square(3))])
def abstract_classes(x, shape):
    try:
        Shape()
    except TypeError as error:
        text = str(error)
    return x * shape.area(), text, shape.name, isinstance(shape, Sized), isinstance(x, Sized)


@case(with_x([1], {"a": 1}, (2,), "s"))
def abstract_containers(x, value):
    kinds = collections.abc.Mapping, collections.abc.Sequence, collections.abc.Hashable
    found = [isinstance(value, kind) for kind in (*kinds, collections.abc.Iterable)]
    return x, found, issubclass(type(value), collections.abc.Sized), callable(value)


class Vector(collections.abc.MutableSequence):
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __delitem__(self, index):
        del self.items[index]

    def insert(self, index, value):
        self.items.insert(index, value)


@case(with_x(1, 2))
def inherited_methods(x, n):
    vector = Vector(x, n)
    vector.append(3)
    vector.extend([4, 5])
    vector += [6]
    vector.remove(3)
    return vector[0] * n, vector.pop(), vector.index(5), list(reversed(vector))[:2], 5 in vector


@case(with_x(1, 2))
def typing_at_run_time(x, n):
    box = Box[int](n)
    row = Row(x, b=n)
    cast = typing.cast(int, n)
    hints = typing.get_type_hints(Row)
    args = typing.get_args(typing.Union[int, str]), typing.get_origin(list[int])
    return x * box.value, row, row._replace(b=7).b, cast, list(hints), args, row._asdict()["b"]


@case(with_x(1, 2))
def types_module(x, n):
    space = types.SimpleNamespace(a=n, b=x)
    space.c = space.a + 1
    frozen = types.MappingProxyType({"k": n})
    method = types.MethodType(lambda self, y: y * self, n)
    made = types.new_class("Made", (), {}, lambda ns: ns.update(v=n))
    return method(x), space.c, frozen["k"], made.v, isinstance(len, types.BuiltinFunctionType)


def annotated(x: torch.Tensor, n: int = 2, *rest, flag=False, **more) -> torch.Tensor:
    """Documentation."""
    return x * n


@case(with_x(1, 2))
def inspecting(x, n):
    signature = inspect.signature(annotated)
    bound = signature.bind(x, n, flag=True)
    bound.apply_defaults()
    names = list(signature.parameters)
    kinds = inspect.isfunction(annotated), inspect.isclass(Point), inspect.ismodule(inspect)
    return (
        annotated(*bound.args[:2]),
        names,
        kinds,
        list(bound.arguments),
        inspect.getdoc(annotated),
    )


@case(lambda: [(t(2), {"n": 3, "other": 1}), (t(2), {"n": 4})])
def filtered_keywords(x, options):
    known = set(inspect.signature(annotated).parameters)
    given = {name: value for name, value in options.items() if name in known}
    full = inspect.getfullargspec(annotated)
    return annotated(x, **given), full.args, full.varkw, inspect.isgeneratorfunction(annotated)


# functools.


@functools.singledispatch
def shown(value):
    return "object"


@shown.register
def _(value: int):
    return "int"


@shown.register(list)
def _(value):
    return f"list of {len(value)}"


@functools.total_ordering
class Weight:
    def __init__(self, grams):
        self.grams = grams

    def __eq__(self, other):
        return self.grams == other.grams

    def __lt__(self, other):
        return self.grams < other.grams


class Methods:
    def __init__(self, n):
        self.n = n

    @functools.singledispatchmethod
    def of(self, value):
        return "object"

    @of.register
    def _(self, value: int):
        return value * self.n

    @functools.cached_property
    def double(self):
        return self.n * 2

    def power(self, base, exponent):
        return base**exponent * self.n

    squared = functools.partialmethod(power, exponent=2)


@case(with_x(1, [1, 2], "a", True))
def dispatched(x, value):
    return x, shown(value), shown.dispatch(int)(1), Methods(2).of(value)


@case(with_x(1, 2))
def ordering(x, n):
    a, b = Weight(n), Weight(2)
    return (
        x,
        a <= b,
        a > b,
        a >= b,
        sorted([b, a], key=functools.cmp_to_key(lambda p, q: p.grams - q.grams))[0].grams,
    )


@case(lambda: [(t(2), Methods(2)), (t(2), Methods(3))])
def methods_made(x, methods):
    return x * methods.double, methods.squared(3), methods.__dict__["double"], methods.double


@functools.lru_cache(maxsize=2)
def cached(n):
    return n * 10


@case(with_x(1, 2, 1))
def caches(x, n):
    @functools.cache
    def fibonacci(k):
        return k if k < 2 else fibonacci(k - 1) + fibonacci(k - 2)

    return x * cached(n), fibonacci(n + 5), functools.reduce(lambda a, b: a * b, [1, n, 3])


@functools.lru_cache
def cached_by_tensor(x, n):
    return x * n


@case(with_x(1, 2))
def caches_by_tensor(x, n):
    first = cached_by_tensor(x, n)
    return first, cached_by_tensor(x, n) is first, cached_by_tensor.cache_info().hits > 0


# itertools.


@case(with_x([1, 2, 3, 4, 5], [1]))
def grouped(x, items):
    pairs = list(itertools.pairwise(items))
    groups = {key: list(group) for key, group in itertools.groupby(items, lambda v: v // 2)}
    rest = list(itertools.dropwhile(lambda v: v < 3, items)), list(itertools.starmap(pow, pairs))
    batches = list(itertools.batched(items, 2)) if sys.version_info >= (3, 12) else []
    return x * sum(itertools.accumulate(items)), pairs, groups, rest, batches


@case(with_x(1, 2))
def combined(x, n):
    made = list(itertools.product("ab", range(n))), list(itertools.combinations("abc", n))
    more = list(itertools.permutations([1, 2, 3], n)), list(itertools.zip_longest("ab", [1]))
    first, second = itertools.tee([x, x * n])
    return next(first), list(second)[1], made, more, list(itertools.islice(itertools.count(n), 2))


@case(with_x(1, 2))
def endless(x, n):
    cycle = itertools.cycle("ab")
    taken = [next(cycle) for _ in range(3)]
    chained = itertools.chain.from_iterable([[n], [n + 1]])
    picked = itertools.compress("abc", [1, 0, n]), itertools.filterfalse(None, [0, 1, n])
    return x, taken, list(chained), [list(p) for p in picked], list(itertools.repeat(n, 2))


# contextlib.


@contextlib.contextmanager
def scaled(value, log):
    log.append("enter")
    try:
        yield value * 2
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("exit")


class Managed(contextlib.ContextDecorator):
    log = []

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, *error):
        self.log.append("out")
        return False


@case(with_x(1, 0))
def managers(x, n):
    log = []
    with scaled(n, log) as doubled, contextlib.suppress(ZeroDivisionError):
        if not n:
            raise ValueError("none")
        x = x * doubled
        1 // (n - 1)
        log.append("unreached")
    with contextlib.nullcontext(5) as five:
        x = x + five
    return x, log


@case(with_x(1, 2))
def exit_stack(x, n):
    log = []
    with contextlib.ExitStack() as stack:
        values = [stack.enter_context(scaled(i, log)) for i in range(n)]
        stack.callback(log.append, "called")
        stack.push(lambda *error: log.append(error[0] is None))
        kept = stack.pop_all()
        log.append("left")
    kept.close()
    return x * sum(values), log


@case(with_x(1, 2))
def decorators(x, n):
    Managed.log.clear()

    @Managed()
    def inner(y):
        Managed.log.append("run")
        return y * n

    @scaled(1, Managed.log)
    def other(y):
        return y + n

    class Closing:
        closed = False

        def close(self):
            self.closed = True

    with contextlib.closing(Closing()) as thing:
        pass
    return inner(x), other(x), list(Managed.log), thing.closed


@case(with_x(1, 2))
def redirected(x, n):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("n is", n)
    return x, out.getvalue()


@scenario(lambda: [(t(2), 1), (t(2), 2)])
def registered_reduction():
    class Foreign:
        def __init__(self, a):
            self.a = a

    copyreg.pickle(Foreign, lambda value: (Foreign, (value.a * 10,)))

    def program(x, n):
        return x * copy.copy(Foreign(n)).a

    return program
