"""`import plait` is cheap, and compiling never loads torch's own compiler."""

import json
import subprocess
import sys

import pytest


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_loads_nothing_heavy():
    loaded = run(
        "import torch, sys, json\n"
        "before = set(sys.modules)\n"
        "import plait\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    heavy = ("torch._dynamo", "torch._inductor", "torch._functorch", "sympy", "triton", "rich")
    assert not [name for name in loaded if name.split(".")[0] in heavy or name.startswith(heavy)]


def test_importing_adds_little_to_importing_torch():
    seconds = run(
        "import torch, time, json\n"
        "start = time.perf_counter()\n"
        "import plait\n"
        "print(json.dumps(time.perf_counter() - start))"
    )
    assert seconds < 0.5


@pytest.mark.parametrize("backend", ["plait", "python", "eager"])
def test_compiling_never_loads_torchs_compiler(backend):
    loaded = run(
        "import torch, sys, json\n"
        "before = set(sys.modules)\n"
        "import plait\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))\n"
        f"fast = plait.compile(net.eval(), backend={backend!r})\n"
        "with torch.no_grad():\n"
        "    fast(torch.randn(2, 4))\n"
        "str(plait.report(fast))\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    # torch itself imports parts of torch._functorch; what matters is what plait adds.
    own = ("torch._dynamo", "torch._inductor", "torch._functorch")
    assert not [name for name in loaded if name.startswith(own)]
