"""Programs of a GPU that are recorded as CUDA graphs: what calls give, and what is not recorded."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from triton_programs import GATHER

from plait_ir_lowering import lower
from plait_scheduler import Program, parse_program, schedule
from plait_triton_codegen import TritonExecutable, TritonOptions, build
from plait_utils import DiskCache

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GRAPHS = TritonOptions(cuda_graphs=True)
ENOUGH = 12
"""Calls after which a program is recorded, whatever moves."""


def _program(function, *inputs: Tensor, mutations: Mapping[int, int] | None = None) -> Program:
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    return schedule(lower(traced, mutations=mutations))


def _built(tmp_path: Path, function, *inputs: Tensor, **how) -> TritonExecutable:
    made = build(_program(function, *inputs, **how), options=GRAPHS, cache=DiskCache(tmp_path))
    assert made.metadata["host"] == "c++", made.python_reason
    return made


def _recordings(made: TritonExecutable) -> int:
    assert made.graphs is not None
    return made.graphs.recordings


def _mlp(x, w, v, b):
    return F.gelu(x @ w + b) @ v, x.softmax(-1)


def _mlp_inputs() -> list[Tensor]:
    sizes = (64, 32), (32, 128), (128, 32), (128,)
    return [torch.randn(*size, device="cuda") for size in sizes]


def _check(got: tuple[object, ...], wanted: tuple[Tensor, ...]) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)


def test_what_python_launches_says_so() -> None:
    made = build(parse_program(GATHER.replace("cuda:0", "cpu")), options=GRAPHS)
    assert made.graphs is None
    assert made.graph_reason == "Python launches its kernels: it is not on a GPU"


@on_gpu
def test_the_same_places_are_recorded_and_launched_again(tmp_path: Path) -> None:
    inputs = _mlp_inputs()
    made = _built(tmp_path, _mlp, *inputs)
    wanted = _mlp(*inputs)
    for _ in range(ENOUGH):
        _check(made(*inputs), wanted)
    assert 1 <= _recordings(made) <= 2
    assert made.graphs.copies == 0 or made.graphs.copies == 1  # what a product gives
    assert made.graph_reason is None
    inputs[0].mul_(2)
    inputs[1].add_(0.25)
    _check(made(*inputs), _mlp(*inputs))


@on_gpu
def test_outputs_that_are_kept_are_not_overwritten(tmp_path: Path) -> None:
    x, *rest = _mlp_inputs()
    made = _built(tmp_path, _mlp, x, *rest)
    given = [torch.randn_like(x) for _ in range(3 * ENOUGH)]
    kept = [made(each, *rest) for each in given]
    assert _recordings(made) > 1
    assert made.graphs.copies >= 2
    for each, got in zip(given, kept, strict=True):
        _check(got, _mlp(each, *rest))
    assert len({got[0].data_ptr() for got in kept}) == len(kept)


@on_gpu
def test_inputs_that_lie_elsewhere_in_each_call(tmp_path: Path) -> None:
    x, *rest = _mlp_inputs()
    made = _built(tmp_path, _mlp, x, *rest)
    held = []
    for turn in range(2 * ENOUGH):
        held.append(torch.randn_like(x) + turn)
        got = made(held[-1], *rest)
        _check(got, _mlp(held[-1], *rest))
    many = _recordings(made)
    for turn in range(ENOUGH):
        held.append(torch.randn_like(x) - turn)
        got = made(held[-1], *rest)
        _check(got, _mlp(held[-1], *rest))
    assert _recordings(made) == many
    rest[0] = torch.randn_like(rest[0])
    for _ in range(3):
        _check(made(x, *rest), _mlp(x, *rest))


@on_gpu
def test_strided_inputs_are_copied_as_they_lie(tmp_path: Path) -> None:
    def program(x, y):
        return (x.t() @ y,)

    x, y = torch.randn(96, 128, device="cuda")[:, ::2], torch.randn(96, 80, device="cuda")
    made = _built(tmp_path, program, x, y)
    held = []
    for turn in range(ENOUGH):
        wide = torch.randn(96, 128, device="cuda") + turn
        held.append(wide)
        _check(made(wide[:, ::2], y), program(wide[:, ::2], y))
    assert made.graphs.copies >= 1


@on_gpu
def test_kernels_are_given_where_inputs_and_outputs_lie(tmp_path: Path) -> None:
    def program(x, y):
        total = x * 2 + y
        return total.softmax(-1), total.sum(0), x[:, :4] - y[0, 0]

    x, y = torch.randn(64, 16, device="cuda"), torch.randn(64, 16, device="cuda")
    made = _built(tmp_path, program, x, y)
    given = [(torch.randn_like(x), torch.randn_like(x)) for _ in range(2 * ENOUGH)]
    kept = [made(*each) for each in given]
    for each, got in zip(given, kept, strict=True):
        _check(got, program(*each))
    assert _recordings(made) == 1
    assert made.graphs.copies == 0


def _updated(state, x):
    new = state * 0.5 + x.sum(0)
    return new, new * 2


def _multiplied(state, x):
    new = state @ x
    return new, new * 2


@on_gpu
@pytest.mark.parametrize("update", [_updated, _multiplied])
def test_inputs_that_it_writes_to(tmp_path: Path, update) -> None:
    state = torch.ones(16, 16, device="cuda")
    x = torch.randn(16, 16, device="cuda") / 8
    made = _built(tmp_path, update, state, x, mutations={0: 0})
    expected = state.clone()
    for _ in range(ENOUGH):
        x.normal_().div_(8)
        expected, doubled = update(expected, x)
        _check(made(state, x), (doubled,))
        _check((state,), (expected,))
    assert _recordings(made) >= 1
    states = [torch.full((16, 16), float(turn), device="cuda") for turn in range(ENOUGH)]
    wanted = [update(each, x) for each in states]
    for other, (new, doubled) in zip(states, wanted, strict=True):
        _check(made(other, x), (doubled,))
        _check((other,), (new,))
    for other, (new, _) in zip(states, wanted, strict=True):
        _check((other,), (new,))


@on_gpu
def test_indices_out_of_range_raise_as_without_a_graph(tmp_path: Path) -> None:
    def take(table, ids, state):
        return (F.embedding(ids, table).sum(0) + state,)

    table, ids = torch.randn(5, 16, device="cuda"), torch.tensor([0, 4], device="cuda")
    state = torch.randn(16, device="cuda")
    made = _built(tmp_path, take, table, ids, state)
    for turn in range(ENOUGH):
        _check(made(table, ids, state), take(table, ids, state))
        ids.add_(1 + turn % 3)
        with pytest.raises(IndexError, match="out of bounds for dimension with size 5"):
            made(table, ids, state)
        ids.sub_(1 + turn % 3)
    assert _recordings(made) >= 1


@on_gpu
def test_each_set_of_open_sizes_has_its_own(tmp_path: Path) -> None:
    made = build(parse_program(GATHER), options=GRAPHS, cache=DiskCache(tmp_path))
    assert made.metadata["host"] == "c++", made.python_reason
    for turn in range(40):
        size = (1, 7, 640, turn + 2)[turn % 4]
        table = torch.randn(size, 16, device="cuda")
        places = torch.randint(size, (size,), device="cuda")
        expected = table[places].sum(1, keepdim=True).expand(-1, 16)
        _check(made(table, places), (2 * expected,))
        if turn % 5 == 0:
            with pytest.raises(IndexError):
                made(table, places + size)
    assert 3 <= _recordings(made) <= 64


@on_gpu
def test_a_graph_runs_on_the_current_stream(tmp_path: Path) -> None:
    x = torch.zeros(1 << 20, device="cuda")
    made = _built(tmp_path, lambda t: ((t + 1).cumsum(0),), x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for turn in range(ENOUGH):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            x.fill_(turn)  # behind the sleep, and so must the kernels be
            (y,) = made(x)
            last = y[-1]
        stream.synchronize()
        assert last == (turn + 1) * (1 << 20)
    assert _recordings(made) >= 1


def _in_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@on_gpu
@pytest.mark.parametrize("own_streams", [True, False])
def test_threads_that_call_one_program(tmp_path: Path, own_streams: bool) -> None:
    x, *rest = _mlp_inputs()
    made = _built(tmp_path, _mlp, x, *rest)
    given = [x + number for number in range(8)]
    wanted = [_mlp(each, *rest) for each in given]
    wrong: list[object] = []

    def calls(number: int) -> None:
        kept = []
        for turn in range(60):
            kept.append(made(given[number], *rest))
            if turn % 3 == 0:
                torch.empty(1 << 16, device="cuda").normal_()  # torch's own work meanwhile
        for got in kept:
            for one, other in zip(got, wanted[number], strict=True):
                if not torch.allclose(one, other, rtol=2e-3, atol=2e-3):
                    wrong.append(got)

    def work(number: int) -> None:
        try:
            if own_streams:
                with torch.cuda.stream(torch.cuda.Stream()):
                    calls(number)
            else:
                calls(number)
        except BaseException as error:
            wrong.append(error)

    torch.cuda.synchronize()
    _in_threads(work)
    assert not wrong, (len(wrong), wrong[0])


@on_gpu
def test_random_numbers_differ_in_each_call_and_the_reason_is_told(tmp_path: Path) -> None:
    x = torch.ones(64, device="cuda")
    made = _built(tmp_path, lambda t: (t + torch.rand_like(t),), x)
    torch.manual_seed(0)
    seen = [made(x)[0] for _ in range(ENOUGH)]
    torch.manual_seed(0)
    for got in seen:
        torch.testing.assert_close(got, x + torch.rand_like(x))
    assert _recordings(made) == 0
    assert "draws random numbers" in str(made.graph_reason)


COUNTS = """\
program counts()
  inputs x
  arena 0
  buffer x: i64[64] on cuda:0 = input 0
  buffer counts: i64[4] on cuda:0 = extern
  buffer y: i64[4] on cuda:0 = output
  kernel twice(p0: read i64[4], p1: write i64[4])
    for i0: 4
      outer store p1[i0] = mul(p0[i0], i64(2))
  steps
    call new(counts) = aten::bincount(x, None, 4)
    allocate y
    launch twice(counts, y)
    free counts
    return y
