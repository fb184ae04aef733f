"""What torch's own functions check or tell of data: asserts, comparisons of tensors, truth."""

from __future__ import annotations

import torch
from torch import nn

from conformance.declare import case

NAN = float("nan")


def _good_and_bad():
    """Tensors that hold what most cases assert, and such that do not, and back."""
    return [
        (torch.tensor(v),) for v in ([1.0, 2.0], [3.0, 4.0], [-1.0, 2.0], [5.0, 6.0], [NAN, 1.0])
    ]


@case(_good_and_bad)
def by_torch_assert(x):
    torch._assert((x > 0).all(), "negative")
    return x + 1


@case(_good_and_bad)
def by_torch_assert_async(x):
    torch._assert_async((x > 0).all())
    return x + 1


@case(_good_and_bad)
def by_torch_check(x):
    torch._check_tensor_all(x > 0, lambda: f"not all of {x.tolist()} are positive")
    return x + 1


@case(_good_and_bad)
def by_torch_check_of_a_number(x):
    torch._check_value(x.sum().item() > 0, lambda: "negative in sum")
    return x + 1


@case(_good_and_bad)
def by_allclose(x):
    assert torch.allclose(x, x.abs(), rtol=1e-3)
    return x + 1


@case(_good_and_bad)
def by_equal(x):
    assert torch.equal(x, x.abs()), "differ"
    return x + 1


@case(_good_and_bad)
def by_equal_of_other_shapes(x):
    if torch.equal(x, x[:1]):
        raise ValueError("equal")
    assert not torch.equal(x, x + 1)
    return x + 1


@case(_good_and_bad)
def by_is_nonzero(x):
    if torch.is_nonzero((x < 0).sum()):
        raise ValueError("negative")
    return x + 1


@case(_good_and_bad)
def by_testing(x):
    torch.testing.assert_close(x, x.abs())
    return x + 1


@case(
    lambda: [
        (torch.tensor(v), torch.tensor(s))
        for v, s in ((0.5, 1.0), (2.0, 0.5), (1.0, -1.0), (1.5, 2.0), (NAN, 1.0))
    ]
)
def by_distributions(mean, scale):
    normal = torch.distributions.Normal(mean, scale)
    return normal.log_prob(mean + 1)


@case(
    lambda: [
        (torch.tensor(v), torch.tensor(s))
        for v, s in ((0.5, 1.0), (0.25, 0.0), (1.5, 1.0), (0.75, 2.0))
    ]
)
def by_support_of_distributions(probability, value):
    return torch.distributions.Bernoulli(probs=probability).log_prob(value)


@case(
    lambda: [(torch.tensor(v),) for v in ([0, 2, 1], [3, 0, 0], [0, 4, 1], [-1, 2, 2], [1, 1, 1])]
)
def places_in_range(ids):
    if ids.min() < 0 or ids.max() >= 4:
        raise IndexError(f"ids from {ids.min()} to {ids.max()}")
    return torch.arange(4.0)[ids] + nn.functional.embedding(ids, torch.eye(4))[:, 0]


@case(lambda: [(torch.tensor(v),) for v in (1.0, 2.0, 0.0, -3.0, NAN)])
def truth_of_a_number(x):
    assert x
    return x + 1


@case(lambda: [(torch.tensor(v),) for v in (0.0, -0.0, 2.0, NAN, 0.0)])
def falsehood_of_a_number(x):
    if x:
        raise ValueError("not zero")
    return x + 1


@case(lambda: [(torch.tensor([[v]]),) for v in (1 + 1j, 0j, 1j, complex(0, NAN))])
def truth_of_a_complex_number(x):
    assert x
    return x + 1


@case(lambda: [(torch.ones(n),) for n in (1, 2, 1, 0)])
def truth_of_many(x):
    assert x, "ambiguous or not"
    return x + 1


@case(lambda: [(torch.tensor(v, requires_grad=True),) for v in (1.0, 0.0, 2.0)])
def truth_of_what_needs_gradients(x):
    assert x * 2
    return x * 3
