"""The sample of kernels, compiled in a process without Triton's interpreter."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

from plait_triton_codegen.kernels import COMMON_SHARED_BYTES

OVERLAPPING = "cuda:90"
"""The GPU on which a kernel starts before the one before it is done, for which it waits."""
HERE = Path(__file__).parent
WHOLE = "1/1"
SHARES = tuple(f"{number}/10" for number in range(1, 11))
"""Of a sample, for tests of which each compiles a part: `2/5` is every fifth from the second on."""


def share_of(count: int, share: str) -> int:
    """How many of so many a share has."""
    first, _, every = share.partition("/")
    return len(range(int(first) - 1, count, int(every)))


def compiled(
    which: str, folder: Path, target: str = "cuda:90", share: str = WHOLE
) -> dict[str, dict[str, int]]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton")}
    environment.pop("TRITON_INTERPRET", None)
    # The conftest that would set it again is not imported by a plain script.
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_compile_sample.py"), which, target, share],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    waits = int(target == OVERLAPPING)
    assert {name for name, each in found.items() if each["waits"] != waits} == set()
    assert {name for name, each in found.items() if each["accesses before it waits"]} == set()
    return found


def multiplies_on_tensor_cores(sample: dict[str, dict[str, int]]) -> None:
    """What multiplies matrices does so there, and its factors are on their way meanwhile, where
    they lie in rows of whole multiples of 16 bytes."""
    products = {name: each for name, each in sample.items() if name.startswith("product")}
    for name, each in products.items():
        assert bool(each["tensor cores"]) == (name != "product f32"), name
        if name not in ("product of tails", "product f32"):
            assert each["asynchronous copies"] > 0, name


SPILLED = {
    "3.6": {
        "cuda:80": {
            "attention of documents": 16,
            "gradients of queries, f32": 8,
            "gradients of queries, of long rows": 32,
            "product swiglu": 136,
            "product shared out": 24,
        },
        "cuda:100": {
            "attention of documents": 160,
            "gradients of queries, of long rows": 48,
            "gradients of queries, sums of rows, rows of 128": 16,
            "gradients of shared keys": 32,
        },
    },
    "3.7": {
        "cuda:80": {
            "attention of documents": 16,
            "gradients of queries, f32": 8,
            "gradients of queries, of long rows": 32,
            "product swiglu": 136,
        },
        "cuda:90": {"gradients of keys, f32": 8},
        "cuda:100": {
            "softmax of long rows": 24,
            "attention of documents": 32,
            "gradients of queries, of long rows": 64,
            "gradients of shared keys": 24,
        },
    },
    "3.8": {
        "cuda:80": {"attention of documents": 48, "product swiglu": 136},
        "cuda:100": {"attention of documents": 344},
    },
    "3.9": {
        "cuda:80": {"product swiglu": 136},
        "cuda:100": {"attention of documents": 144, "gradients of shared keys": 16},
    },
}
"""Most bytes that kernels spill, by Triton's version and the GPU, where they do: a thread has a
whole row of a block of keys there, and so all of their documents, in 64 bits; and the sums of two
products, for whose factors tensor cores of sm_80 take registers; and rows of queries, of the
gradients of results and of sums."""

_REGISTERS = 65536
"""Of a multiprocessor, in 32 bits."""


def spilling(found: dict[str, dict[str, int]], target: str, usual: int = 0) -> dict[str, int]:
    """The kernels that spill more bytes than is known, with how many."""
    version = ".".join(importlib.metadata.version("triton").split(".")[:2])
    most = SPILLED.get(version, {}).get(target, {})
    spilled = {name: each["spills"] for name, each in found.items()}
    return {name: count for name, count in spilled.items() if count > most.get(name, usual)}


def crowding(found: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The kernels that take more registers than there are, or more shared memory than all GPUs
    have."""
    return {
        name: each
        for name, each in found.items()
        if each["registers"] * each["warps"] * 32 > _REGISTERS
        or each["shared"] > COMMON_SHARED_BYTES
    }
