"""Whole programs: lowered, scheduled, built and run; what is stored; what goes wrong."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from triton_checks import DEVICE, launches

from plait_ir_lowering import lower
from plait_scheduler import Program, parse_program, schedule
from plait_triton_codegen import TritonDeviceError, TritonOptions, UnsupportedKernelError, build
from plait_utils import DiskCache, Profile

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def _program(function, *inputs: torch.Tensor) -> Program:
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    return schedule(lower(traced))


def _check(cache: DiskCache, function, *inputs: torch.Tensor, tolerance: float = 2e-4):
    given = [tensor.to(DEVICE) for tensor in inputs]
    executable = build(_program(function, *given), cache=cache)
    got = executable(*given)
    for actual, expected in zip(
        got, function(*(t.double() if t.is_floating_point() else t for t in given))
    ):
        torch.testing.assert_close(
            actual.double(), expected.double(), rtol=tolerance, atol=tolerance
        )
    return executable


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def _block(x, wq, wk, wv, wo, g1, b1, w1, c1, w2, g2, b2):
    """A transformer block with two heads."""
    batch, tokens, width = x.shape

    def heads(y):
        return y.view(batch, tokens, 2, width // 2).transpose(1, 2)

    h = F.layer_norm(x, (width,), g1, b1)
    q, k, v = heads(h @ wq), heads(h @ wk), heads(h @ wv)
    scores = q @ k.transpose(-1, -2) / (width // 2) ** 0.5
    mixed = torch.softmax(scores, -1) @ v
    x = x + mixed.transpose(1, 2).reshape(batch, tokens, width) @ wo
    h = F.layer_norm(x, (width,), g2, b2)
    return (x + F.gelu(h @ w1 + c1) @ w2,)


def test_a_transformer_block(cache: DiskCache) -> None:
    d = 32
    weights = [torch.randn(d, d) / 6 for _ in range(4)]
    norms = torch.rand(d), torch.randn(d)
    mlp = torch.randn(d, 2 * d) / 6, torch.randn(2 * d), torch.randn(2 * d, d) / 8
    given = torch.randn(2, 8, d), *weights, *norms, *mlp, *norms
    assert launches(_program(_block, *given)) >= 5
    executable = _check(cache, _block, *given)
    assert executable.metadata["torch kernels"] == 0


def test_embedding_layer_norm_and_pooling(cache: DiskCache) -> None:
    def embed(ids, table, w, b):
        h = F.layer_norm(F.embedding(ids, table), (16,), w, b)
        return h, h.mean(1), h.argmax(-1)

    ids = torch.tensor([[0, 4, 2], [1, 1, 3]])
    executable = _check(cache, embed, ids, torch.randn(5, 16), torch.rand(16), torch.randn(16))
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        executable(
            *(t.to(DEVICE) for t in (ids + 1, torch.randn(5, 16), torch.rand(16), torch.randn(16)))
        )


def test_reduced_precision_activations(cache: DiskCache) -> None:
    def swiglu(x, y):
        return (F.silu(x) * y, (x + y).softmax(-1))

    x, y = torch.randn(4, 24).bfloat16(), torch.randn(4, 24).bfloat16()
    _check(cache, swiglu, x, y, tolerance=3e-2)


def test_equal_programs_are_equal_text_in_one_file(cache: DiskCache) -> None:
    x = torch.randn(4, 8)
    function = lambda t: (t.softmax(-1),)
    first = build(_program(function, x), cache=cache)
    second = build(_program(function, x), cache=cache)
    assert first.source == second.source
    assert first.path == second.path
    assert first.path.read_text() == first.source
    assert first.python_source is first.source
    other = build(_program(lambda t: (t.exp(),), x), cache=cache)
    assert other.path != first.path


def test_a_damaged_module_is_written_again(cache: DiskCache) -> None:
    x = torch.randn(4, 8, device=DEVICE)
    options = TritonOptions(native_host=False)
    first = build(_program(lambda t: (t.exp(),), x), cache=cache, options=options)
    first.path.write_text("raise RuntimeError('damaged')")
    second = build(_program(lambda t: (t.exp(),), x), cache=cache, options=options)
    torch.testing.assert_close(second(x)[0], x.exp())


def test_time_and_kernels_are_counted(cache: DiskCache) -> None:
    profile = Profile()
    build(_program(lambda t: (t.exp(),), torch.randn(4)), cache=cache, profile=profile)
    assert {"triton render", "triton load"} <= profile.seconds().keys()
    assert profile.counters()["triton kernels"] == 1


COMPLEX = """\
program conjugate()
  inputs x
  arena 0
  buffer x: c64[4] on cpu = input 0
  buffer y: c64[4] on cpu = output
  kernel negate(p0: read c64[4], p1: write c64[4])
    for i0: 4
      outer store p1[i0] = complex(neg(real(p0[i0])), neg(imag(p0[i0])))
  steps
    allocate y
    launch negate(x, y)
    return y
