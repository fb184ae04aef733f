"""What torch.compile has made, in programs that are compiled: traced as a part of these."""

from __future__ import annotations

import subprocess
import sys
import types

import torch
from torch import nn

from plait_bytecode_tracer import compile as compile_
from plait_bytecode_tracer import compiled_function_of

X = torch.arange(6.0).reshape(2, 3)
FACTORS = {"first": 2}


@torch.compile(backend="eager")
def scaled(x):
    return x * FACTORS["first"]


@torch.compile(backend="eager")
def halved(x, times):
    return x if times == 0 else halved(x / 2, times - 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch.compile(backend="eager")
    def forward(self, x):
        return self.linear(x).relu()


class Plain(nn.Module):
    @staticmethod
    def forward(x):
        return x * FACTORS["first"]


def run(module, inputs):
    return module.forward


def test_a_function_that_torch_compiles_is_traced_through():
    holder = types.SimpleNamespace(function=scaled)
    programs = [lambda x: scaled(x) + 1, lambda x: holder.function(x) + 1]
    for program in (*programs, lambda x: halved(x, 3) + 1):
        made = compile_(program, run)
        for _ in range(2):
            assert torch.equal(made(X), program(X))
        assert not compiled_function_of(made).breaks


def test_what_it_reads_is_guarded(monkeypatch):
    made = compile_(lambda x: scaled(x) + 1, run)
    for factor in (2, 2, 5, 2):
        monkeypatch.setitem(FACTORS, "first", factor)
        assert torch.equal(made(X), X * factor + 1)


def test_a_function_that_torch_compiles_is_compiled_anew():
    made = compile_(scaled, run)
    assert torch.equal(made(X), X * FACTORS["first"])
    assert made.__name__ == "scaled"
    assert not made.breaks


def test_a_module_whose_forward_torch_compiles():
    block = Block()
    made = compile_(block, run)
    for _ in range(2):
        assert torch.equal(made(X), block(X))
    assert not compiled_function_of(made).breaks


def test_a_module_whose_forward_is_no_method_is_compiled_once(monkeypatch):
    made = compile_(Plain(), run)
    assert torch.equal(made(X), X * 2)
    compiled = compiled_function_of(made)
    assert torch.equal(made(X), X * 2)
    assert compiled_function_of(made) is compiled
    monkeypatch.setattr(Plain, "forward", staticmethod(lambda x: x * 7))
    assert torch.equal(made(X), X * 7)


def test_generators_are_seeded_by_a_function_that_is_always_the_same():
    """`torch.manual_seed` becomes another one when torch's compiler is imported."""
    lines = (
        "from plait_bytecode_tracer.outside.seeds import SETTERS",
        "import torch._dynamo",
        "from plait_bytecode_tracer.aftermath.redrawing import _SEEDING",
        "print(SETTERS['seed'] in _SEEDING)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, check=True)
    assert done.stdout.strip() == b"True"
