"""Kernels that fail after the graph changed tensors, printed, or drew."""

from __future__ import annotations

import collections
import logging

import torch

from conformance.declare import case, t
from conformance.midway import Own
from conformance.midway import world as _world

_logger = logging.getLogger("conformance.failing_midway")


_calls = collections.Counter()


@torch.library.custom_op("conformance_midway::counted", mutates_args=("x",))
def counted(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    _calls["counted"] += 1
    x.add_(1)
    if int(place[0]) > 3:
        raise KeyError("out of range")
    return x * 2


@counted.register_fake
def _(x, place):
    return torch.empty_like(x)


@case(_world, traceback=True)
def an_operator_that_raises(x, place, table, own):
    own.n += 1
    y = counted(x, place)
    own.n += 1
    return y


@case(_world, traceback=True)
def an_error_after_an_operator(x, place, table, own):
    own.n += 1
    y = counted(x, place.clamp_max(3))
    own.log.append(y)
    return table[place] + y.sum()


@case(_world, traceback=True)
def text_before(x, place, table, own):
    print("begun", own.n)
    x.add_(1)
    own.n += 1
    return table[place]


@case(_world, traceback=True)
def a_log_before(x, place, table, own):
    _logger.error("begun")
    x.add_(1)
    own.n += 1
    return table[place]


def _dtypes():
    kinds = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float32)
    return [(t(3), t(2, 2).to(kind), Own()) for kind in kinds]


@case(_dtypes, traceback=True)
def types_without_a_kernel(x, other, own):
    own.n += 1
    x.add_(1)
    own.log.append(x.sum())
    y = torch.linalg.inv(other)
    own.n += 1
    return y


@case(lambda: [(t(3), torch.eye(2) * n, Own()) for n in (1, 0, 2, 0)], traceback=True)
def singular(x, matrix, own):
    own.n += 1
    x.add_(1)
    y = torch.linalg.cholesky(matrix)
    own.n += 1
    return y


@case(lambda: [(t(3), torch.tensor([n, 1]), Own()) for n in (1, 0, 2, 0)], traceback=True)
def integers_divided(x, by, own):
    own.n += 1
    x.add_(1)
    y = torch.tensor([5, 6]) // by
    own.n += 1
    return y


@case(_world, traceback=True)
def random_numbers_between(x, place, table, own):
    torch.manual_seed(3)
    own.h = x.uniform_()
    own.log.append(torch.rand(2))
    y = table[place]
    own.log.append(torch.rand(2))
    return y


@case(_world, traceback=True)
def numbers_of_a_generator(x, place, table, own):
    generator = torch.Generator().manual_seed(5)
    x.add_(torch.rand(3, generator=generator))
    own.n = 1
    return table[place]


@case(_world, traceback=True)
def an_assertion_of_the_graph(x, place, table, own):
    own.n = 1
    x.add_(1)
    torch._assert_async((place < 4).all())
    own.n = 2
    return x
