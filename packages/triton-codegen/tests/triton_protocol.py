"""Runs the roles of a compiled kernel (TTGIR) on a model of barriers, over many interleavings.

It says where roles wait for each other for ever, where a block is overwritten while it is read, and
where a product is of blocks that do not belong together. Counts, phases and places are those of the
compiled text; tensors are not computed. Factors have their rows or columns as first axes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

VALUE = r"%[\w$.#]+"
Wait = tuple[Any, int] | None
"""What a role waits for: a barrier and a phase; None where others may go on first."""


class Wrong(Exception):
    """What goes wrong in some interleaving."""


@dataclass
class Operation:
    """One operation of the text with its regions, each with the line that opens it."""

    results: list[str]
    text: str
    bodies: list[tuple[str, list[Operation]]] = field(default_factory=list)


def _parsed(lines: list[str], at: int) -> tuple[list[Operation], int]:
    """The operations of a region that starts at line `at`, and where its closing brace is."""
    operations: list[Operation] = []
    while at < len(lines):
        line = lines[at]
        if line.startswith("}"):
            return operations, at
        match = re.match(rf"({VALUE}(?::\d+)?(?:, {VALUE}(?::\d+)?)*) = (.*)", line)
        results, text = ([], line) if match is None else (match[1].split(", "), match[2])
        made = Operation(results, text)
        operations.append(made)
        while line.endswith("{"):
            body, at = _parsed(lines, at + 1)
            made.bodies.append((line, body))
            line = lines[at]
        at += 1
    return operations, at


def _operations(text: str) -> list[Operation]:
    text = re.sub(r"\s*loc\((?:[^()]|\([^()]*\))*\)", "", text)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", "//"))]
    start = next(n for n, line in enumerate(lines) if line.startswith("tt.func"))
    merged: list[str] = []
    inside = False
    for line in lines[start + 1 :]:  # `warp_specialize(...)` and its regions are one operation
        if line.startswith("ttg.warp_specialize("):
            inside = True
            line = line if line.endswith("{") else f"{line} {{"
        if inside and line.startswith("} : ("):
            merged += ["}", "}"]
            inside = False
            continue
        merged.append(line)
    return _parsed(merged, 0)[0]


class Barrier:
    """An mbarrier: a phase ends when all have arrived, and all bytes that are expected."""

    def __init__(self, count: int) -> None:
        self.count = self.pending = count
        self.phase = self.bytes = self.done = 0

    def step(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending, self.done = self.count, self.done + 1

    def arrive(self, count: int) -> None:
        if count > self.pending:
            raise Wrong("more arrive than the barrier counts")
        self.pending -= count
        self.step()

    def passes(self, parity: int) -> bool:
        return self.phase != parity & 1


_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "xori": lambda a, b: a ^ b,
    "divsi": lambda a, b: int(a / b),
    "remsi": lambda a, b: a - int(a / b) * b,
    "divui": lambda a, b: a // b,
    "remui": lambda a, b: a % b,
    "minsi": min,
    "maxsi": max,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
}
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "sgt": lambda a, b: a > b,
    "sge": lambda a, b: a >= b,
    "slt": lambda a, b: a < b,
    "sle": lambda a, b: a <= b,
}


class Machine:
    """One program among `programs`, whose roles run in an order that `seed` draws, and one of them,
    or the copies, mostly first."""

    def __init__(
        self, text: str, program: int, programs: int, seed: int, first: str | None
    ) -> None:
        self.operations = _operations(text)
        self.program, self.programs = program, programs
        self.random, self.first = random.Random(seed), first
        self.barriers: dict[Any, Barrier] = {}
        self.filled: dict[Any, Any] = {}
        self.reading: dict[Any, list[str]] = {}
        self.flying: list[tuple[Any, Any, Any, int]] = []
        self.issued: dict[str, list[tuple[Any, Any]]] = {}
        self.roles: dict[str, Iterator[Wait]] = {}
        self.products: list[tuple[int, int, int]] = []
        """Of each product, the first row, column and term."""

    def run(self) -> list[tuple[int, int, int]]:
        for _ in self.block(self.operations, {}, "all"):
            pass
        assert len(self.roles) == 3, [*self.roles]
        self.drive()
        return self.products

    def drive(self) -> None:
        waits: dict[str, tuple[Any, int]] = {}
        live = dict(self.roles)
        while live or self.flying:
            able = [n for n in live if n not in waits or self.passes(waits[n])]
            choices = able + ["copy"] * bool(self.flying)
            if not choices:
                raise Wrong(f"all wait for each other after {len(self.products)}: {waits}")
            is_first = self.first in choices and self.random.random() < 0.9
            name = str(self.first) if is_first else self.random.choice(choices)
            if name == "copy":
                self.land(*self.flying.pop(self.random.randrange(len(self.flying))))
                continue
            waits.pop(name, None)
            try:
                wait = next(live[name])
                if wait is not None:
                    waits[name] = wait
            except StopIteration:
                del live[name]
        for held in self.reading.values():
            if held:
                raise Wrong(f"{held} still multiply at the end")

    def passes(self, wait: tuple[Any, int]) -> bool:
        return self.barriers[wait[0]].passes(wait[1])

    def land(self, place: Any, buffer: Any, what: Any, size: int) -> None:
        """Bytes arrive in shared memory."""
        if self.reading.get(buffer):
            raise Wrong(f"{buffer} is overwritten while {self.reading[buffer]} read it")
        self.filled[buffer] = what
        barrier = self.barriers[place]
        barrier.bytes -= size
        if barrier.bytes < 0:
            raise Wrong(f"{place} gets more bytes than it expects")
        barrier.step()

    def block(self, operations: list[Operation], known: dict[str, Any], role: str) -> Any:
        for operation in operations:
            result = yield from self.one(operation, known, role)
            if result is not None:
                return result
        return None

    def one(self, operation: Operation, known: dict[str, Any], role: str) -> Any:
        text = operation.text
        name = re.split(r"[ ({]", text, maxsplit=1)[0]
        used = [known.get(value) for value in re.findall(VALUE, text)]
        made: Any = None
        if name.startswith("arith."):
            made = _number(name[6:], text, used)
        elif name == "tt.get_program_id":
            made = self.program
        elif name == "tt.get_num_programs":
            made = self.programs
        elif name == "ttg.local_alloc":
            made = (operation.results[0],)
        elif name == "tt.make_tensor_descriptor":
            made = operation.results[0]
        elif name == "ttg.memdesc_index":
            made = (*used[0], used[1])
        elif name == "ttg.memdesc_trans":
            made = used[0]
        elif name == "scf.for":
            yield from self.loop(operation, known, role)
        elif name == "scf.if":
            bodies = operation.bodies
            chosen = bodies[0] if used[0] else bodies[1] if len(bodies) > 1 else None
            if chosen is not None:
                _give(operation, (yield from self.block(chosen[1], known, role)), known)
        elif name in ("scf.yield", "ttg.warp_yield"):
            return used
        elif name == "ttg.warp_specialize":
            self.specialized(operation, known)
        elif name.startswith("ttng."):
            yield from self.synchronized(name[5:], text, used, role)
        if made is not None:
            known[operation.results[0]] = made
        return None

    def synchronized(self, name: str, text: str, used: list[Any], role: str) -> Iterator[Wait]:
        """Barriers, copies, and products."""
        if name == "init_barrier":
            self.barriers[used[0]] = Barrier(_last(text))
        elif name == "wait_barrier":
            while not self.passes((used[0], used[1])):
                yield used[0], used[1]
        elif name == "arrive_barrier":
            if len(used) < 2 or used[1]:
                self.barriers[used[0]].arrive(_last(text))
            yield None
        elif name == "barrier_expect":
            self.barriers[used[0]].bytes += _last(text)
            self.barriers[used[0]].arrive(1)
            yield None
        elif name == "async_tma_copy_global_to_local":
            descriptor, first, second, buffer, barrier = used[:5]
            shape = re.search(r"tensordesc<(?:tensor<)?(\d+)x(\d+)x", text)
            assert shape is not None, text
            size = int(shape[1]) * int(shape[2]) * 2
            self.flying.append((barrier, buffer, (descriptor, first, second), size))
            yield None
        elif name == "warp_group_dot":
            assert "isAsync = true" in text, text
            self.multiply(used[0], used[1], role)
            yield None
        elif name == "warp_group_dot_wait":
            found = re.search(r"pendings = (\d+)", text)
            assert found is not None, text
            mine = self.issued.setdefault(role, [])
            while len(mine) > int(found[1]):
                for buffer in mine.pop(0):
                    self.reading[buffer].remove(role)
            yield None

    def multiply(self, left: Any, right: Any, role: str) -> None:
        a, b = self.filled.get(left), self.filled.get(right)
        if a is None or b is None or a[2] != b[2]:
            raise Wrong(f"{role} multiplies {a} with {b}")
        for buffer in (left, right):
            self.reading.setdefault(buffer, []).append(role)
        self.issued.setdefault(role, []).append((left, right))
        self.products.append((a[1], b[1], a[2]))

    def loop(self, operation: Operation, known: dict[str, Any], role: str) -> Iterator[Wait]:
        head, body = operation.bodies[0]
        bounds = re.search(rf"scf\.for ({VALUE}) = ({VALUE}) to ({VALUE}) step ({VALUE})", head)
        assert bounds is not None, head
        index, *places = bounds.groups()
        carried = re.search(r"iter_args\((.*?)\) ->", head)
        pairs = re.findall(rf"({VALUE}) = ({VALUE})", carried[1]) if carried else []
        values = [known.get(value) for _, value in pairs]
        for at in range(*(known[place] for place in places)):
            known[index] = at
            known.update(zip((name for name, _ in pairs), values, strict=True))
            values = (yield from self.block(body, known, role)) or []
        _give(operation, values, known)

    def specialized(self, operation: Operation, known: dict[str, Any]) -> None:
        handed = [known.get(v) for v in re.findall(VALUE, operation.text.split(")")[0])]
        inner = operation.bodies[0][1]
        for head, body in [body for each in inner for body in each.bodies] or inner:
            own = dict(known)
            own.update(zip(re.findall(r"(%\w+): ", head), handed, strict=False))
            match = re.match(r"\}? ?(\w+)", head)
            assert match is not None, head
            self.roles[match[1]] = self.block(body, own, match[1])


def _last(text: str) -> int:
    """The number behind a barrier."""
    found = re.search(r", (\d+)", text)
    assert found is not None, text
    return int(found[1])


def _number(kind: str, text: str, used: list[Any]) -> Any:
    if kind == "constant":
        found = re.match(r"arith\.constant (true|false|-?\d+)\b(?!\.)", text)
        if found is None:
            return None
        return {"true": 1, "false": 0}.get(found[1]) if found[1].isalpha() else int(found[1])
    if kind == "select":
        return used[1] if used[0] else used[2]
    if kind in ("extsi", "extui", "trunci", "index_cast"):
        return used[0]
    if None in used:
        return None
    if kind == "cmpi":
        return int(_COMPARED[text.split()[1].rstrip(",")](*used))
    return _INTEGERS[kind](*used) if kind in _INTEGERS else None


def _give(operation: Operation, values: Any, known: dict[str, Any]) -> None:
    if operation.results and values:
        base = operation.results[0].split(":")[0]
        known[base] = values[0]
        known.update({f"{base}#{n}": value for n, value in enumerate(values)})


def multiplied(text: str, programs: int, seeds: int) -> list[tuple[int, int, int]]:
    """The first row, column and term of all products of a kernel, in each interleaving the same.

    Raises Wrong.
    """
    found: list[tuple[int, int, int]] = []
    for program in range(programs):
        made: set[tuple[tuple[int, int, int], ...]] = set()
        for seed in range(seeds):
            for first in (None, "default", "partition0", "partition1", "copy"):
                made.add(tuple(sorted(Machine(text, program, programs, seed, first).run())))
        if len(made) != 1:
            raise Wrong("interleavings differ in what they multiply")
        found += made.pop()
    return found
