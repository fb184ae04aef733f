"""The order in which sets give their elements, also where they leave or were the caller's."""

from __future__ import annotations

from conformance.declare import case, only, scenario, t, with_x

WORDS = frozenset("one two three four five six seven eight nine ten eleven twelve".split())


@case(only(1, 4, 5, 9, 20, 40))
def made_one_by_one(count):
    names = {str(n) for n in range(count)}
    listed = list(names)
    return names, list(names) == listed, listed


@case(with_x(3, 6, 12))
def with_elements_taken_away(x, count):
    names = {str(n) for n in range(count)}
    for n in range(0, count, 2):
        names.discard(str(n))
    names.add("late")
    return names, list(names), [*names], x


@case(only(1, 5, 12))
def combined(count):
    names = {str(n) for n in range(count)}
    rest = set(WORDS)
    rest -= {"one", "two"}
    both, more = rest | names, names.union(["p", "q"], WORDS)
    return list(both), list(more), list(frozenset(both)), list(names & rest), list(both ^ WORDS)


def _sets():
    grown = set()
    for n in range(30):
        grown.add(str(n))
    for n in range(25):
        grown.discard(str(n))
    return [(t(2), set(WORDS)), (t(2), grown), (t(2), {"a", b"a", "b", b"b"}), (t(2), {1, 2, 3})]


@case(_sets)
def of_the_caller(x, names):
    return x, [str(name) for name in names], sorted(map(str, names)), len(names)


@case(_sets)
def changed_for_the_caller(x, names):
    names.add("new")
    names.update(["p", "q"])
    names.discard("one")
    names -= {"two", "three"}
    return x, len(names)


@scenario(lambda names: [(t(2),) for _ in range(3)])
def changed_between_calls():
    names = set(WORDS)

    def program(x):
        names.add(str(len(names)))
        return x * len(names), [name for name in WORDS if name in names]

    return program, names


class Counted:
    """It tells how long it is, and notes that it was asked."""

    def __init__(self, size, hint):
        self.size = size
        self.hint = hint
        self.asked = []

    def __iter__(self):
        self.asked.append("iter")
        return iter(range(self.size))

    def __length_hint__(self):
        self.asked.append("hint")
        if self.hint is None:
            raise TypeError("no hint")
        return self.hint


class Long(Counted):
    """It has a length, too."""

    def __len__(self):
        self.asked.append("len")
        return self.size


@case(with_x((2, 5), (0, 0), (3, None), (1, NotImplemented)))
def lists_ask_how_long(x, given):
    asked = []
    for kind in (Counted, Long):
        values = kind(*given)
        made = [list(values), tuple(values), [*values], sorted(values)]
        made[0].extend(values)
        asked.append((made, set(values), values.asked))
    return asked, x


@case(with_x((2, -1), (1, "no")))
def wrong_hints(x, given):
    try:
        return list(Counted(*given))
    except (ValueError, TypeError) as error:
        return type(error), str(error), x
