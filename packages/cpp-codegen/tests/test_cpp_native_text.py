"""Programs begin with the definitions that they use, and no others."""

from __future__ import annotations

import subprocess

import pytest
import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import CppOptions, find_toolchain, render
from plait_cpp_codegen.native_text import definitions, native_text
from plait_ir_lowering import Op
from plait_scheduler import schedule

LINES = 400


def compiles(text: str, *flags: str) -> str:
    """What the compiler says against a text."""
    found = subprocess.run(
        [
            *find_toolchain(CppOptions.from_env()).command,
            "-x",
            "c++",
            "-std=c++17",
            "-fsyntax-only",
            "-w",
            *flags,
            "-",
        ],
        input=f"#define KERNEL static\n#define F8E4M3FN_OVERFLOW 0x7eu\n{text}",
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stderr


@pytest.mark.parametrize("flags", [("-march=native",), ()])
def test_what_any_definition_brings_compiles(flags):
    failed = {}
    for name in sorted(definitions())[:: 1 if flags else 7]:
        failed[name] = compiles(native_text([name]), *flags)
    assert not any(failed.values()), failed


def test_a_definition_brings_what_it_names_and_nothing_else():
    text = native_text(["v_exp<L, float>(x)"])
    assert "exp_f32" in text
    assert "scaled_above" in text
    for other in ("v_tanh", "struct Pairs", "struct bf16", "Position", "transpose", "attend"):
        assert other not in text
    assert text.count("#if") == text.count("#endif")
    assert text.count("\n") < LINES


def test_specialisations_come_with_the_types_that_they_are_of():
    assert "Memory<bf16, L>" not in native_text(["Memory"])
    assert "Memory<bf16, L>" in native_text(["Memory bf16"])
    assert "Memory<f16, L>" in native_text(["f8e5m2 Memory"])


def test_nothing_is_asked_for_by_comments():
    assert "v_tanh" not in native_text(["// v_tanh"])


def test_a_small_program_is_a_small_text():
    graph = pointwise_graph([torch.ones(8, 8)], {"out": lambda x: Op("neg", (x,))})
    text = render(schedule(graph))
    assert text.count("\n") < LINES
