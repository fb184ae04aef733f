"""Products of matrices whose warps have roles: some only read, others multiply and store.

This form is Gluon, for GPUs of capability 90: `device_roles.py` has the roles, here is the text of
a kernel that gives them descriptors, and the function that computes what follows a product, on some
columns of a warpgroup's sums at a time. What it calls is as in other kernels, of what Gluon knows
too. Sizes are known, and the result is one plain matrix; everything else has the other forms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait_ir_lowering import Atom, DType, IndexExpr, Value, Var, substitute
from plait_scheduler import Kernel, Let, Statement, Store
from plait_triton_codegen.errors import UnsupportedKernelError
from plait_triton_codegen.interpreting import is_interpreted
from plait_triton_codegen.kernels.descriptors import Matrix, matrix_of, result_of
from plait_triton_codegen.kernels.product_blocks import product_grid
from plait_triton_codegen.kernels.products import Product
from plait_triton_codegen.kernels.source import BlocksText
from plait_triton_codegen.kernels.space import (
    FlatKernel,
    flat_variable,
    fresh,
    moved_value,
    moved_values,
    needs_64_bits,
    taken_names,
)
from plait_triton_codegen.kernels.tiles import ROLES, Tile
from plait_triton_codegen.kernels.values import Term, ValueWriter
from plait_triton_codegen.options import TritonOptions

_WARPGROUPS = 2
_WARPS = 4
"""Of a warpgroup."""
_LEAST_ROWS = 64
"""That a warpgroup multiplies."""
_GROUPED_ROWS = 2048
"""Rows of blocks whose programs run one after another for each block of columns."""
_BOTH = frozenset(("x", "r"))
_FACTORS = (DType.f16, DType.bf16)
_RESULTS = (DType.f16, DType.bf16, DType.f32)
_CALLED = re.compile(r"\b(?:tl|device)\.\w+(?=\()")
_KNOWN = re.compile(
    r"tl\.(abs|ceil|cos|div_rn|erf|exp2?|floor|fma|load|log2?|maximum|minimum|rsqrt|sin|sqrt(_rn)?"
    r"|where)"
    r"|device\.(a?(cos|sin|tan)h?|atan2|copysign|erfc|expm1|fast_(exp|sigmoid|tanh)|floor_divide"
    r"|floor_index|fmod|hypot|lgamma|log10|log1p|one_plus_erf|power|remainder|round_even|share"
    r"|sigmoid|sign|signbit|trunc|wrap_index)"
)
"""What means the same in Gluon."""


def require_roles(found: Product, tile: Tile) -> None:
    """Raises UnsupportedKernelError for a product that this form does not take: several sums,
    batches, groups, scales, factors of other types than f16 and bf16 or other sums than of f32; for
    a tile in which roles would wait for each other, or warpgroups cannot multiply; and under
    Triton's interpreter, which runs no Gluon."""
    if is_interpreted():
        raise UnsupportedKernelError("Triton's interpreter runs no kernels whose warps have roles")
    in_parts = found.batches or found.groups is not None or found.term_groups is not None
    if len(found.sums) != 1 or in_parts or found.sums[0].scales:
        raise UnsupportedKernelError("warps have roles in single products of two matrices alone")
    (each,) = found.sums
    kinds = each.left.dtype, each.right.dtype
    if kinds[0] not in _FACTORS or kinds[0] is not kinds[1] or each.dtype is not DType.f32:
        raise UnsupportedKernelError("warps have roles in products of f16 or bf16 alone")
    # a stage is given back when the next one is multiplied, so there is a next one
    rest = tile.xblock % (_LEAST_ROWS * (_WARPGROUPS if _shares(tile) else 1))
    if rest or tile.stages < 2 or tile.num_warps != _WARPS or not tile.programs:
        raise UnsupportedKernelError(f"warps have no roles in {tile}")


def _shares(tile: Tile) -> bool:
    """Whether warpgroups share a block's rows."""
    return ROLES[tile.roles].shares_blocks


