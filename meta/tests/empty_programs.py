"""Programs of tensors without elements, and how they are judged by eager.

python empty_programs.py BACKEND    says of each what is wrong; nothing where all are right
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import plait

Program = tuple[Callable[..., Any], tuple[Tensor, ...]]


def _zeros(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int64)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.3).softmax(-1) @ v


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def programs() -> dict[str, Program]:
    """Each by name: a function, and what it is called with."""
    empty, given = torch.empty, torch.ones
    row, few = empty(5, 0), given(1, 2, 5, 8)
    some, none = torch.tensor([True, False, True, True]), torch.zeros(4, dtype=torch.bool)
    return {
        "reshaped rows": (lambda x: x.reshape(0, 3).reshape(5, 0).sum(-1), (empty(3, 0),)),
        "viewed rows": (lambda x: x.view(1, 2, 5, 0).sum(-1), (empty(2, 5, 0),)),
        "computed rows": (lambda x: (x.view(2, 1, 5, 0) + 1).exp().sum(-1) * 2, (empty(2, 5, 0),)),
        "sum": (lambda x: (x.sum(), x.sum(0), x.sum(1)), (row,)),
        "sum of integers": (lambda x: (x.sum(), x.prod(1)), (_zeros(5, 0),)),
        "sum of bytes": (lambda x: (x.sum(), x.amax(0)), (row.byte(),)),
        "sum of 16 bits": (lambda x: (x.sum(), x.mean(1)), (row.bfloat16(),)),
        "sum of complex": (lambda x: (x.sum(), x.sum(1)), (row.to(torch.complex64),)),
        "products": (lambda x: (x.prod(), x.prod(0), x.prod(1)), (row,)),
        "truths": (lambda x: ((x > 0).any(1), (x > 0).all()), (row,)),
        "moments": (lambda x: (x.mean(), x.var(1), x.norm(dim=1)), (row,)),
        "softmax": (lambda x: (x.softmax(1), x.logsumexp(1)), (row,)),
        "chain": (lambda x: ((x.sum(1) + 1).softmax(0) * x.sum()).sum(), (row,)),
        "largest": (lambda x: x.amax(1), (row,)),
        "place of the largest": (lambda x: x.argmax(1), (row,)),
        "joined": (lambda x: torch.cat([x.reshape(5, 0), given(5, 2)], 1).sum(1), (empty(3, 0),)),
        "padded": (lambda x: F.pad(x.reshape(5, 0), (1, 2), value=3.0).sum(1), (empty(3, 0),)),
        "sliced": (lambda x: x[:, 3:].sum(1) + x[:, :0].sum(1), (given(5, 3),)),
        "scan": (lambda x: (x.cumsum(1).sum(1), x.cumprod(0)), (row,)),
        "sort": (lambda x: (*x.sort(1), x.argsort(1).sum(1)), (row,)),
        "top none": (lambda x: x.topk(0)[0].sum(1), (given(5, 3),)),
        "bmm": (lambda a, b: a @ b, (empty(1, 2, 5, 0), empty(1, 2, 0, 8))),
        "addmm": (lambda c, a, b: torch.addmm(c, a, b).relu(), (given(8), row, empty(0, 8))),
        "mv": (lambda a, b: a @ b, (row, empty(0))),
        "no keys": (_attention, (few, empty(1, 2, 0, 8), empty(1, 2, 0, 8))),
        "no queries": (_attention, (empty(1, 2, 0, 8), few, few)),
        "no features": (_attention, (empty(1, 2, 5, 0), empty(1, 2, 5, 0), few)),
        "no values": (_attention, (few, few, empty(1, 2, 5, 0))),
        "causal, no keys": (_causal, (few, empty(1, 2, 0, 8), empty(1, 2, 0, 8))),
        "causal, no queries": (_causal, (empty(1, 2, 0, 8), few, few)),
        "causal, no batches": (_causal, (empty(0, 2, 5, 8),) * 3),
        "masked, no queries": (
            lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m),
            (empty(1, 2, 0, 8), few, empty(0, 5)),
        ),
        "rows of nothing": (lambda w, i: F.embedding(i, w).sum(-1), (empty(0, 8), _zeros(3))),
        "rows without elements": (lambda w, i: F.embedding(i, w), (empty(4, 0), _zeros(3))),
        "rows out of bounds": (lambda w, i: F.embedding(i, w), (empty(4, 0), _zeros(3) + 7)),
        "selected out of bounds": (lambda x, i: x.index_select(1, i), (empty(0, 4), _zeros(3) + 7)),
        "indexed": (lambda x, i: x[i].sum(), (empty(4, 0), _zeros(3))),
        "indexed nothing": (lambda x, i: x[i].sum(), (empty(0, 4), _zeros(3))),
        "gathered": (lambda x, i: x.gather(1, i).sum(1), (given(4, 3), _zeros(4, 0))),
        "scattered": (
            lambda x, i, s: x.scatter_add(1, i, s) + 1,
            (given(4, 3), _zeros(4, 0), empty(4, 0)),
        ),
        "added to nothing": (
            lambda x, i, s: x.index_add(0, i, s),
            (empty(0, 3), _zeros(2), given(2, 3)),
        ),
        "loss": (lambda x, t: F.cross_entropy(x, t, reduction="sum"), (empty(0, 4), _zeros(0))),
        **{
            f"{name} that {'no' if chosen is none else 'a'} call chooses": (f, (x, chosen))
            for chosen in (none, some)
            for name, f, x in (
                ("sum", lambda x, m: (x[m].view(-1, 1, 3) * 2).sum(0), given(4, 3)),
                ("softmax", lambda x, m: x[m].softmax(0).sum(0), given(4, 3)),
                ("product", lambda x, m: x[m].t() @ x[m], given(4, 3)),
                ("index", lambda x, m: (x[m] * 2)[_zeros(5)], given(4, 3)),
            )
        },
    }


def _outcome(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Any:
    try:
        return function(*(each.clone() for each in inputs))
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error)


def wrongs(backend: str, dynamic: bool | None) -> Iterator[str]:
    """What is wrong with each program, where it is compiled so."""
    for name, (function, inputs) in programs().items():
        plait.reset()
        print(name, file=sys.stderr, flush=True)  # the last one, should the process end
        fast = plait.compile(function, backend=backend, dynamic=dynamic)
        got, wanted = _outcome(fast, inputs), _outcome(function, inputs)
        try:
            if isinstance(wanted, type):
                assert got is wanted, got
            else:
                torch.testing.assert_close(got, wanted, equal_nan=True)
        except (AssertionError, TypeError) as error:
            yield f"{name}: {error}"
        yield from (
            f"{name}: {graph.reason}" for graph in plait.report(fast).graphs if graph.reason
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for choice in (None, True):
        for wrong in wrongs(sys.argv[1], choice):
            print(f"dynamic={choice}: {wrong}", flush=True)
