"""Sizes, integers and floats that change from call to call, and arithmetic on them."""

from __future__ import annotations

import math

import torch

from conformance.declare import case, scenario, shapes, t, with_x
from plait_bytecode_tracer import mark_dynamic, mark_static

SIZES = shapes((2, 3), (3, 3), (5, 3), (7, 3), (1, 3), (0, 3), (2, 3))


def marked(x, dim, **bounds):
    """A tensor of which a size is said to change."""
    mark_dynamic(x, dim, **bounds)
    return x


def kept(x):
    """A tensor whose sizes are said to stay."""
    mark_static(x)
    return x


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


@case(SIZES)
def reshape_with_rest(x):
    rows = x.reshape(x.shape[0], -1, 1) if x.numel() else x
    return x.reshape(-1), x.reshape(3, -1), rows, x.flatten()


@case(lambda: [(t(n, 3), t(m, 3)) for n, m in ((2, 3), (4, 3), (4, 5), (0, 2), (1, 1), (3, 3))])
def cat_of_changing_sizes(a, b):
    both = torch.cat([a, b, a])
    return both, both.shape[0], both.shape[0] - a.shape[0], torch.cat([both, both], 1).shape


@case(lambda: [(t(2, n, 4), torch.arange(2) + 1) for n in (3, 5, 1, 8, 2)])
def padding_mask(x, lengths):
    places = torch.arange(x.size(1), device=x.device)
    mask = places[None, :] < lengths[:, None]
    return x.masked_fill(~mask[..., None], 0.0), mask.sum(1)


@case(lambda: [(t(1, n, 4), t(1, m, 4)) for n, m in ((3, 3), (3, 5), (1, 6), (4, 6), (2, 2))])
def attention_of_two_lengths(q, kv):
    n, m = q.size(1), kv.size(1)
    mask = torch.arange(m)[None, :] <= torch.arange(n)[:, None] + (m - n)
    scores = q @ kv.transpose(-1, -2) / q.size(-1) ** 0.5
    return torch.where(mask, scores, torch.tensor(-1e9)).softmax(-1) @ kv


@case(
    lambda: [
        (t(n, 3), a, b) for n, a, b in ((6, 1, 3), (6, 2, 5), (8, -3, 8), (8, -5, -1), (2, 3, 9))
    ]
)
def slices_with_changing_bounds(x, a, b):
    return x[a:b], x[:, : max(a, 0)], x[a:b].shape[0], x[::2], x[-abs(a) :]


