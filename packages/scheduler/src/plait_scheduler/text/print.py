"""Printing programs. The reader of each form is in `parse.py`.

    program main()
      arena 2048
      buffer x: f32[8, 64] cpu = input 0
      buffer buf0: f32[8, 64] cpu = arena 0
      kernel exp_1a2b3c4d(p0: read f32[8, 64], p1: write f32[8, 64])
        for i0: 512
          outer store p1[i0 // 64, i0 % 64] = exp(p0[i0 // 64, i0 % 64])
      steps
        allocate buf0
        launch exp_1a2b3c4d(x, buf0)
        free buf0
        return buf0

Values print as nested calls; a part that one value uses more than once, or that is nested
very deeply, stands on a line of its own before it, as `$0`, `$1` and so on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from plait_ir_lowering import (
    CheckedIndex,
    Const,
    Device,
    DType,
    ExternArg,
    ExternList,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Local,
    Masked,
    Op,
    Origin,
    OutputRef,
    Sym,
    TensorRef,
    Value,
    Var,
    atoms,
    post_order,
)
from plait_scheduler.program import (
    Allocate,
    ArenaStorage,
    CallExtern,
    CopyBack,
    ExternStorage,
    Free,
    InputStorage,
    Kernel,
    Launch,
    Let,
    OutputStorage,
    Param,
    Program,
    ProgramBuffer,
    Reduce,
    Return,
    SharedStorage,
    Statement,
    Step,
    Storage,
    Store,
)

_CASTS = ("to", "bitcast")
_DEEPEST = 40
"""Calls nested deeper than this are printed on several lines."""


def print_program(program: Program) -> str:
    """`program` as text, with everything that `parse_program` needs."""
    layouts = [buffer.layout for buffer in program.buffers]
    lines = [f"program {program.name}({_symbols(program.symbols, layouts)})"]
    lines.append(f"  inputs {', '.join(program.inputs)}".rstrip())
    lines.append(f"  arena {program.arena_nbytes}")
    lines += [f"  {_buffer(buffer)}" for buffer in program.buffers]
    for kernel in program.kernels:
        lines += [f"  {line}" for line in print_kernel(kernel).splitlines()]
    lines.append("  steps")
    lines += [f"    {print_step(step)}" for step in program.steps]
    return "\n".join(lines) + "\n"


def print_kernel(kernel: Kernel) -> str:
    """`kernel` as text of several lines."""
    params = ", ".join(_param(param) for param in kernel.params)
    layouts = [*(p.layout for p in kernel.params), Layout.of([v.extent for v in _loops(kernel)])]
    symbols = f" sizes({_symbols(kernel.symbols, layouts)})" if kernel.symbols else ""
    lines = [f"kernel {kernel.name}({params}){symbols}"]
    inner = f" inner {_domain(kernel.inner)}" if kernel.inner else ""
    lines.append(
        f"  for {_domain(kernel.outer)}{inner}".replace("for  inner", "for inner").rstrip()
    )
    for statement in kernel.statements:
        lines += [f"    {line}" for line in print_statement(statement)]
    return "\n".join(lines)


def _loops(kernel: Kernel) -> tuple[Var, ...]:
    return kernel.outer + kernel.inner


def _symbols(names: Sequence[str], layouts: Sequence[Layout]) -> str:
    """Sizes with what they are at least, where that is known to be more than 0."""
    lower: dict[str, int] = {}
    for layout in layouts:
        for expr in (*layout.size, *layout.stride, layout.offset):
            for atom in atoms(expr):
                if isinstance(atom, Sym):
                    lower[atom.name] = atom.lower
    known = [(name, lower.get(name, 0)) for name in names]
    return ", ".join(f"{name} >= {low}" if low else name for name, low in known)


def print_statement(statement: Statement) -> Iterator[str]:
    """The lines of one statement: shared parts, then the statement itself."""
    shared, value = print_value(statement.value)
    yield from (f"  {line}" for line in shared)
    match statement:
        case Let(name, domain, _):
            yield f"{domain.value} {name} = {value}"
        case Reduce(name, kind, _):
            yield f"reduce {name} = {kind.value} {value}"
        case Store(param, index, domain, _):
            yield f"{domain.value} store {param}[{', '.join(map(str, index)) or '()'}] = {value}"


def print_value(root: Value) -> tuple[list[str], str]:
    """Lines that define `$0`, `$1`, ..., and the text of `root` in terms of these."""
    uses: dict[Value, int] = {}
    order = list(post_order([root]))
    for value in order:
        for operand in value.operands:
            uses[operand] = uses.get(operand, 0) + 1
    lines: list[str] = []
    texts: dict[Value, str] = {}
    depth: dict[Value, int] = {}
    for value in order:
        text = _value(value, texts)
        depth[value] = 1 + max((depth[operand] for operand in value.operands), default=0)
        shared = uses.get(value, 0) > 1 or depth[value] > _DEEPEST
        if shared and isinstance(value, Op | Masked | CheckedIndex | Load):
            name = f"${len(lines)}"
            lines.append(f"{name} = {text}")
            text, depth[value] = name, 0
        texts[value] = text
    return lines, texts[root]


def _value(value: Value, texts: dict[Value, str]) -> str:
    match value:
        case Load(buffer, index, _):
            places = [texts[at] if isinstance(at, Value) else str(at) for at in index]
            return f"{buffer}[{', '.join(places) or '()'}]"
        case Const(number, dtype):
            return f"{dtype}({_number(number)})"
        case IndexValue(expr):
            return f"index({expr})"
        case Op(name, args, dtype):
            cast = [str(dtype)] if name in _CASTS else []
            return f"{name}({', '.join([*(texts[arg] for arg in args), *cast])})"
        case Masked(mask, inner, other):
            return f"masked({texts[mask]}, {texts[inner]}, {texts[other]})"
        case CheckedIndex(inner, size):
            return f"checked({texts[inner]}, {size})"
        case Local(name, dtype):
            return f"%{name}"
    raise TypeError(f"unknown value {value!r}")


def _number(number: bool | int | float) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return f'"{number}"'
    return repr(number)


def _domain(domain: Sequence[Var]) -> str:
    return ", ".join(f"{var.name}: {var.extent}" for var in domain)


def print_layout(dtype: DType, layout: Layout) -> str:
    """Element type and layout; strides and offset only where they are not the usual."""
    text = f"{dtype}[{', '.join(map(str, layout.size))}]"
    if layout != Layout.of(layout.size):
        text += f" stride [{', '.join(map(str, layout.stride))}] offset {layout.offset}"
    return text


def _param(param: Param) -> str:
    return f"{param.name}: {param.access.value} {print_layout(param.dtype, param.layout)}"


def _buffer(buffer: ProgramBuffer) -> str:
    layout = print_layout(buffer.dtype, buffer.layout)
    return f"buffer {buffer.name}: {layout} on {buffer.device} = {_storage(buffer.storage)}"


def _storage(storage: Storage) -> str:
    match storage:
        case InputStorage(position):
            return f"input {position}"
        case OutputStorage():
            return "output"
        case ArenaStorage(offset):
            return f"arena {offset}"
        case SharedStorage(buffer):
            return f"shared {buffer}"
        case ExternStorage():
            return "extern"


def print_step(step: Step) -> str:
    """One step on one line."""
    match step:
        case Allocate(buffer):
            return f"allocate {buffer}"
        case Launch(kernel, buffers, symbols, origin):
            sizes = f" sizes({', '.join(map(str, symbols))})" if symbols else ""
            return f"launch {kernel}({', '.join(buffers)}){sizes}{_origin(origin)}"
        case CallExtern(op, overload, args, results, out_variant, origin):
            targets = ", ".join("_" if name is None else name for name in results)
            into = "out" if out_variant else "new"
            name = f"{op}.{overload}" if overload else op
            given = ", ".join(print_argument(arg) for arg in args)
            return f"call {into}({targets}) = {name}({given}){_origin(origin)}"
        case CopyBack(target, source):
            return f"copyback {target} = {print_argument(source)}"
        case Free(buffer):
            return f"free {buffer}"
        case Return(outputs):
            return f"return {', '.join(print_argument(out) for out in outputs)}".rstrip()


def _origin(origin: Origin) -> str:
    if not origin.nodes and not origin.lines:
        return ""
    return f" # from {json.dumps([list(origin.nodes), list(origin.lines)])}"


def print_argument(arg: ExternArg | OutputRef) -> str:
    """An argument of an external call, or an output."""
    match arg:
        case TensorRef(buffer, view, dtype):
            return buffer if view is None and dtype is None else _view(buffer, view, dtype)
        case IndexExpr():
            return f"index({arg})"
        case DType():
            return f"dtype.{arg}"
        case Device(kind, index):
            return f"device({json.dumps(kind)}, {index})"
        case ExternList(items):
            return f"[{', '.join(print_argument(item) for item in items)}]"
        case float() if not math.isfinite(arg):
            return f'float("{arg}")'
        case str():
            return json.dumps(arg)
    return repr(arg)


def _view(buffer: str, view: Layout | None, dtype: DType | None) -> str:
    parts: list[str] = []
    if view is not None:
        size, stride = (", ".join(map(str, part)) for part in (view.size, view.stride))
        parts += [f"[{size}]", f"[{stride}]", str(view.offset)]
    if dtype is not None:
        parts.append(f"dtype.{dtype}")
    return f"{buffer}.view({', '.join(parts)})"
