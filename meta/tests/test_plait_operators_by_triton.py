"""A sample of `python -m operators --backend triton`, whose kernels Triton's interpreter runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "packages" / "ir-lowering"

NAMES = [
    *("add", "logical_and", "nextafter", "where", "nn.functional.gelu", "remainder"),
    *("cat", "gather", "roll", "diag_embed", "nn.functional.interpolate.bicubic"),
    *("sum", "var_mean", "argmax", "max.reduction_with_dim", "nn.functional.max_pool2d"),
    *("softmax", "nn.functional.layer_norm", "nn.functional.cross_entropy", "cumsum", "cummax"),
    *("topk", "msort", "index_add", "scatter_reduce.amax", "index_put"),
    *("bmm", "nn.functional.linear", "nn.functional.conv1d"),
]
"""Of each kind of kernel some."""
DTYPES = ["float32", "bfloat16", "int64"]
PART = "0/4"


def test_operators_by_kernels_of_gpus_are_eagers(tmp_path: Path) -> None:
    verdicts = tmp_path / "verdicts.json"
    given = [*(f"--only={name}" for name in NAMES), *(f"--dtype={kind}" for kind in DTYPES)]
    limits = ["--samples=2", f"--part={PART}", "--jobs=2", f"--json={verdicts}"]
    command = [sys.executable, "-m", "operators", "--backend", "triton", *given, *limits]
    path = os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    caches = {"PLAIT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    done = subprocess.run(
        command, env={**os.environ, **caches}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(verdicts.read_text())
    assert len(found) > 15
    outcomes = [outcome for _, _, outcome, _ in found]
    assert outcomes.count("LOOPS") > len(found) * 0.8, done.stdout
