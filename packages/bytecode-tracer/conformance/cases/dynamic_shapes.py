"""Sizes, integers and floats that change from call to call, and arithmetic on them."""

from __future__ import annotations

import math

import torch

from conformance.declare import case, scenario, shapes, t, with_x

SIZES = shapes((2, 3), (3, 3), (5, 3), (7, 3), (1, 3), (0, 3), (2, 3))


@case(SIZES)
def elementwise(x):
    return x * 2 + 1


@case(SIZES)
def size_as_factor(x):
    return x * x.shape[0] + x.size(1)


@case(SIZES)
def reshape_by_size(x):
    n, m = x.shape
    return x.reshape(n * m), x.view(m, n), x.reshape(-1, 1, m)


@case(SIZES)
def creation_by_size(x):
    n = x.shape[0]
    return torch.arange(n), torch.zeros(n, n), torch.ones(n + 1) * n


@case(SIZES)
def slices_by_size(x):
    n = x.shape[0]
    return x[: n // 2], x[n // 2 :], x[max(n - 1, 0) :], x[:, : n % 3]


@case(SIZES)
def branch_on_size(x):
    if x.shape[0] > 3:
        return x[:3]
    return x if x.shape[0] % 2 else x * 2


@case(SIZES)
def loop_over_size(x):
    total = torch.zeros(3)
    for i in range(x.shape[0]):
        total = total + x[i] * i
    return total


@case(SIZES)
def size_in_text(x):
    return f"{x.shape[0]} rows of {len(x)}", str(x.shape), x.shape[0]


@case(SIZES)
def size_in_python_objects(x):
    n = x.shape[0]
    return {n: x}, [0] * n, (n, n + 1), list(range(n)), n in (2, 3), type(n), n == 2


@case(SIZES)
def size_arithmetic(x):
    n = x.shape[0]
    return n / 2, n // 2, n**2, -n, abs(n - 4), math.sqrt(n), min(n, 3), divmod(n, 3), n & 1


@case(SIZES)
def mean_by_hand(x):
    return x.sum(0) / max(x.shape[0], 1), x.sum() / x.numel() if x.numel() else None


@case(shapes((2, 3), (2, 4), (2, 9), (3, 9), (2, 3)))
def two_dimensions_change(x):
    return x.t() @ x, x.softmax(-1), x.shape


@case(lambda: [(t(n, 3), t(n, 3)) for n in (2, 4, 5)] + [(t(2, 3), t(1, 3)), (t(1, 3), t(4, 3))])
def sizes_of_two_arguments(a, b):
    return a + b, a.shape[0] == b.shape[0]


@case(lambda: [(t(n), t(n)) for n in (2, 4, 5)] + [(t(4), t(5))])
def sizes_that_must_agree(a, b):
    return torch.dot(a, b)


@case(lambda: [([t(i + 1) for i in range(n)],) for n in (1, 2, 3, 2)])
def list_of_changing_tensors(items):
    return torch.cat(items), [x.shape[0] for x in items]


@case(with_x(1, 2, 3, 4, 5, 1))
def integer_argument_changes(x, n):
    return x * n, x + n / 2, n * 2


@case(with_x(0.5, 1.5, 2.5, 3.0, 0.5))
def float_argument_changes(x, f):
    return x * f, f * 2, x.clamp(max=f)


@case(with_x(1, 2, 4, 6))
def integer_as_size(x, n):
    return torch.ones(n, 2), x.repeat(n, 1), x.unsqueeze(0).expand(n, 2, 3).sum()


@case(lambda: [(t(6, 4), n) for n in (1, 2, 3, 6)])
def integer_as_split(x, n):
    return x.chunk(n), x.view(n, -1), torch.stack(x.split(n)) if 6 % n == 0 else None


@case(lambda: [(t(4, 4), k) for k in (0, 1, -1, 2, 3)])
def integer_as_index(x, k):
    return x[k], x[:, k], x.select(0, k), x.roll(k, 0), x.diagonal(k)


@case(lambda: [(t(5), k) for k in (1, 2, 5, 7)])
def integer_as_bound(x, k):
    try:
        return x.topk(k).values
    except (RuntimeError, IndexError) as error:
        return type(error), x[:k]


@case(lambda: [(t(n, 4),) for n in (4, 6, 8, 5)])
def divisibility(x):
    n = x.shape[0]
    assert n % 2 == 0, f"{n} is odd"
    return x.view(n // 2, 2, 4).sum(1)


@case(lambda: [(t(1, n, 4),) for n in (1, 3, 5, 8)])
def causal_mask(x):
    n = x.shape[1]
    mask = torch.tril(torch.ones(n, n, dtype=torch.bool))
    scores = (x @ x.transpose(1, 2)).masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ x


@case(lambda: [(t(n),) for n in (1, 3, 8, 9)])
def padded_to_power_of_two(x):
    n = 1 << (x.numel() - 1).bit_length()
    return torch.nn.functional.pad(x, (0, n - x.numel())), n


@scenario(lambda s: [(t(1, n, 2),) for n in (1, 2, 3, 2)])
def cache_that_grows():
    cache = {"keys": torch.zeros(1, 0, 2)}

    def program(x):
        cache["keys"] = torch.cat([cache["keys"], x], dim=1)
        return cache["keys"].sum(1), cache["keys"].shape[1]

    return program, cache


@case(lambda: [(torch.arange(n),) for n in (2, 3, 5)])
def size_from_values(x):
    n = int(x.max()) + 1
    return torch.zeros(n).scatter_(0, x, 1.0), n


@case(lambda: [(t(4, 4), n, m) for n, m in ((1, 1), (2, 1), (1, 2), (4, 4), (2, 2))])
def two_integers(x, n, m):
    return x[:n, :m] * (n - m), n == m, n < m


@case(lambda: [(t(2), 2**n) for n in (1, 10, 31, 40, 62)])
def growing_integers(x, n):
    return n + 1, x * (n % 7), str(n)


@case(lambda: [(t(3), True), (t(3), 1), (t(3), 2), (t(3), False), (t(3), 0)])
def booleans_among_integers(x, n):
    return x * n, n is True, type(n).__name__
