"""Two GPUs of one machine: processes over NCCL, and programs of one process on both.

Runs only where there are two. `pytest meta/tests/test_plait_two_gpus.py`
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import plait

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the suite beside the tests

from processes.running import run_cases

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs"),
    pytest.mark.slow,
]

CASES = (
    *("data_parallel_agrees", "data_parallel_steps_agree", "buckets_are_sent_early"),
    *("fully_sharded_agrees", "half_precision_agrees", "tensor_parallel_agrees"),
    *("sequence_parallel_agrees", "two_dimensional_agrees"),
)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_agree_with_eager(case, tmp_path):
    if not dist.is_nccl_available():
        pytest.skip("torch has no NCCL")
    assert run_cases(2, tmp_path, case, device="cuda") == []


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.device == other.device
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def all_compiled(compiled):
    report = plait.report(compiled)
    assert {graph.outcome for graph in report.graphs} == {"compiled"}
    assert not report.breaks
    return report


class Pipeline(torch.nn.Module):
    """Two stages, each on a GPU of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = self._stage("cuda:0")
        self.last = self._stage("cuda:1")
        self.scale = torch.tensor(0.5)  # a number in a tensor of the CPU

    @staticmethod
    def _stage(device):
        return torch.nn.Sequential(
            *(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))
        ).to(device)

    def forward(self, x):
        y = self.first(x) * self.scale
        return self.last(y.to("cuda:1")) * self.scale, y.sum()


@pytest.mark.parametrize("current", [0, 1])
def test_a_pipeline_in_one_process(current):
    with torch.cuda.device(current):
        model = Pipeline()
        compiled = plait.compile(model, fullgraph=True)
        for n in range(3):
            x = torch.randn(64, 256, device="cuda:0")
            results = []
            for each in (model, compiled):
                model.zero_grad()
                y, total = each(x)
                (y.square().mean().to("cuda:0") + total * 1e-3).backward()
                results.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
            close(*results)
        assert torch.cuda.current_device() == current
        all_compiled(compiled)


@pytest.mark.parametrize("index", [0, 1])
def test_a_program_runs_on_the_gpu_of_its_tensors(index):
    """The other one is current; streams are those of the tensors' GPU, and each GPU has a program
    of its own."""

    def program(x, y):
        return torch.relu(x @ y).softmax(-1).sum(0), x.new_zeros(3) + 1

    compiled = plait.compile(program)
    with torch.cuda.device(1 - index):
        for device in (index, 1 - index, index):
            x, y = (torch.randn(256, 256, device=f"cuda:{device}") for _ in range(2))
            side = torch.cuda.Stream(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                found = compiled(x, y)
            torch.cuda.synchronize(device)
            close(found, program(x, y))
        assert torch.cuda.current_device() == 1 - index
    assert len(plait.report(compiled).graphs) == 2


def test_streams_of_both_are_kept_apart():
    """What waits on one GPU is waited for where it is used on the other."""

    def program(x, w, v):
        y = torch.tanh(x @ w)
        z = torch.tanh(y.to("cuda:1") @ v)
        return z.to("cuda:0") + y

    compiled = plait.compile(program, fullgraph=True)
    x, w = (torch.randn(1024, 1024, device="cuda:0") / 32 for _ in range(2))
    v = torch.randn(1024, 1024, device="cuda:1") / 32
    expected = program(x, w, v)
    for _ in range(5):
        torch.cuda._sleep(20_000_000)  # the first GPU is late
        close([compiled(x, w, v)], [expected])
    all_compiled(compiled)


def test_a_step_of_a_model_on_both():
    model = Pipeline()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step(x):
        loss = model(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def ran(each):
        model.load_state_dict(start)
        optimizer.state.clear()
        losses = [each(x).detach() for x in batches]
        return [*losses, *(p.detach().clone() for p in model.parameters())]

    start = {name: value.clone() for name, value in model.state_dict().items()}
    batches = [torch.randn(64, 256, device="cuda:0") for _ in range(4)]
    expected = ran(step)
    close(ran(plait.compile(step)), expected)


def test_random_numbers_are_those_of_each_gpu():
    def program(x, y):
        return torch.nn.functional.dropout(x, 0.5), torch.nn.functional.dropout(y, 0.5)

    compiled = plait.compile(program)
    x, y = (torch.ones(64, 64, device=f"cuda:{n}") for n in range(2))
    for seed in range(2):
        results = []
        for each in (program, compiled):
            torch.manual_seed(seed)
            results.append(each(x, y))
        for one, other in zip(*results, strict=True):
            assert one.device == other.device
            assert 0.4 < (one > 0).float().mean() < 0.6
            assert 0.4 < (other > 0).float().mean() < 0.6
