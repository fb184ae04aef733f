"""Training steps with `torch.amp.GradScaler`, and what it needs: ids of objects as keys."""

from __future__ import annotations

import collections
import math

import torch

from conformance.declare import case, scenario, t


def _batches():
    for number in range(7):
        x = t(4, 3, start=number / 4)
        if number in (2, 5):
            x[0, 0] = math.inf
        yield x, t(4, 2, start=-number), number % 2 == 1


def _scaled(make, *, clip=False, unscale=False, sets_none=True, accumulate=1):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)

    def step(x, y, is_second):
        loss = torch.nn.functional.mse_loss(model(x), y) / accumulate
        scaler.scale(loss).backward()
        if accumulate == 1 or is_second:
            if clip or unscale:
                scaler.unscale_(optimizer)
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=sets_none)
        return loss.detach()

    state = {"model": model, "scale": lambda: (scaler.get_scale(), scaler._growth_tracker)}
    return step, (model, optimizer, scaler, state)


def _steps(state):
    return _batches()


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@scenario(_steps)
def plain():
    return _scaled(_sgd)


@scenario(_steps)
def unscaled_and_clipped():
    return _scaled(_sgd, clip=True)


@scenario(_steps)
def with_adam():
    return _scaled(torch.optim.AdamW, unscale=True, sets_none=False)


@scenario(_steps)
def accumulated():
    return _scaled(_sgd, accumulate=2)


@scenario(_steps)
def switched_off():
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    optimizer = _sgd(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(x, y, is_second):
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    return step, (model, optimizer)


@case(lambda: [(t(2, 3),), (t(2, 3, start=4),), (torch.full((2, 3), math.nan),)])
def by_hand(x):
    found, scale, tracker = torch.zeros(()), torch.tensor(8.0), torch.tensor(1, dtype=torch.int32)
    grads = [x * 2, x.sum(0)]
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, scale.reciprocal())
    torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
    return grads, found, scale, tracker


@case(lambda: [(t(2, 3),), (torch.full((2, 3), math.inf),), (t(2, 3),)])
def flag_that_is_read(x):
    found, tracker = torch.zeros(()), torch.zeros((), dtype=torch.int32)
    torch._amp_foreach_non_finite_check_and_unscale_([x], found, torch.ones(()))
    torch._amp_update_scale_(torch.ones(()), tracker, found, 2.0, 0.5, 2)
    return found.item(), int(tracker)


# Ids as keys of dicts that the call changes.


class Thing:
    pass


def _by_number(table, *things):
    """A table with the number of the object, or the key, in the place of its id."""
    numbers = {id(thing): f"thing {number}" for number, thing in enumerate(things)}
    return {numbers.get(key, key): value for key, value in table.items()}


def _tables():
    one, two = Thing(), Thing()
    yield t(2), one, {}, two
    yield t(2), one, {id(one): t(2)}, two
    yield t(2), two, {id(one): t(2)}, one
    yield t(2), two, {id(two): t(2), "other": t(2)}, one


def _read(run, x, thing, table, other):
    return run(x, thing, table), _by_number(table, thing, other)


@case(lambda: [(number,) for number in range(4)], drive=lambda run, n: _read(run, *[*_tables()][n]))
def read_by_an_id(x, thing, table):
    found = table.get(id(thing))
    return x if found is None else x + found, id(thing) in table


def _written(run, x, thing, table, other):
    return _by_number(run(x, thing, table), thing, other, x)


@case(
    lambda: [(number,) for number in range(4)], drive=lambda run, n: _written(run, *[*_tables()][n])
)
def written_by_an_id(x, thing, table):
    table[id(thing)] = x * 2
    table.setdefault(id(x), x + 1)
    return table


_TABLE = collections.defaultdict(list)


def _remembered(run, number):
    thing = Thing()
    found = run(t(2, start=number), thing), _by_number(_TABLE, thing)
    _TABLE.clear()
    return found


@case(lambda: [(number,) for number in range(3)], drive=_remembered)
def a_table_of_objects(x, thing):
    _TABLE[id(thing)].append(x * 2)
    key = id(thing)
    print("seen")
    return _TABLE[key][0] + len(_TABLE[id(thing)]), key == id(thing)


@case(lambda: [(number,) for number in range(3)], drive=lambda run, n: _same_id(run, Thing()))
def an_id_that_is_returned(x, thing):
    return x + 1, id(thing)


def _same_id(run, thing):
    return run(t(2), thing)[1] == id(thing)
