"""Large programs are compiled as units side by side, and are the same programs."""

from __future__ import annotations

import random

import pytest
import torch
from cpp_graphs import CPU, buffer, loads

import plait_cpp_codegen.units as units_module
from plait_cpp_codegen import CompilationError, CppOptions, build, find_toolchain
from plait_cpp_codegen.building import source_of
from plait_cpp_codegen.units import Source
from plait_ir_lowering import Buffer, Definition, Graph, Op, Pointwise, TensorRef, Var
from plait_scheduler import schedule
from plait_utils import DiskCache


def source(sizes, host=100):
    functions = [
        f"KERNEL void k{n}_range(int64_t begin, int64_t end, void* context) {{\n{'x' * size}\n}}\n"
        for n, size in enumerate(sizes)
    ]
    return Source("head", tuple(functions), f"host{'y' * host}")


def test_a_small_program_is_one_unit():
    made = source([2_000, 3_000])
    assert made.units(8) == (made.text,)
    assert made.text.startswith("#define KERNEL static\nhead\n")


def test_no_unit_is_made_without_processors_for_it():
    made = source([30_000, 30_000])
    assert made.units(1) == (made.text,)
    assert len(made.units(2)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_each_function_is_in_one_unit_and_units_are_alike_large(seed):
    rng = random.Random(seed)
    sizes = [rng.randrange(200, 6_000) for _ in range(rng.randrange(4, 40))]
    made = source(sizes, rng.randrange(0, 40_000))
    units = made.units(rng.randrange(2, 9))
    for function in made.functions:
        assert sum(function in unit for unit in units) == 1
    assert sum(made.host in unit for unit in units) == 1
    work = [sum(len(f) for f in made.functions if f in unit) for unit in units]
    of_host = len(made.host) // units_module._HOST_SHARE
    work = [w + of_host * (made.host in u) for w, u in zip(work, units, strict=True)]
    assert max(work) - min(work) <= max(6_200, of_host)


def test_a_kernel_that_computes_where_masks_hold_counts_for_more():
    made = source([9_000] * 3)
    guarded = made.functions[0] + "// guarded<L, float>(m, value, other)" * 4
    made = Source(made.head, (guarded, *made.functions[1:]), made.host)
    alone = next(unit for unit in made.units(2) if guarded in unit)
    assert not any(each in alone for each in made.functions[1:])


def test_the_unit_of_the_host_declares_every_function():
    made = source([9_000] * 4)
    (host,) = (unit for unit in made.units(3) if made.host in unit)
    for n in range(4):
        assert f"void k{n}_range(int64_t begin, int64_t end, void* context);" in host


def program(inputs):
    """Kernels over each of several tensors, which are not fused."""
    buffers = [buffer(f"x{n}", tensor) for n, tensor in enumerate(inputs)]
    definitions = []
    for number, source in enumerate(buffers):
        ranges = tuple(Var(f"i{n}", size) for n, size in enumerate(inputs[number].shape))
        (x,) = loads([source], ranges)
        value = Op("mul", (Op("sigmoid", (x,)), Op(("tanh", "sin", "exp", "erf")[number], (x,))))
        out = Buffer(f"y{number}", value.dtype, CPU, source.layout)
        definitions.append(Definition((out,), Pointwise(ranges, value)))
    outputs = tuple(TensorRef(f"y{n}") for n in range(len(inputs)))
    return schedule(Graph("test", tuple(buffers), tuple(definitions), outputs))


def test_a_program_in_units_computes_what_one_unit_does(tmp_path, monkeypatch):
    inputs = [torch.randn(33, 65 + n) for n in range(4)]
    monkeypatch.setattr(units_module, "usable_processors", lambda: 5)
    results = []
    for unit, folder in ((10**9, "one"), (50, "many")):
        monkeypatch.setattr(units_module, "_UNIT", unit)
        monkeypatch.setattr(units_module, "_LEAST", unit)
        count = len(source_of(program(inputs), 32).units())
        assert count == (1 if folder == "one" else 5)
        made = build(program(inputs), cache=DiskCache(tmp_path / folder))
        assert made.source is not None
        assert not made.cache_hit
        results.append(made(*inputs))
    for one, many in zip(*results, strict=True):
        assert torch.equal(one, many)


def test_an_error_in_one_unit_is_told_and_leaves_nothing(tmp_path):
    toolchain = find_toolchain(CppOptions(optimization="-O0"))
    good, bad = "int a() { return 1; }", "int b() { return nowhere; }"
    with pytest.raises(CompilationError, match="nowhere"):
        toolchain.build([good, bad, good.replace("a", "c")], tmp_path / "made.so")
    assert [*tmp_path.iterdir()] == []


def test_memory_of_a_thread_is_freed_by_what_ends_libraries():
    plain = source([500])
    keeping = Source("", ("KERNEL void k() { static thread_local Block block; }",), "")
    assert plain.is_bare
    assert not keeping.is_bare