"""


def test_a_kernel_without_triton_form_runs_as_torch_operations(
    cache: DiskCache, caplog: pytest.LogCaptureFixture
) -> None:
    program = parse_program(COMPLEX)
    logging.getLogger("plait").propagate = True
    with caplog.at_level(logging.WARNING, logger="plait"):
        executable = build(program, cache=cache)
    assert "negate runs as torch operations: Triton has no c64 numbers" in caplog.text
    assert executable.metadata["torch kernels"] == 1
    x = torch.randn(4, dtype=torch.complex64)
    assert torch.equal(executable(x)[0], -x)
    with pytest.raises(UnsupportedKernelError, match="c64"):
        build(program, cache=cache, options=TritonOptions(fallback=False))


MIXED = """\
program mixed()
  inputs x, s, c
  arena 0
  buffer x: f32[4] on cuda:0 = input 0
  buffer s: f32[] on cpu = input 1
  buffer c: f32[4] on cpu = input 2
  buffer y: f32[4] on cuda:0 = output
  buffer z: f32[4] on cpu = output
  kernel scale(p0: read f32[], p1: read f32[4], p2: write f32[4])
    for i0: 4
      outer store p2[i0] = mul(p0[()], p1[i0])
  kernel negate(p0: read f32[4], p1: write f32[4])
    for i0: 4
      outer store p1[i0] = neg(p0[i0])
  steps
    allocate y
    launch scale(s, x, y)
    allocate z
    launch negate(c, z)
    return y, z
"""


def test_kernels_of_programs_on_both_devices(cache: DiskCache) -> None:
    executable = build(parse_program(MIXED), cache=cache)
    assert "launch_scale_on_one_device(s, x, y)" in executable.source
    assert "    negate_on_cpu(c, z)" in executable.source
    assert executable.metadata["torch kernels"] == 1
    if torch.cuda.is_available():
        x, s, c = torch.randn(4, device="cuda"), torch.tensor(2.0), torch.randn(4)
        y, z = executable(x, s, c)
        assert torch.equal(y, x * s)
        assert torch.equal(z, -c)


BOTH = """\
program both()
  inputs x, c, i
  arena 0
  buffer x: f32[4] on cuda:0 = input 0
  buffer c: f32[4] on cpu = input 1
  buffer i: i64[4] on cpu = input 2
  buffer y: f32[4] on cuda:0 = output
  buffer z: f32[4] on cpu = output
  buffer w: f32[4] on cuda:0 = output
  kernel negate(p0: read f32[4], p1: write f32[4])
    for i0: 4
      outer store p1[i0] = neg(p0[i0])
  kernel chosen(p0: read f32[4], p1: read i64[4], p2: write f32[4])
    for i0: 4
      outer store p2[i0] = p0[checked(p1[i0], 4)]
  steps
    allocate y
    launch negate(x, y)
    allocate z
    launch negate(c, z)
    allocate w
    launch chosen(x, i, w)
    return y, z, w
"""


def test_a_kernel_runs_on_each_device_and_with_indices_from_the_cpu(cache: DiskCache) -> None:
    executable = build(parse_program(BOTH), cache=cache)
    assert "    launch_negate(x, y)" in executable.source
    assert "    negate_on_cpu(c, z)" in executable.source
    assert "launch_chosen_on_one_device(x, i, w)" in executable.source
    if torch.cuda.is_available():
        x, c, i = torch.randn(4, device="cuda"), torch.randn(4), torch.tensor([3, 0, 1, 1])
        y, z, w = executable(x, c, i)
        assert torch.equal(y, -x)
        assert torch.equal(z, -c)
        assert torch.equal(w, x[i])


def _in_process(code: str, tmp_path: Path, **environment: str) -> str:
    given = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**given, "PLAIT_CACHE_DIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RELU = """
import sys
import torch
from plait_scheduler import parse_program
from plait_triton_codegen import TritonDeviceError, build
program = parse_program('''program relu()
  inputs x
  arena 0
  buffer x: f32[100] on cpu = input 0
  buffer y: f32[100] on cpu = output
  kernel relu(p0: read f32[100], p1: write f32[100])
    for i0: 100
      outer store p1[i0] = maximum(p0[i0], f32(0.0))
  steps
    allocate y
    launch relu(x, y)
    return y
''')
"""


def test_torchs_own_compilers_are_not_imported(tmp_path: Path) -> None:
    code = f"""{RELU}
assert "triton" not in sys.modules, "importing the package must not import triton"
x = torch.randn(100)
assert torch.equal(build(program)(x)[0], x.relu())
print([m for m in sys.modules if m in ("torch._dynamo", "torch._inductor")])
"""
    assert _in_process(code, tmp_path, TRITON_INTERPRET="1").strip() == "[]"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU does")
def test_cpu_tensors_without_the_interpreter_are_refused(tmp_path: Path) -> None:
    code = f"""{RELU}
try:
    build(program)(torch.randn(100))
except TritonDeviceError as error:
    print(error)
"""
    assert "TRITON_INTERPRET=1" in _in_process(code, tmp_path)
    assert issubclass(TritonDeviceError, Exception)


def test_sources_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    code = f"{RELU}\nimport json\nprint(json.dumps(build(program).source))"
    texts = [
        json.loads(_in_process(code, tmp_path, PYTHONHASHSEED=seed, TRITON_INTERPRET="1"))
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert "def launch_relu(p0, p1):" in texts[0]
