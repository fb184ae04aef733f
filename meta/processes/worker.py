"""A process of a group: `worker.py rank store count case ...`; it says that all were right."""

from __future__ import annotations

import sys
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from processes import failures, modules, programs, sharded  # found beside this file


class _OneThread(dist.ProcessGroupGloo):
    """Gloo's, whose collectives one thread runs instead of two.

    Two write the name of what they have done to one string, without a lock: on a busy machine torch
    2.13 then frees its memory twice, and the process dies.
    """

    def __init__(self, store, rank, size, timeout):
        options = dist.ProcessGroupGloo._Options()
        options._threads, options._timeout = 1, timeout
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
        super().__init__(store, rank, size, options)


def begin(store, rank, count, name):
    on_gpu = modules.DEVICE == "cuda"
    dist.distributed_c10d.ProcessGroupGloo = _OneThread
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.FileStore(f"{store}-{name}", count),
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=60),
    )


def main(rank, store, count, chosen):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    start = partial(begin, store, rank, count)
    start("first")
    cases = {**vars(programs), **vars(modules), **vars(sharded), **vars(failures)}
    for name in chosen:
        cases[name](start) if name == "groups_that_go_agree" else cases[name]()
        dist.barrier()
    dist.destroy_process_group()
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
