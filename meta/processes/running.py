"""Starts the processes of a group, and waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CASES = (
    *("gradients_agree", "steps_agree", "sharded_agrees", "written_inputs_agree"),
    *("meshes_agree", "distributed_tensors_agree", "data_parallel_agrees"),
    *("data_parallel_steps_agree", "buckets_are_sent_early", "fully_sharded_agrees"),
    *("half_precision_agrees", "tensor_parallel_agrees", "sequence_parallel_agrees"),
    *("two_dimensional_agrees", "whole_models_agree", "whole_models_share_graphs"),
    *("whole_half_precision_agrees", "whole_models_change_together", "whole_sharded_steps_agree"),
    *("other_whole_models_agree", "whole_two_dimensional_agrees"),
    *("errors_agree", "late_process_agrees", "groups_that_go_agree", "death_agrees"),
)

WORKER = Path(__file__).parent / "worker.py"


def run_cases(count, folder, *cases, device="cpu"):
    """What went wrong in a group of ``count`` processes; nothing where all agree.

    On the device "cuda" each has a GPU of its own, and NCCL is what they talk by.
    """
    return run_group([str(WORKER)], count, folder, *cases, device=device)


def run_group(program, count, folder, *arguments, device="cpu"):
    """What went wrong in processes that run a program, which Python is given as arguments.

    Each gets its rank, the file of the group's store, the number of processes, and the arguments;
    its output is to end with "right". The group has a cache of its own: reports tell how stored
    programs of other groups differ, and cases look at them.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",  # where each thread was, if one crashes
        "PLAIT_PROCESSES_ON": device,
        "PLAIT_CACHE_DIR": str(Path(folder, "cache")),
    }
    running = [
        subprocess.Popen(
            [
                sys.executable,
                *program,
                str(rank),
                str(Path(folder, "store")),
                str(count),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(count)
    ]
    try:
        found = [each.communicate(timeout=240) for each in running]
    finally:
        for each in running:
            each.kill()
    return [
        errors[-3000:]
        for each, (out, errors) in zip(running, found, strict=True)
        if each.returncode != 0 or not out.strip().endswith("right")
    ]
