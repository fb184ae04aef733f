"""The workloads, each a row of the table: a function and its arguments, made anew by a seed."""

from __future__ import annotations

import torch

from benchmarks.workloads import (
    decoding,
    diffusion,
    graphs,
    kernels,
    language,
    networks,
    recurrent,
    training,
    vision,
)
from benchmarks.workloads.case import KINDS, Case, Workload

__all__ = ["KINDS", "WORKLOADS", "Case", "Workload", "make_case", "workload"]

WORKLOADS: tuple[Workload, ...] = (
    *kernels.ROWS,
    *networks.ROWS,
    *language.ROWS,
    *vision.ROWS,
    *recurrent.ROWS,
    *graphs.ROWS,
    *diffusion.ROWS,
    *decoding.ROWS,
    *training.ROWS,
)


def workload(name: str) -> Workload:
    """The workload of that name. Raises KeyError."""
    for each in WORKLOADS:
        if each.name == name:
            return each
    raise KeyError(name)


def make_case(name: str) -> Case:
    """The case of a workload; equal in every process."""
    torch.manual_seed(0)
    return workload(name).make()
