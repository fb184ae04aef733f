"""Lists, dicts, sets and tuples: methods, identity, order, nesting."""

from __future__ import annotations

import collections
import io
import types

from conformance.declare import case, only, t, with_x


@case(lambda: [([t(2)],), ([t(2), t(3)],), ([t(2), 1],), ([],)])
def list_argument(items):
    return [item + 1 for item in items], items


@case(lambda: [([1, 2, 3], t(2)), ([1, 2], t(2)), ([1, 2, 4], t(2)), ([1.0, 2, 3], t(2))])
def list_values_change(items, x):
    for item in items:
        x = x * item
    return x


@case(lambda: [([3, 1], t(2)), ([2], t(3))])
def list_methods(items, x):
    items.append(x)
    items.extend([5, 6])
    items.insert(1, "in")
    removed = items.pop(0)
    items.remove(5)
    items.reverse()
    return removed, items.index("in"), items.count(6), items.copy() is items


@case(only([3, 1, 2], [1], []))
def list_sort(items):
    alias = items
    items.sort(reverse=True)
    return alias is items, alias


@case(only(["bb", "a"], ["ccc", "dd", "e"]))
def list_sort_by_key(items):
    items.sort(key=len)
    return items, items.sort()


@case(only([1, 2, 3, 4], [1, 2], [5]))
def list_slices(items):
    copied = items[:]
    items[1:2] = [7, 8]
    del items[:1]
    return copied, items, items[::-1], items[-1:], items[10:]


@case(only([1, 2, 3], [1], []))
def list_delete_and_clear(items):
    if items:
        del items[0]
    rest = list(items)
    items.clear()
    return rest, items


@case(only([1, 2], []))
def list_pop_empty(items):
    return items.pop(), items.pop()


@case(lambda: [([t(2)], t(2)), ([t(3), t(3)], t(3))])
def list_of_tensors_replaced(items, x):
    items[0] = items[0] + x
    items[-1].add_(1)
    return items[0]


def _aliased():
    inner = [1]
    return [([inner, inner],), ([inner, [1]],), ([[1], inner],)]


@case(_aliased)
def nested_list_aliasing(items):
    items[0].append(2)
    return items[1], items[0] is items[1]


@case(with_x(2, 3))
def list_multiplication_aliases(x, n):
    rows = [[x]] * n
    rows[0].append(1)
    return rows


@case(with_x(2, 3))
def list_contains_itself(x, n):
    items = [x, n]
    items.append(items)
    return items[2] is items, len(items)


@case(lambda: [([1, 2], [1, 2]), ([1, 2], [1, 3]), ([1], [1, 2])])
def list_comparisons(a, b):
    return a == b, a < b, a + b, a * 2, 2 in b, a is b


@case(lambda: [({"a": 1}, t(2)), ({"a": 2}, t(2)), ({"a": 1, "b": 2}, t(2)), ({"a": 1.0}, t(2))])
def dict_values_change(table, x):
    return {key: x * value for key, value in table.items()}


@case(lambda: [({"a": 1, "b": 2},), ({"b": 2, "a": 1},), ({"a": 2, "b": 1},)])
def dict_order_changes(table):
    return list(table), list(table.values()), t(2) * list(table.values())[0]


@case(lambda: [({"a": t(2)}, "a"), ({"b": t(2)}, "b"), ({"a": t(2)}, "b"), ({}, "a")])
def dict_keys_change(table, key):
    if key in table:
        return table[key] * 2
    return table.get(key, "missing")


@case(lambda: [({"a": 1}, t(2)), ({"b": 1}, t(2))])
def dict_methods(table, x):
    table["x"] = x
    table.update({"y": 1}, z=2)
    table.setdefault("a", "default")
    popped = table.pop("y"), table.pop("gone", None)
    return popped, table.get("q", 0), list(table.items()), len(table), table.copy() == table


@case(only({"a": 1, "b": 2}, {"c": 3}))
def dict_popitem_and_clear(table):
    last = table.popitem()
    rest = dict(table)
    table.clear()
    return last, rest


@case(only({"a": 1}, {}))
def dict_missing_key(table):
    return table["a"] + table["b"]


