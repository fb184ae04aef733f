"""Generators of torch's: passed, kept, made in the call; what they draw, their seeds and states."""

from __future__ import annotations

import itertools

import torch

from conformance.declare import case, scenario, t


def made(seed):
    return torch.Generator().manual_seed(seed)


def _passed():
    kept = made(9)
    return [(t(2, 3), kept), (t(2, 3), kept), (t(4, 3), made(3)), (t(2, 3), made(3))]


@case(_passed, then=lambda result: torch.rand(2))
def passed(x, generator):
    return torch.randn(2, generator=generator), x * torch.rand(3, generator=generator)


@case(_passed)
def all_that_makes(x, generator):
    return (
        torch.rand(2, 3, generator=generator),
        torch.randn((2,), generator=generator, dtype=torch.float64),
        torch.randint(0, 9, (3,), generator=generator),
        torch.randint(5, (2,), generator=generator),
        torch.randperm(7, generator=generator),
        torch.normal(1.0, 2.0, (3,), generator=generator),
        torch.rand([2], generator=generator, device="cpu"),
        x,
    )


@case(_passed)
def all_that_fills(x, generator):
    turned = torch.empty(4, 5).t()
    turned.normal_(1.0, 2.0, generator=generator)
    x.uniform_(-1, 1, generator=generator)
    x[:, ::2].exponential_(generator=generator)
    drawn = torch.empty(3, dtype=torch.int64).random_(9, generator=generator)
    mask = torch.empty(2, 3).bernoulli_(0.5, generator=generator)
    waited = torch.empty(3).geometric_(0.5, generator=generator)
    return turned, x, drawn, mask, waited, torch.empty(2).cauchy_(generator=generator)


@case(_passed, then=lambda result: torch.rand(2))
def beside_the_default_one(x, generator):
    first = torch.rand(2, generator=generator)
    noise = torch.nn.functional.dropout(x)
    second = torch.rand(2, generator=None)
    third = torch.rand(2, generator=torch.default_generator)
    return first, noise, second, third, torch.rand(2, generator=generator)


@case(_passed)
def initialized(x, generator):
    weight = torch.empty(3, 4)
    torch.nn.init.kaiming_uniform_(weight, generator=generator)
    bias = torch.nn.init.normal_(torch.empty(4), generator=generator)
    return x @ weight + bias


@case(_passed)
def saved_and_restored(x, generator):
    state = generator.get_state()
    a = torch.rand(2, generator=generator)
    generator.set_state(state)
    return a, torch.rand(2, generator=generator), state, x


@case(lambda: [(t(2), made(1), n) for n in (3, 4, 5, 4)])
def seeded(x, generator, seed):
    before = torch.rand(2, generator=generator), generator.initial_seed()
    same = generator.manual_seed(seed) is generator
    return before, x + torch.rand(2, generator=generator), generator.initial_seed(), same


@case(lambda: [(t(2), made(1), n) for n in (3, 4, 5, 4)])
def seeded_and_left(x, generator, seed):
    generator.manual_seed(seed + 1)
    return x


@case(lambda: [(t(2), seed) for seed in (3, 4, 3)], then=lambda result: torch.rand(2))
def made_in_the_call(x, seed):
    generator = torch.Generator()
    first = torch.rand(2, generator=generator)
    generator.manual_seed(seed)
    return first, x + torch.rand(2, generator=generator), generator.initial_seed()


@case(
    lambda: [(t(2), seed) for seed in (3, 4, 3)],
    then=lambda result: [torch.rand(2, generator=each) for each in result[:2]],
)
def that_leave_the_call(x, seed):
    drawn, fresh = torch.Generator("cpu").manual_seed(seed), torch.Generator()
    return drawn, fresh, torch.rand(2, generator=drawn), x


@case(_passed, then=lambda result: torch.rand(2))
def to_the_default_one_and_back(x, generator):
    torch.set_rng_state(generator.get_state())
    a = torch.rand(2)
    generator.set_state(torch.Generator().manual_seed(5).get_state())
    return a, torch.rand(2, generator=generator), x


@case(_passed)
def over_a_break(x, generator):
    a = torch.rand(2, generator=generator)
    if (a >= 0).all():
        a = a + torch.rand(2, generator=generator)
    return a * torch.rand(2, generator=generator), x


