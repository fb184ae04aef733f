"""Kernels as Python functions over torch operations, all points at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait_ir_lowering import (
    SCORE,
    DType,
    IndexExpr,
    Layout,
    Load,
    Local,
    Op,
    ReductionKind,
    ScatterKind,
    TensorRef,
    Value,
    Var,
    as_index,
    carried,
    components,
    place_name,
    product_name,
)
from plait_scheduler.program import (
    Access,
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
    Sort,
    Store,
)
from plait_scheduler.render.values import TORCH_DTYPES, ValueWriter, strided_dimensions
from plait_scheduler.sizes import extent_of
from plait_utils import dataclass

_POSITIONAL = (ReductionKind.ARGMAX, ReductionKind.ARGMIN)


@dataclass(frozen=True, slots=True)
class RenderedKernel:
    """Source text at module level, and what to call with the buffers, then the sizes."""

    source: str
    call: str
    imports: tuple[str, ...] = ()
    """Import lines that the source needs."""


def torch_kernel(kernel: AnyKernel) -> RenderedKernel:
    """`kernel` as a function of one tensor for each parameter, each at its data pointer."""
    if isinstance(kernel, CombinedKernel):
        return _of_members(kernel)
    if isinstance(kernel, ChainedKernel):
        return _of_links(kernel)
    writer = ValueWriter({p.name: p for p in kernel.params}, kernel.outer + kernel.inner)
    body: list[str] = []
    for statement in kernel.statements:
        if isinstance(statement, Accumulate):
            body += _accumulate(statement, kernel, writer)
            continue
        if isinstance(statement, Sort):
            body += _sort(statement, kernel, writer)
            continue
        if isinstance(statement, Attend):
            body += _attend(statement, kernel, writer)
            continue
        if isinstance(statement, Mix):
            body += _mix(statement, kernel, writer)
            continue
        line = _statement(statement, kernel, writer)
        body += [*writer.lines, line]
        writer.lines.clear()
    arguments = ", ".join([p.name for p in kernel.params] + list(kernel.symbols))
    lines = [f"def {kernel.name}({arguments}):", f"    # {_loops(kernel)}"]
    rank = len(writer.variables)
    for axis, var in enumerate(writer.variables):
        if var in writer.grids:
            device = f"{kernel.params[0].name}.device"
            lines.append(f"    {var.name} = grid({var.extent}, {axis}, {rank}, {device})")
    lines += [f"    {line}" for line in body]
    return RenderedKernel("\n".join(lines) + "\n", kernel.name)


def _of_members(kernel: CombinedKernel) -> RenderedKernel:
    """A function that calls that of a member for each."""
    own = f"{kernel.name}_member"
    member = torch_kernel(replace(kernel.body, name=own))
    names, count = [param.name for param in kernel.params], len(kernel.body.params)
    lines = [f"def {kernel.name}({', '.join([*names, *kernel.symbols])}):"]
    for number, sizes in enumerate(kernel.members):
        given = [*names[number * count : (number + 1) * count], *map(str, sizes)]
        lines.append(f"    {own}({', '.join(given)})")
    return RenderedKernel("\n".join([member.source, "", *lines]) + "\n", kernel.name)


def _of_links(kernel: ChainedKernel) -> RenderedKernel:
    """A function that calls those of its links in turn."""
    owns = [f"{kernel.name}_{number}" for number in range(len(kernel.kernels))]
    pairs = zip(kernel.kernels, owns, strict=True)
    texts = [torch_kernel(replace(each, name=own)).source for each, own in pairs]
    names = [param.name for param in kernel.params]
    lines, at = [f"def {kernel.name}({', '.join(names)}):"], 0
    for link in kernel.links:
        end = at + len(kernel.kernels[link].params)
        lines.append(f"    {owns[link]}({', '.join(names[at:end])})")
        at = end
    return RenderedKernel("\n".join([*(f"{text}\n" for text in texts), *lines]) + "\n", kernel.name)


def _loops(kernel: Kernel) -> str:
    outer, inner = (
        ", ".join(f"{v.name}: {v.extent}" for v in part) for part in (kernel.outer, kernel.inner)
    )
    return f"for {outer or 'one point'}" + (f", inner {inner}" if inner else "")


def _accumulate(statement: Accumulate, kernel: Kernel, writer: ValueWriter) -> list[str]:
    """Lines that compute a scan at all points, after the function that joins two of its states."""
    parts = components(statement.value)
    values = "".join(f"{writer.write(part)}, " for part in parts)
    lines = [*writer.lines]
    writer.lines.clear()
    joining = ValueWriter({}, ())
    joined = "".join(f"{joining.write(part)}, " for part in components(statement.combine))
    dtypes = [part.dtype for part in parts]
    given = ", ".join(local.name for local in (*carried("a", dtypes), *carried("b", dtypes)))
    name = f"join_{statement.names[0]}"
    lines += [f"def {name}({given}):", *(f"    {line}" for line in joining.lines)]
    lines.append(f"    return ({joined.strip()})")
    names = "".join(f"{name}, " for name in statement.names).strip()
    sizes = _sizes(kernel.outer + kernel.inner)
    call = f"accumulate(({values.strip()}), {sizes}, {len(kernel.inner)}, {name})"
    return [*lines, f"{names} = {call}"]


def _sums(attend: Attend, writer: ValueWriter) -> list[str]:
    """Lines that store what gradients need of each row."""
    if not attend.sums:
        return []
    lines = ["sums = scores.logsumexp(-1)"]
    if len(attend.sums) == 2:
        lines = ["most = scores.amax(-1)", "sums = (scores - most.unsqueeze(-1)).logsumexp(-1)"]
    if attend.zeros:
        lines.append("empty = scores.isneginf().all(-1)")
        lines.append("sums = sums.masked_fill(empty, float('inf'))")
    if attend.zeros and len(attend.sums) == 2:
        lines.append("most = most.masked_fill(empty, 0)")
    for name, value in zip(reversed(attend.sums), ("sums", "most"), strict=False):
        layout = writer.params[name].layout
        lines.append(f"{_strided(name, layout)}.copy_({value}.reshape({_shape(layout)}))")
    return lines


def _sort(sort: Sort, kernel: Kernel, writer: ValueWriter) -> list[str]:
    """Lines that sort all rows."""
    words = "".join(f"{writer.write(word)}, " for word in components(sort.value))
    lines = [*writer.lines]
    writer.lines.clear()
    names = "".join(f"{name}, " for name in sort.names).strip()
    sizes = _sizes(kernel.outer + kernel.inner)
    return [*lines, f"{names} = sorted_rows(({words.strip()}), {sizes}, {len(kernel.inner)})"]


def _attend(attend: Attend, kernel: Kernel, writer: ValueWriter) -> list[str]:
    """Lines that compute all scores at once."""
    shown: list[str] = []
    for name, ref in zip(("queries", "keys", "values"), attend.refs, strict=True):
        layout = ref.view or writer.params[ref.buffer].layout
        flat = ".flatten(0, -3)" if len(layout.size) > 3 else ""
        shown.append(f"{name} = {_strided(ref.buffer, layout)}{flat}")
    sizes = _sizes(kernel.outer + kernel.inner)
    product, computed = "queries @ keys", attend.value.dtype
    if writer.params[attend.queries.buffer].dtype is not computed:
        wide = TORCH_DTYPES[computed]
        product = f"queries.to({wide}) @ keys.to({wide})"
    lines = [*shown, f"{SCORE} = ({product}).reshape{sizes}"]
    score = writer.write(attend.value)
    lines += [*writer.lines, f"scores = ({score}).expand{sizes}"]
    writer.lines.clear()
    lines.append("weights = scores.softmax(-1)")
    if attend.zeros:
        lines.append("weights = weights.masked_fill((scores.isneginf()).all(-1, True), 0)")
    lines += _sums(attend, writer)
    lines.append("weights = weights.reshape(queries.shape[0], queries.shape[1], -1)")
    layout = writer.params[attend.param].layout
    made, rows = _strided(attend.param, layout), "weights @ values.to(weights.dtype)"
    if len(layout.size) > 3:
        rows = f"({rows}).reshape({_shape(layout)})"
    return [*lines, f"{made}.copy_({rows})"]


def _mix(mix: Mix, kernel: Kernel, writer: ValueWriter) -> list[str]:
    """Lines that compute all products and weights at once."""
    wide, sizes = TORCH_DTYPES[mix.value.dtype], _sizes(kernel.outer + kernel.inner)
    *batches, row = kernel.outer
    *group, axis = kernel.inner
    given = _sizes((*batches, *group, row, axis))
    turned = ".movedim(-3, -2)" if group else ""

    def matrices(ref: TensorRef) -> str:
        layout = ref.view or writer.params[ref.buffer].layout
        flat = ".flatten(0, -3)" if len(layout.size) > 3 else ""
        return f"{_strided(ref.buffer, layout)}{flat}.to({wide})"

    lines: list[str] = []
    for number, (left, right) in enumerate(mix.factors):
        product = f"{matrices(left)} @ {matrices(right)}"
        lines.append(f"{product_name(number)} = ({product}).reshape{given}{turned}")
    weights, places = mix.parts
    named = [f"part{number}" for number in range(len(weights))]
    named += [place_name(number) for number in range(len(places))]
    for name, part in zip(named, (*weights, *places), strict=True):
        text = writer.write(part)
        lines += [*writer.lines, f"{name} = ({text}).expand{sizes}"]
        writer.lines.clear()
    for number, (param, ref) in enumerate(zip(mix.made, mix.values, strict=False)):
        layout = writer.params[param].layout
        shape = "values.shape[0], -1, values.shape[1]"
        mixed = f"part{number}{turned}.reshape({shape}) @ values"
        if group:
            mixed = f"({mixed}).unflatten(0, (-1, {group[0].extent})).sum(1)"
        lines += [
            f"values = {matrices(ref)}",
            f"{_strided(param, layout)}.copy_(({mixed}).reshape({_shape(layout)}))",
        ]
    for number, (param, place) in enumerate(mix.added, len(mix.values)):
        lines.append(_added(f"part{number}", param, place, kernel, writer))
    return lines


def _added(part: str, param: str, place: Load | None, kernel: Kernel, writer: ValueWriter) -> str:
    """A line that sums weights: of rows, or into places."""
    layout, variables = writer.params[param].layout, kernel.outer + kernel.inner
    if place is None:
        over = tuple(range(-len(kernel.inner), 0))
        return f"{_strided(param, layout)}.copy_({part}.sum({over}).reshape({_shape(layout)}))"
    return _combined(param, place.index, ScatterKind.ADD, part, writer, variables)


def _combined(
    param: str,
    index: Sequence[IndexExpr | Value],
    kind: ScatterKind,
    value: str,
    writer: ValueWriter,
    variables: tuple[Var, ...],
) -> str:
    """A call that combines values with what is at places, of which some coordinates have names."""
    layout = writer.params[param].layout
    plain = [as_index(0) if isinstance(at, Value) else at for at in index]
    terms = [writer.index(layout.linear(plain))]
    for at, stride in zip(index, layout.stride, strict=True):
        if isinstance(at, Local):
            terms.append(f"{at.name} * ({stride})")
    places, extent = " + ".join(terms), extent_of(layout)
    return f"combine({param}, {places}, {_sizes(variables)}, {value}, {kind.value!r}, {extent})"


def _shape(layout: Layout) -> str:
    return ", ".join(map(str, layout.size))


def _strided(name: str, layout: Layout) -> str:
    size, stride = (", ".join(map(str, part)) for part in (layout.size, layout.stride))
    return f"strided({name}, ({size},), ({stride},), {layout.offset})"


def _statement(statement: Let | Reduce | Store, kernel: Kernel, writer: ValueWriter) -> str:
    if isinstance(statement, Reduce) and kernel.outer:
        product = _product(statement, kernel, writer)
        if product is not None:
            return product
    value = writer.write(statement.value)
    match statement:
        case Let(name, _, _):
            copied = ".clone()" if _is_overwritten(statement.value, writer) else ""
            return f"{name} = {value}{copied}"
        case Reduce(name, kind, _):
            sizes = _sizes(kernel.outer + kernel.inner)
            dtype = TORCH_DTYPES[statement.value.dtype]
            rows = f"rows({value}, {sizes}, {len(kernel.inner)}, {dtype})"
            if (
                statement.value.dtype is DType.bool_ and kind in _POSITIONAL
            ):  # torch orders no bools
                rows = f"{rows}.to(torch.uint8)"
            return f"{name} = {_reduction(kind, rows, dtype)}.reshape({_kept(kernel)})"
        case Store():
            return _store(statement, value, kernel, writer)


def _product(reduce: Reduce, kernel: Kernel, writer: ValueWriter) -> str | None:
    """A sum of products of what is loaded or named, as torch multiplies matrices."""
    match reduce:
        case Reduce(name, ReductionKind.SUM, Op("mul", (x, y), DType.f32 | DType.f64 as of)):
            if not all(isinstance(each, Load | Local) for each in (x, y)):
                return None
            sizes, inner = _sizes(kernel.outer + kernel.inner), len(kernel.inner)
            factors = f"{writer.write(x)}, {writer.write(y)}"
            total = f"summed_products({factors}, {sizes}, {inner}, {TORCH_DTYPES[of]})"
            return f"{name} = {total}.reshape({_kept(kernel)})"
    return None


def _is_overwritten(value: Value, writer: ValueWriter) -> bool:
    """Whether torch would give a view of a parameter that the kernel stores to as well."""
    while isinstance(value, Op) and value.name in ("to", "bitcast"):
        (value,) = value.args
    if not isinstance(value, Load):
        return False
    return writer.params[value.buffer].access is Access.READ_WRITE


def _reduction(kind: ReductionKind, rows: str, dtype: str) -> str:
    match kind:
        case ReductionKind.SUM | ReductionKind.PROD:
            return f"{rows}.{kind.value}(-1, dtype={dtype})"
        case ReductionKind.MAX | ReductionKind.MIN:
            return f"{rows}.a{kind.value}(-1)"
        case ReductionKind.ANY | ReductionKind.ALL:
            return f"{rows}.{kind.value}(-1)"
    return f"{rows}.{kind.value}(-1)"


def _kept(kernel: Kernel) -> str:
    return _sizes((*kernel.outer, *(Var(v.name, 1) for v in kernel.inner)))


def _sizes(variables: Sequence[Var]) -> str:
    inside = ", ".join(str(var.extent) for var in variables)
    return f"({inside}{',' if len(variables) == 1 else ''})"


def _store(store: Store, value: str, kernel: Kernel, writer: ValueWriter) -> str:
    param, layout = store.param, writer.params[store.param].layout
    offset = layout.linear(store.plain_index)
    variables = kernel.outer + kernel.inner
    if store.kind is not None:
        return _combined(param, store.index, store.kind, value, writer, variables)
    if store.first is not None:
        points = f"{_sizes(variables)}, {value}, {len(kernel.inner)}, {store.first}"
        return f"scatter_first({param}, {writer.index(offset)}, {points})"
    if store.domain is Domain.OUTER:
        variables = (*kernel.outer, *(Var(v.name, 1) for v in kernel.inner))
    dimensions = strided_dimensions(offset, variables, full=True)
    if dimensions is not None:
        sizes, strides, start = dimensions
        return f"strided({param}, {sizes}, {strides}, {start}).copy_({value})"
    return f"scatter({param}, {writer.index(offset)}, {_sizes(variables)}, {value})"
