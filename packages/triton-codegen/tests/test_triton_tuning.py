"""Blocks of kernels by timing: what is faster beyond doubt is chosen, and remembered."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from triton_checks import DEVICE, gpu_program
from triton_products import program_of

import plait_triton_codegen.tuning as tuning
from plait_ir_lowering import lower
from plait_scheduler import parse_program, print_program, schedule
from plait_triton_codegen import TritonCodegenError, TritonOptions, build
from plait_triton_codegen.kernels import Chip, tile_choices
from plait_triton_codegen.trials import trials_on
from plait_triton_codegen.tuning import TunedTile, tune
from plait_utils import DiskCache
from plait_utils.interrupts import limited_by

INPUTS = (torch.randn(40, 48), torch.randn(80, 48), torch.randn(80))
AUTOTUNE = TritonOptions(autotune=True)


@pytest.fixture
def program():
    found = program_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), *INPUTS)
    text = print_program(found)
    return parse_program(text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu"))


def softmax(rows: int = 8, columns: int = 64):
    return gpu_program(lambda x: x.softmax(-1), torch.randn(rows, columns))


def choices_of(program, number: int = 0):
    return [*tile_choices(program.kernels[number], TritonOptions())]


def open_program():
    """Softmax of rows whose number and length only calls know."""
    x = torch.randn(6, 40, device=DEVICE)
    return schedule(lower(make_fx(lambda x: (x.softmax(-1),), tracing_mode="symbolic")(x)))


class Stub:
    """Time that launches are said to take, by their tile."""

    def __init__(self, seconds) -> None:
        self.seconds, self.timed, self.begun = seconds, [], []

    def trials(self, one):
        self.begun.append(one)
        return lambda: {tile: lambda: None for tile in one.sources}

    def times(self, runs):
        self.timed += runs
        return {tile: [self.seconds(tile)] * 7 for tile in runs}


def tuned(program, stub, cache, device="one", sizes=None) -> tuple[TunedTile, ...]:
    facts = stub.trials, stub.times, device, sizes or {}
    return tune(program, TritonOptions(), Chip(), cache, *facts)


@pytest.mark.parametrize("kind", ["product", "rows"])
def test_the_fastest_tile_is_chosen_and_remembered_for_the_device(kind, program, tmp_path) -> None:
    program = program if kind == "product" else softmax(64, 2048)
    choices = choices_of(program)
    best = choices[-1]
    assert best != choices[0]
    stub, cache = Stub(lambda tile: 0.001 if tile == best else 0.002), DiskCache(tmp_path)
    (found,) = tuned(program, stub, cache)
    assert (found.tile, found.rule, found.from_cache) == (best, choices[0], False)
    assert (found.seconds, found.rule_seconds) == (0.001, 0.002)
    assert dict(found.times) == {tile: 0.001 if tile == best else 0.002 for tile in choices}
    assert set(stub.timed) == set(choices)
    assert "1000.0 µs instead of 2000.0 µs" in str(found)
    assert str(found).count(": 2000.0 µs") == len(choices) - 2

    stub.timed.clear()
    (again,) = tuned(program, stub, cache)
    assert again == replace(found, from_cache=True)
    assert not stub.timed
    tuned(program, stub, cache, "another")
    assert stub.timed


def test_the_rule_stays_where_nothing_is_faster_beyond_doubt(program, tmp_path) -> None:
    rule = choices_of(program)[0]
    stub = Stub(lambda tile: 0.002 if tile == rule else 0.00195)
    (found,) = tuned(program, stub, DiskCache(tmp_path))
    assert found.tile == rule
    assert "the rule's blocks stay" in str(found)


STORED = {"seconds": 1.0, "rule_seconds": 1.0, "times": []}
TILE = {"xblock": 7, "rblock": 64, "num_warps": 1, "persistent": True}


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"tile": {"xblock": 3}}',
        json.dumps({**STORED, "tile": TILE}).encode(),
        json.dumps({**STORED, "tile": None}).encode(),
        json.dumps({"tile": TILE}).encode(),
    ],
)
def test_what_is_stored_in_another_form_is_timed_anew(stored, tmp_path, monkeypatch) -> None:
    stub, cache = Stub(lambda tile: 0.002), DiskCache(tmp_path)
    monkeypatch.setattr(cache, "get", lambda key: stored)
    (found,) = tuned(softmax(), stub, cache)
    assert not found.from_cache
    assert stub.timed


def test_times_of_foreign_tiles_are_not_believed(tmp_path, monkeypatch) -> None:
    stub, cache, program = Stub(lambda tile: 0.002), DiskCache(tmp_path), softmax()
    rule = asdict(choices_of(program)[0])
    held = {**STORED, "tile": rule, "times": [[TILE, 1.0]]}
    monkeypatch.setattr(cache, "get", lambda key: json.dumps(held).encode())
    (found,) = tuned(program, stub, cache)
    assert not found.from_cache


def renamed(program, number: int = 2):
    """The program with its kernel under several names."""
    (kernel,) = program.kernels
    *launches, end = program.steps
    (launch,) = [step for step in launches if hasattr(step, "kernel")]
    names = [f"k{n}" for n in range(number)]
    again = [replace(launch, kernel=name) for name in names]
    others = [step for step in launches if step is not launch]
    kernels = tuple(replace(kernel, name=name) for name in names)
    return replace(program, kernels=kernels, steps=(*others, *again, end))


def test_kernels_that_run_on_the_cpu_are_not_timed(tmp_path) -> None:
    program = softmax()
    (kernel,) = program.kernels
    stub = Stub(lambda tile: 0.002)
    beside = replace(program, kernels=(replace(kernel, name=f"{kernel.name}_on_cpu"),))
    assert tuned(beside, stub, DiskCache(tmp_path)) == ()
    assert not stub.begun


def test_equal_kernels_are_timed_once(tmp_path) -> None:
    stub = Stub(lambda tile: 0.002)
    found = tuned(renamed(softmax()), stub, DiskCache(tmp_path))
    assert [each.kernel for each in found] == ["k0", "k1"]
    assert len(stub.begun) == 1


def test_open_sizes_are_timed_as_they_are_at_hand(tmp_path) -> None:
    program = open_program()
    rows, columns = program.symbols
    stub, cache = Stub(lambda tile: 0.002), DiskCache(tmp_path)
    assert tuned(program, stub, cache) == ()  # nobody knows how many rows there are
    (first,) = tuned(program, stub, cache, sizes={rows: 16, columns: 2000})
    assert [[*each.sizes.values()] for each in stub.begun] == [[16, 2000]]
    (again,) = tuned(program, stub, cache, sizes={rows: 16, columns: 2000})
    assert again == replace(first, from_cache=True)
    (other,) = tuned(program, stub, cache, sizes={rows: 32, columns: 2000})
    assert not other.from_cache


def test_a_tile_for_open_sizes_is_right_for_all_of_them(tmp_path, monkeypatch) -> None:
    program = open_program()
    sizes = dict(zip(program.symbols, (4, 3000), strict=True))
    seen = []

    def timed(one, begun, times):
        seen.extend(begun())  # each has run, at these sizes
        return TunedTile(one.kernel.name, seen[-1], one.rule, 1.0, 2.0, False)

    monkeypatch.setattr(tuning, "_timed", timed)
    made = build(program, options=AUTOTUNE, cache=DiskCache(tmp_path), sizes=sizes)
    assert seen == choices_of(program)
    assert made.kernels[0].tile == seen[-1] != seen[0]
    for shape in ((2, 3), (5, 1025), (4, 3000), (1, 9000)):
        x = torch.randn(shape, device=DEVICE)
        torch.testing.assert_close(made(x)[0], x.softmax(-1))


def test_the_seconds_that_compiling_may_take_are_kept(tmp_path) -> None:
    stub, cache = Stub(lambda tile: 0.002), DiskCache(tmp_path)
    first = softmax(8, 64)
    with limited_by(lambda: None, lambda: 0.0):
        time.sleep(0.001)
        assert tuned(first, stub, cache) == ()
        assert not stub.timed
    with limited_by(lambda: None, lambda: 100.0):
        assert len(tuned(first, stub, cache)) == 1
    with limited_by(lambda: None, lambda: 0.0):
        assert len(tuned(first, stub, cache)) == 1  # it is known by now


def test_kernels_that_cannot_be_timed_are_left_to_the_rule(tmp_path) -> None:
    stub = Stub(lambda tile: 0.002)

    def trials(one):
        def runs():
            raise RuntimeError("out of memory")

        return runs

    stub.trials = trials
    assert tuned(softmax(), stub, DiskCache(tmp_path)) == ()
    stub.trials = lambda one: dict
    assert tuned(softmax(), stub, DiskCache(tmp_path)) == ()


@pytest.fixture(autouse=True)
def timed_without_a_gpu(monkeypatch) -> None:
    """The interpreter's times are none that anybody wants: here kernels take what they are said
    to."""

    def times(runs):
        for run in runs.values():
            run()
        return {tile: [0.001] * 7 for tile in runs}

    monkeypatch.setattr(tuning, "kernel_times", lambda device: times)


def with_tile(monkeypatch, choose) -> None:
    """Let timing find a tile: what `choose` gives of a kernel's candidates."""

    def timed(one, begun, times):
        return TunedTile(one.kernel.name, choose(one), one.rule, 1.0, 2.0, False)

    monkeypatch.setattr(tuning, "_timed", timed)


