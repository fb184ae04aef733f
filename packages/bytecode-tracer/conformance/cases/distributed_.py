"""Distributed calls, left as calls: one process of a pretended group, without a network."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from conformance.declare import case, t

REQUIRES = ("torch.testing._internal.distributed.fake_pg",)


@contextlib.contextmanager
def group(size=2):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _grouped(*sets):
    def factory():
        with group():
            for make in sets:
                yield make()

    return factory


PLAIN = _grouped(lambda: (t(2),), lambda: (t(3),), lambda: (t(2),))


@case(lambda: [(t(2),), (t(3),)])
def without_group(x):
    if dist.is_available() and dist.is_initialized():
        x = x * dist.get_world_size()
    return x + 1


def _sizes():
    for size in (2, 4, 2):
        with group(size):
            yield (t(2),)


@case(_sizes)
def world_size_and_rank(x):
    return x * dist.get_world_size() + dist.get_rank(), dist.get_backend()


@case(PLAIN)
def all_reduce(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1, y


@case(PLAIN)
def all_reduce_of_argument(x):
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    return x / dist.get_world_size()


@case(PLAIN)
def asynchronous_work(x):
    work = dist.all_reduce(x, async_op=True)
    y = x + 1
    work.wait()
    return y, x


@case(PLAIN)
def broadcast_and_barrier(x):
    dist.broadcast(x, src=0)
    dist.barrier()
    return x * 2


@case(PLAIN)
def gathered(x):
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return [part.shape for part in parts], x


@case(PLAIN)
def only_on_first_rank(x):
    if dist.get_rank() == 0:
        return x + 1
    return x - 1


@case(lambda: [(t(2),), (t(3),)])
def not_initialised_raises(x):
    try:
        dist.all_reduce(x)
    except (RuntimeError, ValueError) as error:
        return type(error), x