@case(SIZES)
def floor_division_and_remainder(x):
    n = x.shape[0]
    return (
        n // 2 * 2,
        n % 3,
        -n // 4,
        -n % 4,
        (n + 1) // 2,
        x[: n // 2 * 2].reshape(-1, 2, 3).sum(1),
    )


@case(SIZES)
def nested_loops_over_sizes(x):
    out = []
    for i in range(x.shape[0]):
        for j in range(0, x.shape[1], 2):
            out.append(x[i, j] + i * j)
    return torch.stack(out) if out else None


@case(SIZES)
def while_over_a_size(x):
    n, count = x.shape[0], 0
    while n > 1:
        n, count = n // 2, count + 1
    return x + count, n


@case(SIZES)
def sizes_compared(x):
    n, m = x.shape
    return n == m, n != m, n > m, m >= n, 1 < n < 6, n <= 2 or m > 4, not n, bool(n), x + (n > m)


@case(SIZES)
def size_formats(x):
    n = x.shape[0]
    return f"{n:>4}|{n:03d}|{n!r}", "%d rows" % n, "{} of {}".format(n, x.shape), str(n) + "!"


@case(with_x(0.1, 0.01, 0.001, 0.1, -0.5))
def learning_rate(x, lr):
    step = lr * 0.9 + 1e-3
    return x - lr * x, x.add(x, alpha=lr), step, f"{lr:.3f}", lr > 0.005


@case(with_x(0.0, 0.25, 1.0, 0.5))
def probability(x, p):
    keep = 1 - p
    return torch.nn.functional.dropout(x, p, training=False) * keep, x * (p > 0.3), keep


@case(with_x(1.5, 2.5, -0.5, 3.0))
def float_to_int(x, f):
    return int(f), round(f), math.floor(f), math.ceil(f), x * int(f), f.is_integer(), f // 1, f % 1


@case(with_x(2, 3, 4, 8, 9))
def int_to_float(x, n):
    return n / 3, n**0.5, math.sqrt(n), math.log2(n), float(n), x / n**0.5, int(n * 0.5), n**-1


@case(shapes((2, 3), (0, 3), (4, 3), (0, 0), (5, 0), (1, 1)))
def zero_sizes(x):
    return x.sum(), x.sum(0), x * 2, x.numel(), torch.cat([x, x]), x.reshape(-1), len(x)


@case(lambda: [(t(n, 3), t(m, 3)) for n, m in ((4, 4), (4, 1), (1, 5), (5, 5), (1, 1), (6, 1))])
def broadcast_of_one(a, b):
    return a + b, torch.broadcast_shapes(a.shape, b.shape), (a * b).shape[0]


@case(lambda: [(t(n), t(m)) for n, m in ((4, 4), (5, 5), (3, 3), (3, 4), (6, 2), (7, 7))])
def equal_sizes_then_not(a, b):
    if a.shape == b.shape:
        return a + b
    return torch.cat([a, b])


@case(lambda: [(t(n, n), t(m)) for n, m in ((4, 4), (5, 5), (3, 4), (6, 6))])
def square_by_chance(a, b):
    return a.t(), a.shape[0] == b.shape[0], torch.outer(b, b).shape, a.reshape(-1).shape


@case(
    lambda: [(t(n, m), k) for n, m, k in ((3, 4, -1), (5, 4, -1), (5, 6, -2), (7, 6, 0), (2, 2, 1))]
)
def negative_indices(x, k):
    return x[-1], x[-x.shape[0]], x[..., k], x.shape[k], x.sum(k), x.shape[-1] - x.shape[-2]


@case(lambda: [(t(n, 4),) for n in (3, 4, 6, 5)])
def unpacked_sizes(x):
    n, m = x.size()
    rows, *rest = x.shape
    return x.new_zeros(n, m), rows + sum(rest), [*x.shape], tuple(x.shape), x.shape[:1] + (7,)


@case(
    lambda: [(t(b, n, 8), h) for b, n, h in ((1, 3, 2), (2, 3, 2), (2, 5, 4), (3, 7, 4), (1, 1, 8))]
)
def heads(x, h):
    b, n, d = x.shape
    return x.view(b, n, h, d // h).transpose(1, 2).reshape(b * h, n, d // h).sum(-1)


@case(lambda: [(t(1, 2, n, m),) for n, m in ((4, 4), (6, 4), (6, 8), (5, 7), (2, 3))])
def pooled_and_padded(x):
    n, m = x.shape[-2:]
    y = torch.nn.functional.pad(x, (0, m % 2, 0, n % 2))
    return torch.nn.functional.max_pool2d(y, 2), torch.nn.functional.interpolate(y, (n, m + 1))


@case(lambda: [(t(2, 3, n),) for n in (5, 6, 9, 12)])
def convolution(x):
    weight = torch.ones(4, 3, 3)
    return torch.nn.functional.conv1d(x, weight, stride=2, padding=1)


@case(lambda: [(t(n, 3).t(),) for n in (4, 5, 7, 2)])
def transposed_input(x):
    return x.contiguous(), x.is_contiguous(), x.stride(), x @ x.t(), x.reshape(-1)


@case(lambda: [(t(8, 6)[:n, :m],) for n, m in ((4, 6), (5, 6), (8, 6), (5, 3), (6, 2))])
def sliced_input(x):
    return x + 1, x.stride(0), x.is_contiguous(), x.reshape(-1).sum(), x.storage_offset()


@case(lambda: [(t(9, 4)[k:], k) for k in (0, 2, 3, 5)])
def offset_input(x, k):
    return x * 2, x.storage_offset(), x.shape[0] + k


@case(lambda: [([t(n, 2) for _ in range(k)],) for n, k in ((2, 2), (3, 2), (4, 2), (4, 3), (5, 3))])
def list_of_tensors(items):
    return torch.stack(items).sum(0), sum(x.shape[0] for x in items), max(x.shape[0] for x in items)


@case(lambda: [({"x": t(n), "n": n, "scale": n / 2},) for n in (2, 3, 4, 7)])
def sizes_in_a_dict(batch):
    batch["seen"] = batch["x"].shape[0] + batch["n"]
    return batch["x"] * batch["scale"], batch["n"] ** 2


@case(SIZES)
def sizes_as_keys_and_indices(x):
    n = x.shape[0]
    table = {0: "none", 2: "two", n: "this"}
    return table[n], [10, 20, 30][n % 3], "abc"[n % 3 :], (1, 2, 3)[: n // 2], n in table


@case(SIZES)
def sizes_in_closures_and_objects(x):
    class Box:
        def __init__(self, size):
            self.size = size

    n = x.shape[0]
    box, double = Box(n), lambda: n * 2
    return box.size + double(), [n] * 2, {"n": n}, x + box.size


@case(SIZES)
def extremes_of_sizes(x):
    n, m = x.shape
    return min(n, m), max(n, m, 4), min(n, 5), sorted([n, m, 4]), abs(n - m), sum(x.shape)


@case(with_x(3, 5, 10, 7))
def bits_of_integers(x, n):
    return n << 1, n >> 1, n & 3, n | 8, n ^ 5, ~n, n.bit_length(), x * (n & 1)


@case(with_x(2, 0, 3, -2, 5))
def division_by_a_changing_integer(x, n):
    try:
        return x / n, 10 // n, 10 % n, divmod(7, n)
    except ZeroDivisionError as error:
        return str(error)


@case(with_x((2, 3), (4, 3), (4, 5), (2, 3)))
def tuple_of_integers(x, size):
    return torch.zeros(size), torch.ones(*size) * size[0], size[0] + size[1], size == (4, 3)


@case(lambda: [(t(n, 2), n) for n in (2, 3, 5, 4)] + [(t(5, 2), 4), (t(3, 2), 9)])
def size_and_argument_agree(x, n):
    if x.shape[0] == n:
        return x.view(n, 2, 1)
    return x[:n]


@scenario(lambda model: [(t(2),)] * 6)
def counter_of_a_module():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.step = 0
            self.rate = 1.0

        def forward(self, x):
            self.step += 1
            self.rate *= 0.5
            return x * self.step, self.rate, self.step % 2 == 0

    model = Counting()
    return model, model


COUNT = 0


@scenario(lambda: [(t(3),)] * 6)
def counter_in_a_global():
    def program(x):
        global COUNT
        COUNT += 1
        return x + COUNT, f"call {COUNT}"

    return program


@scenario(lambda: [(t(n, 3),) for n in (2, 4, 5, 3)])
def linear_layers():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    return model.eval()


@case(lambda: [(marked(t(n, 3), 0, max=6),) for n in (3, 4, 6, 9, 10, 2, 1)])
def marked_dynamic(x):
    return x.sum(0) / x.shape[0], x.shape[0]


@case(lambda: [(marked(t(n, 3), 0),) for n in (3, 4, 6)])
def marked_dynamic_but_needed(x):
    return [row + 1 for row in x], x.shape[0]


@case(lambda: [(kept(t(n, m)),) for n, m in ((3, 2), (4, 2), (5, 3), (3, 2))])
def marked_static(x):
    return x * x.shape[0], x.shape


@case(lambda: [(t(5) - 2, t(5)), (t(5) * 0 - 1, t(5)), (t(6) - 4, t(6)), (t(1), t(1))])
def rows_by_mask(x, y):
    chosen = y[x > 0]
    return chosen * 2, chosen.sum(), (x > 0).sum()


@case(lambda: [(t(5) - 2,), (t(5) * 0 - 1,), (t(7) - 4,), (t(0),)])
def places_of_nonzero(x):
    places = x.nonzero()
    return places, places.shape, places.squeeze(-1) + 1, x.masked_select(x > 1)


@case(lambda: [(t(4).round(),), (t(4) * 0,), (t(6).round(),)])
def unique_values(x):
    values, counts = torch.unique(x, return_counts=True)
    return values * 2, counts.sum(), values.numel()


@case(lambda: [(t(3), torch.tensor(k)) for k in (([1, 2, 0]), ([0, 0, 0]), ([3, 1, 1]))])
def repeated_by_counts(x, counts):
    return x.repeat_interleave(counts), torch.repeat_interleave(x, 2)


@case(lambda: [(t(4), torch.tensor(v)) for v in (1.5, -2.0, 0.0, 7.25)])
def number_in_a_tensor(x, value):
    number = value.item()
    return x * number, number + 1, torch.full((2,), number)


@case(lambda: [(t(4), torch.tensor(v)) for v in (1.5, -2.0, 0.0, 7.25)])
def branch_on_a_number_in_a_tensor(x, value):
    number = value.item() * 2
    return x + number if number > 1 else x - number


@case(lambda: [(t(6), torch.tensor([k, 6 - k])) for k in (1, 2, 4, 3, 6, 0)])
def split_by_numbers_in_a_tensor(x, sizes):
    return [part.sum() for part in x.split(sizes.tolist())], sizes.tolist()


@case(lambda: [(torch.tensor(k),) for k in (3, 5, 1, 0, 4, 2, 7)])
def range_up_to_a_tensor(n):
    return torch.arange(n.item()), torch.zeros(n.item()), int(n) + 1


@case(lambda: [(t(5), torch.tensor(float(k))) for k in (2, 3, 0, 4)])
def checked_number(x, limit):
    k = int(limit.item() * 1)
    torch._check(k >= 0)
    return x[:k], k


@case(with_x(0.0, 0.5, 0.0, 1.0, 0.25))
def dropout_of_a_changing_probability(x, p):
    return torch.nn.functional.dropout(x, p, training=True)


@case(SIZES)
def sizes_added(x):
    shape = x.size()
    return (-1,) + shape[1:] + (x.size(-1),), shape + (1,), shape[2:], shape + shape, [*shape] * 2


@case(lambda: [(t(n, 1), t(n, 3)) for n in (2, 3, 4)])
def in_place_on_an_expanded_tensor(x, y):
    wide = x.expand(-1, 3)
    wide.mul_(y)
    return wide
