"""Programs of a GPU that read numbers of the CPU, or compute there, too: without Python, and once
for all numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import plait

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
OPTIMIZERS = {
    "AdamW": lambda given: torch.optim.AdamW(given, lr=1e-2),
    "Adam, one by one": lambda given: torch.optim.Adam(given, lr=1e-2, foreach=False),
    "RAdam": lambda given: torch.optim.RAdam(given, lr=1e-2),
    "NAdam": lambda given: torch.optim.NAdam(given, lr=1e-2),
    "momentum": lambda given: torch.optim.SGD(given, lr=1e-2, momentum=0.9),
    "AdamW, fused": lambda given: torch.optim.AdamW(given, lr=1e-2, fused=True),
    "Adagrad": lambda given: torch.optim.Adagrad(given, lr=1e-2),
    "momentum, fused": lambda given: torch.optim.SGD(given, lr=1e-2, momentum=0.9, fused=True),
}


def hosts(compiled: object) -> list[str | None]:
    """Why Python launches the kernels of each compiled graph; None where it does not."""
    return [each.record.code.python_reason for each in plait.report(compiled).graphs]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
def test_steps_of_an_optimizer(name: str, is_recorded: bool) -> None:
    torch.manual_seed(0)
    shapes = [(64, 32), (32,), (5, 3), (1,)]
    mine = [nn.Parameter(torch.randn(shape, device="cuda")) for shape in shapes]
    others = [nn.Parameter(each.detach().clone()) for each in mine]
    optimizer, plain = OPTIMIZERS[name](mine), OPTIMIZERS[name](others)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (optimizer, plain)]
    step = plait.compile(optimizer.step, options={"triton.cuda_graphs": is_recorded})
    counts = []
    for _ in range(12):
        for one, other in zip(mine, others, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        step()
        plain.step()
        for each in schedules:
            each.step()
        counts.append(len(plait.report(step).graphs))
        for one, other in zip(mine, others, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)
    assert set(hosts(step)) == {None}
    if is_recorded and "fused" not in name:
        assert plait.report(step).graphs[-1].cuda_graphs == "CUDA graphs: 1 recorded"
    if name != "RAdam":  # which computes otherwise from its fifth step on
        assert counts[3] == counts[-1], counts


def scaled(x: torch.Tensor, number: float, scale: torch.Tensor) -> torch.Tensor:
    return torch.where(x > scale, x * number, scale) + scale / (number + 1)


@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
def test_numbers_and_tensors_of_one_number(is_recorded: bool) -> None:
    compiled = plait.compile(scaled, options={"triton.cuda_graphs": is_recorded})
    kept = []
    for turn in range(9):
        x, scale = torch.randn(1000, device="cuda"), torch.tensor(turn / 4)
        kept.append((compiled(x, turn / 3, scale), scaled(x, turn / 3, scale)))
        scale.fill_(7)
    for got, wanted in kept:
        torch.testing.assert_close(got, wanted)
    assert len(plait.report(compiled).graphs) <= 2
    assert set(hosts(compiled)) == {None}


def test_gradients_flow_through_what_numbers_scale() -> None:
    compiled = plait.compile(scaled)
    for turn in range(5):
        x = torch.randn(1000, device="cuda", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        scale = torch.tensor(0.25)
        compiled(x, turn / 3, scale).square().sum().backward()
        scaled(y, turn / 3, scale).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert set(hosts(compiled)) == {None}


def counting(
    x: torch.Tensor, number: float, count: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * number
    count.add_(1)
    tenth = count / 10
    x.mul_(tenth)
    return y + count, tenth


@pytest.mark.parametrize("is_recorded", [False, True], ids=["launched", "recorded"])
def test_what_is_counted_on_the_cpu_is_what_kernels_read(is_recorded: bool) -> None:
    """Through calls that follow each other without a wait, on streams, and in a graph of the
    user's."""
    compiled = plait.compile(counting, options={"triton.cuda_graphs": is_recorded})
    x, count = torch.randn(100_003, device="cuda"), torch.zeros(())
    y, other = x.clone(), count.clone()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        kept = []
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for turn in range(40):
                number = turn / 40
                kept.append((compiled(x, number, count), counting(y, number, other)))
                if turn % 8 == 7:
                    y.normal_()
                    x.copy_(y)
        torch.cuda.synchronize()
        for got, wanted in kept:
            torch.testing.assert_close(got, wanted)
        torch.testing.assert_close((x, count), (y, other))
    assert set(hosts(compiled)) == {None}
    if is_recorded:
        assert plait.report(compiled).graphs[-1].cuda_graphs == "CUDA graphs: 2 recorded"
    graph, start = torch.cuda.CUDAGraph(), count.clone()
    with torch.cuda.graph(graph):
        got, _ = compiled(x, 0.5, count)
    assert count.equal(start + 1)
    for _ in range(3):
        x.normal_()
        wanted, _ = counting(x.clone(), 0.5, start.clone())
        graph.replay()
        torch.testing.assert_close(got, wanted)


def on_both(x: torch.Tensor, c: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    counted = c + 1
    moved = (counted * 2).to("cuda")
    return x * moved.sum() + x[i], counted, (x.sum() + 1).cpu() * c.sum(), counted.cumsum(0)


def test_what_the_cpu_computes_beside_it() -> None:
    compiled = plait.compile(on_both)
    for _ in range(4):
        x, c, i = torch.randn(40, device="cuda"), torch.randn(6), torch.randint(0, 40, (40,))
        for got, wanted in zip(compiled(x, c, i), on_both(x, c, i), strict=True):
            torch.testing.assert_close(got, wanted)
            assert got.device == wanted.device
    assert set(hosts(compiled)) == {None}
    with pytest.raises(IndexError, match="out of"):
        compiled(x, c, i + 40)
    torch.testing.assert_close(compiled(x, c, i), on_both(x, c, i))


def test_numbers_in_a_graph_of_the_users() -> None:
    compiled = plait.compile(scaled)
    x, scale = torch.randn(1000, device="cuda"), torch.tensor(0.25)
    for number in (0.5, 1.5, 2.5):
        compiled(x, number, scale)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = compiled(x, 3.5, scale)
    wanted = scale.clone()
    scale.fill_(9)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(got, scaled(x, 3.5, wanted))
