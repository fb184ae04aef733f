"""Factors and results of products as descriptors of memory take them: blocks of plain matrices.

GPUs since sm_90 copy a block of a matrix to shared memory at one thread's word, where a descriptor
of 128 bytes tells the matrix's place, sizes and strides. Its rows or its columns are contiguous and
begin at multiples of 16 bytes. What lies outside of the matrix is read as zeros. Programs make the
descriptors, in memory that is theirs while they run.

A descriptor may write the result too, from shared memory, while threads go on; what lies outside of
the matrix is not written. Rows that begin anywhere, as logits of 50257 words do, are stored by
threads. That takes long, and by rule programs read the next block's factors meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from plait_ir_lowering import DType, IndexExpr, Load, Value, Var, as_index, substitute
from plait_scheduler import Access, Param, Store
from plait_triton_codegen.kernels.products import Product
from plait_triton_codegen.kernels.space import flat_variable, moved_values

BLOCK_BYTES = 16
"""Rows begin at multiples of so many bytes, and those of blocks have at least as many."""
LEAST_CAPABILITY = 90
"""Of GPUs that read by descriptors."""
_MOST = 2**31 - 1
_WHOLE_TERMS = 256
"""Where matrices of groups lie one behind the other along the terms, these are a multiple of that:
so no block of terms reaches into the next group's matrix."""
_WRITTEN = frozenset((DType.f16, DType.bf16, DType.f32, DType.i32))
"""Types of results that descriptors write."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A plain matrix in memory, one of whose axes are the terms of a product."""

    param: str
    start: int
    """Elements before its first one."""
    lines: int
    """Rows of a left factor, or columns of a right one."""
    terms: int
    stride: int
    """Elements from one row, or column, to the next."""
    along_terms: bool
    """Whether terms, not lines, are contiguous."""
    lines_of_group: int = 0
    """Of columns that each group of rows has its own of, how many lines a group has; else 0."""
    terms_of_group: int = 0
    """How many terms, where lines are contiguous; `terms` are those of all groups then."""

    def made(self, lines: str, terms: str, behind: str | None = None) -> str:
        """A descriptor for blocks of so many lines and terms, the contiguous ones last; of the
        terms before `behind`, where not of all."""
        sizes, block = [str(self.lines), behind or str(self.terms)], [lines, terms]
        if not self.along_terms:
            sizes.reverse()
            block.reverse()
        base = f"{self.param} + {self.start}" if self.start else self.param
        shown = f"{sizes[0]}, {sizes[1]}], [{self.stride}, 1], [{block[0]}, {block[1]}"
        return f"tl.make_tensor_descriptor({base}, [{shown}])"

    def read(self, descriptor: str, line: str, term: str, *, lines_first: bool) -> str:
        """The block that begins at a line and a term, with lines or terms as its first axis."""
        places = (line, term) if self.along_terms else (term, line)
        text = f"{descriptor}.load([{', '.join(places)}])"
        return text if self.along_terms == lines_first else f"{text}.T"

    def written(self, descriptor: str, line: str, term: str, block: str) -> str:
        """What writes a block, lines by terms, that begins at a line and a term."""
        if self.along_terms:
            return f"{descriptor}.store([{line}, {term}], {block})"
        return f"{descriptor}.store([{term}, {line}], ({block}).T)"


def aligned_names(params: Sequence[Param], aligned: Collection[int] | None) -> set[str]:
    """The names of the parameters at these positions, of all for None."""
    return {p.name for n, p in enumerate(params) if aligned is None or n in aligned}


def are_plain(found: Product, params: Sequence[Param], aligned: Collection[str]) -> bool:
    """Whether all factors are plain matrices, of parameters that begin at multiples of 16 bytes."""
    if found.batches and found.term_groups is None:
        return False
    group = None if found.groups is None else found.groups.var
    by_name = {param.name: param for param in params if param.name in aligned}
    for side, values in (
        (found.rows, {each.left for each in found.sums}),
        (found.columns, {each.right for each in found.sums}),
    ):
        lines, places = flat_variable("x", side)
        terms, others = flat_variable("k", found.inner)
        moved = moved_values([*values], places | others)
        matrices = [matrix_of(each, by_name, lines, terms, group) for each in moved.values()]
        if not all(each is not None and begins_well(each, found) for each in matrices):
            return False
    return True


def reads_ahead(
    found: Product, params: Sequence[Param], aligned: Collection[str], capability: int
) -> bool:
    """Whether by rule programs share large blocks out and read them by descriptors: of products of
    16 bits whose results have rows that do not begin at multiples of 16 bytes. 8192 by 768 by 50257
    in bfloat16 took an H200 1.03 ms so, with a program for each block 1.14, and by either alone
    1.24 and 1.31."""
    in_groups = found.groups is not None or found.term_groups is not None
    return (
        found.dtype.itemsize == 2
        and not in_groups
        and capability >= LEAST_CAPABILITY
        and _stores_odd_rows(found, params)
        and are_plain(found, params, aligned)
    )


