"""Errors that only the run of a graph raises after it changed tensors: what was before counts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from conformance.declare import case, t
from conformance.midway import Operand, Own
from conformance.midway import world as _world

_count = 0


_table = {"calls": 0}


@case(_world, traceback=True)
def attributes(x, place, table, own):
    own.n += 1
    x.add_(1)
    own.n += 1
    y = table[place]
    own.n += 1
    return y + x


@case(_world, traceback=True)
def what_was_made(x, place, table, own):
    own.h = x.add_(1) * 2
    own.log.append(own.h.sum())
    y = table.index_select(0, place)
    own.log.append(y)
    own.h = None
    return y


@case(_world, traceback=True)
def values_that_are_let_go(x, place, table, own):
    own.h = table * 3
    own.log.append(own.h + 1)
    x.mul_(2)
    own.h = own.h.exp()
    y = own.h[place]
    own.h = own.log.pop() + y.sum()
    return y


@case(_world, traceback=True)
def a_global(x, place, table, own):
    global _count
    _count += 1
    x.sub_(1)
    _table["calls"] += 1
    y = table[place]
    _count += 10
    return y


class Tally:
    shared = 0


@case(_world, traceback=True)
def a_class(x, place, table, own):
    Tally.shared += 1
    x.mul_(3)
    y = table.take(place)
    Tally.shared += 10
    return y


@case(_world, traceback=True)
def a_property(x, place, table, own):
    x.mul_(3)
    own.twice = own.n * 2 + 4
    y = table.gather(0, place)
    own.twice = 0
    return y


@case(_world, traceback=True)
def containers(x, place, table, own):
    own.named["begun"] = x.add_(2)
    own.log.extend([1, 2])
    own.log.insert(0, "first")
    y = F.embedding(place, table[:, None])
    own.named.clear()
    own.log.clear()
    return y


@case(_world, traceback=True)
def a_loop(x, place, table, own):
    total = 0
    for n in range(4):
        own.log.append(n)
        x.add_(n)
        total = total + table[place + n].sum()
    own.n = total
    return total


@case(_world, traceback=True)
def a_loop_over_state(x, place, table, own):
    own.h = torch.zeros(4)
    for n in range(3):
        x.add_(1)
        own.h = own.h + table * n
        own.named[n] = own.h[(place + n).clamp_min(0)]
    return own.h


@case(_world, traceback=True)
def functions_in_functions(x, place, table, own):
    def outer(n):
        own.log.append(n)
        y = inner(n + 1)
        own.log.append("never")
        return y

    def inner(n):
        nonlocal x
        x = x.add_(n) * 1
        own.log.append(n)
        return table[place]

    return outer(1) + x


@case(_world, traceback=True)
def a_nonlocal(x, place, table, own):
    count = 0

    def note():
        nonlocal count
        count += 1
        own.n = count

    own.h = note
    note()
    x.mul_(2)
    note()
    return table[place] + count


@case(_world, traceback=True)
def a_generator(x, place, table, own):
    def made():
        yield x.add_(1)
        own.log.append("going on")
        yield table[place]
        own.log.append("never")

    for each in made():
        own.log.append(each.sum())
    return own.n


@case(_world, traceback=True)
def a_comprehension(x, place, table, own):
    own.log.append(x.mul_(2))
    return [table[place + n] for n in range(3)]


@case(_world, traceback=True)
def sorted_by_a_key(x, place, table, own):
    def key(n):
        own.log.append(n)
        x.add_(n)
        if n == 2:
            own.h = table[place]
        return -n

    return sorted([1, 2, 3], key=key)


@case(_world, traceback=True)
def an_operator_of_a_class(x, place, table, own):
    y = Operand(own, x, table) + place
    own.n += 100
    return y


@case(_world, traceback=True)
def what_the_call_makes(x, place, table, own):
    made = Own()
    made.log.append(x.add_(1))
    own.h = made
    made.n = 5
    y = table[place]
    made.n = 6
    return y


@case(_world, traceback=True)
def a_dict_that_loses_keys(x, place, table, own):
    own.named.update(a=1, b=x)
    x.add_(1)
    del own.named["a"]
    own.named["c"] = own.named.pop("b") * 2
    return table[place]


@case(_world, traceback=True)
def a_deleted_attribute(x, place, table, own):
    x.add_(1)
    del own.h
    own.added = 3
    y = table[place]
    own.h = y
    return y


@case(lambda: [(t(3), torch.tensor([n]), t(4), iter(range(9))) for n in (1, 9, 2)], traceback=True)
def an_iterator_of_the_caller(x, place, table, numbers):
    first = next(numbers)
    x.add_(first)
    second = next(numbers)
    y = table[place] + second
    next(numbers)
    return y, next(numbers)


@case(_world, traceback=True)
def a_set_of_the_caller(x, place, table, own):
    own.named.setdefault("seen", set()).add("begun")
    x.add_(1)
    y = table[place]
    own.named["seen"].add("done")
    return y


@case(_world, traceback=True)
def a_mapped_function(x, place, table, own):
    own.n = 1
    x.add_(1)
    y = torch.vmap(lambda row: row * table[place])(torch.ones(2, 1))
    own.n = 2
    return y