def test_a_program_is_built_in_the_tile_that_was_found(program, tmp_path, monkeypatch) -> None:
    _, *_, best = choices_of(program)
    with_tile(monkeypatch, lambda one: [*one.sources][-1])
    made = build(program, options=AUTOTUNE, cache=DiskCache(tmp_path))
    assert made.kernels[0].tile == best
    assert [each.tile for each in made.tuned] == [best]
    (got,) = made(*(each.to(DEVICE) for each in INPUTS))
    wide = [each.double() for each in INPUTS]
    torch.testing.assert_close(got.cpu().double(), F.gelu(F.linear(*wide)), rtol=1e-5, atol=1e-5)


def test_nothing_is_timed_by_default(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "_timed", None)  # it is not called
    program = softmax()
    made = build(program, cache=DiskCache(tmp_path))
    assert made.tuned == ()
    assert made.kernels[0].tile == choices_of(program)[0]


def test_kernels_are_run_on_tensors_of_their_own_shapes(program, tmp_path, monkeypatch) -> None:
    seen = []

    def timed(one, begun, times):
        one = replace(one, sources=dict([*one.sources.items()][:2]))
        runs = begun()
        seen.extend(runs)
        made = times({tile: runs[tile] for tile in one.sources})
        assert all(min(each) > 0 for each in made.values())
        return TunedTile(one.kernel.name, one.rule, one.rule, 1.0, 1.0, False)

    monkeypatch.setattr(tuning, "_timed", timed)
    made = build(program, options=AUTOTUNE, cache=DiskCache(tmp_path))
    assert len(seen) > 2
    assert made.tuned[0].tile == seen[0]


