"""What runs a flat graph by ATen's kernels."""

import threading

import torch

from plait_fx_passes import AtenGraph, runner, to_aten


def recorded():
    module = torch.fx.symbolic_trace(lambda x, y: (torch.sin(x) * y).sum(0))
    return to_aten(module, (torch.randn(4, 3), torch.randn(4, 3)))


def test_code_is_written_once_and_not_before_the_first_call(monkeypatch):
    written = []
    module_of = AtenGraph.module

    def module(graph):
        written.append(graph)
        return module_of(graph)

    monkeypatch.setattr(AtenGraph, "module", module)
    graph = recorded()
    run = runner(graph)
    assert not written
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(run(x, y)[0], (x.sin() * y).sum(0), rtol=0, atol=0)
    assert written == [graph]


def test_threads_may_be_first_together():
    run = runner(recorded())
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    results = []
    begin = threading.Barrier(4)

    def call():
        begin.wait()
        results.append(run(x, y)[0])

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, (x.sin() * y).sum(0), rtol=0, atol=0)
