"""Side effects: replayed exactly and in order; identity and aliasing of results."""

from __future__ import annotations

import torch

from conformance.declare import case, scenario, t, with_x


class Store:
    def __init__(self):
        self.items = []
        self.last = None
        self.count = 0


@case(lambda: [(t(2), []), (t(2), [1]), (t(3), [t(2)])])
def append_to_argument(x, items):
    items.append(x * 2)
    return items


@case(lambda: [(t(2), {}), (t(2), {"n": 1}), (t(3), {"y": None})])
def write_dict_argument(x, table):
    table["y"] = x + 1
    table["n"] = table.get("n", 0) + 1
    return table["y"]


@case(lambda: [(t(2), set()), (t(2), {1})])
def write_set_argument(x, items):
    items.add(x.dim())
    items.add("a")
    return x


def _store():
    store = Store()
    return [(t(2), store), (t(2), store), (t(3), store), (t(2), Store())]


@case(_store)
def write_attributes(x, store):
    store.count += 1
    store.last = x * store.count
    store.items.append(store.last)
    return store.last


@case(_store)
def attribute_created_and_deleted(x, store):
    store.fresh = x
    store.temporary = 1
    del store.temporary
    return store


@case(_store)
def object_stored_in_itself(x, store):
    store.last = store
    store.items.append(store.items)
    return store.last.last is store


@case(_store)
def new_container_shared_by_two_places(x, store):
    made = [x]
    store.items.append(made)
    store.last = made
    made.append("later")
    return made


@case(_store)
def same_tensor_stored_twice(x, store):
    y = x + 1
    store.last = y
    store.items.append(y)
    y.add_(1)
    return y


@case(lambda: [(t(2, 3),), (t(3),), (t(2, 3),)])
def in_place_method(x):
    x.add_(1).mul_(2)
    return x


@case(lambda: [(t(2, 3),), (t(3),), (t(2, 3),)])
def in_place_then_read_before(x):
    y = x * 2
    x.zero_()
    return y, x * 3


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def in_place_through_view(x):
    row = x[0]
    row.add_(10)
    return x.sum(), row


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def item_assignment(x):
    x[0] = 5
    x[:, 1] = x[:, 2]
    x[x > 4] = 0
    return x


@case(lambda: [(t(2, 3), 1), (t(2, 3), 0), (t(2, 3), 2.5)])
def item_assignment_from_argument(x, n):
    x[1, 0] = n
    x[0, int(n)] += n
    return x


@case(lambda: [(t(3), t(3)), (t(3), t(1))])
def write_into_other_argument(a, b):
    a.copy_(b)
    b.fill_(7)
    return a + b


def _views():
    base = t(4, 3)
    return [(base, base[0]), (base, t(3)), (base, base.t()[0, :3]), (t(4, 3), t(3))]


@case(_views)
def argument_is_view_of_other(a, b):
    b.add_(100)
    return a.sum(), b


@case(_views)
def base_written_view_read(a, b):
    a.mul_(2)
    return b + 1


def _same():
    x, y = t(2), t(2)
    return [(x, y), (x, x), (y, x), (x, x.view(2))]


@case(_same)
def aliased_arguments(a, b):
    a.add_(1)
    return a + b, a is b


@case(lambda: [(t(2, 3),), (t(4, 3),), (t(2, 3),)])
def results_that_are_views(x):
    return x[0], x.t(), x.view(-1), x.detach(), x[0] is x[0]


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def results_that_alias_each_other(x):
    y = x + 1
    return y, y, [y], {"y": y}, y.view(-1), y[0]


@case(with_x(1, 2))
def results_nested(x, n):
    pair = (x, n)
    return {"pair": pair, "again": pair, "list": [pair, [pair]]}


@case(lambda: [(t(2), [t(2)]), (t(3), [t(3), 1])])
def argument_container_returned(x, items):
    return items, items[0], (items,), [items]


@case(lambda: [(t(2), (t(2), 1)), (t(3), (t(3),))])
def argument_tuple_returned(x, pair):
    return pair, pair[0], [pair], x


@case(with_x([1], {"a": [2]}, (3,), "text", None, 5))
def any_argument_returned(x, value):
    return value, x


@case(lambda: [(t(2),), (t(3),)])
def no_op_results(x):
    return x.contiguous() is x, x.to(x.dtype) is x, x.float() is x, x.contiguous(), x + 0


@case(lambda: [(t(2), t(2)), (t(3), t(3))])
def swap_contents(a, b):
    saved = a.clone()
    a.copy_(b)
    b.copy_(saved)
    return a is b


@case(lambda: [(t(2), t(2)), (t(3), t(3))])
def swap_data(a, b):
    a.data, b.data = b.data, a.data
    return a + 1


@case(lambda: [(t(4),), (t(3),)])
def resized_argument(x):
    x.resize_(2).fill_(3)
    return x * 2