def _stores_odd_rows(found: Product, params: Sequence[Param]) -> bool:
    """Whether a result is a matrix whose rows do not begin at multiples of 16 bytes."""
    by_name = {param.name: param for param in params}
    lines, places = flat_variable("x", found.rows)
    columns, others = flat_variable("r", found.columns)
    for statement in found.finish:
        if isinstance(statement, Store):
            param = by_name[statement.param]
            index = [substitute(at, places | others) for at in statement.plain_index]
            steps = _steps(param.layout.linear(index), (lines, columns))
            if steps is not None and max(steps[1:]) * param.dtype.itemsize % BLOCK_BYTES:
                return True
    return False


def result_of(
    found: Product, params: Sequence[Param], aligned: Collection[str] | None = None
) -> Matrix | None:
    """The matrix that a product's one store writes, with columns as terms; None where a descriptor
    does not: of batches, groups, several results, and what is written beside or only in part.

    Args:
        aligned: names of the parameters that begin at multiples of 16 bytes; None for all.
    """
    stores = [each for each in found.finish if isinstance(each, Store)]
    in_parts = found.batches or found.groups is not None or found.term_groups is not None
    if len(stores) != 1 or in_parts:
        return None
    (statement,) = stores
    (param,) = (each for each in params if each.name == statement.param)
    is_whole = statement.kind is None and statement.first is None
    if not is_whole or param.access is not Access.WRITE or param.dtype not in _WRITTEN:
        return None
    if aligned is not None and param.name not in aligned:
        return None
    lines, places = flat_variable("x", found.rows)
    columns, others = flat_variable("r", found.columns)
    index = [substitute(at, places | others) for at in statement.plain_index]
    steps = _steps(param.layout.linear(index), (lines, columns))
    return None if steps is None else _plain(param, steps, (lines.extent, columns.extent))


def begins_well(matrix: Matrix, found: Product) -> bool:
    """Whether all blocks of a matrix begin at multiples of 16 bytes: groups of terms, anywhere."""
    return found.term_groups is None or not matrix.along_terms


def matrix_of(
    value: Value, params: Mapping[str, Param], lines: Var, terms: Var, group: Var | None
) -> Matrix | None:
    """The matrix that a factor reads over two variables, or the one below the other, those of all
    groups; None where it is computed, or the matrix is not as descriptors take it."""
    if not isinstance(value, Load):
        return None
    param = params.get(value.buffer)
    plain = [at for at in value.index if isinstance(at, IndexExpr)]
    if param is None or len(plain) < len(value.index):
        return None
    variables = (lines, terms) if group is None else (lines, terms, group)
    steps = _steps(param.layout.linear(plain), variables)
    matrix = None if steps is None else _plain(param, steps, (lines.extent, terms.extent))
    if steps is None or matrix is None or group is None or not steps[-1]:
        return matrix
    # the matrices of all groups as one, whose longer axis is the one that is not contiguous
    step = steps[-1]
    below = step // matrix.stride
    longer = matrix.lines if matrix.along_terms else matrix.terms
    every = (group.extent.as_int() - 1) * below + longer
    if step % matrix.stride or every > _MOST:
        return None
    if matrix.along_terms:
        return replace(matrix, lines=every, lines_of_group=below)
    if matrix.terms % _WHOLE_TERMS:
        return None
    return replace(matrix, terms=every, terms_of_group=below)


def _plain(
    param: Param, steps: Sequence[int], extents: tuple[IndexExpr, IndexExpr]
) -> Matrix | None:
    """The matrix that begins after the first of these steps, with the next ones from line to line
    and from term to term; None where it is not as descriptors take it."""
    if not all(extent.is_constant for extent in extents):
        return None
    start, along_lines, along_terms = steps[:3]
    stride, contiguous = max(along_lines, along_terms), min(along_lines, along_terms)
    lines, terms = (extent.as_int() for extent in extents)
    starts_whole = all(each * param.dtype.itemsize % BLOCK_BYTES == 0 for each in (start, stride))
    apart = stride >= (terms if along_terms == 1 else lines) > 1
    if contiguous != 1 or not apart or not starts_whole or max(lines, terms) > _MOST:
        return None
    return Matrix(param.name, start, lines, terms, stride, along_terms == 1)


def _steps(offset: IndexExpr, variables: Sequence[Var]) -> tuple[int, ...] | None:
    """A constant and what each variable is multiplied by; None for any other offset."""
    found = dict.fromkeys((as_index(0), *(var.expr for var in variables)), 0)
    for monomial, coefficient in offset.terms:
        at = IndexExpr(((monomial, 1),)) if monomial else as_index(0)
        if at not in found or coefficient < 0:
            return None
        found[at] = coefficient
    return tuple(found.values())
