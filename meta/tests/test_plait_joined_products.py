"""Products that are concatenated, through the whole pipeline: as in eager, to the last bit."""

from __future__ import annotations

import pytest
import torch

import plait
from plait_scheduler import parts

linear = torch.nn.functional.linear


def numbers(*size, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(dtype)


X, A, B = numbers(40, 64), numbers(64, 48), numbers(64, 32)
BATCH = numbers(4, 32, 64)
LEFT, RIGHT = numbers(48, 64), numbers(80, 64)
HALVES = [each.bfloat16() for each in (BATCH, LEFT, RIGHT, numbers(48), numbers(80))]

PROGRAMS = {
    "columns": (2, lambda x, a, b: torch.cat([x @ a, x @ b], 1), (X, A, B)),
    "rows": (2, lambda x, a: torch.cat([x @ a, (x * 2) @ a], 0), (X, A)),
    "a new axis": (2, lambda x, a: torch.stack([x @ a, (x * 2) @ a], 1), (X, A)),
    "layers of sequences": (
        2,
        lambda x, a, b: torch.cat([linear(x, a), linear(x, b)], -1),
        (BATCH, LEFT, RIGHT),
    ),
    "biases in bfloat16": (
        2,
        lambda x, a, b, c, d: torch.cat([linear(x, a, c), linear(x, b, d)], -1),
        HALVES,
    ),
    "batches": (
        2,
        lambda x, y: torch.cat([x @ y, y @ x], 0),
        (numbers(3, 32, 32), BATCH[:3, :, :32]),
    ),
    "with others": (3, lambda x, a, b: torch.cat([x @ a, x.relu(), x @ b], 1), (X, A, B)),
    "and what is computed of it": (
        2,
        lambda x, a, b: ((y := torch.cat([x @ a, x @ b], 1)), y.relu(), y @ y.t()),
        (X, A, B),
    ),
    "twice": (0, lambda x, a: (lambda y: torch.cat([y, y], 1))(x @ a), (X, A)),
    "an operand that is returned": (
        2,
        lambda x, a, b: ((y := x @ a), torch.cat([y, x @ b], 1)),
        (X, A, B),
    ),
    "of another type": (0, lambda x, a: torch.cat([x @ a, (x @ a).double()], 1), (X, A)),
    "transposed": (0, lambda x, a: torch.cat([(x @ a).t(), (x.exp() @ a).t()], 0), (X, A)),
    "only summed": (0, lambda x, a, b: torch.cat([x @ a, x @ b], 1).exp().sum(), (X, A, B)),
}


@pytest.fixture
def found(monkeypatch):
    """The names of parts of each program that is assembled."""
    from plait_scheduler import assemble

    names: list[set[str]] = []

    def parts_of(graph):
        names.append(set(made := parts.parts_of(graph)))
        return made

    monkeypatch.setattr(assemble, "parts_of", parts_of)
    return names


@pytest.mark.parametrize("dynamic", [None, True], ids=["closed", "open"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(3)
def test_values_and_strides_are_eagers(name, dynamic, found):
    count, program, given = PROGRAMS[name]
    with torch.no_grad():
        compiled = plait.compile(program, dynamic=dynamic, options={"own_products": False})
        results = compiled(*given)
        expected = program(*given)
    assert sum(map(len, found)) == count
    results, expected = ((r,) if isinstance(r, torch.Tensor) else r for r in (results, expected))
    for got, meant in zip(results, expected, strict=True):
        tolerance = 0.0 if count and got.shape != (40, 40) else None
        torch.testing.assert_close(got, meant, rtol=tolerance, atol=tolerance)
        assert got.stride() == meant.stride()
        assert got.untyped_storage().nbytes() >= meant.untyped_storage().nbytes()


def test_an_input_that_it_is_written_back_to(found):
    def program(x, a, b, out):
        out.copy_(torch.cat([x @ a, x @ b], 1))

    with torch.no_grad():
        got, meant = torch.zeros(40, 80), torch.zeros(40, 80)
        plait.compile(program)(X, A, B, got)
        program(X, A, B, meant)
    assert sum(map(len, found)) == 0
    torch.testing.assert_close(got, meant, rtol=0, atol=0)


def test_gradients(found):
    def program(x, a, b):
        return torch.cat([x @ a, x @ b], 1).tanh()

    grads = []
    for run in (program, plait.compile(program)):
        given = [each.clone().requires_grad_() for each in (X, A, B)]
        run(*given).square().sum().backward()
        grads.append([each.grad for each in given])
    for meant, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, meant)