@case(lambda: [(t(2, 3),), (t(3, 2),)])
def metadata_changed_in_place(x):
    x.t_()
    x.unsqueeze_(0)
    return x.shape, x * 2


@case(lambda: [(t(2), t(2)), (t(2), t(3))])
def out_argument(x, out):
    result = torch.add(x, 1, out=out[:2])
    return result, out


@case(lambda: [(t(2),), (t(3),)])
def set_attributes_of_tensor(x):
    y = x * 2
    y.tag = "made"
    x.tag = ["own"]
    return y, x.tag, hasattr(x, "other")


def _tagged():
    x = t(2)
    x.scale = 2
    yield (x,)
    x.scale = 3
    yield (x,)
    del x.scale
    yield (x,)


@case(_tagged)
def attribute_of_tensor_argument(x):
    return x * getattr(x, "scale", 100)


@case(lambda: [(t(2, grad=True),), (t(3, grad=True),), (t(2),)])
def backward_inside(x):
    y = (x * 2).sum()
    if x.requires_grad:
        y.backward()
    return x.grad, y


@case(lambda: [(t(2, grad=True),), (t(3, grad=True),)], then=lambda y: y.sum().backward())
def backward_outside(x):
    return x * x + 1


@case(with_x(1, 2))
def effects_in_order(x, n):
    log = []
    items = [3, 1, 2]

    def note(value):
        log.append((value, list(items)))
        return value

    items.sort()
    note(n)
    items.append(note(4))
    items.reverse()
    note(5)
    return log, items, x


@case(_store)
def effects_before_error(x, store):
    store.count += 1
    x.add_(1)
    store.items.append(x)
    raise RuntimeError(store.count)


@case(_store)
def effects_undone_by_program(x, store):
    before = store.count
    store.count = 100
    y = x * store.count
    store.count = before
    store.items.append(1)
    store.items.pop()
    return y


@scenario(lambda s: [(t(2),), (t(2),), (t(3),)])
def memo_in_closure():
    memo = {}

    def program(x):
        key = x.shape
        if key not in memo:
            memo[key] = x * 2
        return memo[key], len(memo)

    return program, memo


@scenario(lambda s: [(t(2),), (t(2),), (t(3),)])
def result_kept_from_call_to_call():
    state = Store()

    def program(x):
        previous, state.last = state.last, x + 1
        return previous

    return program, state


@case(_store)
def list_replaced(x, store):
    old = store.items
    store.items = store.items + [x.dim()]
    return old is store.items, len(store.items)


@case(_store)
def nested_objects(x, store):
    inner = Store()
    inner.last = x
    store.last = inner
    store.last.count = 5
    store.items = [inner, inner]
    return store.items[0].count, inner is store.last


@case(lambda: [([t(2)],), ([t(2), t(3)],)])
def list_rewritten_in_loop(items):
    for index, item in enumerate(items):
        items[index] = item * 2
    items[:] = items[::-1]
    return items[0]


@case(lambda: [(t(3), torch.tensor([0, 2])), (t(4), torch.tensor([1, 1]))])
def scatter_in_place(x, index):
    x.index_add_(0, index, torch.ones(2))
    x.scatter_(0, index, 9.0)
    x.index_fill_(0, index[:1], 4.0)
    return x


@case(lambda: [(t(2, 3), t(2, 3) > 0), (t(2, 3), t(2, 3) < 0)])
def masked_in_place(x, mask):
    x.masked_fill_(mask, -1)
    x[mask] += 3
    return x[~mask]


@case(lambda: [(t(2),), (t(3),)])
def clone_breaks_aliasing(x):
    y = x.clone()
    y.add_(1)
    z = x.detach()
    z.add_(5)
    return x, y, z


@case(lambda: [(t(2, 2),), (t(3, 2),)])
def chunks_written(x):
    a, b = x.chunk(2, dim=1)
    a.add_(1)
    for row in x.unbind(0):
        row.mul_(2)
    return a, b


class Sized:
    def __init__(self, size):
        self.size = size


@case(lambda: [(t(3), Sized(size)) for size in (2, 3, 2, 4)])
def attribute_set_to_what_it_was(x, holder):
    holder.size = 2
    return x + 1


@case(lambda: [(t(3), Sized(size)) for size in (2, 3, 2, 4)])
def attribute_set_and_set_back(x, holder):
    before = holder.size
    holder.size = 7
    y = x * holder.size
    holder.size = before
    return y


@case(lambda: [(t(3), {"a": value}, [value]) for value in (2, 3, 2, 4)])
def entry_set_to_what_it_was(x, table, row):
    table["a"] = 2
    row[0] = 2
    return x + 1


LAST = 2


@case(lambda: [(t(3), 2), (t(3), 3), (t(3), 2), (t(3), 5)])
def global_set_to_what_it_was(x, value):
    global LAST
    LAST = 2
    y = x + LAST
    LAST = value
    return y