"""


@on_gpu
def test_what_cannot_be_recorded_runs_as_it_is(tmp_path: Path) -> None:
    made = build(parse_program(COUNTS), options=GRAPHS, cache=DiskCache(tmp_path))
    assert made.metadata["host"] == "c++", made.python_reason
    for _ in range(ENOUGH):
        x = torch.randint(4, (64,), device="cuda")
        torch.testing.assert_close(made(x)[0], torch.bincount(x, minlength=4) * 2)
    assert _recordings(made) == 0
    assert made.graph_reason == "aten::bincount cannot be called while it is recorded"
    torch.ones(8, device="cuda").add_(1)  # no error is left over
    torch.cuda.synchronize()


@on_gpu
def test_attention_without_dropout_is_recorded(tmp_path: Path) -> None:
    def attention(q, k, v):
        return (F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2,)

    q, k, v = (torch.randn(2, 4, 32, 64, device="cuda") for _ in range(3))
    made = _built(tmp_path, attention, q, k, v)
    for _ in range(ENOUGH):
        q.normal_()
        _check(made(q, k, v), attention(q, k, v))
    assert made.graph_reason is None
    assert _recordings(made) >= 1


@on_gpu
def test_programs_share_memory_for_what_is_temporary(tmp_path: Path) -> None:
    def temporary(number, t):
        return (number * (t.cumsum(0) * 2).cumsum(1).sum(1),)

    x = torch.randn(2048, 2048, device="cuda")
    (wanted,) = temporary(1, x.double())
    made = [_built(tmp_path, partial(temporary, n), x) for n in (1, 2, 3, 4)]
    torch.cuda.synchronize()
    sizes = []
    for n, program in enumerate(made, 1):
        for _ in range(ENOUGH):
            got = program(x)
        assert _recordings(program) >= 1
        torch.testing.assert_close(got[0].double(), n * wanted, rtol=1e-3, atol=1.0)
        sizes.append(torch.cuda.memory_reserved())
    assert sizes[-1] - sizes[0] <= x.nbytes, sizes
    torch.cuda.empty_cache()
    filled = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(50)]
    for n, program in enumerate(made, 1):
        torch.testing.assert_close(program(x)[0].double(), n * wanted, rtol=1e-3, atol=1.0)
    assert all(each.eq(7).all() for each in filled)


@on_gpu
def test_memory_of_forgotten_programs_goes(tmp_path: Path) -> None:
    x = torch.randn(512, 512, device="cuda")

    def use(number: int) -> None:
        made = _built(tmp_path, lambda t: ((t + number) @ t,), x)
        held = [made(x) for _ in range(ENOUGH)]
        torch.testing.assert_close(held[0][0], held[-1][0])
        assert _recordings(made) >= 1

    use(0)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for number in range(1, 6):
        use(number)
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@on_gpu
def test_within_a_graph_of_the_users_kernels_are_recorded_by_that(tmp_path: Path) -> None:
    x = torch.randn(256, 64, device="cuda")
    made = _built(tmp_path, lambda t: (t.softmax(-1) * 2,), x)
    for _ in range(ENOUGH):
        made(x)
    before = _recordings(made)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = made(x)
    assert _recordings(made) == before
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, x.softmax(-1) * 2)
        torch.testing.assert_close(made(x)[0], x.softmax(-1) * 2)


@on_gpu
def test_outputs_that_are_views_of_new_memory_in_each_call(tmp_path: Path) -> None:
    def views(x, w):
        y = (x @ w).view(4, 2, 16)
        z = x.exp()
        return y, z[1:].t(), z[:, 3]

    x, w = torch.randn(8, 32, device="cuda"), torch.randn(32, 16, device="cuda")
    made = _built(tmp_path, views, x, w)
    kept, wanted = [], []
    for _ in range(2 * ENOUGH):
        x.normal_()
        kept.append(made(x, w))
        wanted.append(views(x, w))
    for got, expected in zip(kept, wanted, strict=True):
        for one, other in zip(got, expected, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)


@on_gpu
def test_in_inference_mode_and_out_of_it(tmp_path: Path) -> None:
    inputs = _mlp_inputs()
    made = _built(tmp_path, _mlp, *inputs)
    wanted = _mlp(*inputs)
    for _ in range(ENOUGH):
        with torch.inference_mode():
            got = made(*inputs)
        assert got[0].is_inference()
        _check(got, wanted)
        got = made(*inputs)
        assert not got[0].is_inference()
        _check(got, wanted)


@on_gpu
def test_outputs_may_be_used_on_other_streams(tmp_path: Path) -> None:
    x = torch.ones(1 << 20, device="cuda")
    made = _built(tmp_path, lambda t: (t * 2 + 1,), x)
    side = torch.cuda.Stream()
    sums = []
    for turn in range(2 * ENOUGH):
        x.fill_(turn)
        (y,) = made(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            sums.append(y.mean())
        y.record_stream(side)
        del y
    torch.cuda.synchronize()
    assert [each.item() for each in sums] == [2 * turn + 1 for turn in range(2 * ENOUGH)]
