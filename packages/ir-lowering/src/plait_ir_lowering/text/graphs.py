"""Whole graphs as text, and back.

graph main()
  input x: f32[8192, 1024] on cpu
  define sum: f32[8192] on cpu # from [["sum"], ["model.py:3 in forward: x.sum(-1)"]]
    reduce sum for i0: 8192 over r0: 1024 = x[i0, r0]
  define y: f32[8192, 1024] on cpu
    for i0: 8192, i1: 1024 = exp(x[i0, i1])
  define z: f32[8192, 1024] on cpu
    scan i1 carry f32 for i0: 8192, i1: 1024 join add(%a0, %b0) give %a0 = x[i0, i1]
  define s: i32[8192, 8] on cpu
    sort i1 of i32 for i0: 8192, i1: 1024 give %sorted = n[i0, i1]
  define p: f32[8, 8] on cpu
    call out aten::mm.out(a, b)
  define o: f32[2, 64, 8] on cpu
    attention i2 for i0: 2, i1: 64, i2: 32 of q, k, v else nan = mul(%score, f32(0.5))
  define m: f32[2, 64, 8] on cpu
    mixture i2 for i0: 2, i1: 64, i2: 32 by q @ k, g @ v of x = mul(exp(%product0), %product1)
  check z
  return y
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import field

from plait_ir_lowering.errors import LoopIRError
from plait_ir_lowering.ir.dtypes import DTYPES
from plait_ir_lowering.ir.graph import (
    SCORE,
    SORTED,
    Attention,
    Body,
    Buffer,
    Definition,
    Device,
    ExternCall,
    Graph,
    Mixture,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Sort,
    TensorRef,
    product_name,
    score_dtype,
)
from plait_ir_lowering.ir.index import Sym, Var
from plait_ir_lowering.ir.index_queries import atoms
from plait_ir_lowering.ir.ops import ReductionKind, ScatterKind, TypeMismatchError
from plait_ir_lowering.ir.values import Load, Value, carried, components
from plait_ir_lowering.text.parse_values import (
    IndexReader,
    ValueReader,
    parse_argument,
    parse_factors,
    parse_layout,
    parse_origin,
    parse_output,
    parse_refs,
    parse_sums,
    split_commas,
)
from plait_ir_lowering.text.print_values import (
    print_argument,
    print_layout,
    print_origin,
    print_sums,
    print_value,
    print_values,
)
from plait_ir_lowering.text.sizes import parse_size, print_size
from plait_utils import dataclass


def print_graph(graph: Graph) -> str:
    """`graph` as text, with everything that `parse_graph` needs."""
    lines = [f"graph {graph.name}({', '.join(_sizes(graph))})"]
    lines += [f"  input {_buffer(buffer)}" for buffer in graph.inputs]
    for definition in graph.definitions:
        made = "; ".join(_buffer(buffer) for buffer in definition.buffers)
        lines.append(f"  define {made}{print_origin(definition.origin)}")
        lines += [f"    {line}" for line in _body(definition.body)]
    for target, source in graph.mutations:
        lines.append(f"  write {target} = {print_argument(source)}")
    lines += [f"  check {name}" for name in graph.checks]
    outputs = ", ".join(print_argument(out) for out in graph.outputs)
    lines.append(f"  return {outputs}".rstrip())
    return "\n".join(lines) + "\n"


def _sizes(graph: Graph) -> Iterator[str]:
    """The symbolic sizes, with their bounds."""
    found: dict[str, Sym] = {}
    for buffer in graph.inputs:
        for expr in (*buffer.layout.size, *buffer.layout.stride):
            for atom in atoms(expr):
                if isinstance(atom, Sym):
                    found[atom.name] = atom
    for _, size in sorted(found.items()):
        yield print_size(size)


def _buffer(buffer: Buffer) -> str:
    return f"{buffer.name}: {print_layout(buffer.dtype, buffer.layout)} on {buffer.device}"


def _domain(variables: Sequence[Var]) -> str:
    return ", ".join(f"{var.name}: {var.extent}" for var in variables)


def _body(body: Body) -> Iterator[str]:
    match body:
        case Pointwise(ranges, value):
            shared, text = print_value(value)
            yield from shared
            yield f"for {_domain(ranges)} = {text}"
        case Reduction(ranges, reduction_ranges, kind, value):
            shared, text = print_value(value)
            yield from shared
            over = _domain(reduction_ranges)
            yield f"reduce {kind.value} for {_domain(ranges)} over {over} = {text}"
        case Scan():
            yield from _scan(body)
        case Sort():
            yield from _sort(body)
        case Scatter():
            yield from _scatter(body)
        case Attention(ranges, axis, _, _, _, score, zeros):
            shared, text = print_value(score)
            yield from shared
            refs = ", ".join(print_argument(ref) for ref in body.refs)
            empty = "zeros" if zeros else "nan"
            domain = _domain((*ranges, axis))
            spans = ", ".join(print_value(load)[1] for load in body.spans)
            spans = f" within {spans}" if spans else ""
            yield f"attention {axis.name} for {domain} of {refs} else {empty}{spans} = {text}"
        case Mixture():
            yield from _mixture(body)
        case ExternCall(op, overload, args, out_variant):
            name = f"{op}.{overload}" if overload else op
            into = "out" if out_variant else "new"
            yield f"call {into} {name}({', '.join(print_argument(arg) for arg in args)})"


def _mixture(body: Mixture) -> Iterator[str]:
    shared, text = print_value(body.weights)
    yield from shared
    factors = ", ".join(f"{print_argument(a)} @ {print_argument(b)}" for a, b in body.factors)
    values = ", ".join(print_argument(ref) for ref in body.values)
    of = f" of {values}" if values else ""
    adding = print_sums(body.sums)
    spans = ", ".join(print_value(load)[1] for load in body.spans)
    within = f" within {spans}" if spans else ""
    domain = _domain((*body.ranges, *body.summed))
    summed = ", ".join(var.name for var in body.summed)
    yield f"mixture {summed} for {domain} by {factors}{of}{adding}{within} = {text}"


def _scan(body: Scan) -> Iterator[str]:
    lines: list[str] = []
    texts: list[str] = []
    for value in (body.value, body.combine, body.result):
        shared, text = print_value(value, len(lines))
        lines += shared
        texts.append(text)
    yield from lines
    carry = ", ".join(str(part.dtype) for part in components(body.value))
    loops = f"scan {body.axis.name} carry {carry} for {_domain(body.ranges)}"
    yield f"{loops} join {texts[1]} give {texts[2]} = {texts[0]}"


def _sort(body: Sort) -> Iterator[str]:
    first, value = print_value(body.value)
    second, result = print_value(body.result, len(first))
    yield from (*first, *second)
    words = ", ".join(str(word.dtype) for word in components(body.value))
    loops = f"sort {body.axis.name} of {words} for {_domain(body.ranges)}"
    yield f"{loops} give {result} = {value}"


def _scatter(body: Scatter) -> Iterator[str]:
    shared, texts = print_values(body.roots)
    yield from shared
    computed = iter(texts)
    index = [next(computed) if isinstance(at, Value) else str(at) for at in body.index]
    domain, kind = _domain(body.ranges), body.kind.value
    yield f"scatter {kind} for {domain} at {body.target}[{', '.join(index) or '()'}] = {texts[-1]}"


def parse_graph(text: str) -> Graph:
    """The graph that `print_graph` printed as `text`. Raises LoopIRError."""
    reader = _GraphReader(text.splitlines())
    try:
        return reader.read()
    except (SyntaxError, ValueError, KeyError, TypeError, TypeMismatchError) as error:
        raise LoopIRError(
            f"this is not a loop IR graph: {error}",
            where=f"line {reader.at + 1}: {reader.current.strip()}",
            hint="see plait_ir_lowering.print_graph for the form",
        ) from error


@dataclass(slots=True)
class _GraphReader:
    lines: list[str]
    at: int = 0
    buffers: dict[str, Buffer] = field(default_factory=dict)
    index: IndexReader = field(default_factory=lambda: IndexReader({}))

    @property
    def current(self) -> str:
        return self.lines[self.at] if self.at < len(self.lines) else "end of text"

    def read(self) -> Graph:
        head = self._match(r"graph ([\w.-]+)\((.*)\)")
        for part in split_commas(head[2]):
            size = parse_size(part)
            self.index.names[size.name] = size
        inputs: list[Buffer] = []
        definitions: list[Definition] = []
        mutations: list[tuple[str, TensorRef]] = []
        checks: list[str] = []
        while not re.match(r"  return\b", self.current):
            word, _, rest = self.current.strip().partition(" ")
            self.at += 1
            if word == "input":
                inputs.append(self._buffer(rest))
            elif word == "define":
                definitions.append(self._definition(rest))
            elif word == "write":
                target, _, source = rest.partition(" = ")
                ref = parse_argument(source, self.index)
                if not isinstance(ref, TensorRef):
                    raise ValueError(f"{source!r} is not a tensor")
                mutations.append((target, ref))
            elif word == "check":
                checks.append(rest)
            else:
                self.at -= 1
                raise ValueError(f"a line starts with {word!r}")
        found = self.current.strip().removeprefix("return")
        outputs = [parse_output(part, self.index) for part in split_commas(found)]
        return Graph(
            *(head[1], tuple(inputs), tuple(definitions), tuple(outputs), tuple(mutations)),
            tuple(checks),
        )

    def _match(self, pattern: str) -> re.Match[str]:
        found = re.fullmatch(pattern, self.current.strip())
        if found is None:
            raise ValueError(f"the line is not of the form {pattern}")
        self.at += 1
        return found

    def _buffer(self, text: str) -> Buffer:
        found = re.fullmatch(r"(\S+): (.+) on ([a-z]+)(?::(\d+))?", text)
        if found is None:
            raise ValueError(f"{text!r} is not a buffer")
        dtype, layout = parse_layout(found[2], self.index)
        device = Device(found[3], None if found[4] is None else int(found[4]))
        buffer = Buffer(found[1], dtype, device, layout)
        self.buffers[buffer.name] = buffer
        return buffer

    def _definition(self, text: str) -> Definition:
        names, _, comment = text.partition(" # from ")
        buffers = tuple(self._buffer(part) for part in names.split("; "))
        return Definition(buffers, self._body(), parse_origin(comment))

    def _body(self) -> Body:
        shared: list[tuple[str, str]] = []
        while self.current.strip().startswith("$"):
            name, _, value = self.current.strip().partition(" = ")
            shared.append((name[1:], value))
            self.at += 1
        head, _, value = self.current.strip().partition(" = ")
        self.at += 1
        word, _, rest = head.partition(" ")
        if word == "call":
            return self._call(f"{rest} = {value}" if value else rest)
        if word == "for":
            ranges = self._domain(rest)
            return Pointwise(ranges, self._value(shared, value, ranges))
        if word == "scan":
            return self._scan(shared, rest, value)
        if word == "sort":
            return self._sort(shared, rest, value)
        if word == "attention":
            return self._attention(shared, rest, value)
        if word == "mixture":
            return self._mixture(shared, rest, value)
        kind, _, domains = rest.partition(" for ")
        if word == "scatter":
            return self._scatter(ScatterKind(kind), f" {domains}", shared, value)
        outer, _, inner = f" {domains}".partition(" over ")
        kept, reduced = self._domain(outer.strip()), self._domain(inner)
        element = self._value(shared, value, kept + reduced)
        return Reduction(kept, reduced, ReductionKind(kind), element)

    def _scan(self, shared: Sequence[tuple[str, str]], head: str, value: str) -> Scan:
        found = re.fullmatch(r"(\S+) carry (.+) for (.+) join (.+) give (.+)", head)
        if found is None:
            raise ValueError(f"{head!r} is not a scan")
        ranges = self._domain(found[3])
        axis = next(var for var in ranges if var.name == found[1])
        values = self._reader(ranges)
        dtypes = [DTYPES[name] for name in split_commas(found[2])]
        for local in (*carried("a", dtypes), *carried("b", dtypes)):
            values.dtypes[local.name] = local.dtype
        for name, part in shared:
            values.parts[name] = values.parse(part)
        combine, result = values.parse(found[4]), values.parse(found[5])
        return Scan(ranges, axis, values.parse(value), combine, result)

    def _sort(self, shared: Sequence[tuple[str, str]], head: str, value: str) -> Sort:
        found = re.fullmatch(r"(\S+) of (.+) for (.+) give (.+)", head)
        if found is None:
            raise ValueError(f"{head!r} is not a sort")
        ranges = self._domain(found[3])
        axis = next((var for var in ranges if var.name == found[1]), None)
        if axis is None:
            raise ValueError(f"{found[1]} is sorted along but is no loop")
        values = self._reader(ranges)
        words = [DTYPES[name] for name in split_commas(found[2])]
        values.dtypes.update((word.name, word.dtype) for word in carried(SORTED, words))
        for name, part in shared:
            values.parts[name] = values.parse(part)
        return Sort(ranges, axis, values.parse(value), values.parse(found[4]))

    def _scatter(
        self, kind: ScatterKind, text: str, shared: Sequence[tuple[str, str]], value: str
    ) -> Scatter:
        domain, _, place = text.partition(" at ")
        ranges = self._domain(domain.strip())
        element = self._value(shared, place, ranges)  # what is written to reads as a load of it
        if not isinstance(element, Load):
            raise ValueError(f"{place!r} is not a place in a buffer")
        return Scatter(
            element.buffer, ranges, element.index, kind, self._value(shared, value, ranges)
        )

    def _attention(self, shared: Sequence[tuple[str, str]], head: str, value: str) -> Attention:
        found = re.fullmatch(r"\S+ for (.+) of (.+) else (zeros|nan)(?: within (.+))?", head)
        if found is None:
            raise ValueError(f"{head!r} is not an attention")
        *ranges, axis = self._domain(found[1])
        refs = [parse_argument(part, self.index) for part in split_commas(found[2])]
        queries, keys, weighted = (ref for ref in refs if isinstance(ref, TensorRef))
        values = self._reader((*ranges, axis))
        values.dtypes[SCORE] = score_dtype(self.buffers[queries.buffer].dtype)
        for name, part in shared:
            values.parts[name] = values.parse(part)
        score, zeros = values.parse(value), found[3] == "zeros"
        spans = tuple(
            load
            for part in split_commas(found[4] or "")
            if isinstance(load := values.parse(part), Load)
        )
        return Attention(tuple(ranges), axis, queries, keys, weighted, score, zeros, spans)

    def _mixture(self, shared: Sequence[tuple[str, str]], head: str, value: str) -> Mixture:
        form = r"(.+?) for (.+?) by (.+?)(?: of (.+?))?(?: adding (.+?))?(?: within (.+))?"
        found = re.fullmatch(form, head)
        if found is None:
            raise ValueError(f"{head!r} is not a mixture")
        *ranges, axis = domain = self._domain(found[2])
        group = ranges.pop() if len(split_commas(found[1])) > 1 else None
        factors, mixed = parse_factors(found[3], self.index), parse_refs(found[4] or "", self.index)
        values = self._reader(domain)
        for number, (left, _) in enumerate(factors):
            of = score_dtype(self.buffers[left.buffer].dtype)
            values.dtypes[product_name(number)] = of
        for name, part in shared:
            values.parts[name] = values.parse(part)
        weights = values.parse(value)
        sums = parse_sums(found[5] or "", values)
        spans = tuple(
            load
            for part in split_commas(found[6] or "")
            if isinstance(load := values.parse(part), Load)
        )
        return Mixture(tuple(ranges), axis, factors, mixed, weights, spans, group, sums)

    def _domain(self, text: str) -> tuple[Var, ...]:
        found: list[Var] = []
        for part in split_commas(text):
            name, _, extent = part.partition(": ")
            found.append(Var(name, self.index.parse(extent)))
        return tuple(found)

    def _value(
        self, shared: Sequence[tuple[str, str]], text: str, variables: Sequence[Var]
    ) -> Value:
        values = self._reader(variables)
        for name, part in shared:
            values.parts[name] = values.parse(part)
        return values.parse(text)

    def _reader(self, variables: Sequence[Var]) -> ValueReader:
        names = {**self.index.names, **{var.name: var for var in variables}}
        return ValueReader(IndexReader(names), self.buffers)

    def _call(self, text: str) -> ExternCall:
        found = re.fullmatch(r"(out|new) (\w+::\w+)(?:\.(\w+))?\((.*)\)", text)
        if found is None:
            raise ValueError(f"{text!r} is not an external call")
        args = tuple(parse_argument(part, self.index) for part in split_commas(found[4]))
        return ExternCall(found[2], found[3] or "", args, found[1] == "out")
