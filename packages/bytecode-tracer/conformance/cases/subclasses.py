"""Subclasses of built-in containers, and those of `collections`."""

from __future__ import annotations

import collections

from conformance.declare import case, only, t, with_x


class Tagged(dict):
    def __init__(self, *args, tag="none", **kwargs):
        super().__init__(*args, **kwargs)
        self.tag = tag

    def __getitem__(self, key):
        return dict.__getitem__(self, key.lower())

    def total(self):
        return sum(self.values())


class Fallback(dict):
    def __missing__(self, key):
        self[key] = made = f"made {key}"
        return made


class Stack(list):
    limit = 3

    def push(self, item):
        if len(self) >= self.limit:
            raise OverflowError(len(self))
        self.append(item)
        return self

    @property
    def top(self):
        return self[-1]


class Vector(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    def __add__(self, other):
        return Vector(*(a + b for a, b in zip(self, other)))


class Output(collections.OrderedDict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to_tuple(self):
        return tuple(self.values())


class Loud(list):
    def __iter__(self):
        return (item * 10 for item in list.__iter__(self))

    def __len__(self):
        return 42


class Quiet(dict):
    def __len__(self):
        return 0

    def __contains__(self, key):
        return True


@case(lambda: [(Tagged(a=t(2), tag="x"),), (Tagged(a=t(3), tag="y"),), (Tagged(a=t(2), b=1),)])
def dict_subclass_argument(table):
    return table["A"] * 2, table.tag, table.total() if "b" not in table else len(table)


@case(with_x(1, 2))
def dict_subclass_made(x, n):
    made = Tagged({"a": x}, tag=n)
    made["b"] = n
    return made, made.tag, made["B"]


@case(lambda: [(Fallback(a=1), "a"), (Fallback(a=1), "b"), (Fallback(), "a")])
def missing_hook(table, key):
    return table[key], len(table), table.get("z")


@case(lambda: [(Stack([1]), t(2)), (Stack([1, 2]), t(2)), (Stack([1, 2, 3]), t(2))])
def list_subclass_argument(stack, x):
    try:
        return stack.push(x).top * 2, len(stack)
    except OverflowError as error:
        return error.args


@case(with_x(1, 2))
def list_subclass_made(x, n):
    made = Stack([n])
    made.push(x)
    return made, isinstance(made, list), made[0], made + [1], type(made[:1])


@case(lambda: [(Vector(1, t(2)),), (Vector(2, t(2)),), (Vector(1, t(3)),)])
def tuple_subclass(vector):
    return vector + (1, 2), vector[1] * vector[0], len(vector), vector


@case(with_x(1, 2))
def ordered_dict_subclass(x, n):
    made = Output(logits=x, size=n)
    made["hidden"] = x * n
    return made.logits, made.to_tuple(), made, hasattr(made, "gone")


@case(lambda: [(Output(a=t(2), b=1),), (Output(b=1, a=t(2)),), (Output(a=t(2)),)])
def ordered_dict_subclass_argument(output):
    output.move_to_end("a", last=False)
    return output.a * 2, list(output)


@case(lambda: [(Loud([1, 2]), t(2)), (Loud([3]), t(2))])
def overridden_iteration(items, x):
    return [x + item for item in items], len(items), items[0], sum(items), list(items)


@case(lambda: [(Quiet(a=1), t(2)), (Quiet(), t(2))])
def overridden_length(table, x):
    return (x if table else -x), len(table), "zzz" in table, list(table)


@case(lambda: [(collections.OrderedDict(a=1, b=2),), (collections.OrderedDict(b=2, a=1),)])
def ordered_dict(table):
    same = table == collections.OrderedDict(a=1, b=2)
    table.move_to_end("a")
    return same, list(table), table.popitem(last=False), t(2) * len(table)


@case(lambda: [(collections.defaultdict(list), "a"), (collections.defaultdict(list, a=[1]), "a")])
def default_dict(table, key):
    table[key].append(t(2))
    table["other"]
    return table, "gone" in table, table.get("gone")


@case(with_x("abca", "a", ""))
def default_dict_counts(x, text):
    counts = collections.defaultdict(int)
    for letter in text:
        counts[letter] += 1
    return dict(counts), x * counts["a"]


@case(with_x(1, 2))
def default_dict_with_lambda(x, n):
    table = collections.defaultdict(lambda: x * n)
    return table["a"], table["a"] is table["a"], len(table)


@case(only("abca", "zz", ""))
def counter(text):
    counts = collections.Counter(text)
    counts.update("ab")
    return counts, counts.most_common(1), counts["missing"], counts + collections.Counter(a=3)


@case(lambda: [(collections.Counter(a=2), t(2)), (collections.Counter(a=3), t(2))])
def counter_argument(counts, x):
    counts["b"] += 1
    return x * counts["a"], sum(counts.values()), list(counts.elements())


@case(lambda: [(collections.deque([1, 2]), t(2)), (collections.deque([1, 2], maxlen=2), t(2))])
def deque_argument(queue, x):
    queue.append(x)
    queue.appendleft("left")
    last = queue.pop()
    queue.rotate(1)
    return last, list(queue), queue.maxlen, len(queue)


@case(with_x(1, 3))
def deque_made(x, n):
    queue = collections.deque([x], maxlen=n)
    for i in range(3):
        queue.append(x + i)
    return queue, queue[0], queue.popleft()


@case(lambda: [(collections.ChainMap({"a": 1}, {"b": 2}), t(2)), (collections.ChainMap({}), t(2))])
def chain_map(table, x):
    table["new"] = x
    return table.get("b"), list(table), table.maps[0], table.new_child({"k": 1})["new"]


@case(lambda: [(collections.UserDict(a=1), t(2)), (collections.UserDict(a=2), t(2))])
def user_dict(table, x):
    table["b"] = x
    return x * table["a"], list(table), len(table), table.data


@case(lambda: [(collections.UserList([1]), t(2)), (collections.UserList([2, 3]), t(2))])
def user_list(items, x):
    items.append(5)
    return [x * item for item in items], items.data, items[0]


@case(only([1, 2], [3]))
def subclass_defined_inside(items):
    class Local(list):
        def total(self):
            return sum(self) * 2

    made = Local(items)
    made.append(5)
    return made.total(), len(made), made


@case(only(5, 7))
def int_and_float_subclasses(n):
    class Meters(float):
        def __add__(self, other):
            return Meters(float(self) + float(other))

    class Count(int):
        unit = "n"

    return Meters(n) + 1, Count(n) + 1, Count(n).unit, type(Meters(n) + 1).__name__, Count(n) == n


class Level(int):
    def __mul__(self, other):
        return "level times"


@case(lambda: [(t(2), 2), (t(2), Level(2)), (t(2), True), (t(2), 2)])
def int_subclass_as_argument(x, n):
    return n * 3, type(n).__name__


class Name(str):
    def upper(self):
        return "own upper"


@case(lambda: [("abc",), (Name("abc"),), ("abc",)])
def str_subclass_as_argument(text):
    return text.upper(), len(text), text == "abc"


@case(lambda: [([1, 2],), (Loud([1, 2]),), (Stack([1, 2]),), ((1, 2),), ([1, 2],)])
def plain_then_subclass(items):
    return [t(2) * item for item in items], len(items)


@case(lambda: [({"a": 1},), (Tagged(a=1),), (collections.OrderedDict(a=1),), (Quiet(a=1),)])
def plain_dict_then_subclass(table):
    return t(2) * table["a"], len(table), "zz" in table


class Celsius(float):
    unit = "C"

    def __new__(cls, value, note=None):
        made = super().__new__(cls, value)
        made.note = note
        return made

    def __add__(self, other):
        return Celsius(float(self) + other, "sum")


class Word(str):
    def shout(self):
        return self.upper() + "!"

    def __getitem__(self, key):
        return Word(str.__getitem__(self, key))


class Count(int):
    def __repr__(self):
        return f"Count({int(self)})"


@case(with_x(1.5, 2, -1))
def own_numbers(x, n):
    warm = Celsius(n, note=x)
    total = warm + 1
    return (
        warm * 2,
        total,
        total.note,
        warm == n,
        {n: 1}[warm],
        f"{warm:.1f}",
        x * warm.unit.__len__(),
    )


@case(with_x("abc", "", "Zz"))
def own_strings(x, text):
    word = Word(text)
    parts = [letter for letter in word], word[:1], word.shout(), len(word), word == text
    return parts, {text: x}[word], "-".join([word, "end"]), word + "!", "b" in word, type(word[:1])


@case(with_x(1, 3))
def own_integers(x, n):
    count = Count(n)
    items = [10, 20, 30, 40]
    return items[count], items[:count], count + 1, [count], str(count), range(count), -count, count


@case(with_x([1, 2], [], [3]))
def own_queues(x, items):
    class Line(collections.deque):
        def push(self, item):
            self.append(item)
            return self

    line = Line(items, maxlen=2)
    line.push(x).push(5)
    return list(line)[-1], len(line), line.maxlen, isinstance(line, collections.deque), line[-1]


@case(lambda: [(Celsius(2.0, "a"),), (Celsius(2.0, "b"),), (Celsius(3.0, "b"),)])
def own_number_of_the_caller(value):
    return value + 1, value * 2, value.note, value > 2