@dataclass(slots=True)
class RolesWriter:
    """Writes one product in blocks of a tile that has roles."""

    kernel: Kernel
    found: Product
    options: TritonOptions
    exact: bool
    tile: Tile

    def text(self) -> BlocksText:
        """The body of the kernel's function, and the function that it needs.

        Raises UnsupportedKernelError for what this form does not take.
        """
        require_roles(self.found, self.tile)
        tile, taken = self.tile, taken_names(self.kernel) | {"gl", "gluon", "device_roles"}
        height = tile.xblock // self._parts
        left, right = self._factors()
        result = result_of(self.found, self.kernel.params)
        if result is None or not result.along_terms:
            raise UnsupportedKernelError("the result is no matrix that descriptors write")
        (kind,) = {p.dtype for p in self.kernel.params if p.name == result.param}
        if kind not in _RESULTS:
            raise UnsupportedKernelError(f"no warps with roles compute {kind}")
        columns = min(ROLES[tile.roles].stored_bytes // kind.itemsize, tile.rblock)
        names = [fresh(name, taken) for name in ("left", "right", "result")]
        blocks = (height, tile.kblock), (tile.rblock, tile.kblock), (height, columns)
        lines = [
            f"{name} = {_described(matrix, *block)}"
            for name, matrix, block in zip(names, (left, right, result), blocks, strict=True)
        ]
        rows, across = (-(-_count(e) // b) for e, b in [*product_grid(self.found, tile)][1:])
        shape = rows, across, -(-left.terms // tile.kblock), max(_GROUPED_ROWS // tile.xblock, 1)
        facts = height, self._parts, tile.rblock, tile.kblock, tile.stages
        forms = (*facts, left.along_terms, right.along_terms)
        passed = [param.name for param in self.kernel.params] + [*self.kernel.symbols]
        given = f"({', '.join(passed)})"
        finish = fresh(f"{self.kernel.name}_finish", taken)
        lines += [
            f"device_roles.{ROLES[tile.roles].function}(",
            f"    {', '.join(names)}, {given}, {finish},",
            f"    {shape}, {forms},",
            ")",
        ]
        function = self._finish(finish, passed, kind)
        return BlocksText(
            [f"    {line}" for line in lines],
            tile,
            tuple(product_grid(self.found, tile)),
            0,
            tuple(dict.fromkeys(matrix.param for matrix in (left, right, result))),
            function,
        )

    @property
    def _parts(self) -> int:
        """Of a block's rows, each of which a warpgroup has."""
        return _WARPGROUPS if _shares(self.tile) else 1

    def _factors(self) -> tuple[Matrix, Matrix]:
        """The matrices that are multiplied."""
        params = {param.name: param for param in self.kernel.params}
        (each,) = self.found.sums
        made = []
        for value, side in ((each.left, self.found.rows), (each.right, self.found.columns)):
            lines, places = flat_variable("x", side)
            terms, others = flat_variable("k", self.found.inner)
            (moved,) = moved_values([value], places | others).values()
            matrix = matrix_of(moved, params, lines, terms, None)
            if matrix is None:
                raise UnsupportedKernelError("a factor is no matrix that descriptors read")
            made.append(matrix)
        return made[0], made[1]

    def _finish(self, name: str, passed: Sequence[str], kind: DType) -> str:
        """The function that gives what is stored, of sums and where they are."""
        kernel, found = self.kernel, self.found
        taken = taken_names(kernel) | {"gl", "gluon", "XBLOCK", "RBLOCK", name}
        row, column, given, layout, sums = (
            fresh(each, taken) for each in ("row", "column", "given", "layout", found.sums[0].name)
        )
        x, rows = flat_variable(fresh("x", taken), found.rows)
        r, columns = flat_variable(fresh("r", taken), found.columns)
        statements = [_moved(each, rows | columns) for each in found.finish]
        flat = FlatKernel(replace(kernel, statements=tuple(statements)), x, r, False, True)
        if needs_64_bits(flat):
            raise UnsupportedKernelError("matrices are too large for positions of 32 bits")
        masks = {
            axis: fresh(f"{axis}mask", taken)
            for axis, var, block in (("x", x, self.tile.xblock), ("r", r, self.tile.rblock))
            if _count(var.extent) % block
        }
        writer = ValueWriter(flat, self.exact, self.options.check_indices, masks, taken)
        writer.locals[found.sums[0].name] = Term(sums, _BOTH)
        stored = None
        for statement in statements:
            if isinstance(statement, Let):
                writer.name(statement.name, statement.value)
            elif isinstance(statement, Store):
                stored = _stored(writer, statement.value)
        assert stored is not None, "a product stores something"
        if writer.checked:
            raise UnsupportedKernelError("warps with roles check no indices")
        lines = [
            "@gluon.jit",
            f"def {name}({sums}, {row}, {column}, {given}):",
            f"    {', '.join(passed)} = {given}",
            f"    {layout}: gl.constexpr = {sums}.type.layout",
            *(_positions(x, row, 0, sums, layout, masks.get("x"))),
            *(_positions(r, column, 1, sums, layout, masks.get("r"))),
            *(f"    {line}" for line in (*writer.prologue, *writer.lines)),
            f"    return {stored}",
        ]
        return _in_gluon("\n".join(lines)) + "\n"


def _positions(
    var: Var, first: str, axis: int, sums: str, layout: str, mask: str | None
) -> list[str]:
    """Lines that tell the rows or the columns of a block, and which of these there are."""
    lanes = f"gl.arange(0, {sums}.shape[{axis}], layout=gl.SliceLayout({1 - axis}, {layout}))"
    side = "[:, None]" if axis == 0 else "[None, :]"
    lines = [f"    {var.name} = {first} + {lanes}{side}"]
    return lines + ([f"    {mask} = {var.name} < {_count(var.extent)}"] if mask else [])


def _stored(writer: ValueWriter, value: Value) -> str:
    term = writer.write(value)
    if term.axes != _BOTH:
        raise UnsupportedKernelError("what is stored is the same for rows or columns")
    return term.text


def _in_gluon(text: str) -> str:
    """Text of values in Gluon, whose numbers have no layout. Raises UnsupportedKernelError for what
    does not mean the same there."""
    made = text.replace("tl.full([], ", "gl.full([], ")
    for name in _CALLED.findall(made):
        if not _KNOWN.fullmatch(name):
            raise UnsupportedKernelError(f"Gluon has no {name} as other kernels have it")
    return made


def _described(matrix: Matrix, lines: int, terms: int) -> str:
    """A descriptor for blocks of so many lines and terms."""
    sizes, block = [matrix.lines, matrix.terms], [lines, terms]
    if not matrix.along_terms:
        sizes.reverse()
        block.reverse()
    base = f"{matrix.param} + {matrix.start}" if matrix.start else matrix.param
    return f"device_roles.described({base}, {sizes}, {matrix.stride}, {block})"


def _count(extent: IndexExpr) -> int:
    """A size, which is known: descriptors take no others."""
    return extent.as_int()


def _moved(statement: Statement, places: dict[Atom, IndexExpr]) -> Statement:
    value = moved_value(statement.value, places, {})
    if isinstance(statement, Store):
        index = tuple(substitute(at, places) for at in statement.plain_index)
        return replace(statement, value=value, index=index)
    return replace(statement, value=value)
