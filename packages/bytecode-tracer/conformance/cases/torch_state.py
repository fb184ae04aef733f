"""States of torch that programs read and change: random streams, settings, threads; values read."""

from __future__ import annotations

import random
import threading

import torch

from conformance.declare import case, scenario, t, with_x


@case(with_x(0, 1, 0))
def seeded_between(x, seed):
    a = torch.rand(2)
    generator = torch.manual_seed(seed)
    b = torch.rand(2)
    return a, b, generator is torch.default_generator, generator.initial_seed(), x * 2


@case(with_x(1, 2, 1))
def seeded_and_forked(x, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        noise = torch.randn_like(x)
    return x + noise, torch.rand(1)


@case(with_x(1, 2, 1))
def state_kept_across(x, n):
    state = torch.get_rng_state()
    a = torch.rand(n) + x.sum()
    torch.set_rng_state(state)
    b = torch.rand(n) + x.sum()
    return a, b, torch.equal(a, b)


@case(lambda: [(torch.Generator().manual_seed(n), k) for n, k in ((1, 2), (2, 2), (1, 3))])
def generator_given(generator, n):
    a = torch.rand(n, generator=generator)
    b = torch.empty(n).normal_(generator=generator)
    c = torch.randint(0, 9, (n,), generator=generator)
    return a, b, c, torch.rand(n, generator=generator) * 2


@case(lambda: [(torch.Generator(), n) for n in (1, 2, 1)])
def generator_seeded_inside(generator, n):
    generator.manual_seed(n)
    a = torch.rand(3, generator=generator)
    return a, generator.initial_seed(), generator.device


@case(with_x(1, 2, 1))
def generator_made_inside(x, seed):
    generator = torch.Generator().manual_seed(seed)
    return x + torch.rand(x.shape, generator=generator)


@case(lambda: [(torch.Generator().manual_seed(1), n) for n in (1, 2, 1)])
def state_of_generator(generator, n):
    state = generator.get_state()
    a = torch.rand(n, generator=generator)
    generator.set_state(state)
    return a, torch.rand(n, generator=generator)


@case(with_x(1, 2))
def generator_passed_on(x, n):
    generator = torch.Generator()
    generator.manual_seed(n)

    def noise(like, source):
        return torch.rand(like.shape, generator=source)

    return noise(x, generator) * n


@case(with_x(1, 2))
def both_streams(x, n):
    torch.manual_seed(n)
    random.seed(n)
    return torch.rand(1), random.random(), torch.rand(1), random.random(), x


@case(with_x(1, 2))
def seed_read(x, n):
    torch.manual_seed(n)
    return torch.initial_seed(), torch.random.initial_seed(), x + torch.rand(1)


@case(with_x(True, False, True))
def deterministic_mode(x, flag):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(flag)
    try:
        return torch.are_deterministic_algorithms_enabled(), x + 1
    finally:
        torch.use_deterministic_algorithms(before)


@case(with_x("high", "highest"))
def matmul_precision(x, name):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    found = torch.get_float32_matmul_precision(), x @ x.T
    torch.set_float32_matmul_precision(before)
    return found


@case(with_x(1, 2))
def threads_set(x, n):
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    found = torch.get_num_threads(), x + 1
    torch.set_num_threads(before)
    return found


@case(with_x(True, False))
def backend_flags(x, flag):
    with torch.backends.mkldnn.flags(enabled=flag):
        y = torch.nn.functional.relu(x)
    return y, torch.backends.mkldnn.enabled


@case(with_x(True, False))
def flag_of_backend_assigned(x, flag):
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = flag
    found = torch.backends.cudnn.benchmark, x + 1
    torch.backends.cudnn.benchmark = before
    return found


@case(with_x(True, False))
def warn_always(x, flag):
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(flag)
    found = torch.is_warn_always_enabled(), x * 2
    torch.set_warn_always(before)
    return found


@case(with_x(torch.float64, torch.float32))
def default_tensor_type(x, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return torch.tensor(1.0), torch.zeros(2), torch.arange(2) / 3, x
    finally:
        torch.set_default_dtype(before)


@case(with_x(3, 5))
def print_options(x, n):
    torch.set_printoptions(precision=n)
    text = str(torch.tensor(1 / 3))
    torch.set_printoptions(profile="default")
    return text, x + 1


@case(with_x(True, False))
def flush_denormal(x, flag):
    torch.set_flush_denormal(flag)
    y = x * 2
    torch.set_flush_denormal(False)
    return y


# Values read.


def _masks():
    return [(t(4),), (t(4, start=0.5),), (t(6),), (t(4, start=-9),)]


@case(_masks)
def rows_found(x):
    index = torch.nonzero(x > 0)
    return index, index.shape[1], x[index[:, 0]] * 2


@case(_masks)
def places_as_tuple(x):
    (index,) = torch.where(x > 0)
    return x[index], (x > 0).nonzero(as_tuple=True)


@case(_masks)
def boolean_index(x):
    kept = x[x > 0]
    return kept * 2, kept.sum(), kept.shape[0] if x.dim() > 3 else None


@case(_masks)
def boolean_assignment(x):
    y = x.clone()
    y[y > 0] = 0
    y[x < -0.5] = x[x < -0.5] * 10
    return y


@case(_masks)
def masked_selection(x):
    return (
        torch.masked_select(x, x > 0) + 1,
        x.masked_fill(x > 0, 7),
        x.clone().masked_scatter_(x > 0, x),
    )


@case(lambda: [(torch.tensor([3, 1, 3]),), (torch.tensor([2, 2]),), (torch.tensor([1, 2, 3]),)])
def unique_numbers(x):
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values, inverse, counts, x.unique(), torch.unique_consecutive(x)


@case(lambda: [(torch.tensor(n), t(6)) for n in (2, 3, 2)])
def number_as_size(n, x):
    k = n.item()
    return x[:k], torch.zeros(k), k + 1


@case(lambda: [(torch.tensor([n, 6 - n]), t(6)) for n in (2, 3, 2)])
def numbers_as_sizes(sizes, x):
    return x.split(sizes.tolist()), sizes.tolist()


@case(lambda: [(t(3) * n,) for n in (1, 2, 0)])
def float_read(x):
    scale = x.abs().max().item()
    return x / (scale + 1), scale * 2


@case(lambda: [(t(3) * n,) for n in (1, 2, 0)])
def branch_on_value(x):
    if x.sum() > 0.1:
        return x + 1
    return x - 1


@case(lambda: [(torch.tensor([1, 0, 2]), t(3)), (torch.tensor([2, 2, 0]), t(3))])
def repeated(counts, x):
    return torch.repeat_interleave(x, counts), torch.bincount(counts)


@case(_masks)
def loop_over_values(x):
    total = 0
    for value in x.tolist():
        total += value
    return total, x


@case(_masks)
def compared(x):
    return torch.equal(x, x + 0), torch.allclose(x, x * 1.0), x.equal(x * 2), bool((x > 0).any())


@case(with_x(1, 2, 1))
def state_of_the_thread(x, n):
    local = threading.local()
    local.value = n
    return x * local.value, hasattr(local, "other")


@scenario(lambda state: [(t(2), 1), (t(2), 2), (t(3), 2)])
def state_of_the_thread_outside():
    local = threading.local()
    local.count = 0

    def program(x, n):
        before = local.count
        local.count += n
        return x * local.count, before

    return program, local.__dict__


def _tens():
    return [(t(2, 3),), (t(4, 3),), (t(2, 3, start=0.5),)]


@case(_tens, then=lambda result: torch.rand(2))
def seeded_first(x):
    torch.manual_seed(7)
    return x + torch.rand(3), torch.nn.functional.dropout(x, 0.5)


@case(_tens, then=lambda result: torch.rand(2))
def seeded_last(x):
    y = x + torch.rand(3)
    torch.manual_seed(7)
    return y


@case(_tens, then=lambda result: torch.rand(2))
def seeded_first_and_last(x):
    generator = torch.manual_seed(7)
    y = x + torch.rand(3)
    torch.manual_seed(8)
    return y, generator is torch.default_generator


@case(_tens, then=lambda result: torch.rand(2))
def seeded_several_times(x):
    torch.manual_seed(7)
    torch.manual_seed(8)
    y = x + torch.rand(3)
    torch.manual_seed(9)
    torch.manual_seed(10)
    z = torch.rand(2)
    torch.manual_seed(7)
    return y, z


@case(_tens, then=lambda result: torch.rand(2))
def seeded_and_nothing_drawn(x):
    torch.manual_seed(7)
    return x + 1


@case(lambda: [(t(3), torch.tensor([n])) for n in (1, 9, 2)], then=lambda result: torch.rand(2))
def seeded_after_what_fails(x, place):
    try:
        y = x[place]
        torch.manual_seed(7)
        return y + torch.rand(1)
    except IndexError:
        return torch.rand(2)


@case(lambda: [(t(3), torch.tensor([n])) for n in (1, 9, 2)], then=lambda result: torch.rand(2))
def seeded_before_what_fails(x, place):
    torch.manual_seed(7)
    y = torch.rand(1)
    try:
        return x[place] + y
    except IndexError:
        return torch.rand(2)


@case(lambda: [(t(3), torch.tensor([n])) for n in (1, 9, 2)], then=lambda result: torch.rand(2))
def seeded_last_where_it_fails(x, place):
    y = torch.rand(1)
    try:
        y = x[place] + y
        torch.manual_seed(7)
    except IndexError:
        y = torch.rand(2)
    return y


@case(with_x(3, -3, 2**63, True), then=lambda result: torch.rand(2))
def seeds_of_kinds(x, seed):
    torch.manual_seed(seed)
    return x * torch.rand(1)


@case(_tens, then=lambda result: torch.rand(2))
def seeded_module_that_is_made(x):
    torch.manual_seed(3)
    return torch.nn.Linear(3, 2)(x)