@case(only({"a": 1, "b": 2}, {"b": 3}))
def dict_delete(table):
    del table["b"]
    return table, "b" in table


@case(lambda: [({"a": 1}, {"a": 2, "b": 3}), ({}, {"c": 1})])
def dict_merge(a, b):
    merged = a | b
    a |= b
    return merged, a, {**b, "z": 0}, dict(b, k=1), a is merged


@case(with_x(1, "a", (1, 2), None, True, 1.0))
def dict_keys_of_all_kinds(x, key):
    table = {1: "one", "a": x, (1, 2): "pair", None: "none"}
    return table.get(key), key in table


@case(lambda: [({1: t(2)},), ({1.0: t(2)},), ({True: t(2)},)])
def dict_equal_keys(table):
    return list(table), table[1] * 2


@case(lambda: [({"a": {"b": [t(2)]}},), ({"a": {"b": [t(2), t(3)]}},)])
def nested_mutation(table):
    table["a"]["b"].append(table["a"]["b"][0] * 2)
    table["a"]["c"] = len(table["a"]["b"])
    return table["a"]


@case(only({"a": 1, "b": 2}, {"c": 1}))
def dict_views(table):
    keys, values = table.keys(), table.values()
    table["new"] = 0
    return list(keys), list(values), keys & {"a", "new"}, "a" in keys, len(values)


@case(only({"a": 1}, {"b": 2}))
def dict_views_returned(table):
    return table.keys(), table.values(), table.items()


@case(only({"a": 1, "b": 2}, {}))
def dict_reversed_and_list(table):
    return list(reversed(table)), list(table), sorted(table, reverse=True), max(table, default=0)


@case(only(["a", "b"], ["a"], []))
def dict_from_keys(names):
    return dict.fromkeys(names, 0), dict(zip(names, [1, 2])), dict([("k", 1)]), dict(a=1)


@case(lambda: [({1, 2},), ({2, 3, 4},), (set(),), ({1, "a"},)])
def set_methods(items):
    items.add(9)
    items.discard(2)
    others = {1, 9}
    return items | others, items & others, items - others, items ^ others, items <= others


@case(only({1, 2, 3}, {1}, frozenset({2})))
def set_updates(items):
    made = set(items)
    made.update([4, 5])
    made -= {1}
    made &= {4, 2, 5}
    return made, frozenset(made) == made, made.issubset({2, 4, 5, 6}), made.isdisjoint({1})


@case(only({1}, set()))
def set_remove_missing(items):
    items.remove(1)
    return items


@case(with_x({1, 2}, {2}, set()))
def set_as_guard(x, flags):
    return x + 1 if 1 in flags else x - 1, len(flags)


@case(lambda: [(frozenset({1}), t(2)), (frozenset({1, 2}), t(2))])
def frozenset_argument(items, x):
    return x * len(items), items | {5}, {items: 1}[items]


@case(lambda: [((t(2), 1),), ((t(2), 2),), ((t(2), t(2)),), ((t(2),),)])
def tuple_argument(pair):
    first, *rest = pair
    return first * 2, rest, pair


@case(only((1, 2, 1), (3,), ()))
def tuple_methods(items):
    return (
        items.count(1),
        items + (4,),
        items * 2,
        3 in items,
        items[::-1],
        len(items),
        items < (2,),
    )


@case(only((1, 2), (3, 1)))
def tuple_index(items):
    return items.index(1), hash(items) == hash(tuple(list(items)))


@case(lambda: [((1, (2, t(2))),), ((1, (3, t(2))),), ((1, (2, t(3))),)])
def nested_tuple(items):
    a, (b, x) = items
    return x * a + b, items[1], items


@case(with_x([], [1], {}, {"a": 1}, (), "", "a", 0, None))
def truth_of_containers(x, value):
    return x if value else -x


@case(lambda: [([t(2), t(3)], 0), ([t(2), t(3)], 1), ([t(2), t(3)], -1)])
def index_from_argument(items, index):
    return items[index] * 2


@case(lambda: [([t(2)], None), ([t(2)], [1]), ([t(2)], {"a": 1})])
def optional_container(items, extra):
    return items[0] if extra is None else (items[0], len(extra), extra)