def runs_of(program, tmp_path, build_one) -> list:
    """The tiles in which the program's kernel runs, built by `build_one`."""
    device = torch.device(str(program.buffers[0].device))
    found = []

    def timed(one, begun, times):
        found.extend(begun())
        raise TritonCodegenError("no more")

    before, tuning._timed = tuning._timed, timed
    try:
        cache, options = DiskCache(tmp_path), TritonOptions()
        made = tuning.tuned_on_device(program, options, Chip(), cache, build_one)
    finally:
        tuning._timed = before
    assert made == ()  # what cannot be timed is left to the rule
    assert trials_on(device, program, options, cache, build_one) is not None
    return found


def test_a_tile_that_fails_is_left_out(program, tmp_path) -> None:
    rule = choices_of(program)[0]

    def build_one(one, tiles):
        (tile,) = tiles.values()
        if tile != rule:
            raise RuntimeError("out of shared memory")
        return lambda *tensors: None

    found = runs_of(program, tmp_path, build_one)
    if DEVICE == "cpu":
        assert found == [rule]


def test_a_form_whose_results_are_others_is_left_out(program, tmp_path) -> None:
    rule, wrong, *right = choices_of(program)

    def build_one(one, tiles):
        (tile,) = tiles.values()

        def run_it(*tensors) -> None:
            tensors[-1].fill_(2.0 if tile == wrong else 1.0)

        return run_it

    found = runs_of(program, tmp_path, build_one)
    if DEVICE == "cpu":
        assert found == [rule, *right]


GROUPED = {
    "rows": (lambda x, w, ends: torch._grouped_mm(x, w.transpose(1, 2), ends), (4, 32, 48)),
    "columns": (lambda x, w, ends: torch._grouped_mm(w, x.t(), ends), (4, 32, 48)),
    "terms": (lambda x, w, ends: torch._grouped_mm(x.t(), w, ends), (64, 32)),
}


@pytest.mark.parametrize("of", GROUPED)
def test_groups_are_equally_large_where_their_product_is_timed(of, tmp_path) -> None:
    function, other = GROUPED[of]
    left, right = (torch.randn(size, dtype=torch.bfloat16) for size in ((64, 48), other))
    found = program_of(function, left, right, torch.zeros(4, dtype=torch.int32))
    text = print_program(found)
    here = parse_program(text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu"))
    ends = []

    def build_one(one, tiles):
        return lambda *tensors: ends.append(
            [each.tolist() for each in tensors if each.dtype is torch.int32]
        )

    runs_of(here, tmp_path, build_one)
    assert ends[0] == [[16, 32, 48, 64]]
