"""Compiling an optimizer's step takes work in proportion to its parameters, of whatever shapes."""

from __future__ import annotations

import re
import sys

import torch

import plait


def compiled_step(count):
    """A whole step of AdamW on parameters of as many shapes, and the calls of its compilation."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(20 + 3 * n)) for n in range(count)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)

    def step():
        optimizer.zero_grad()
        loss = sum(each.square().sum() for each in parameters)
        loss.backward()
        optimizer.step()
        return loss

    fast = plait.compile(step)
    calls = 0

    def note(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        fast()
    finally:
        sys.setprofile(before)
    return fast, calls


def test_compiling_grows_linearly_with_parameters():
    """Calls of functions, of Python and C, from the first bytecode to the binary."""
    compiled_step(4)  # what a first compilation in a process looks up
    found = {count: compiled_step(count)[1] for count in (6, 12, 24)}
    few, many = (found[12] - found[6]) / 6, (found[24] - found[12]) / 12
    assert many <= 1.15 * few


def test_many_shapes_are_few_functions():
    """Of some 80 kernels, one or two for each parameter."""
    fast, _ = compiled_step(40)
    sources = [each.record.code.source for each in plait.report(fast).graphs if each.record.code]
    assert sum(len(re.findall(r"_range\(int64_t begin", each)) for each in sources) <= 14
