"""What calls cost a process once all is compiled: no page faults, and no other thread's time."""

from __future__ import annotations

import resource
import threading
import time

import torch
from torch import nn

import plait


def test_calls_take_no_new_memory():
    model = nn.Sequential(
        *(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256), nn.Softmax(-1))
    ).requires_grad_(False)
    compiled, x = plait.compile(model), torch.randn(512, 256)
    for _ in range(20):
        compiled(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        compiled(x)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < 100, "a call's values alone are 640 pages"


def test_other_threads_run_python_while_kernels_run():
    compiled = plait.compile(lambda x: torch.lgamma(x).cos() * torch.lgamma(x + 1).sin())
    x = torch.rand(1 << 21) + 0.5
    compiled(x)
    seen, ended = [], threading.Event()

    def look():
        while not ended.is_set():
            seen.append(time.perf_counter())
            time.sleep(0.001)

    looking = threading.Thread(target=look)
    looking.start()
    inside = 0
    try:
        for _ in range(20):
            start = time.perf_counter()
            compiled(x)
            end = time.perf_counter()
            margin = (end - start) / 4
            inside += sum(start + margin < each < end - margin for each in list(seen))
    finally:
        ended.set()
        looking.join()
    assert inside > 0
