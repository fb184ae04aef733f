"""States of torch's generators that a program reads and sets: before, between and after draws."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from conformance.declare import case, scenario, t, with_x


def _states(*seeds):
    return [(t(2, 3), torch.Generator().manual_seed(seed).get_state()) for seed in seeds]


@case(with_x(3, 4, 5, 4), then=lambda result: torch.rand(2))
def seed_that_changes(x, seed):
    torch.manual_seed(seed)
    return F.dropout(x, 0.5), torch.initial_seed()


@case(with_x(3, -4, 1 << 62, -1), then=lambda result: torch.rand(2))
def seeds_of_all_kinds(x, seed):
    torch.manual_seed(seed * 2 + 1)
    return torch.rand(2), torch.initial_seed(), x


@case(with_x(1.5, True, 2.0, False))
def seeds_that_are_no_ints(x, seed):
    torch.manual_seed(seed)
    return torch.rand(2) * x[0, :2], torch.initial_seed()


@case(with_x(3, 4, 5, 4), then=lambda result: torch.rand(2))
def seed_between_draws(x, seed):
    first = torch.rand(2)
    torch.manual_seed(seed)
    second = F.dropout(x, 0.5)
    torch.manual_seed(seed + 1)
    return first, second, torch.rand(2), torch.initial_seed()


@case(with_x(3, 4, 3), then=lambda result: torch.rand(2))
def seed_after_draws(x, seed):
    noise = torch.rand_like(x)
    torch.manual_seed(seed)
    return x + noise


@case(with_x(3, 4, 3), then=lambda result: torch.rand(2))
def seed_without_draws(x, seed):
    before = torch.initial_seed()
    torch.manual_seed(seed)
    return x * 2, before, torch.initial_seed(), torch.get_rng_state()


@case(with_x(0, 2, 3), then=lambda result: torch.rand(2))
def seed_of_a_sum(x, n):
    torch.manual_seed(x.shape[0] + n)
    return torch.rand(2), torch.initial_seed()


@case(lambda: _states(1, 2, 1), then=lambda result: torch.rand(2))
def state_of_the_caller(x, state):
    torch.set_rng_state(state)
    return torch.rand(2), x, torch.get_rng_state()


@case(lambda: _states(1, 2, 1), then=lambda result: torch.rand(2))
def state_between_draws(x, state):
    a = torch.rand(2)
    torch.set_rng_state(state)
    return a, F.dropout(x, 0.5)


@case(lambda: _states(1, 2, 1), then=lambda result: torch.rand(2))
def state_set_last(x, state):
    a = torch.rand(2)
    torch.set_rng_state(state)
    return a, x


@case(lambda: _states(1, 2), then=lambda result: torch.rand(2))
def state_written_afterwards(x, state):
    torch.set_rng_state(state)
    a = torch.rand(2)
    torch.set_rng_state(state)
    state.zero_()
    return a, state


@case(lambda: [*_states(1), (t(2), torch.zeros(5056, dtype=torch.uint8)), (t(2), t(3))])
def states_that_are_none(x, state):
    try:
        torch.set_rng_state(state)
    except (RuntimeError, TypeError) as error:
        return type(error), x
    return torch.rand(2), x


@case(with_x(1, 2, 3), then=lambda result: torch.rand(2))
def saved_and_restored(x, n):
    state = torch.get_rng_state()
    a = torch.rand(n)
    torch.set_rng_state(state)
    b = torch.rand(n)
    return a, b, x, state


@case(with_x(1, 2, 3), then=lambda result: torch.rand(2))
def saved_after_a_draw(x, n):
    first = torch.rand(n)
    state = torch.get_rng_state()
    a = F.dropout(x, 0.3)
    torch.set_rng_state(state.clone())
    return first, a, F.dropout(x, 0.3), torch.initial_seed()


@case(with_x(1, 2))
def states_are_apart(x, n):
    one, other = torch.get_rng_state(), torch.get_rng_state()
    one[:8] = n
    return one is other, one[:9], other.sum(), x


@case(with_x(1, 2, 1), then=lambda result: torch.rand(2))
def forked(x, n):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(n)
        a = torch.rand(2)
    return a, torch.rand(2), x


@case(with_x(1, 2, 1), then=lambda result: torch.rand(2))
def forked_after_a_draw(x, n):
    first = F.dropout(x, 0.5)
    with torch.random.fork_rng():
        torch.manual_seed(n)
        a = torch.rand(2)
    return first, a, torch.initial_seed()


@case(with_x(1, 2, 1), then=lambda result: torch.rand(2))
def forked_without_draws(x, n):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(n)
    return x * 2, torch.initial_seed()


@case(with_x(True, False), then=lambda result: torch.rand(2))
def forked_or_not(x, enabled):
    with torch.random.fork_rng(devices=[], enabled=enabled):
        a = torch.rand(2)
    return a, torch.rand(2), x


@case(with_x(1, 2), then=lambda result: torch.rand(2))
def forked_in_forks(x, n):
    made = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(n):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                made.append(torch.rand(2))
            made.append(F.dropout(x, 0.5))
    return made, torch.rand(2)


@case(with_x(0, 1), then=lambda result: torch.rand(2))
def fork_left_by_an_error(x, n):
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            a = torch.rand(2)
            if n:
                raise ValueError("n")
    except ValueError as error:
        return str(error), a
    return x, a


@case(with_x([0, 1], [0, 9]), then=lambda result: torch.rand(2))
def fork_around_what_fails(x, places):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        a = torch.rand(2)
        return torch.index_select(x[0], 0, torch.tensor(places)), a


@case(with_x(1, 2, 1), then=lambda result: torch.rand(2))
def default_generator(x, n):
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(n)
    a = torch.rand(2, generator=generator)
    seed = generator.initial_seed()
    generator.set_state(state)
    return a, x, seed, generator is torch.random.default_generator, generator.device


@case(with_x(1, 2, 1), then=lambda result: torch.rand(2))
def cuda_without_a_gpu(x, n):
    torch.cuda.manual_seed(n)
    torch.cuda.manual_seed_all(n)
    states = torch.cuda.get_rng_state_all()
    a = torch.rand(2)
    torch.cuda.set_rng_state_all(states)
    return a, x, states, torch.cuda.is_available()


@case(with_x(1, 2))
def seed_by_chance(x, n):
    try:
        seed = torch.seed()
        a = torch.rand(n)
        torch.manual_seed(seed)
        return (a == torch.rand(n)).all(), torch.initial_seed() == seed, x
    finally:
        torch.manual_seed(0)


@case(with_x(1, 2), then=lambda result: torch.rand(2))
def over_a_break(x, n):
    state = torch.get_rng_state()
    a = torch.rand(n)
    print("between")
    torch.set_rng_state(state)
    b = torch.rand(n)
    if (b >= 0).all():
        torch.manual_seed(n)
    return a, b, torch.rand(n), x


@case(lambda: [(t(2, 3, grad=True), n) for n in (1, 2, 1)], then=lambda r: r.sum().backward())
def gradients_through_seeds(x, n):
    y = F.dropout(x * 2, 0.5)
    torch.manual_seed(n)
    return y * F.dropout(x, 0.5) + torch.randn_like(y)


@case(with_x(1, 2), then=lambda result: torch.rand(2))
def under_no_grad_and_vmap(x, n):
    torch.manual_seed(n)
    with torch.no_grad():
        y = F.dropout(x, 0.5)
    return torch.vmap(lambda row: row + torch.rand(3), randomness="different")(y)


@case(with_x(1, 2), then=lambda result: torch.rand(2))
def loop_of_seeds(x, n):
    made = []
    for seed in range(n + 2):
        torch.manual_seed(seed)
        made.append(F.dropout(x, 0.5).sum())
    return torch.stack(made)


class Sampler(torch.nn.Module):
    """Draws the same noise in each call, and counts these."""

    def __init__(self):
        super().__init__()
        self.seed = 3
        self.state = None

    def forward(self, x):
        self.state = torch.get_rng_state()
        torch.manual_seed(self.seed)
        noise = torch.randn_like(x)
        torch.set_rng_state(self.state)
        self.seed += 1
        return x + noise


@scenario(lambda: [(t(2),), (t(3),), (t(2),), (t(2),)], then=lambda result: torch.rand(2))
def state_of_a_module():
    return Sampler()
