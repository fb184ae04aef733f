"""Kernels with other sizes: what the members of a combined kernel run, alone.

One kernel over as many points as its size says does what kernels do whose points are so many in
their source (`opened`); with a number for the size it is one of these again (`at`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from plait_ir_lowering import (
    Atom,
    IndexExpr,
    Layout,
    Local,
    Sym,
    Value,
    Var,
    atoms,
    rewrite,
    substitute,
)
from plait_scheduler.program import (
    AnyKernel,
    ChainedKernel,
    CombinedKernel,
    Kernel,
    Launch,
    Let,
    Program,
    Statement,
    Step,
    Store,
)
from plait_scheduler.sizes import at_sizes, expressions_in, layout_at

POINTS = "points"
"""What the size of an opened kernel is called."""


def opened(kernel: Kernel) -> tuple[Kernel, IndexExpr] | None:
    """`kernel` without its name over any number of points, and how many it had; None for a kernel
    whose points do not lie along one variable.

    Sizes of parameters that are this number are the size too: where others happen to be, the two
    are still equal for this number of points.
    """
    if kernel.inner or len(kernel.outer) != 1:
        return None
    (var,) = kernel.outer
    name = POINTS
    while name in kernel.symbols:
        name += "_"
    size = Sym(name).expr

    def layout(old: Layout) -> Layout:
        sizes = tuple([size if each is var.extent else each for each in old.size])
        return Layout(sizes, old.stride, old.offset)

    own = Var(var.name, size)
    return _moved(kernel, {var: own.expr}, layout, (own,), (name, *kernel.symbols)), var.extent


def at(kernel: Kernel, sizes: Mapping[str, IndexExpr], symbols: tuple[str, ...]) -> Kernel:
    """`kernel` without its name where its sizes have these values, over `symbols`."""
    outer = tuple([Var(var.name, at_sizes(var.extent, sizes)) for var in kernel.outer])
    places: dict[Atom, IndexExpr] = {}
    for old, var in zip(kernel.outer, outer, strict=True):
        places[old] = var.expr
    exprs = [expr for each in kernel.statements for expr in _expressions(each)]
    for atom in {atom for expr in exprs for atom in atoms(expr)}:
        if isinstance(atom, Sym) and atom.name in sizes:
            places[atom] = sizes[atom.name]
    return _moved(kernel, places, lambda old: layout_at(old, sizes), outer, symbols)


def member_of(kernel: CombinedKernel, number: int) -> Kernel:
    """What one member of a combined kernel runs, without a name."""
    return at(kernel.body, kernel.sizes(number), kernel.symbols)


def members_of(kernel: AnyKernel) -> tuple[Kernel, ...]:
    """What each member or link runs; any other kernel is its only one."""
    if isinstance(kernel, Kernel):
        return (kernel,)
    if isinstance(kernel, ChainedKernel):
        return tuple([kernel.kernels[link] for link in kernel.links])
    return tuple([member_of(kernel, number) for number in range(len(kernel.members))])


def separated(program: Program) -> Program:
    """The program with a launch for each member of its combined kernels, for hosts of machines that
    run launches at the same time themselves."""
    combined = {k.name: k for k in program.kernels if isinstance(k, CombinedKernel)}
    if not combined:
        return program
    kernels: dict[str, Kernel] = {}
    names: dict[tuple[str, Kernel], str] = {}
    parts: dict[str, list[str]] = {}
    for kernel in program.kernels:
        if isinstance(kernel, Kernel):
            kernels[kernel.name] = kernel
            continue
        for number, member in enumerate(members_of(kernel)):
            name = names.setdefault((kernel.name, member), f"{kernel.name}_{number}")
            kernels[name] = replace(member, name=name)
            parts.setdefault(kernel.name, []).append(name)
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Launch) and step.kernel in combined:
            members = [kernels[name] for name in parts[step.kernel]]
            steps += _launches(step, members, combined[step.kernel].symbols)
        else:
            steps.append(step)
    return replace(program, kernels=tuple(kernels.values()), steps=tuple(steps))


def _launches(launch: Launch, members: Sequence[Kernel], symbols: tuple[str, ...]) -> list[Launch]:
    """A launch for each member of a combined kernel, which takes these sizes."""
    count = len(launch.buffers) // len(members)
    given = dict(zip(symbols, launch.symbols, strict=True))
    return [
        replace(
            launch,
            kernel=member.name,
            symbols=tuple([given[symbol] for symbol in member.symbols]),
            buffers=launch.buffers[first : first + count],
            offsets=launch.offsets[first : first + count],
            together=launch.together or number > 0,
        )
        for number, member in enumerate(members)
        for first in (number * count,)
    ]


def _moved(
    kernel: Kernel,
    places: Mapping[Atom, IndexExpr],
    layout: Callable[[Layout], Layout],
    outer: tuple[Var, ...],
    symbols: tuple[str, ...],
) -> Kernel:
    """`kernel` over other variables and sizes, of which it keeps those that it needs."""

    def index(expr: IndexExpr) -> IndexExpr:
        return substitute(expr, places)

    memo: dict[Value, Value] = {}
    statements: list[Statement] = []
    for statement in kernel.statements:
        value = rewrite(statement.value, lambda _: None, index, memo)
        if isinstance(statement, Store):
            coordinates = tuple(
                [each if isinstance(each, Local) else index(each) for each in statement.index]
            )
            statements.append(replace(statement, index=coordinates, value=value))
        else:
            assert isinstance(statement, Let), "there is no inner domain"
            statements.append(replace(statement, value=value))
    params = tuple([replace(param, layout=layout(param.layout)) for param in kernel.params])
    exprs = [expr for each in statements for expr in _expressions(each)]
    exprs += [var.extent for var in outer]
    for param in params:
        exprs += [*param.layout.size, *param.layout.stride, param.layout.offset]
    named = {atom.name for expr in exprs for atom in atoms(expr) if isinstance(atom, Sym)}
    needed = tuple([symbol for symbol in symbols if symbol in named])
    return replace(
        kernel,
        name="",
        params=params,
        symbols=needed,
        outer=outer,
        statements=tuple(statements),
    )


def _expressions(statement: Statement) -> list[IndexExpr]:
    """The index expressions of a statement."""
    own = statement.plain_index if isinstance(statement, Store) else ()
    return [*expressions_in(statement.value), *own]
