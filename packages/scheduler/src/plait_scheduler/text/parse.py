"""Reading the text of `print.py` back into programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from plait_ir_lowering import (
    DTYPES,
    SCORE,
    Const,
    Device,
    DType,
    IndexExpr,
    IndexReader,
    Load,
    Local,
    Origin,
    ReductionKind,
    ScatterKind,
    Sym,
    TensorRef,
    TypeMismatchError,
    ValueReader,
    Var,
    parse_argument,
    parse_factors,
    parse_layout,
    parse_origin,
    parse_output,
    parse_refs,
    parse_size,
    parse_sums,
    product_name,
    score_dtype,
    split_commas,
)
from plait_scheduler.errors import ProgramSyntaxError
from plait_scheduler.program import (
    Access,
    Accumulate,
    Allocate,
    AnyKernel,
    ArenaStorage,
    Attend,
    CallExtern,
    ChainedKernel,
    CombinedKernel,
    CopyBack,
    Domain,
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
from plait_utils import dataclass


@dataclass(slots=True)
class _Lines:
    """Lines without those that are blank, and the number of the current one."""

    lines: list[tuple[int, str]]
    at: int = 0

    @classmethod
    def of(cls, text: str) -> _Lines:
        numbered = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        return cls(numbered)

    def peek(self) -> str:
        """The current line, stripped; empty at the end."""
        return self.lines[self.at][1].strip() if self.at < len(self.lines) else ""

    def take(self, pattern: str, expected: str) -> re.Match[str]:
        """Match the current line as a whole and go on to the next."""
        found = re.fullmatch(pattern, self.peek())
        if found is None:
            raise self.error(f"expected {expected}")
        self.at += 1
        return found

    def error(self, message: str) -> ProgramSyntaxError:
        number, line = self.lines[self.at] if self.at < len(self.lines) else (0, "end of text")
        return ProgramSyntaxError(
            f"this is not a program: {message}, not {line.strip()!r}",
            where=f"line {number}",
            hint="see plait_scheduler.print_program for the form",
        )


def parse_program(text: str) -> Program:
    """The program that `print_program` printed as `text`. Raises ProgramSyntaxError."""
    lines = _Lines.of(text)
    try:
        return _program(lines)
    except (SyntaxError, ValueError, KeyError, TypeError, TypeMismatchError) as error:
        raise lines.error(f"{error}") from error


def parse_kernel(text: str) -> AnyKernel:
    """The kernel that `print_kernel` printed as `text`. Raises ProgramSyntaxError."""
    lines = _Lines.of(text)
    try:
        return _any_kernel(lines)
    except (SyntaxError, ValueError, KeyError, TypeError, TypeMismatchError) as error:
        raise lines.error(f"{error}") from error


def _program(lines: _Lines) -> Program:
    head = lines.take(r"program ([\w.-]+)\((.*)\)", "`program name(sizes)`")
    symbols = _symbols(head[2])
    index = IndexReader(dict(symbols))
    inputs = tuple(split_commas(lines.take(r"inputs ?(.*)", "`inputs ...`")[1]))
    arena = index.parse(lines.take(r"arena (.+)", "`arena bytes`")[1])
    buffers: list[ProgramBuffer] = []
    while lines.peek().startswith("buffer "):
        found = lines.take(r"buffer ([\w.]+): (.+) on (\S+) = (.+)", "a buffer")
        dtype, layout = parse_layout(found[2], index)
        device, storage = _device(found[3]), _storage(found[4], index)
        buffers.append(ProgramBuffer(found[1], dtype, device, layout, storage))
    kernels: list[AnyKernel] = []
    while lines.peek().startswith(("kernel ", "combined ", "chain ")):
        kernels.append(_any_kernel(lines))
    lines.take("steps", "`steps`")
    steps: list[Step] = []
    while lines.peek():
        steps.append(_step(lines.peek(), index))
        lines.at += 1
    return Program(
        head[1], tuple(symbols), inputs, tuple(buffers), tuple(kernels), tuple(steps), arena
    )


def _symbols(text: str) -> dict[str, Sym]:
    found: dict[str, Sym] = {}
    for part in split_commas(text):
        size = parse_size(part)
        found[size.name] = size
    return found


def _device(text: str) -> Device:
    kind, _, number = text.partition(":")
    return Device(kind, int(number) if number else None)


def _storage(text: str, index: IndexReader) -> Storage:
    kind, _, rest = text.partition(" ")
    match kind:
        case "input":
            return InputStorage(int(rest))
        case "arena":
            return ArenaStorage(index.parse(rest))
        case "shared":
            return SharedStorage(rest)
        case "part":
            whole, _, offset = rest.removeprefix("of ").partition(" at ")
            return PartStorage(whole, index.parse(offset))
        case "output":
            return OutputStorage()
        case "extern":
            return ExternStorage()
    raise ValueError(f"there is no storage {text!r}")


def _any_kernel(lines: _Lines) -> AnyKernel:
    if lines.peek().startswith("chain "):
        return _chain(lines)
    if not lines.peek().startswith("combined "):
        return _kernel(lines)
    form = r"combined (\w*) of \((.*?)\)(?: sizes\((.*)\))?"
    head = lines.take(form, "`combined name of (sizes), ...`")
    symbols = _symbols(head[3] or "")
    index = IndexReader(dict(symbols))
    members = tuple(
        tuple(index.parse(size) for size in split_commas(part)) for part in head[2].split("), (")
    )
    return CombinedKernel(head[1], _kernel(lines), tuple(symbols), members)


def _chain(lines: _Lines) -> ChainedKernel:
    head = lines.take(r"chain (\w*) of (.+)", "`chain name of numbers`")
    links = tuple(int(part) for part in split_commas(head[2]))
    kernels = tuple(_kernel(lines) for _ in range(max(links) + 1))
    return ChainedKernel(head[1], kernels, links)


def _kernel(lines: _Lines) -> Kernel:
    head = lines.take(r"kernel (\w*)\((.*?)\)(?: sizes\((.*)\))?", "`kernel name(params)`")
    sizes = _symbols(head[3] or "")
    names: dict[str, Var | Sym] = dict(sizes)
    index = IndexReader(names)
    params: dict[str, Param] = {}
    for part in _param_texts(head[2]):
        found = re.fullmatch(r"(\w+): (\w+) (.+)", part)
        if found is None:
            raise lines.error("expected a parameter")
        dtype, layout = parse_layout(found[3], index)
        params[found[1]] = Param(found[1], dtype, layout, Access(found[2]))
    loops = lines.take(r"for ?(.*?)(?: ?inner (.*))?", "`for variables inner variables`")
    outer, inner = (_domain(part or "", index) for part in (loops[1], loops[2]))
    for var in outer + inner:
        names[var.name] = var
    values = ValueReader(index, params)
    statements = tuple(_statements(lines, values))
    return Kernel(head[1], tuple(params.values()), tuple(sizes), outer, inner, statements)


def _param_texts(text: str) -> list[str]:
    """Parameters are separated by commas, and so are the parts of a layout."""
    return [part.strip().rstrip(",") for part in re.split(r",\s+(?=\w+: )", text) if part.strip()]


def _domain(text: str, index: IndexReader) -> tuple[Var, ...]:
    found: list[Var] = []
    for part in split_commas(text):
        name, _, extent = part.partition(": ")
        found.append(Var(name, index.parse(extent)))
    return tuple(found)


def _statements(lines: _Lines, values: ValueReader) -> Iterator[Statement]:
    scanned: list[str] = []
    attending = ""
    while re.match(
        r"(\$|inner |outer |reduce |scan |sort |join |attend |score |mix |weights )", lines.peek()
    ):
        line = lines.peek()
        if line.startswith("scan "):
            scanned = _scanned(line, values)
        elif line.startswith("join "):
            joined, _, value = line.removeprefix("join ").partition(" along ")
            yield Accumulate(tuple(scanned), values.parse(value), values.parse(joined))
            values.parts.clear()
        elif line.startswith("attend "):
            attending = line
            values.dtypes[SCORE] = score_dtype(
                values.buffers[_attended(line, values)[1][0].buffer].dtype
            )
        elif line.startswith("score "):
            score = values.parse(line.removeprefix("score = "))
            (param, *sums), refs, zeros, spans = _attended(attending, values)
            queries, keys, weighted = refs
            yield Attend(param, queries, keys, weighted, zeros, score, spans, tuple(sums))
            values.parts.clear()
        elif line.startswith("mix "):
            attending = line
            for number, (left, _) in enumerate(_mixed(line, values).factors):
                of = score_dtype(values.buffers[left.buffer].dtype)
                values.dtypes[product_name(number)] = of
        elif line.startswith("weights "):
            weights = values.parse(line.removeprefix("weights = "))
            yield replace(_mixed(attending, values), value=weights)
            values.parts.clear()
        elif line.startswith("$"):
            name, _, text = line.partition(" = ")
            values.parts[name[1:]] = values.parse(text)
        else:
            statement = _statement(line, values)
            values.parts.clear()
            if isinstance(statement, Sort):
                values.dtypes.update((word.name, word.dtype) for word in statement.locals)
            elif not isinstance(statement, Store | Accumulate | Attend | Mix):
                dtype = statement.value.dtype
                if isinstance(statement, Reduce):
                    dtype = statement.kind.result_dtype(dtype)
                values.dtypes[statement.name] = dtype
            yield statement
        lines.at += 1


def _scanned(line: str, values: ValueReader) -> list[str]:
    """The names that a scan gives; they, and what it combines, have types from here on."""
    names: list[str] = []
    for number, part in enumerate(split_commas(line.removeprefix("scan "))):
        name, _, dtype = part.partition(": ")
        names.append(name)
        for known in (name, f"a{number}", f"b{number}"):
            values.dtypes[known] = DTYPES[dtype]
    return names


def _statement(line: str, values: ValueReader) -> Statement:
    target, _, text = line.partition(" = ")
    word, rest = target.split(" ", 1)
    if word == "reduce":
        kind, value = text.split(" ", 1)
        return Reduce(rest, ReductionKind(kind), values.parse(value))
    if word == "sort":
        sorts = re.fullmatch(r"(?:first (\d+) )?(.*)", text)
        assert sorts is not None, "any text is of that form"
        return Sort(tuple(split_commas(rest)), values.parse(sorts[2]), _count(sorts[1]))
    domain = Domain(word)
    if not re.match(r"(first \d+ )?store |scatter ", rest):
        return Let(rest, domain, values.parse(text))
    found = re.fullmatch(r"(?:(?:first (\d+) )?store|scatter (\w+)) (\w+)\[(.*)\]", rest)
    if found is None:
        raise ValueError(f"{rest!r} is not a store")
    index = tuple(_coordinate(part, values) for part in split_commas(found[4]) if part != "()")
    scatter = None if found[2] is None else ScatterKind(found[2])
    return Store(found[3], index, domain, values.parse(text), scatter, _count(found[1]))


def _count(text: str | None) -> int | None:
    return None if text is None else int(text)


def _attended(
    line: str, values: ValueReader
) -> tuple[list[str], tuple[TensorRef, ...], bool, tuple[Load, ...]]:
    """The parameters that an attention writes, what it multiplies, and whether empty rows give
    zeros; and which keys rows may see."""
    found = re.fullmatch(r"attend (.+?) of (.+) else (zeros|nan)(?: within (.+))?", line)
    if found is None:
        raise ValueError(f"{line!r} is not an attention")
    refs = parse_refs(found[2], values.index)
    return split_commas(found[1]), refs, found[3] == "zeros", _spans(found[4], values)


def _mixed(line: str, values: ValueReader) -> Mix:
    """A mixture, with a weight that is to be replaced."""
    form = r"mix (.+?) by (.+?)(?: of (.+?))?(?: adding (.+?))?(?: within (.+))?"
    found = re.fullmatch(form, line)
    if found is None:
        raise ValueError(f"{line!r} is not a mixture")
    factors = parse_factors(found[2], values.index)
    refs = parse_refs(found[3] or "", values.index)
    made, spans = tuple(split_commas(found[1])), _spans(found[5], values)
    sums = parse_sums(found[4] or "", values)
    return Mix(made, factors, refs, Const(0.0, DType.f32), spans, sums)


def _spans(text: str | None, values: ValueReader) -> tuple[Load, ...]:
    """What tells rows which places they may see."""
    spans = (values.parse(part) for part in split_commas(text or ""))
    return tuple(load for load in spans if isinstance(load, Load))


def _coordinate(text: str, values: ValueReader) -> IndexExpr | Local:
    if text.startswith("%"):
        return Local(text[1:], values.dtypes[text[1:]])
    return values.index.parse(text)


def _step(line: str, index: IndexReader) -> Step:
    text, _, comment = line.partition(" # from ")
    origin = parse_origin(comment)
    word, _, rest = text.partition(" ")
    match word:
        case "allocate":
            return Allocate(rest)
        case "free":
            return Free(rest)
        case "launch" | "together" | "chained" | "on-error":
            found = re.fullmatch(r"(\w+)\((.*?)\)(?: sizes\((.*)\))?", rest)
            if found is None:
                raise ValueError(f"{text!r} is not a launch")
            sizes = tuple(index.parse(part) for part in split_commas(found[3] or ""))
            given = [part.partition(" + ") for part in split_commas(found[2])]
            buffers = tuple(name for name, _, _ in given)
            offsets = tuple(int(at or "0") for _, _, at in given)
            launch = Launch(
                *(found[1], buffers, sizes, origin, word == "together"),
                offsets if any(offsets) else (),
                chained=word == "chained",
            )
            return OnError(launch) if word == "on-error" else launch
        case "call":
            return _call(rest, origin, index)
        case "copyback":
            target, _, source = rest.partition(" = ")
            ref = parse_argument(source, index)
            if not isinstance(ref, TensorRef):
                raise ValueError(f"{source!r} is not a tensor")
            return CopyBack(target, ref)
        case "return":
            return Return(tuple(parse_output(part, index) for part in split_commas(rest)))
    raise ValueError(f"there is no step {word!r}")


def _call(text: str, origin: Origin, index: IndexReader) -> CallExtern:
    found = re.fullmatch(r"(out|new)\((.*?)\) = (\w+::\w+)(?:\.(\w+))?\((.*)\)", text)
    if found is None:
        raise ValueError(f"{text!r} is not an external call")
    results = tuple(None if name == "_" else name for name in split_commas(found[2]))
    args = tuple(parse_argument(part, index) for part in split_commas(found[5]))
    return CallExtern(found[3], found[4] or "", args, results, found[1] == "out", origin)
