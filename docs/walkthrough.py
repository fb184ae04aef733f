"""Writes docs/bytecode-to-kernel.md from what each stage really prints.

python docs/walkthrough.py          # write the page
python docs/walkthrough.py --check  # fail if the page is not what it would be
"""

from __future__ import annotations

import dis
import importlib.util
import io
import sys
from pathlib import Path

import torch

import plait_bytecode_tracer as tracer
import plait_cpp_codegen as cpp
import plait_fx_passes as fx_passes
import plait_ir_lowering as ir_lowering
import plait_scheduler as scheduler

HERE = Path(__file__).parent
PAGE = HERE / "bytecode-to-kernel.md"
EXAMPLE = HERE / "examples" / "normalize.py"
AVX2_BYTES = 32


def stages() -> dict[str, str]:
    """What each stage prints for the example, by name."""
    spec = importlib.util.spec_from_file_location("normalize", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    bytecode = io.StringIO()
    dis.dis(module.normalize, file=bytecode)
    capture = tracer.trace(module.normalize, (torch.zeros(64, 256),))
    aten = fx_passes.run_passes(fx_passes.to_aten(capture.graph_module, capture.example_inputs))
    graph = ir_lowering.lower(aten.graph, name="normalize")
    program = scheduler.schedule(graph)
    source = cpp.render(program, AVX2_BYTES)
    kernel = source[
        source.index("// for i0") : source.index("static void* plait_functions")
    ].rstrip()
    return {
        "source": EXAMPLE.read_text(),
        "bytecode": bytecode.getvalue(),
        "captured": capture.graph_module.code.strip(),
        "guards": "\n".join(str(guard) for guard in capture.guards),
        "aten": fx_passes.print_aten(aten),
        "loops": ir_lowering.print_graph(graph),
        "program": scheduler.print_program(program),
        "kernel": kernel,
        "python": scheduler.render_python(program),
    }


def page() -> str:
    """The page's text."""
    printed = {name: text.replace(str(HERE) + "/", "") for name, text in stages().items()}

    def block(name: str, language: str = "text") -> str:
        return f"```{language}\n{printed[name].strip()}\n```"

    return f"""\
# From bytecode to kernel

One function through every stage, with what each really prints. This page is written by
`docs/walkthrough.py`, and a test fails when it is no longer true.

{block("source", "python")}

## Bytecode

What the tracer reads, here of Python 3.11:

{block("bytecode")}

## Captured graph

Symbolic execution turns tensor operations into nodes of a torch-level FX graph:

{block("captured", "python")}

and everything that was assumed into guards. Each names the line that needed it:

{block("guards")}

## ATen graph

Functional, flat, with fake values and the user's lines:

{block("aten")}

## Loop IR

Each op is a definition with loops of its own; views are coordinates:

{block("loops")}

## Program

The scheduler fuses all of them into one kernel that reads each row once, keeps the mean in a
register, and writes the result:

{block("program")}

## C++

For AVX2, eight lanes. The reduction runs with four accumulators; the second loop reads the row,
which is in the cache by then:

{block("kernel", "cpp")}

## Python

The same program where no compiler works:

{block("python", "python")}
"""


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