@case(lambda: [([t(2), t(2)],), ([t(3), t(2)],), ((t(2), t(2)),)])
def list_or_tuple_of_tensors(items):
    import torch

    return torch.cat(items), torch.stack([items[0], items[0]]), type(items)


@case(with_x([1, [2]], [1, [3]]))
def container_constructors(x, items):
    return list(items) is items, tuple(items), set([1, 1]), list("ab"), dict({1: 2}), [*items, x]


@case(lambda: [([t(2)], t(2)), ([t(3)], t(3))])
def tensor_membership_by_identity(items, x):
    items.append(x)
    return any(item is x for item in items), [item is x for item in items]


@case(only([[1, 2], [3]], [[4]]))
def list_of_lists(rows):
    flat = [value for row in rows for value in row]
    rows.append(flat)
    rows[0][0] = 100
    return rows, flat


@case(lambda: [({"x": t(2), "y": t(2)},), ({"x": t(3), "y": t(3)},)])
def dict_replaced_tensor(table):
    old = table["x"]
    table["x"] = old + table["y"]
    table["y"].mul_(2)
    return old is table["x"], old


def _growing():
    items = [t(2)]
    for _ in range(4):
        yield (items,)
        items.append(t(2))


@case(_growing)
def list_grows_between_calls(items):
    return sum(items)


def _keyed():
    table = {"a": t(2)}
    yield (table,)
    table["b"] = t(2)
    yield (table,)
    table["a"] = t(3)
    yield (table,)
    del table["a"]
    yield (table,)


@case(_keyed)
def dict_changes_between_calls(table):
    return [value + len(table) for value in table.values()]


@case(with_x(2, 3))
def builders(x, n):
    stack, queue, graph = [], [x], {}
    while queue:
        item = queue.pop()
        stack.append(item)
        if len(stack) <= n:
            queue.append(item + len(stack))
            graph.setdefault(len(stack), []).append(item)
    return stack, graph


@case(with_x([1, 2, 3], [], [5]))
def double_ended_queue(x, items):
    window = collections.deque(maxlen=2)
    for item in items:
        window.append(item)
    line = collections.deque(items)
    line.appendleft(x)
    line.rotate(1)
    line.extendleft([7, 8])
    popped = line.pop(), line.popleft()
    return window, window.maxlen, popped, line, len(line), 8 in line, line[0], repr(window)


@case(with_x([1, 2, 3], [1, 2], [2]))
def queue_compared_and_changed(x, items):
    first, second = collections.deque(items), collections.deque([1, 2], 5)
    found = [first == second, first < second, first == items, first + second, second * 2]
    del first[0]
    second[-1] = x
    try:
        first[4]
    except IndexError as error:
        found.append(str(error))
    return found, first, second.count(1), type(first).__name__, isinstance(first, list)


@case(with_x(0, 1, 2))
def queue_changed_while_read(x, n):
    line = collections.deque("abc")
    seen = []
    try:
        for letter in line:
            seen.append(letter)
            if len(seen) == n:
                line.append("d")
    except RuntimeError as error:
        return seen, str(error), x
    return seen, list(reversed(line)), x


@case(with_x("ab", "a\nb", ""))
def text_stream(x, text):
    stream = io.StringIO()
    stream.write(text)
    print(text, len(text), file=stream)
    size = stream.tell()
    stream.seek(1)
    first = stream.readline()
    return first, stream.read(), size, stream.getvalue(), stream, x


@case(with_x(b"ab", b"", b"a\nbc"))
def byte_stream(x, data):
    with io.BytesIO(data) as stream:
        lines = list(stream)
        stream.seek(4)
        stream.write(b"z")
        value = stream.getvalue()
    try:
        stream.read()
    except ValueError as error:
        return lines, value, str(error), stream.closed, x


@case(with_x(1, 2))
def namespaces(x, n):
    made = types.SimpleNamespace(a=n, x=x)
    made.b = made.a + 1
    other = types.SimpleNamespace(a=n, x=x, b=n + 1)
    return made.b, hasattr(made, "c"), vars(made) == {}, made == n, made, type(other).__name__


