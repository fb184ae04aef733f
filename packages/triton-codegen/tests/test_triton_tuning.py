"""Blocks of products by timing: what is faster beyond doubt is chosen, and remembered."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from triton_checks import DEVICE
from triton_products import program_of, scaled

import plait_triton_codegen.tuning as tuning
from plait_scheduler import Access, parse_program, print_program
from plait_triton_codegen import TritonCodegenError, TritonOptions, build
from plait_triton_codegen.kernels import Chip, product_choices
from plait_triton_codegen.tuning import Results, TunedTile, tune
from plait_utils import DiskCache

INPUTS = (torch.randn(40, 48), torch.randn(80, 48), torch.randn(80))
AUTOTUNE = TritonOptions(autotune=True)


@pytest.fixture
def program():
    found = program_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), *INPUTS)
    text = print_program(found)
    return parse_program(text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu"))


class Clock:
    """Time that launches are said to take, by their tile."""

    def __init__(self, seconds) -> None:
        self.seconds, self.timed = seconds, []

    def runs_alone(self, kernel, choices):
        return {tile: lambda tile=tile: self.timed.append(tile) for tile in choices}

    def __call__(self, run, calls: int) -> float:
        run()
        return self.seconds(self.timed[-1]) * calls


def tuned(program, clock, cache, device="one") -> tuple[TunedTile, ...]:
    plain = TritonOptions()
    return tune(program, plain, Chip(), cache, clock.runs_alone, clock, device)


def test_the_fastest_tile_is_chosen_and_remembered_for_the_device(program, tmp_path) -> None:
    choices = product_choices(program.kernels[0], TritonOptions())
    best = choices[-1]
    assert best != choices[0]
    clock, cache = Clock(lambda tile: 0.001 if tile == best else 0.002), DiskCache(tmp_path)
    (found,) = tuned(program, clock, cache)
    assert (found.tile, found.rule, found.from_cache) == (best, choices[0], False)
    assert (found.seconds, found.rule_seconds) == (pytest.approx(0.001), pytest.approx(0.002))
    assert set(clock.timed) == set(choices)
    assert "1000.0 µs instead of 2000.0 µs" in str(found)

    clock.timed.clear()
    (again,) = tuned(program, clock, cache)
    assert again.from_cache
    assert again.tile == best
    assert not clock.timed
    tuned(program, clock, cache, "another")
    assert clock.timed


def test_the_rule_stays_where_nothing_is_faster_beyond_doubt(program, tmp_path) -> None:
    rule = product_choices(program.kernels[0], TritonOptions())[0]
    clock = Clock(lambda tile: 0.002 if tile == rule else 0.00195)
    (found,) = tuned(program, clock, DiskCache(tmp_path))
    assert found.tile == rule
    assert "the rule's blocks stay" in str(found)


def test_what_is_stored_in_another_form_is_timed_anew(program, tmp_path, monkeypatch) -> None:
    clock, cache = Clock(lambda tile: 0.002), DiskCache(tmp_path)
    tuned(program, clock, cache)
    monkeypatch.setattr(cache, "get", lambda key: b'{"tile": {"xblock": 3}}')
    (found,) = tuned(program, clock, cache)
    assert not found.from_cache


def test_a_program_is_built_in_the_tile_that_was_found(program, tmp_path, monkeypatch) -> None:
    rule, *_, best = product_choices(program.kernels[0], TritonOptions())
    found = TunedTile(program.kernels[0].name, best, rule, 1.0, 2.0, False)
    monkeypatch.setattr(tuning, "_timed", lambda *given: found)
    made = build(program, options=AUTOTUNE, cache=DiskCache(tmp_path))
    assert made.kernels[0].tile == best
    assert [each.tile for each in made.tuned] == [best]
    (got,) = made(*(each.to(DEVICE) for each in INPUTS))
    wide = [each.double() for each in INPUTS]
    torch.testing.assert_close(got.cpu().double(), F.gelu(F.linear(*wide)), rtol=1e-5, atol=1e-5)


def test_kernels_are_run_on_tensors_of_their_own_shapes(program, tmp_path, monkeypatch) -> None:
    seen = []

    def timed(kernel, choices, runs_alone, clock):
        runs = runs_alone(kernel, choices[:2])
        seen.extend(runs)
        assert clock(runs[choices[0]], 1) > 0
        return TunedTile(kernel.name, choices[0], choices[0], 1.0, 1.0, False)

    monkeypatch.setattr(tuning, "_timed", timed)
    made = build(program, options=AUTOTUNE, cache=DiskCache(tmp_path))
    assert len(seen) == 2
    assert made.tuned[0].tile == seen[0]


def test_a_tile_that_fails_is_left_out(program, tmp_path, monkeypatch) -> None:
    choices = product_choices(program.kernels[0], TritonOptions())
    found = []

    def build_one(one, tiles):
        (tile,) = tiles.values()
        if tile != choices[0]:
            raise RuntimeError("out of shared memory")
        return lambda *tensors: None

    def timed(kernel, choices, runs_alone, clock):
        found.extend(runs_alone(kernel, choices))
        raise TritonCodegenError("no more")

    monkeypatch.setattr(tuning, "_timed", timed)
    cache = DiskCache(tmp_path)
    made = tuning.tuned_on_device(program, TritonOptions(), Chip(), cache, build_one)
    if DEVICE == "cpu":
        assert found == [choices[0]]
    assert made == ()  # what cannot be timed is left to the rule


def test_a_form_whose_results_are_others_is_left_out(program, tmp_path, monkeypatch) -> None:
    rule, wrong, right, *_ = product_choices(program.kernels[0], TritonOptions())
    found = []

    def build_one(one, tiles):
        (tile,) = tiles.values()

        def run_it(*tensors) -> None:
            tensors[-1].fill_(2.0 if tile == wrong else 1.0)

        return run_it

    def timed(kernel, choices, runs_alone, clock):
        found.extend(runs_alone(kernel, (rule, wrong, right)))
        raise TritonCodegenError("no more")

    monkeypatch.setattr(tuning, "_timed", timed)
    tuning.tuned_on_device(program, TritonOptions(), Chip(), DiskCache(tmp_path), build_one)
    if DEVICE == "cpu":
        assert found == [rule, right]


def test_results_are_compared_where_a_kernel_writes_them_alone() -> None:
    kernel = program_of(lambda x, w: x @ w, torch.randn(40, 48), torch.randn(48, 80)).kernels[0]
    out = torch.empty(40, 80)
    tensors = [out if p.access is Access.WRITE else torch.empty(1) for p in kernel.params]
    results = Results(kernel, tensors)
    inf, nan = float("inf"), float("nan")
    for given in (1.0, 1.01, inf):
        results = Results(kernel, tensors)
        results.check(lambda given=given: out.fill_(given))
        results.check(lambda given=given: out.fill_(given * 1.001))
        for wrong in (nan, -1.0, 0.0):
            with pytest.raises(TritonCodegenError, match="results"):
                results.check(lambda wrong=wrong: out.fill_(wrong))
        with pytest.raises(TritonCodegenError, match="results"):
            results.check(lambda: None)  # what it leaves is zeros


def test_results_of_8_bits_may_be_the_next_numbers() -> None:
    kernel = scaled(32, 32, 64, out="f8e4m3fn")
    known = torch.linspace(-400, 400, 1024).reshape(32, 32).to(torch.float8_e4m3fn)
    out = torch.empty_like(known)
    results = Results(kernel, [torch.empty(0)] * (len(kernel.params) - 1) + [out])
    results.check(lambda: out.copy_(known))
    bits = known.view(torch.uint8)
    results.check(lambda: out.copy_((bits - (bits & 0x7F > 0).to(torch.uint8)).view(known.dtype)))
    with pytest.raises(TritonCodegenError, match="results"):
        results.check(lambda: out.copy_((known.float() * 1.5).clamp(-448, 448).to(known.dtype)))


GROUPED = {
    "rows": (lambda x, w, ends: torch._grouped_mm(x, w.transpose(1, 2), ends), (4, 32, 48)),
    "terms": (lambda x, w, ends: torch._grouped_mm(x.t(), w, ends), (64, 32)),
}


@pytest.mark.parametrize("of", GROUPED)
def test_groups_are_equally_large_where_their_product_is_timed(of, tmp_path, monkeypatch) -> None:
    function, other = GROUPED[of]
    left, right = (torch.randn(size, dtype=torch.bfloat16) for size in ((64, 48), other))
    found = program_of(function, left, right, torch.zeros(4, dtype=torch.int32))
    text = print_program(found)
    here = parse_program(text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu"))
    ends = []

    def build_one(one, tiles):
        return lambda *tensors: ends.extend(
            each.tolist() for each in tensors if each.dtype is torch.int32
        )

    def timed(kernel, choices, runs_alone, clock):
        runs_alone(kernel, choices[:1])
        raise TritonCodegenError("no more")

    monkeypatch.setattr(tuning, "_timed", timed)
    tuning.tuned_on_device(here, TritonOptions(), Chip(), DiskCache(tmp_path), build_one)
    assert ends == [[16, 32, 48, 64]]


def test_other_kernels_and_open_sizes_are_left_to_the_rule(tmp_path) -> None:
    text = print_program(program_of(lambda x: x.softmax(-1), torch.randn(8, 64)))
    clock = Clock(lambda tile: 0.001)
    assert tuned(parse_program(text), clock, DiskCache(tmp_path)) == ()
    assert not clock.timed
