"""Processes of a group, which run programs as recorded and behind passes, and tell by JSON."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from collective_programs import PROGRAMS, Random, graph_of

from plait_fx_passes import collective_parts, parts_runner, run_passes, wrap_runtime
from plait_fx_passes.passes.collectives import chunk_products, collective_passes

SETTINGS = {
    "default": collective_passes(),
    "small": collective_passes(bucket_bytes=1024, gather_bytes=600, in_flight_bytes=1100),
    "in_order": collective_passes(in_order=True),
    "chunks": (chunk_products(2, enough=1), *collective_passes(bucket_bytes=0, gather_bytes=0)),
}


FEW = ("default", "small", "chunks")  # of more than two processes, which share few cores


def calls_of(graph):
    names = (str(n.target) for n in graph.graph.nodes if "_c10d_functional" in str(n.target))
    return Counter(name.split(".")[1] for name in names)


def results_of(graph, inputs, *, in_parts=False):
    run = graph.module()
    if in_parts:
        run = parts_runner(collective_parts(graph), lambda part, written: part.module())
    found = wrap_runtime(graph, run)(*inputs)
    return tuple(each.detach() for each in (found if isinstance(found, tuple) else (found,)))


def difference(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape, (one.shape, other.shape)
        assert one.stride() == other.stride()
    pairs = zip(found, expected, strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def run_rank(rank, processes, folder):
    """Run all programs as one process of a group; write what was found to the folder."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", processes),
        rank=rank,
        world_size=processes,
        timeout=limit,
    )
    settings = {name: SETTINGS[name] for name in (SETTINGS if processes == 2 else FEW)}
    told: dict[str, dict] = {}
    for name, kind in PROGRAMS.items():
        case = kind(processes)
        graph = graph_of(case.program, case.inputs(rank))
        plain = results_of(graph, case.inputs(rank))
        alone = case.alone(rank)
        told[name] = {"alone": difference(plain, alone), "plain": calls_of(graph)}
        cleaned = run_passes(graph)
        for setting, passes in settings.items():
            better = run_passes(cleaned, passes)
            found = results_of(better, case.inputs(rank))
            told[name][setting] = {
                "difference": difference(found, plain),
                "alone": difference(found, alone),
                "calls": calls_of(better),
            }
    for seed in range(6 // processes):
        case = Random(processes, seed)
        graph = graph_of(case.program, case.inputs(rank))
        plain = results_of(graph, case.inputs(rank))
        told[f"random {seed}"] = {
            setting: difference(
                results_of(run_passes(graph, passes), case.inputs(rank), in_parts=True), plain
            )
            for setting, passes in settings.items()
        }
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(told))


def main(processes, folder):
    """Run a group; the exit status is that of the worst process."""
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    group = [
        context.Process(target=run_rank, args=(rank, processes, folder))
        for rank in range(processes)
    ]
    for each in group:
        each.start()
    for each in group:
        each.join(150)
    status = max(abs(each.exitcode if each.exitcode is not None else 124) for each in group)
    for each in group:
        each.kill()
    sys.exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