@case(with_x(1, 2))
def plain_objects(x, n):
    marker, other = object(), object()
    table = {marker: n}
    return marker in table, other in table, marker is marker, marker == other, type(marker), marker


@case(
    lambda: [
        (t(2), collections.deque([1, 2])),
        (t(2), collections.deque([1, 2], maxlen=2)),
        (t(2), collections.deque()),
        (t(2), collections.deque([3, 2], maxlen=2)),
    ]
)
def queue_of_the_caller(x, line):
    line.append(5)
    total = x * sum(line)
    if len(line) > 2:
        line.popleft()
    return total, line, list(line), line.maxlen


class Tag:
    def __init__(self, name):
        self.name = name


ONE, OTHER = Tag("one"), Tag("other")


@case(lambda: [({ONE}, ONE), ({ONE, OTHER}, OTHER), ({OTHER}, ONE), (frozenset({ONE}), ONE)])
def set_of_objects(members, wanted):
    return wanted in members, len(members), members


@case(lambda: [({"a": 1}.keys(), 1), ({"a": 1, "b": 2}.keys(), 2), ({"b": 0}.keys(), 1)])
def view_of_the_caller(names, n):
    return "a" in names, len(names) == n, sorted(names)


@case(with_x({1}, {2, 3}, set()))
def sets_of_sets(x, items):
    outer = {frozenset({1}), frozenset()}
    found = items in outer
    outer.discard(items)
    try:
        outer.remove({9})
    except KeyError as error:
        return found, len(outer), error.args, x
    return found, len(outer), None, x


@case(with_x([1], [(1, 2)], []))
def constructors_with_wrong_arguments(x, items):
    found = []
    for make in (collections.OrderedDict, dict, list, set, collections.defaultdict):
        try:
            found.append(make(items, items))
        except (TypeError, ValueError) as error:
            found.append(str(error))
    return found, x


@case(with_x("abca", "", "zz"))
def counters(x, text):
    counts = collections.Counter(text)
    counts.update("a")
    more = counts + collections.Counter(a=1)
    return counts.most_common(1), more["a"], sorted(counts.elements()), counts["missing"], counts, x


@case(with_x(1, 2))
def chain_of_maps(x, n):
    base = {"a": n, "b": x}
    chained = collections.ChainMap({"a": 0}, base)
    child = chained.new_child({"c": n})
    child["b"] = 7
    return chained["a"], child["c"], len(child), sorted(child), base, "d" in child, chained.maps[1]


@case(with_x(1, 2))
def user_dict_and_list(x, n):
    class Table(collections.UserDict):
        def __setitem__(self, key, value):
            super().__setitem__(str(key), value)

    table, line = Table({1: n}), collections.UserList([n, 3])
    table[2] = x
    line.append(n)
    return table.data, "1" in table, line[1:].data, len(line), line + [5], table.get("2")


@case(with_x(0, 1))
def ordered_dict_order(x, n):
    table = collections.OrderedDict(a=1, b=x, c=3)
    table.move_to_end("a", last=bool(n))
    first = table.popitem(last=False)
    return first, list(table), list(reversed(table)), table == {"a": 1, "b": x}, table


@case(lambda: [(collections.OrderedDict(a=1, b=2, c=3), "b"), (collections.OrderedDict(z=0), "z")])
def ordered_dict_of_the_caller(table, key):
    table.move_to_end(key, last=False)
    table["new"] = len(table)
    return list(table.items()), table


@case(lambda: [(t(2), n) for n in (0, 1, 5, -3, 2)])
def places_out_of_range(x, n):
    pair = collections.namedtuple("Pair", "a b")(1, 2)
    functions = (
        lambda: x.shape[n],
        lambda: pair[n],
        lambda: [1, 2][n],
        lambda: [3, 4, 3].index(3, n),
        lambda: (3, 4, 3).index(3, n, 3),
        lambda: [3, 4, 3].index(4, 0, n),
        lambda: x.size()[n:],
        lambda: collections.deque([1, 3]).index(n),
    )
    found = []
    for function in functions:
        try:
            found.append(function())
        except (IndexError, ValueError) as error:
            found.append(str(error))
    return found
