"""Eager's random numbers of a GPU, which kernels compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import plait
from plait.computed import computed
from plait.options import CompileOptions
from plait_fx_passes.passes import device_draws, drawn_numbers
from plait_utils import philox
from plait_utils.philox_agreement import Kind, agrees
from plait_utils.philox_numbers import INTEGERS, NORMAL, exponential, integers_between

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PASS = "device-draws"


def chain(x, y):
    return F.dropout(F.gelu(x), 0.3) + y


def several(x, y):
    a = F.dropout((x * 2).relu(), 0.3)
    b = F.dropout((x + y).t(), 0.2)
    return a, b, torch.rand_like(a), x.new_empty(3, 5).bernoulli_(0.5), torch.randn_like(x)


def behind(x, y):
    return F.dropout(torch.randn_like(x) + y, 0.5), x.new_empty(1001).uniform_(-1, 1)


def _names(**options):
    return [each.name for each in CompileOptions(**options).passes()]


def test_what_is_compared_draws_by_operators():
    assert PASS in _names()
    for other in ({"numerics": "strict"}, {"verify": 1}, {"random": "counter"}):
        assert PASS not in _names(**other)


def test_on_a_cpu_operators_draw():
    run, x = plait.compile(lambda x: torch.rand_like(x) + x), torch.ones(40)
    torch.manual_seed(3)
    wanted = torch.rand_like(x) + x
    torch.manual_seed(3)
    assert torch.equal(run(x), wanted)


class _AsIfOnAGpu:
    """A CPU that draws as a GPU of few threads does."""

    threads = 1024

    def __init__(self, patch):
        self.state = [77, 40]
        patch.setattr(device_draws, "DEVICES", ("cpu",))
        patch.setattr(drawn_numbers, "agrees", lambda kind, device, compute: True)
        patch.setattr(drawn_numbers, "threads_of", lambda _: self.threads)
        patch.setattr(philox, "take", self.take)
        patch.setattr(torch.cuda, "current_device", lambda: 0)

    def take(self, device, count):
        seed, offset = self.state
        self.state[1] += count
        return seed, offset

    def numbers(self, offset, size, vector=1):
        state = torch.tensor([77, offset])
        return philox.UNIFORM(state, size, 0, self.threads, vector, torch.float32)


@pytest.mark.parametrize("backend", ["plait", "python"])
def test_loops_compute_what_is_drawn(monkeypatch, backend):
    gpu = _AsIfOnAGpu(monkeypatch)

    def program(x, y):
        kept = torch.native_dropout(x * 2, 0.3, True)[0] + y
        between = torch.bernoulli(x.sigmoid())
        return kept, torch.rand_like(x), between, torch.native_dropout(kept, 0.5, True)[0]

    run = plait.compile(program, backend=backend)
    x, y = torch.randn(37, 64), torch.randn(37, 64)
    for turn in range(3):
        start = 40 + 12 * turn
        found = run(x, y)
        first = (gpu.numbers(start, [37, 64], 4) < 0.7).float()
        wanted = 2 * x * first * (1 / 0.7) + y
        torch.testing.assert_close(found[0], wanted)
        assert torch.equal(found[1], gpu.numbers(start + 4, [37, 64]))
        second = (gpu.numbers(start + 8, [37, 64], 4) < 0.5).float()
        torch.testing.assert_close(found[3], wanted * second * 2)
    assert gpu.state == [77, 76]
    assert not plait.report(run).eager_graphs


@pytest.mark.parametrize("backend", ["plait", "python"])
def test_loops_compute_normal_numbers_and_integers(monkeypatch, backend):
    gpu = _AsIfOnAGpu(monkeypatch)

    def program(x):
        return (
            torch.randn(3000, dtype=torch.float64),
            x + 0.1 * torch.randn_like(x),
            torch.normal(0.5, 2.0, (33,)),
            torch.randn(501, dtype=torch.bfloat16),
            x.new_empty(3000).exponential_(1.7),
            torch.randint(-5, 2**40, (3001,)),
            torch.randint(7, (5,), dtype=torch.int32),
        )

    run, x = plait.compile(program, backend=backend), torch.randn(37, 64)
    found, state = run(x), torch.tensor([77, 0])

    def normals(offset, size, dtype=torch.float32):
        return NORMAL(state, size, offset, gpu.threads, dtype)

    wanted = (
        normals(40, [3000], torch.float64),
        x + 0.1 * normals(48, [37, 64]),
        2 * normals(52, [33]) + 0.5,
        normals(56, [501]).bfloat16(),
        exponential(gpu.numbers(60, [3000]), 1.7, torch.float32),
        INTEGERS(state, [3001], 64, gpu.threads, *integers_between(-5, 2**40, torch.int64)),
        INTEGERS(state, [5], 72, gpu.threads, *integers_between(0, 7, torch.int32)).int(),
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(found[5], wanted[5])
    assert gpu.state == [77, 76]
    assert not plait.report(run).eager_graphs


def test_kernels_compute_what_is_compared():
    def function(state):
        return NORMAL(state, [700], 0, 64, torch.float32), state * 2

    state = torch.tensor([3, 8])
    found = computed(function, state)
    torch.testing.assert_close(list(found), list(function(state)))
    with pytest.raises(RuntimeError, match="could not compute"):
        computed(lambda state: (state.no_such_method(),), state)


@pytest.mark.parametrize("budget", [None, 0, 1])
def test_a_backward_has_the_numbers_of_its_forward(monkeypatch, budget):
    gpu = _AsIfOnAGpu(monkeypatch)
    run = plait.compile(
        lambda x: torch.native_dropout(x.sin(), 0.4, True)[0], options={"memory_budget": budget}
    )
    x = torch.randn(64, 50, requires_grad=True)
    first, second = run(x), run(x)
    for start, y in ((44, second), (40, first)):
        (gradient,) = torch.autograd.grad(y.sum(), x)
        kept = (gpu.numbers(start, [64, 50], 4) < 0.6).float()
        torch.testing.assert_close(gradient, (x.cos() * kept / 0.6).detach())
    assert not plait.report(run).eager_graphs


def test_checkpoints_compute_the_same_numbers_again(monkeypatch):
    gpu = _AsIfOnAGpu(monkeypatch)

    def block(x):
        return torch.native_dropout(x.sin(), 0.5, True)[0] * x

    run = plait.compile(lambda x: checkpoint(block, x, use_reentrant=False))
    x = torch.randn(64, 50, requires_grad=True)
    y = run(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    kept = (gpu.numbers(40, [64, 50], 4) < 0.5) * 2.0
    torch.testing.assert_close(y, x.sin() * kept * x)
    torch.testing.assert_close(gradient, ((x.cos() * x + x.sin()) * kept).detach())
    assert gpu.state == [77, 44]
    assert not plait.report(run).eager_graphs


def test_dropouts_of_open_sizes(monkeypatch):
    gpu = _AsIfOnAGpu(monkeypatch)

    def program(x, y):
        first = torch.native_dropout(x.sin(), 0.5, True)[0]
        return first, torch.native_dropout((x + y).exp(), 0.5, True)[0]

    run = plait.compile(program)  # which opens a size that changes
    start = 40
    for rows in (3, 200, 37, 1000):
        x, y = torch.randn(rows, 64), torch.randn(rows, 64)
        first, second = run(x, y)
        step = 4 * (-(-rows * 64 // 4096))
        kept = [gpu.numbers(start + n * step, [rows, 64], 4) < 0.5 for n in range(2)]
        torch.testing.assert_close(first, x.sin() * kept[0] * 2)
        torch.testing.assert_close(second, (x + y).exp() * kept[1] * 2)
        start += 2 * step
        assert gpu.state == [77, start]
    fixed, opened = plait.report(run).graphs
    assert "plait_philox" in str(fixed)
    assert "plait_philox" in str(opened)


def _seeded(function, *given, offset=0):
    torch.cuda.manual_seed(1234)
    generator = torch.cuda.default_generators[0]
    generator.set_offset(offset)
    made = function(*given)
    return made if isinstance(made, tuple) else (made,), generator.get_offset()


def _draws_alike(wanted, found):
    """Some roundings are let pass, which are less than what another number would do."""
    for one, other in zip(wanted, found, strict=True):
        grain = torch.finfo(one.dtype).eps * float(one.detach().abs().max())
        torch.testing.assert_close(other, one, rtol=0, atol=8 * grain)


@on_gpu
def test_this_gpu_draws_what_is_known():
    assert [kind for kind in Kind if not agrees(kind, torch.device("cuda", 0), computed)] == []


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(8, 16), (7, 9), (1031, 2048)], ids=str)
@pytest.mark.parametrize("function", [chain, several, behind])
def test_numbers_are_eagers(function, size, dtype):
    x, y = (torch.randn(size, device="cuda").to(dtype) for _ in range(2))
    run = plait.compile(function)
    for offset in (0, 4, 12):
        wanted, end = _seeded(function, x, y, offset=offset)
        found, moved = _seeded(run, x, y, offset=offset)
        _draws_alike(wanted, found)
        assert moved == end
    assert not plait.report(run).eager_graphs


DISTRIBUTIONS = {
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype, device=x.device),
    "randn_like": lambda x: (torch.randn_like(x.t()), torch.rand_like(x)),
    "normal": lambda x: (torch.normal(x, 0.7), x.new_empty(1001).normal_(0.3, 0.7)),
    "log_normal": lambda x: torch.empty_like(x).log_normal_(0.3, 0.7),
    "exponential": lambda x: torch.empty_like(x).exponential_(1.7),
    "integers": lambda x: (torch.randint_like(x, -3, 99), x.new_empty(1001).random_()),
    "wide integers": lambda x: torch.randint(-(2**40), 2**41, x.shape, device=x.device),
}


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(7, 9), (1031, 2048)], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_numbers_of_distributions_are_eagers_to_the_bit(name, size, dtype):
    x = torch.randn(size, device="cuda").to(dtype)
    run = plait.compile(DISTRIBUTIONS[name])
    wanted, end = _seeded(DISTRIBUTIONS[name], x, offset=8)
    found, moved = _seeded(run, x, offset=8)
    assert moved == end
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one.signbit(), other.signbit())
    (graph,) = plait.report(run).graphs
    assert any(each.name == PASS and each.matches for each in graph.passes)


@on_gpu
@pytest.mark.parametrize("budget", [None, 0, 1])
def test_gradients_have_the_numbers_of_their_forward(budget):
    run = plait.compile(chain, options={"memory_budget": budget})
    results = []
    for each in (chain, run):
        x, y = (torch.ones(300, 512, device="cuda").mul_(n).requires_grad_() for n in (1, 2))
        (made,), _ = _seeded(each, x, y)
        results.append((made.detach(), *torch.autograd.grad(made.square().sum(), (x, y))))
    _draws_alike(*results)


@on_gpu
@pytest.mark.parametrize("first", [0, 8, 4, 1])
def test_inputs_may_begin_anywhere(first):
    x = torch.randn(4096 + first, device="cuda")[first:]
    run = plait.compile(lambda x: F.dropout(x, 0.3))
    wanted, end = _seeded(F.dropout, x, 0.3)
    found, moved = _seeded(run, x)
    _draws_alike(wanted, found)
    assert moved == end


@on_gpu
def test_recorded_programs_draw_anew_in_each_call():
    x, y = (torch.randn(64, 96, device="cuda") for _ in range(2))
    run = plait.compile(chain, mode="reduce-overhead")
    torch.cuda.manual_seed(7)
    wanted = [chain(x, y) for _ in range(9)]
    torch.cuda.manual_seed(7)
    for each in wanted:
        _draws_alike((each,), (run(x, y),))
    assert "1 recorded" in str(plait.report(run).graphs[0].cuda_graphs)


@on_gpu
def test_a_graph_of_the_users_draws_anew_in_each_replay():
    x, y = (torch.randn(64, 96, device="cuda") for _ in range(2))
    run = plait.compile(chain)
    run(x, y)
    made = []
    for each in (chain, run):
        torch.cuda.manual_seed(7)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = each(x, y)
        replays = []
        for _ in range(3):
            graph.replay()
            replays.append(out.clone())
        made.append(replays)
    _draws_alike(*made)
