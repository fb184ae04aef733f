"""One kernel as a readable Triton function, and the Python that launches it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from plait_ir_lowering import DType, ReductionKind, Var
from plait_scheduler import (
    Accumulate,
    AnyKernel,
    Attend,
    ChainedKernel,
    CombinedKernel,
    Domain,
    Kernel,
    Let,
    Mix,
    Reduce,
    RenderedKernel,
    Sort,
    Statement,
    Store,
    torch_kernel,
)
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.kernels.attention import AttentionWriter, attention_of
from plait_triton_codegen.kernels.chained import chained_source, of_one_program, wide_tile
from plait_triton_codegen.kernels.chips import Chip
from plait_triton_codegen.kernels.combined import combined_source, shared_tile
from plait_triton_codegen.kernels.descriptors import aligned_names, reads_ahead
from plait_triton_codegen.kernels.exactness import is_exact, is_wide
from plait_triton_codegen.kernels.lanes import by_lanes
from plait_triton_codegen.kernels.launchers import (
    describe_loops,
    function_head,
    launcher_of,
    signature_of,
    steps_of,
)
from plait_triton_codegen.kernels.literals import cast
from plait_triton_codegen.kernels.loops import Loop, loops
from plait_triton_codegen.kernels.mixtures import MixtureWriter
from plait_triton_codegen.kernels.operations import TRITON_DTYPES, kind_of
from plait_triton_codegen.kernels.product_blocks import product_tile, widened
from plait_triton_codegen.kernels.product_writer import ProductWriter
from plait_triton_codegen.kernels.products import Product, product_of
from plait_triton_codegen.kernels.reductions import ReductionRule, reduction_rule
from plait_triton_codegen.kernels.roles import RolesWriter
from plait_triton_codegen.kernels.scans import (
    first_states,
    joined_states,
    joining_function,
    names_of_states,
    scanned_rows,
)
from plait_triton_codegen.kernels.scatters import (
    in_any_order,
    is_scatter,
)
from plait_triton_codegen.kernels.sorts import sorted_line
from plait_triton_codegen.kernels.source import (
    BlocksText,
    HostKernel,
    TritonKernelSource,
)
from plait_triton_codegen.kernels.space import FlatKernel, flatten, fresh, taken_names
from plait_triton_codegen.kernels.stores import combine, store
from plait_triton_codegen.kernels.tiles import ONLINE_STAGES, Tile, choose_tile
from plait_triton_codegen.kernels.values import Term, ValueWriter
from plait_triton_codegen.options import TritonOptions
from plait_triton_codegen.versions import OVERLAP_CAPABILITY
from plait_utils import get_logger

_BOTH = frozenset(("x", "r"))


def render_kernel(
    kernel: AnyKernel,
    options: TritonOptions | None = None,
    *,
    tile: Tile | None = None,
    chip: Chip | None = None,
    aligned: Collection[int] | None = None,
) -> TritonKernelSource:
    """`kernel` as Triton source, in blocks of `tile` or as `choose_tile` finds best.

    `chip` is what it runs on, for kernels that choose by it; `aligned` are positions of the
    parameters that begin at multiples of 16 bytes, None for all.

    Raises UnsupportedKernelError for what Triton cannot express: complex numbers, what has no
    atomic operation, and rows that do not fit in registers and are overwritten before their last
    use.
    """
    chosen, chip = options or TritonOptions(), chip or Chip()
    if isinstance(kernel, CombinedKernel):
        return _combined(kernel, chosen, tile, chip)
    if isinstance(kernel, ChainedKernel):
        return _chained(kernel, chosen, chip)
    attend = attention_of(kernel)
    if attend is not None:
        return _attention(kernel, attend, chosen, tile, chip)
    found = product_of(kernel)
    if found is not None:
        tile = tile or _rule_of(kernel, found, chosen, chip, aligned)
        return _product(kernel, found, chosen, tile, chip)
    if is_scatter(kernel):
        kernel = in_any_order(kernel)
    return _Renderer(kernel, chosen, tile, chip).source()


def _combined(
    kernel: CombinedKernel, options: TritonOptions, tile: Tile | None, chip: Chip
) -> TritonKernelSource:
    body = replace(kernel.body, name=f"{kernel.name}_member")
    chosen = tile or shared_tile(kernel, options, chip)
    member = _Renderer(body, options, chosen, chip, fresh("program", taken_names(body)))
    overlaps = _overlaps(options, chip)
    return combined_source(kernel, member.source(), overlaps)


def _chained(kernel: ChainedKernel, options: TritonOptions, chip: Chip) -> TritonKernelSource:
    apart = replace(options, overlap=False)
    tiles = of_one_program([_tile_of_link(each, apart, chip) for each in kernel.kernels])
    links = [
        _link(replace(each, name=f"{kernel.name}_{number}"), apart, tile, chip)
        for number, (each, tile) in enumerate(zip(kernel.kernels, tiles, strict=True))
    ]
    return chained_source(kernel, links, _overlaps(options, chip))


def _tile_of_link(kernel: Kernel, options: TritonOptions, chip: Chip) -> Tile:
    found = product_of(kernel)
    if found is not None:
        return widened(found, _rule_of(kernel, found, options, chip, ()), chip)
    flat = flatten(kernel)
    return wide_tile(flat, choose_tile(flat, options, chip))


def _link(kernel: Kernel, options: TritonOptions, tile: Tile, chip: Chip) -> TritonKernelSource:
    """The function of a link, which computes the block that its first argument says."""
    program, found = fresh("program", taken_names(kernel)), product_of(kernel)
    if found is None:
        return _Renderer(kernel, options, tile, chip, program).source()
    for param in kernel.params:
        kind_of(param.dtype)
    exact = is_wide(kernel, options)
    text = ProductWriter(kernel, found, options, exact, tile, program).text()
    return _of_blocks(kernel, text, program=program)


def _attention(
    kernel: Kernel, attend: Attend | Mix, options: TritonOptions, tile: Tile | None, chip: Chip
) -> TritonKernelSource:
    (kind,) = {p.dtype for p in kernel.params if p.name == attend.refs[-1].buffer}
    exact = not (options.fast_math and kind.is_reduced_precision)
    writer = AttentionWriter if isinstance(attend, Attend) else MixtureWriter
    text = writer(kernel, options, exact, tile, chip.shared_bytes).text()
    return _of_blocks(kernel, text, _overlaps(options, chip))


def _product(
    kernel: Kernel, found: Product, options: TritonOptions, tile: Tile, chip: Chip
) -> TritonKernelSource:
    """Raises UnsupportedKernelError for a type that Triton does not have, and for roles of warps in
    what these do not take."""
    for param in kernel.params:
        kind_of(param.dtype)
    exact = is_wide(kernel, options)
    if tile.roles:
        return _of_blocks(kernel, RolesWriter(kernel, found, options, exact, tile).text())
    text = ProductWriter(kernel, found, options, exact, tile).text()
    return _of_blocks(kernel, text, _overlaps(options, chip))


def _rule_of(
    kernel: Kernel,
    found: Product,
    options: TritonOptions,
    chip: Chip,
    aligned: Collection[int] | None,
) -> Tile:
    """The tile of a product by rule."""
    names = aligned_names(kernel.params, aligned)
    ahead = reads_ahead(found, kernel.params, names, chip.capability)
    return product_tile(found, tf32=options.tf32, chip=chip, shared_out=ahead)


def _overlaps(options: TritonOptions, chip: Chip) -> bool:
    return options.overlap and chip.capability == OVERLAP_CAPABILITY


def _of_blocks(
    kernel: Kernel, text: BlocksText, overlaps: bool = False, program: str = ""
) -> TritonKernelSource:
    """The source of a kernel that writes its own loops; with `program`, of a function that is given
    its block by that name."""
    signature = signature_of(kernel, text.checks)
    language = "gluon" if text.tile.roles else "triton"
    constants = text.tile.constants
    described = describe_loops(kernel)
    given = [(program, "i32"), *signature] if program else signature
    lines = function_head(kernel, given, [*constants], described, language, overlaps)
    lines = [*([f"{text.function}\n"] if text.function else []), *lines, *text.lines]
    launcher = launcher_of(kernel, text.blocks, text.tile, constants, text.checks, text.described)
    body = "\n".join(lines) + "\n"
    return TritonKernelSource(
        kernel.name,
        body,
        launcher,
        signature,
        text.tile,
        text.blocks,
        text.checks,
        text.described,
        steps_of(kernel),
        overlaps,
    )


def host_kernel(
    kernel: AnyKernel,
    options: TritonOptions,
    *,
    tile: Tile | None = None,
    chip: Chip | None = None,
    aligned: Collection[int] | None = None,
) -> HostKernel:
    """`kernel` for the host program, on such a device; in blocks of `tile`, or by rule; `aligned`
    as in `render_kernel`.

    A kernel that Triton cannot express runs as torch operations, with a warning, unless
    `options.fallback` is off.
    """
    try:
        source = render_kernel(kernel, options, tile=tile, chip=chip, aligned=aligned)
    except UnsupportedKernelError as error:
        if not options.fallback:
            raise
        get_logger("triton").warning("%s runs as torch operations: %s", kernel.name, error.message)
        return HostKernel(torch_kernel(kernel), None, error.message)
    text = f"{source.text}\n\n{source.launcher}"
    return HostKernel(RenderedKernel(text, f"launch_{source.name}", source.imports), source)


def triton_kernel(kernel: AnyKernel, options: TritonOptions | None = None) -> RenderedKernel:
    """`kernel` as a renderer for `plait_scheduler.render_python`; see `host_kernel`."""
    return host_kernel(kernel, options or TritonOptions()).rendered


@dataclass(slots=True)
class _Renderer:
    kernel: Kernel
    options: TritonOptions
    given: Tile | None
    chip: Chip
    program: str = ""
    """The argument that tells which block to compute, of a function that a kernel calls."""
    flat: FlatKernel = field(init=False)
    tile: Tile = field(init=False)
    writer: ValueWriter = field(init=False)
    block: str = field(init=False)
    body: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flat = flatten(self.kernel)
        if not self.program:
            self.flat = by_lanes(self.flat)
        self.tile = self.given or choose_tile(self.flat, self.options, self.chip)
        taken = taken_names(self.kernel) | {self.flat.x.name, "XBLOCK", "RBLOCK", "errors"}
        self.block = fresh("block", taken)
        masks: dict[str, str] = {}
        lanes = self.flat.lanes
        if lanes is not None:
            taken.add(lanes.var.name)
        is_ragged = lanes is not None and lanes.is_ragged(self.flat.x)
        if is_ragged or self.flat.xnumel is None or self.flat.xnumel % self.tile.xblock:
            masks["x"] = fresh("xmask", taken)
        if self.flat.r is not None:
            taken |= {self.flat.r.name, "start"}
            if not self.flat.rnumel or self.flat.rnumel % self.tile.rblock:
                masks["r"] = fresh("rmask", taken)
        self.writer = ValueWriter(
            self.flat,
            is_exact(self.kernel, self.options),
            self.options.check_indices,
            masks,
            taken,
        )

    def source(self) -> TritonKernelSource:
        """The kernel's text and launcher."""
        for param in self.kernel.params:
            kind_of(param.dtype)
        if self.flat.r is None or self.tile.persistent:
            for statement in self.flat.kernel.statements:
                self._statement(statement)
                self._flush(self._depth)
        else:
            self._looped()
        checks = len(self.writer.checked)
        signature = signature_of(self.kernel, checks)
        blocks = tuple((var.extent, block) for var, block in self._blocks())
        launcher = launcher_of(self.kernel, blocks, self.tile, self._constants, checks)
        texts = self._text(signature), launcher
        made = TritonKernelSource(self.kernel.name, *texts, signature, self.tile, blocks, checks)
        return replace(made, steps=steps_of(self.kernel), overlaps=self._overlaps)

    @property
    def _constants(self) -> dict[str, int]:
        return self.tile.constants if self.flat.r is not None else {"XBLOCK": self.tile.xblock}

    @property
    def _overlaps(self) -> bool:
        return not self.program and _overlaps(self.options, self.chip)

    @property
    def _depth(self) -> int:
        """How far the statements of a program are indented that computes whole rows."""
        return 1 + (self.tile.turns > 1) + (self.flat.lanes is not None)

    def _flush(self, depth: int) -> None:
        self.body += [f"{'    ' * depth}{line}" for line in self.writer.lines]
        self.writer.lines.clear()

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Reduce):
            self._reduce_at_once(statement)
        elif isinstance(statement, Accumulate):
            self._scan(statement)
        elif isinstance(statement, Sort):
            self._sort(statement)
        else:
            self._let_or_store(statement)

    def _sort(self, sort: Sort) -> None:
        line = sorted_line(sort, self.writer, self._block, self.tile.rblock)
        self.writer.lines.append(line)
        for name in sort.names:
            self.writer.locals[name] = Term(name, _BOTH)

    def _scan(self, scan: Accumulate) -> None:
        line = scanned_rows(self.flat, scan, self.writer, self._block)
        self.writer.lines.append(line)
        for name in scan.names:
            self.writer.locals[name] = Term(name, _BOTH)

    def _let_or_store(self, statement: Let | Store | Attend | Mix) -> None:
        writer = self.writer
        if isinstance(statement, Attend | Mix):
            raise TypeError("an attention is no sequence of loops")
        if isinstance(statement, Let):
            writer.name(statement.name, statement.value)
            return
        inner = self.flat.tiled or statement.domain is Domain.INNER
        domain = _BOTH if inner else frozenset("x")
        if statement.kind is None:
            store(writer, self.kernel, statement, domain, self.tile)
            return
        combine(writer, self.kernel, statement, domain)

    def _block(self, term: Term) -> str:
        """A value as a whole block of rows."""
        if term.axes == _BOTH:
            return term.text
        return f"tl.broadcast_to({term.text}, [XBLOCK, RBLOCK])"

    def _element(self, reduce: Reduce, rule: ReductionRule) -> str:
        """The block to combine, with what lies behind the end of the row masked out."""
        dtype = reduce.value.dtype
        text = self._block(self.writer.write(reduce.value))
        if dtype is DType.bool_:
            text = cast(text, DType.bool_, DType.i32)
        elif dtype.is_reduced_precision:
            text = cast(text, dtype, DType.f32)
        if "r" not in self.writer.masks:
            return text
        return f"tl.where({self.writer.masks['r']}, {text}, {rule.identity})"

    def _positions(self) -> str:
        assert self.flat.r is not None
        text = f"tl.broadcast_to({self.flat.r.name}, [XBLOCK, RBLOCK]).to(tl.int64)"
        if "r" not in self.writer.masks:
            return text
        return f"tl.where({self.writer.masks['r']}, {text}, {2**63 - 1})"

    def _result(self, reduce: Reduce, text: str) -> None:
        """Name the reduced column `text`."""
        dtype = reduce.value.dtype
        positional = reduce.kind in (ReductionKind.ARGMAX, ReductionKind.ARGMIN)
        if not positional:
            if dtype is DType.bool_:
                text = f"{text} != 0"
            elif dtype is not DType.f32 and dtype is not DType.f64:
                text = f"{text}.to({TRITON_DTYPES[dtype]})"
        self.writer.lines.append(f"{reduce.name} = {text}")
        self.writer.locals[reduce.name] = Term(reduce.name, frozenset("x"))

    def _reduce_at_once(self, reduce: Reduce) -> None:
        rule = reduction_rule(reduce.kind, reduce.value.dtype)
        block = self._element(reduce, rule)
        self._result(reduce, rule.finish.format(a=block, i=self._positions()))

    def _looped(self) -> None:
        for step in loops(self.flat.kernel):
            if step.domain is Domain.OUTER:
                for statement in step.statements:
                    self._statement(statement)
                self._flush(1)
                continue
            reduces = [s for s in step.statements if isinstance(s, Reduce)]
            finish = [self._accumulator(reduce, step.largest) for reduce in reduces]
            for scan in (s for s in step.statements if isinstance(s, Accumulate)):
                self.writer.taken |= names_of_states(scan)
                self.writer.lines += first_states(scan)
            self._flush(1)
            self._loop(step)
            for end in finish:
                end()
            self._flush(1)

    def _accumulator(self, reduce: Reduce, largest: Reduce | None) -> Callable[[], None]:
        """Start a reduction before its loop; the result ends it behind the loop."""
        rule = reduction_rule(reduce.kind, reduce.value.dtype)
        lines, name = self.writer.lines, f"{reduce.name}_acc"
        self.writer.taken.add(name)
        if reduce is largest:
            lines.append(f"{name} = tl.full([XBLOCK, 1], {rule.identity}, {rule.dtype})")
            return lambda: self._result(reduce, name)
        lines.append(f"{name} = tl.full([XBLOCK, RBLOCK], {rule.identity}, {rule.dtype})")
        if rule.position is not None:
            lines.append(f"{name}_at = tl.full([XBLOCK, RBLOCK], {2**63 - 1}, tl.int64)")
        result = rule.finish.format(a=name, i=f"{name}_at")
        if largest is not None:  # NaN, not 0, where all elements are -inf
            below = f"{largest.name}_acc - {largest.name}_acc"
            result = f"{result} * {self._exponential(below)}"
        return lambda: self._result(reduce, result)

    def _exponential(self, text: str) -> str:
        return f"tl.exp({text})" if self.writer.exact else f"device.fast_exp({text})"

    def _loop(self, loop: Loop) -> None:
        assert self.flat.r is not None
        writer, r = self.writer, self.flat.r.name
        extent = writer.index(self.flat.r.extent).text
        writer.inside, writer.read_again = {}, loop.read_again
        writer.lines.append(f"{r} = start + {self._lanes()}")
        writer.lines += self._bound("r", self.flat.r)
        for statement in loop.statements:
            if isinstance(statement, Reduce):
                self._accumulate(statement, loop.largest)
            elif isinstance(statement, Accumulate):
                self._scan(statement)
                writer.lines += joined_states(self.flat, statement)
            elif isinstance(statement, Sort):
                raise TypeError("a loop sorts no rows")
            else:
                self._let_or_store(statement)
        self.body.append(f"    for start in {self._turns(loop, extent)}:")
        self._flush(2)
        writer.inside = None

    def _turns(self, loop: Loop, extent: str) -> str:
        """What a loop counts. The next blocks of a row that is read once are on their way while a
        turn waits for the maximum of one; of one that is read again, that takes cache away."""
        stages = self.tile.stages
        if not stages and loop.largest is not None and not loop.read_again and not self.program:
            stages = ONLINE_STAGES
        if not stages:
            return f"range(0, {extent}, RBLOCK)"
        return f"tl.range(0, {extent}, RBLOCK, num_stages={stages})"

    def _accumulate(self, reduce: Reduce, largest: Reduce | None) -> None:
        rule = reduction_rule(reduce.kind, reduce.value.dtype)
        name, block = f"{reduce.name}_acc", self._element(reduce, rule)
        if reduce is largest:
            self._raise(reduce, rule, block)
            return
        if largest is not None:
            name, before = f"{reduce.name}_acc", f"{reduce.name}_acc * {largest.name}_scale"
            self.writer.lines.append(f"{name} = {rule.accumulate.format(a=before, v=block)}")
            return
        if rule.position is None:
            self.writer.lines.append(f"{name} = {rule.accumulate.format(a=name, v=block)}")
            return
        pair = f"device.{rule.position}({name}, {name}_at, {block}, {self._positions()})"
        self.writer.lines.append(f"{name}, {name}_at = {pair}")

    def _raise(self, largest: Reduce, rule: ReductionRule, block: str) -> None:
        """Lines for the maximum so far, and how sums of exponentials below it are scaled to it.

        Where all elements so far are -inf, exponentials are those below 0, and so 0.
        """
        name, lines = largest.name, self.writer.lines
        self.writer.taken |= {f"{name}_next", f"{name}_scale"}
        found = rule.finish.format(a=block)
        lines.append(f"{name}_next = {rule.accumulate.format(a=f'{name}_acc', v=found)}")
        lines.append(f'{name} = tl.where({name}_next == float("-inf"), 0.0, {name}_next)')
        lines.append(f"{name}_scale = {self._exponential(f'{name}_acc - {name}')}")
        lines.append(f"{name}_acc = {name}_next")
        self.writer.locals[name] = Term(name, frozenset("x"))

    def _text(self, signature: Sequence[tuple[str, str]]) -> str:
        constants = [*self._constants]
        scans = [s for s in self.flat.kernel.statements if isinstance(s, Accumulate)]
        functions = "".join(f"{joining_function(self.flat, scan)}\n\n" for scan in scans)
        given = [(self.program, "i32"), *signature] if self.program else signature
        described, overlaps = describe_loops(self.kernel), self._overlaps
        lines = function_head(self.kernel, given, constants, described, overlaps=overlaps)
        points, bound = self._points(), self._bound_of_lanes()  # which names parts before others
        head, indent = [*points, *self.writer.prologue, *bound], "    " * self._depth
        if self.tile.turns > 1:
            lines.append(f"    for {self.block} in {self._all_blocks()}:")
        if self.flat.lanes is not None:
            lane = self.flat.lanes.var
            lines += [f"    {line}" for line in self.writer.constants]
            lines.append(f"    for {lane.name} in tl.static_range({lane.extent}):")
        text = "\n".join([*lines, *(f"{indent}{line}" for line in head), *self.body])
        return f"{functions}{text}\n"

    def _points(self) -> list[str]:
        """Lines that define `x`, and `r` where no loop does, with their masks."""
        flat, index = self.flat, self.writer.index
        program = "tl.program_id(0)" if self.tile.turns == 1 else self.block
        program = self.program or program
        program += ".to(tl.int64)" if flat.wide else ""
        row, column = program, "0"
        lines: list[str] = []
        if flat.tiled and flat.r is not None:
            along = fresh("along", self.writer.taken)
            lines.append(f"{along} = tl.cdiv({index(flat.x.extent).text}, XBLOCK)")
            row, column = f"{program} % {along}", f"{program} // {along}"
        shape = "[:, None]" if flat.r else ""
        lines.append(f"{flat.x.name} = {row} * XBLOCK + tl.arange(0, XBLOCK){shape}")
        if flat.lanes is None:
            lines += self._bound("x", flat.x)
        if flat.r is not None and self.tile.persistent:
            first = f"{column} * RBLOCK + " if flat.tiled else ""
            lines.append(f"{flat.r.name} = {first}{self._lanes()}")
            lines += self._bound("r", flat.r)
        return lines

    def _all_blocks(self) -> str:
        """What a program counts that stays: its blocks of outer points, the next on their way."""
        assert self.flat.xnumel is not None
        count = -(-self.flat.xnumel // self.tile.xblock)
        stages = self.tile.stages
        return f"tl.range(tl.program_id(0), {count}, tl.num_programs(0), num_stages={stages})"

    def _lanes(self) -> str:
        wide = ".to(tl.int64)" if self.flat.wide else ""
        return f"tl.arange(0, RBLOCK)[None, :]{wide}"

    def _bound(self, axis: str, var: Var) -> list[str]:
        """The line that defines an axis's mask, if it has one."""
        mask = self.writer.masks.get(axis)
        return [f"{mask} = {var.name} < {self.writer.index(var.extent).text}"] if mask else []

    def _bound_of_lanes(self) -> list[str]:
        """The same of points that are computed lane by lane."""
        lanes, mask = self.flat.lanes, self.writer.masks.get("x")
        if lanes is None or mask is None:
            return []
        return [f"{mask} = {self.writer.index(lanes.point).text} < {lanes.numel}"]

    def _blocks(self) -> list[tuple[Var, int]]:
        """The variables that programs share out among them, and how much of each one takes."""
        parts = [(self.flat.x, self.tile.xblock * self.tile.turns)]
        if self.flat.tiled and self.flat.r is not None:
            parts.append((self.flat.r, self.tile.rblock))
        return parts
