"""A dozen programs of all kinds of kernels against eager, to be run under the sanitizers.

`sample.py broken` makes one that reads and writes past the end of a temporary, which must be found.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import plait
from plait_cpp_codegen import toolchain

ROWS, COLUMNS = 7, 27
"""They fill no vector."""


def programs():
    weight = torch.randn(33, 33)
    return {
        "pointwise": lambda x: torch.tanh(x) * x.exp() + torch.erf(x),
        "rows": lambda x: torch.softmax(x, -1) + nn.functional.layer_norm(x, x.shape[-1:]),
        "columns": lambda x: (x.sum(0), x.amax(0), x.var(0, correction=0)),
        "turned": lambda x: x.t().contiguous() + 1,
        "16 bits": lambda x: (x.bfloat16() * 2).float() + x.half().float(),
        "doubles": lambda x: x.double().sin() + x.double().pow(2.5).nan_to_num(),
        "joined": lambda x: torch.cat([x, x[:, :1], x.flip(1)], 1).cumsum(1),
        "padded": lambda x: nn.functional.pad(x, (1, 2, 3, 0)).roll(1, 0),
        "gathered": lambda x: (
            x[:, torch.arange(x.shape[1] - 1, -1, -1)] + x.argmax(1, keepdim=True)
        ),
        "scattered": lambda x: torch.zeros_like(x).index_add(0, torch.arange(x.shape[0]), x),
        "products": lambda x: torch.relu(x @ weight[: x.shape[1]]) @ weight,
        "several": lambda x: ((x @ x.t()).sigmoid() @ x).sum() + x.mean(),
    }


def check():
    """Compile and compare all; returns how many programs ran."""
    for name, program in programs().items():
        x = torch.randn(ROWS, COLUMNS)
        compiled = plait.compile(program, dynamic=False)
        found, expected = compiled(x), program(x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, msg=name)
        assert all(graph.outcome == "compiled" for graph in plait.report(compiled).graphs), name
    return len(programs())


def shorten(units):
    """Programs whose temporaries lack their last element."""
    texts = [units] if isinstance(units, str) else units
    return [
        text.replace("(char*)api.allocate(4004)", "(char*)api.allocate(4000)") for text in texts
    ]


def broken():
    build = toolchain.Toolchain.build

    def build_shortened(self, units, *given, **named):
        return build(self, shorten(units), *given, **named)

    toolchain.Toolchain.build = build_shortened
    x = torch.randn(7, 143)
    plait.compile(lambda x: (x.t().contiguous() @ x).sin())(x)
    plait.compile(lambda x: torch.softmax(x.sin().t().contiguous(), 0).t().cumsum(1))(x)


if __name__ == "__main__":
    broken() if sys.argv[1:] == ["broken"] else print(f"{check()} programs are right")
