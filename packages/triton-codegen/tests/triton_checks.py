"""How the tests run a kernel: render, load, launch; on a GPU if there is one."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from plait_ir_lowering import DType, Layout, Value, Var, to_torch_dtype
from plait_scheduler import (
    Access,
    Domain,
    Kernel,
    Param,
    Store,
    load_python,
    torch_kernel,
    verify_kernel,
)
from plait_triton_codegen import Tile, TritonKernelSource, TritonOptions, render_kernel

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
