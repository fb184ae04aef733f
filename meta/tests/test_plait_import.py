"""`import plait` is cheap, and compiling never loads torch's own compiler."""

import json
import subprocess
import sys


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_is_cheap_and_loads_nothing_heavy():
    seconds, loaded = run(
        "import torch, sys, json, time\n"
        "before = set(sys.modules)\n"
        "start = time.process_time()\n"
        "import plait\n"
        "seconds = time.process_time() - start\n"
        "print(json.dumps([seconds, sorted(set(sys.modules) - before)]))"
    )
    heavy = ("torch._dynamo", "torch._inductor", "torch._functorch", "sympy", "triton", "rich")
    assert not [name for name in loaded if name.split(".")[0] in heavy or name.startswith(heavy)]
    assert seconds < 0.5


def test_compiling_never_loads_torchs_compiler():
    loaded = run(
        "import torch, sys, json\n"
        "before = set(sys.modules)\n"
        "import plait\n"
        "net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))\n"
        "for backend in ('plait', 'python', 'eager'):\n"
        "    fast = plait.compile(net.eval(), backend=backend)\n"
        "    with torch.no_grad():\n"
        "        fast(torch.randn(2, 4))\n"
        "    str(plait.report(fast))\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    # torch itself imports parts of torch._functorch; what matters is what plait adds.
    own = ("torch._dynamo", "torch._inductor", "torch._functorch")
    heavy = ("sympy", "torch.distributed.tensor")  # what its meta kernels ask for when sizes change
    assert not [name for name in loaded if name.startswith(own + heavy)]


RESTORED = """
import json, sys
import torch
import plait.warm

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
fast = plait.compile(net, options={"warm_start": True})
with torch.no_grad():
    fast(torch.ones(2, 4))
loaded = sorted(sys.modules)
plait.warm.wait_for_stores()
print(json.dumps([loaded, plait.report(fast).notices]))
"""


def test_a_second_process_loads_nothing_that_traces_or_lowers(tmp_path, monkeypatch):
    file = tmp_path / "restored.py"
    file.write_text(RESTORED)
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PLAIT_VERIFY", "0")
    code = f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')"
    (first, _), (second, told) = run(code), run(code)
    assert any("was restored" in each for each in told)
    parts = ("state", "frames.frame", "objects.statics", "graph.nodes")
    heavy = {*(f"plait_bytecode_tracer.{part}" for part in parts), "plait_utils.fake"}
    heavy |= {"plait_fx_passes.record.recorder", "plait_scheduler.schedule"}
    assert heavy <= set(first)
    assert heavy.isdisjoint(second)


def test_public_functions_are_no_modules_in_any_order_of_imports():
    """A module that is imported is an attribute of its package, in the place of others."""
    modules = run(
        "import importlib, json, pkgutil, types\n"
        "names = ('plait', *(f'plait_{part}' for part in ("
        "'utils', 'bytecode_tracer', 'fx_passes', 'ir_lowering', 'scheduler', 'cpp_codegen', "
        "'triton_codegen')))\n"
        "found = []\n"
        "for name in names:\n"
        "    package = importlib.import_module(name)\n"
        "    for each in {m.name for m in pkgutil.iter_modules(package.__path__)}:\n"
        "        if each in package.__all__:\n"
        "            importlib.import_module(f'{name}.{each}')\n"
        "            if isinstance(getattr(package, each), types.ModuleType):\n"
        "                found.append(f'{name}.{each}')\n"
        "print(json.dumps(found))"
    )
    assert modules == []
