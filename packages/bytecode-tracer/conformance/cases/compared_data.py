"""Numbers of data that are compared, over breaks and changes too: checks, or bools that go on."""

from __future__ import annotations

import torch

from conformance.declare import case, t

NAN = float("nan")


def _good_and_bad():
    """Tensors that hold what most cases assert, and such that do not, and back."""
    return [
        (torch.tensor(v),) for v in ([1.0, 2.0], [3.0, 4.0], [-1.0, 2.0], [5.0, 6.0], [NAN, 1.0])
    ]


def _with_list():
    return [(x, []) for (x,) in _good_and_bad()]


@case(lambda: [(torch.tensor(v), n) for v in ([1.0, 2.0], [-1.0, 2.0]) for n in (1, 2, 3)])
def with_a_number_that_changes(x, n):
    assert (x * n).sum() < 5 * n, f"{n}"
    if (x < 0).any():
        raise ValueError(n)
    return x + n


@case(lambda: [(torch.ones(n) * s,) for n in (2, 3, 4, 5) for s in (1, -1)])
def of_sizes_that_change(x):
    assert (x > 0).all(), f"{x.shape[0]} values"
    return x * x.shape[0]


@case(_with_list)
def after_a_break(x, seen):
    seen.append(id(seen) > 0)
    y = x * 2
    breakpoint_ = float(y.abs().nan_to_num().sum() * 0)
    try:
        if torch.isnan(y).any():
            raise ValueError("nan")
    except ValueError as error:
        seen.append(str(error))
        return None
    return y + breakpoint_


@case(_good_and_bad)
def before_a_break(x):
    assert (x > 0).all(), "negative"
    count = sum(1 for value in x.tolist() if value > 3)
    return x * count


@case(lambda: [(t(3), t(3)), (t(3), -t(3).abs()), (t(3), t(3).abs())])
def with_two_tensors(x, y):
    if (x.shape != y.shape) or (y < 0).all():
        raise ValueError("no")
    return x + y


@case(_with_list)
def numbers_compared(x, seen):
    if x.max().item() > 4.5:
        raise ValueError("too big")
    assert 0 < x.min().item() <= x.max().item(), "too small"
    assert float(x.sum()) != len(seen) + 7, "seven"
    seen.append(x)
    return x * 2


@case(
    lambda: [
        (torch.tensor(v), torch.ones(n))
        for v, n in (([0, 2], 3), ([1, 3], 4), ([1, 3], 3), ([-1, 0], 3))
    ]
)
def places_compared(ids, table):
    if ids.max().item() >= table.shape[0] or int(ids.min()) < 0:
        raise IndexError(f"{ids.tolist()} of {table.shape[0]}")
    return table[ids]


@case(
    lambda: [
        (torch.tensor(v, dtype=d),)
        for d in (torch.int64, torch.int32, torch.bool, torch.float16)
        for v in (1, 0)
    ]
)
def numbers_of_all_kinds_compared(x):
    if x.item() == 1.0:
        raise ValueError("one")
    if x.item() >= 1 << 60:
        raise ValueError("large")
    if -1 > x.item() or True is x.item():
        raise ValueError("small")
    return x + 1


@case(
    lambda: [
        (torch.tensor(v, dtype=torch.float64),)
        for v in (0.1, 0.1 + 1e-17, 0.30000000000000004, 1e300)
    ]
)
def floats_compared_exactly(x):
    if x.float().item() == 0.1:
        raise ValueError("never")
    if x.item() != 0.1:
        raise ValueError("another")
    return x + 1


@case(lambda: [(torch.tensor(v),) for v in ((1 << 53) + 1, 1 << 53, 5)])
def large_integers_compared(x):
    if x.item() == float(1 << 53):
        raise ValueError("equal")
    return x + 1


@case(_good_and_bad)
def asked_of_a_number(x):
    import math

    loss = x.log().sum()
    if not math.isfinite(loss.item()):
        raise FloatingPointError(f"loss is {loss.item()}")
    assert not math.isnan(float(loss)), "never"
    return loss * 2


@case(_with_list)
def compared_over_a_break(x, seen):
    def limit():
        seen.append(len(seen))
        return float(repr(4.5 + id(seen) * 0))

    if x.max().item() > limit():
        raise ValueError("too big")
    return x + 1


@case(_with_list)
def compared_with_what_is_changed(x, seen):
    if x.max().item() > x.add_(1).sum().item():
        raise ValueError("too big")
    seen.append(x.sum())
    return x + 1


@case(_good_and_bad)
def read_by_a_function_that_is_passed(x):
    found = list(map(torch.Tensor.item, x.unbind()))
    assert found == [1.0, 2.0] or found[0] > 2, f"{found}"
    return x


@case(_good_and_bad)
def compared_with_what_is_changed_since(x):
    if x[0].item() >= x.add_(1)[0].item():
        raise ValueError("not changed")
    return x


def _demand(error, condition, text=None):
    if not isinstance(condition, bool):
        raise TypeError("a bool is wanted")
    if not condition:
        raise error(text() if callable(text) else text)


def _demand_all(condition, text):
    _demand(ValueError, condition.all().item(), text)


@case(_good_and_bad)
def passed_on_as_bools(x):
    _demand(KeyError, bool((x < 6).all()), "too large")
    _demand_all(x > 0, lambda: f"not positive: {x.tolist()}")
    torch._check(bool((x < 5.5).all()), lambda: "too big")
    torch._check((x.sum() < 9).item())
    return x + 1
