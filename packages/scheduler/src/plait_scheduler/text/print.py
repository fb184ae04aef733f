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

Values print as in `plait_ir_lowering.print_value`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from plait_ir_lowering import (
    IndexExpr,
    Layout,
    Load,
    Local,
    Sym,
    Var,
    atoms,
    print_argument,
    print_layout,
    print_origin,
    print_size,
    print_sums,
    print_value,
)
from plait_scheduler.program import (
    Accumulate,
    Allocate,
    AnyKernel,
    ArenaStorage,
    Attend,
    CallExtern,
    ChainedKernel,
    CombinedKernel,
    CopyBack,
    ExternStorage,
    Free,
    InputStorage,
    Kernel,
    Launch,
    Let,
    Mix,
    OnError,
    OutputStorage,
    Param,
    PartStorage,
    Program,
    ProgramBuffer,
    Reduce,
    Return,
    SharedStorage,
    Sort,
    Statement,
    Step,
    Storage,
    Store,
)
from plait_scheduler.sizes import expressions_in


def print_program(program: Program) -> str:
    """`program` as text, with everything that `parse_program` needs."""
    numbers = _numbers(buffer.layout for buffer in program.buffers)
    lines = [f"program {program.name}({_symbols(program.symbols, numbers)})"]
    lines.append(f"  inputs {', '.join(program.inputs)}".rstrip())
    lines.append(f"  arena {program.arena_nbytes}")
    lines += [f"  {_buffer(buffer)}" for buffer in program.buffers]
    for kernel in program.kernels:
        lines += [f"  {line}" for line in print_kernel(kernel).splitlines()]
    lines.append("  steps")
    lines += [f"    {print_step(step)}" for step in program.steps]
    return "\n".join(lines) + "\n"


def print_kernel(kernel: AnyKernel) -> str:
    """`kernel` as text of several lines."""
    if isinstance(kernel, CombinedKernel):
        return _combined(kernel)
    if isinstance(kernel, ChainedKernel):
        return _chained(kernel)
    params = ", ".join(_param(param) for param in kernel.params)
    exprs = [
        *_numbers([param.layout for param in kernel.params]),
        *(var.extent for var in _loops(kernel)),
        *(expr for each in kernel.statements for expr in expressions_in(each.value)),
    ]
    symbols = f" sizes({_symbols(kernel.symbols, exprs)})" if kernel.symbols else ""
    lines = [f"kernel {kernel.name}({params}){symbols}"]
    inner = f" inner {_domain(kernel.inner)}" if kernel.inner else ""
    lines.append(
        f"  for {_domain(kernel.outer)}{inner}".replace("for  inner", "for inner").rstrip()
    )
    for statement in kernel.statements:
        lines += [f"    {line}" for line in print_statement(statement)]
    return "\n".join(lines)


def _combined(kernel: CombinedKernel) -> str:
    """The sizes of each member, then what all run."""
    every = [expr for sizes in kernel.members for expr in sizes]
    members = ", ".join(f"({', '.join(map(str, sizes))})" for sizes in kernel.members)
    symbols = f" sizes({_symbols(kernel.symbols, every)})" if kernel.symbols else ""
    body = [f"  {line}" for line in print_kernel(kernel.body).splitlines()]
    return "\n".join([f"combined {kernel.name} of {members}{symbols}", *body])


def _chained(kernel: ChainedKernel) -> str:
    """The order of what runs, then each once."""
    links = ", ".join(map(str, kernel.links))
    lines = (line for each in kernel.kernels for line in print_kernel(each).splitlines())
    return "\n".join([f"chain {kernel.name} of {links}", *(f"  {line}" for line in lines)])


def _loops(kernel: Kernel) -> tuple[Var, ...]:
    return kernel.outer + kernel.inner


def _numbers(layouts: Iterable[Layout]) -> Iterator[IndexExpr]:
    for layout in layouts:
        yield from (*layout.size, *layout.stride, layout.offset)


