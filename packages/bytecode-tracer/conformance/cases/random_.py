"""Random numbers: torch's, Python's, generators, states; drawn as eager draws them."""

from __future__ import annotations

import random

import torch

from conformance.declare import case, scenario, t, with_x


@case(with_x(2, 3, 2))
def torch_random(x, n):
    return torch.rand(n), torch.randn(2, n), torch.randint(0, 9, (n,)), torch.randperm(n), x


@case(lambda: [(t(2, 3),), (t(4, 3),)])
def random_like_and_in_place(x):
    y = torch.rand_like(x)
    return y, x.uniform_(), x.clone().normal_(), torch.bernoulli(y), x


@case(lambda: [(t(4, 4), True), (t(4, 4), False), (t(2, 4), True)])
def dropout(x, training):
    return torch.nn.functional.dropout(x, 0.5, training=training)


@case(with_x(0, 1, 0))
def seeded_inside(x, seed):
    torch.manual_seed(seed)
    a = torch.rand(2)
    torch.manual_seed(seed)
    return a, torch.rand(2), torch.initial_seed(), x


@case(with_x(1, 2))
def state_saved_and_restored(x, n):
    state = torch.get_rng_state()
    a = torch.rand(n)
    torch.set_rng_state(state)
    return a, torch.rand(n), x


@case(with_x(1, 2))
def python_random(x, n):
    return x * random.random(), random.randint(0, 100), random.uniform(0, n), random.gauss(0, 1)


@case(with_x([1, 2, 3], ["a", "b"]))
def python_choices(x, items):
    random.shuffle(items)
    return random.choice(items), items, random.sample(items, 2), random.choices(items, k=3)


@case(with_x(1, 2))
def python_seed(x, seed):
    random.seed(seed)
    state = random.getstate()
    a = random.random()
    random.setstate(state)
    return a, random.random(), x


@scenario(lambda: [(t(2),), (t(2),), (t(3),)])
def own_generator():
    generator = random.Random(3)

    def program(x):
        return x * generator.random(), generator.randrange(10)

    return program


@scenario(lambda: [(t(2),), (t(2),), (t(3),)])
def torch_generator():
    generator = torch.Generator().manual_seed(3)

    def program(x):
        return x + torch.rand(x.shape, generator=generator)

    return program


@case(lambda: [(t(2), torch.Generator().manual_seed(1)), (t(2), torch.Generator().manual_seed(2))])
def generator_argument(x, generator):
    return torch.randn(2, generator=generator), torch.randperm(4, generator=generator), x


@case(with_x(1, 2))
def fork_rng(x, n):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(n)
        a = torch.rand(2)
    return a, torch.rand(2), x


@case(lambda: [(t(4, start=0.25),), (t(3, start=0.5),)])
def multinomial(x):
    return torch.multinomial(x, 2), torch.distributions.Normal(0.0, 1.0).sample((2,))


@case(with_x(2, 0))
def branch_on_python_random(x, n):
    return x if random.random() < n else -x


@case(with_x(1, 2))
def mixed_with_break(x, n):
    a = torch.rand(2)
    print("between")
    return a, torch.rand(2), random.random() * x