@case(_passed)
def of_tensors(x, generator):
    chosen = torch.multinomial(torch.ones(4), 2, generator=generator)
    return chosen, torch.bernoulli(torch.sigmoid(x), generator=generator)


@case(lambda: [(t(2), made(1), n) for n in (2, -1, 3)])
def sizes_that_fail(x, generator, n):
    try:
        return torch.rand(n, generator=generator)
    except RuntimeError as error:
        return str(error), torch.rand(1, generator=generator)


@case(lambda: [(t(2), g, g) for g in (made(1), made(2))] + [(t(2), made(1), made(1))])
def the_same_one_twice(x, one, other):
    return torch.rand(2, generator=one), torch.rand(2, generator=other), one is other, x


@case(lambda: [(t(2), made(1)), (t(2), torch.default_generator), (t(2), None), (t(2), made(2))])
def of_any_kind(x, generator):
    return x + torch.rand(2, generator=generator)


KEPT = made(4)


@scenario(lambda: [(t(2),), (t(3),), (t(2),)])
def global_one():
    def program(x):
        return x + torch.rand(x.shape, generator=KEPT)

    return program


class Noisy(torch.nn.Module):
    """Adds noise from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = made(4)
        self.layer = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        noise = torch.randn(x.shape, generator=self.generator)
        return self.layer(x + noise)


@scenario(lambda: [(t(3, 2),), (t(4, 2),), (t(3, 2),)], then=lambda result: result.sum().backward())
def of_a_module():
    return Noisy()


@scenario(lambda: [(t(2),), (t(2),), (t(2),)])
def replaced_between_calls():
    holder = {"generator": made(1)}
    seeds = itertools.count(2)

    def program(x):
        drawn = torch.rand(2, generator=holder["generator"])
        holder["generator"] = torch.Generator().manual_seed(next(seeds))
        return x + drawn

    return program


def _places():
    kept = made(9)
    return [(t(3), t(1), torch.tensor([n]), kept) for n in (1, 7, 2, 7, 0)]


@case(_places)
def errors_between_draws(x, total, place, generator):
    noise = torch.rand(2, generator=generator)
    total += noise.sum()
    found = x[place]
    return found, torch.rand(2, generator=generator), noise


@case(_places)
def errors_that_are_handled(x, total, place, generator):
    noise = torch.rand(2, generator=generator)
    try:
        found = x[place] + torch.rand(1, generator=generator)
    except IndexError:
        found = torch.rand(3, generator=generator)
    return found, noise, total, generator.get_state()


@case(_places)
def errors_after_a_seed(x, total, place, generator):
    first = torch.rand(2, generator=generator)
    generator.manual_seed(5)
    total += torch.rand(1, generator=generator)
    found = x[place]
    generator.manual_seed(6)
    return first, found, torch.rand(1, generator=generator)


@case(_places)
def changed_numbers_and_errors(x, total, place, generator):
    noise = torch.rand(2, generator=generator).mul_(3)
    total.copy_(noise[:1])
    return x[place] + torch.rand(1, generator=generator), noise


@case(_passed)
def states_read_on_the_way(x, generator):
    states = [generator.get_state()]
    for _ in range(2):
        x = x + torch.rand(3, generator=generator)
        states.append(generator.get_state())
    return x, states, generator.initial_seed()


@case(_passed)
def a_state_of_before_a_break(x, generator):
    first = torch.rand(2, generator=generator)
    state = generator.get_state()
    second = torch.rand(2, generator=generator)
    generator.set_state(state)
    return first, second, torch.rand(2, generator=generator), x


@case(_passed)
def numbers_as_numbers(x, generator):
    drawn = torch.rand((), generator=generator)
    if drawn.item() < 0.5:
        return x * drawn
    chosen = torch.randint(3, (1,), generator=generator)
    return x[:, int(chosen)]


@case(
    lambda: [
        (t(2), one, one if is_same else made(2))
        for one, is_same in ((made(1), False), (made(1), True), (made(3), False))
    ]
)
def two_that_may_be_one(x, one, other):
    first = torch.rand(2, generator=one)
    return first, torch.rand(2, generator=other), torch.rand(2, generator=one), x
