"""Kernels are timed on memory of their own: like a caller's, and none of the caller's."""

from __future__ import annotations

import pytest
import torch
import triton_kernels as kernels
from triton_combined import TAKEN
from triton_products import program_of, scaled

import plait_triton_codegen.timing as timing
from plait_scheduler import Access, parse_kernel
from plait_triton_codegen import TritonCodegenError
from plait_triton_codegen.scratch import Results, index_limits, scratch_tensors
from plait_triton_codegen.timing import kernel_times

CPU = torch.device("cpu")


def test_results_are_compared_where_a_kernel_writes_them_alone() -> None:
    kernel = program_of(lambda x, w: x @ w, torch.randn(40, 48), torch.randn(48, 80)).kernels[0]
    out = torch.empty(40, 80)
    tensors = [out if p.access is Access.WRITE else torch.empty(1) for p in kernel.params]
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


def test_what_is_added_to_begins_with_the_same_numbers_in_each_form() -> None:
    kernel = kernels.scattered("add", "f32")
    tensors = scratch_tensors(kernel, {}, CPU)
    written, before = tensors[-1], tensors[-1].clone()
    results = Results(kernel, tensors)
    for _ in range(3):
        results.check(lambda: written.add_(1))
    torch.testing.assert_close(written, before + 1)
    with pytest.raises(TritonCodegenError, match="results"):
        results.check(lambda: written.add_(2))


def test_indices_are_spread_over_all_places() -> None:
    cases = {
        "embedding": (kernels.embedding(50, 600, 8), 50),
        "embedding backward": (kernels.embedding_backward(30, 600, 8), 30),
        "scattered": (kernels.scattered("add", "f32", rows=20), 20),
    }
    for name, (kernel, limit) in cases.items():
        (indices,) = [t for t in scratch_tensors(kernel, {}, CPU) if t.dtype is torch.int64]
        assert indices.min() == 0, name
        assert indices.max() == limit - 1, name
    assert index_limits(kernels.sorted_keys(4, 8), {}) == {}
    assert index_limits(parse_kernel(TAKEN), {}) == {f"p1_{number}": 10 for number in range(4)}


def test_no_generator_is_drawn_from() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scratch_tensors(kernels.embedding(50, 600, 8), {}, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_open_sizes_are_those_at_hand() -> None:
    given, made = scratch_tensors(kernels.dynamic(), {"s0": 3, "s1": 5}, CPU)
    assert given.shape == made.shape == (3, 5)


def test_the_interpreters_times_are_not_taken() -> None:
    assert kernel_times(CPU) is None


class Event:
    """An event of a GPU that takes as many seconds as calls came before it."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.calls, self.is_over = 0, False

    def record(self) -> None:
        self.calls = Event.log.count("run")
        Event.log.append("event")

    def synchronize(self) -> None:
        self.is_over = True

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.calls - self.calls)


def test_a_kernel_finds_nothing_in_the_cache_of_its_last_call(monkeypatch) -> None:
    class Facts:
        L2_cache_size = 1 << 10

    Event.log = log = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Facts())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    zero = torch.Tensor.zero_
    monkeypatch.setattr(torch.Tensor, "zero_", lambda t: log.append(t.nbytes) or zero(t))
    clock = timing.cold_clock(CPU)
    assert clock(lambda: log.append("run"), 3) == 3.0
    assert log == [2 << 10, "event", "run", "event"] * 3