def _symbols(names: Sequence[str], exprs: Iterable[IndexExpr]) -> str:
    """Sizes with their bounds."""
    every = [atom for expr in exprs for atom in atoms(expr) if isinstance(atom, Sym)]
    found = {atom.name: atom for atom in every}
    return ", ".join(print_size(found.get(name, Sym(name))) for name in names)


def print_statement(statement: Statement) -> Iterator[str]:
    """The lines of one statement: shared parts, then the statement itself."""
    if isinstance(statement, Accumulate):
        names = ", ".join(f"{local.name}: {local.dtype}" for local in statement.locals)
        yield f"scan {names}"
    if isinstance(statement, Attend):
        refs = ", ".join(print_argument(ref) for ref in statement.refs)
        empty = "zeros" if statement.zeros else "nan"
        made = ", ".join(statement.made)
        yield f"attend {made} of {refs} else {empty}{_within(statement.spans)}"
    if isinstance(statement, Mix):
        refs = ", ".join(print_argument(ref) for ref in statement.values)
        pairs = [tuple(map(print_argument, pair)) for pair in statement.factors]
        factors = ", ".join(f"{left} @ {right}" for left, right in pairs)
        of = f" of {refs}" if refs else ""
        added, within = print_sums(statement.sums), _within(statement.spans)
        yield f"mix {', '.join(statement.made)} by {factors}{of}{added}{within}"
    shared, value = print_value(statement.value)
    yield from (f"  {line}" for line in shared)
    match statement:
        case Let(name, domain, _):
            yield f"{domain.value} {name} = {value}"
        case Reduce(name, kind, _):
            yield f"reduce {name} = {kind.value} {value}"
        case Accumulate(_, _, combine):
            lines, joined = print_value(combine, len(shared))
            yield from (f"  {line}" for line in lines)
            yield f"  join {joined} along {value}"
        case Sort(words, _, first):
            yield f"sort {', '.join(words)} = {_first(first)}{value}"
        case Attend():
            yield f"  score = {value}"
        case Mix():
            yield f"  weights = {value}"
        case Store(param, index, domain, _, kind, first):
            word = f"{_first(first)}store" if kind is None else f"scatter {kind.value}"
            at = ", ".join(f"%{at.name}" if isinstance(at, Local) else str(at) for at in index)
            yield f"{domain.value} {word} {param}[{at or '()'}] = {value}"


def _first(count: int | None) -> str:
    """How many first points of a row are concerned, unless all are."""
    return "" if count is None else f"first {count} "


def _within(spans: Sequence[Load]) -> str:
    """Which places rows are told of, if any."""
    shown = ", ".join(print_value(load)[1] for load in spans)
    return f" within {shown}" if shown else ""


def _domain(domain: Sequence[Var]) -> str:
    return ", ".join(f"{var.name}: {var.extent}" for var in domain)


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
        case PartStorage(buffer, offset):
            return f"part of {buffer} at {offset}"
        case ExternStorage():
            return "extern"


def print_step(step: Step) -> str:
    """One step on one line."""
    match step:
        case Allocate(buffer):
            return f"allocate {buffer}"
        case Launch(kernel, _, symbols, origin, together, _, chained):
            sizes = f" sizes({', '.join(map(str, symbols))})" if symbols else ""
            word = "together" if together else "chained" if chained else "launch"
            given = ", ".join(f"{name} + {at}" if at else name for name, at in step.places)
            return f"{word} {kernel}({given}){sizes}{print_origin(origin)}"
        case OnError(launch):
            return f"on-error {print_step(launch).removeprefix('launch ')}"
        case CallExtern(op, overload, args, results, out_variant, origin):
            targets = ", ".join("_" if name is None else name for name in results)
            into = "out" if out_variant else "new"
            name = f"{op}.{overload}" if overload else op
            given = ", ".join(print_argument(arg) for arg in args)
            return f"call {into}({targets}) = {name}({given}){print_origin(origin)}"
        case CopyBack(target, source):
            return f"copyback {target} = {print_argument(source)}"
        case Free(buffer):
            return f"free {buffer}"
        case Return(outputs):
            return f"return {', '.join(print_argument(out) for out in outputs)}".rstrip()
