"""How the tests run a kernel: render, load, launch; on a GPU if there is one."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import (
    DType,
    Layout,
    LoweringOptions,
    Value,
    Var,
    lower,
    to_torch_dtype,
)
from plait_scheduler import (
    Access,
    Domain,
    Kernel,
    Launch,
    Param,
    Program,
    Store,
    load_python,
    parse_program,
    print_program,
    schedule,
    torch_kernel,
    verify_kernel,
)
from plait_triton_codegen import (
    Tile,
    TritonKernelSource,
    TritonOptions,
    build,
    render_kernel,
)
from plait_utils import DiskCache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_FOLDER = tempfile.TemporaryDirectory(prefix="plait-triton-tests-")


def load(source: TritonKernelSource):
    """The launcher of a rendered kernel."""
    path = Path(_FOLDER.name) / f"k{abs(hash(source.module))}.py"
    path.write_text(source.module)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, f"launch_{source.name}")


def outputs_for(kernel: Kernel, inputs: Sequence[torch.Tensor], sizes: Sequence[int] = ()):
    """The kernel's arguments in order: the given inputs, new tensors for what it writes."""
    given = iter(inputs)
    arguments = []
    for param in kernel.params:
        if param.access is Access.WRITE:
            values = dict(zip(kernel.symbols, sizes))
            size = [eval(str(s), {}, values) for s in param.layout.size]
            stride = [eval(str(s), {}, values) for s in param.layout.stride]
            dtype = to_torch_dtype(param.dtype)
            out = torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)
            arguments.append(out.fill_(1))
        else:
            arguments.append(next(given).to(DEVICE))
    return arguments


def run(
    kernel: Kernel,
    *inputs: torch.Tensor,
    options: TritonOptions | None = None,
    sizes: Sequence[int] = (),
    tile: Tile | None = None,
) -> list[torch.Tensor]:
    """What the kernel writes, on the CPU."""
    verify_kernel(kernel)
    arguments = outputs_for(kernel, inputs, sizes)
    launch = load(render_kernel(kernel, options, tile=tile))
    launch(*arguments, *sizes)
    pairs = zip(kernel.params, arguments)
    return [t.cpu() for p, t in pairs if p.access is not Access.READ]


def reference(kernel: Kernel, *inputs: torch.Tensor, sizes: Sequence[int] = ()):
    """The same by the scheduler's rendering as torch operations."""
    arguments = [t.clone() for t in outputs_for(kernel, inputs, sizes)]
    rendered = torch_kernel(kernel)
    head = "import torch\nfrom plait_scheduler.host import *\n"
    call = f"def run(given):\n    return {rendered.call}(*given)\n"
    with torch.device(DEVICE):
        load_python(head + rendered.source + call)([*arguments, *sizes])
    pairs = zip(kernel.params, arguments)
    return [t.cpu() for p, t in pairs if p.access is not Access.READ]


def pointwise(value: Value, dtypes: Sequence[DType], numel: int) -> Kernel:
    """One store of `value`, over loads p0[i0], p1[i0], ... of these types."""
    i0 = Var("i0", numel)
    params = [Param(f"p{n}", d, Layout.of([numel]), Access.READ) for n, d in enumerate(dtypes)]
    out = Param(f"p{len(dtypes)}", value.dtype, Layout.of([numel]), Access.WRITE)
    store = Store(out.name, (i0.expr,), Domain.OUTER, value)
    return Kernel("pointwise", (*params, out), (), (i0,), (), (store,))


def gpu_program(
    function, *inputs: torch.Tensor, lowering: LoweringOptions | None = None
) -> Program:
    """The program of a function of tensors on a GPU, which the interpreter can run without one."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") for x in inputs
        ]
        traced = make_fx(lambda *given: _in_tuple(function(*given)))(*fakes)
    text = print_program(schedule(lower(traced, options=lowering)))
    return parse_program(text if DEVICE == "cuda" else text.replace("on cuda:0", "on cpu"))


def launches(program: Program) -> int:
    """How many kernels it launches, those of chains one by one."""
    return sum(isinstance(step, Launch) for step in program.steps)


def unchained(program: Program) -> Program:
    """The same with each launch by itself."""
    steps = (replace(s, chained=False) if isinstance(s, Launch) else s for s in program.steps)
    return replace(program, steps=tuple(steps))


def agrees_with_eager(
    cache: DiskCache,
    function,
    *inputs: torch.Tensor,
    tolerance: float = 1e-5,
    lowering: LoweringOptions | None = None,
):
    """Run a function's program for a GPU, all of whose kernels are Triton's; compare with float64.

    Returns what was built.
    """
    executable = build(gpu_program(function, *inputs, lowering=lowering), cache=cache)
    assert executable.metadata["torch kernels"] == 0
    got = executable(*(x.to(DEVICE) for x in inputs))
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    known, expected = _in_tuple(function(*inputs)), _in_tuple(function(*wide))
    for actual, like, exact in zip(got, known, expected, strict=True):
        assert (actual.dtype, actual.shape) == (like.dtype, like.shape)
        torch.testing.assert_close(
            actual.cpu().double(), exact.double(), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    return executable


def _in_tuple(result) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
