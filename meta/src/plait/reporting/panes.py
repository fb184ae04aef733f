"""Every stage of a graph as lines of text that know which user lines they come from."""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from plait.record import CompiledGraph
from plait.reporting.collect import described
from plait_bytecode_tracer import USER_LINE
from plait_utils import dataclass

if TYPE_CHECKING:
    from torch import fx

    from plait_ir_lowering import Graph, Origin
    from plait_scheduler import Program


@dataclass(frozen=True, slots=True)
class PaneLine:
    """One line of a stage's text and the user lines it was derived from."""

    text: str
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pane:
    """One stage's text. `preamble` counts the first lines that are the same for every graph."""

    title: str
    language: str
    lines: tuple[PaneLine, ...]
    preamble: int = 0


def panes_of(graph: CompiledGraph) -> list[Pane]:
    """The panes of a graph, from the user's Python to generated code, as far as it came."""
    panes = [
        Pane("Python", "python", tuple(_python(graph.captured.graph))),
        Pane("FX", "python", tuple(_captured(graph.captured.graph))),
    ]
    if graph.aten is not None:
        from plait_fx_passes import print_aten

        origins = {node.name: _line_of(node) for node in graph.aten.graph.nodes}
        made = {node.name: _made_by(node) for node in graph.aten.graph.nodes}
        panes.append(Pane("ATen", "ir", tuple(_named(print_aten(graph.aten), origins, made))))
    if graph.loops is not None:
        from plait_ir_lowering import print_graph

        panes.append(Pane("LoopIR", "ir", tuple(_loops(print_graph(graph.loops), graph.loops))))
    if graph.schedule is not None:
        from plait_scheduler import print_program

        program = graph.schedule.program
        panes.append(Pane("Program", "ir", tuple(_program(print_program(program), program))))
        panes.append(_code(graph, program))
    return panes


def user_lines(panes: Sequence[Pane]) -> list[str]:
    """Every user line that a pane refers to, in order of first appearance."""
    return list(dict.fromkeys(o for pane in panes for line in pane.lines for o in line.origins))


def _line_of(node: fx.Node) -> tuple[str, ...]:
    line = node.meta.get("source_line")
    return (str(line),) if line else ()


def _python(captured: fx.Graph) -> Iterator[PaneLine]:
    """The functions that the graph came from, each whole where its file can be read."""
    used: dict[tuple[str, str], dict[int, str]] = {}
    for node in captured.nodes:
        found = USER_LINE.match(str(node.meta.get("source_line", "")))
        if found is None:
            continue
        file = str(node.meta.get("source_file") or found["file"])
        numbers = used.setdefault((file, found["function"]), {})
        numbers[int(found["number"])] = found.string
    for (file, function), numbers in used.items():
        for block in _blocks(file, sorted(numbers)):
            yield PaneLine(f"# {file}, {function}")
            for number in block:
                origin = numbers.get(number)
                yield PaneLine(_source_line(file, number, origin), (origin,) if origin else ())
            yield PaneLine("")


def _source_line(file: str, number: int, origin: str | None) -> str:
    text = linecache.getline(file, number).rstrip()
    if not text and origin is not None:
        found = USER_LINE.match(origin)
        text = found["text"] if found else origin
    return f"{number:>4}  {text}"


def _blocks(file: str, numbers: Sequence[int]) -> Iterator[Iterable[int]]:
    """The functions of `file` around the lines, each from its `def` to its end."""
    lines = linecache.getlines(file)
    if not lines:
        yield numbers
        return
    end = 0
    for number in numbers:
        if number <= end:
            continue
        start = number
        while start > 1 and not _STARTS_FUNCTION.match(lines[start - 1]):
            start -= 1
        end = max(start + len(inspect.getblock(lines[start - 1 :])) - 1, number)
        yield range(start, end + 1)


_STARTS_FUNCTION = re.compile(r"\s*(async\s+)?def |.*\blambda\b")


def _captured(captured: fx.Graph) -> Iterator[PaneLine]:
    for node in captured.nodes:
        yield PaneLine(_format_node(node), _line_of(node))


def _format_node(node: fx.Node) -> str:
    if node.op == "placeholder":
        source = node.meta.get("source")
        return f"{node.name}: {described(node)} = input" + (f"  # {source}" if source else "")
    arguments = [_argument(a) for a in node.args]
    arguments += [f"{key}={_argument(value)}" for key, value in node.kwargs.items()]
    if node.op == "output":
        return f"return {arguments[0]}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    if node.op == "call_method":
        call = f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    elif node.op == "call_module":
        call = f"self.{node.target}({', '.join(arguments)})"
    else:
        name = getattr(node.target, "__name__", str(node.target))
        call = f"{name}({', '.join(arguments)})"
    return f"{node.name}: {described(node)} = {call}"


def _argument(value: object) -> str:
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_argument(item) for item in value)
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{comma})"
    return str(value) if not isinstance(value, str) else repr(value)


_ATEN_NODE = re.compile(r"^\s*(?:input )?%(?P<name>\w+):")


def _named(
    text: str, origins: dict[str, tuple[str, ...]], made: dict[str, str]
) -> Iterator[PaneLine]:
    for line in text.splitlines():
        found = _ATEN_NODE.match(line)
        lines = origins.get(found["name"], ()) if found else ()
        rule = made.get(found["name"], "") if found else ""
        yield PaneLine(_without_comment(line, lines) + rule, lines)


def _made_by(node: fx.Node) -> str:
    """Which rule of the passes made a node, of which nodes."""
    if "made_of" not in node.meta:
        return ""
    return f"  # by {node.meta['rule']} of {', '.join(f'%{name}' for name in node.meta['made_of'])}"


def _without_comment(line: str, origins: tuple[str, ...]) -> str:
    """A line without the comment that repeats the user line, which the page shows by colour."""
    for origin in origins:
        line = line.removesuffix(f"  # {origin}")
    return line


_DEFINITION = re.compile(r"^\s*define\s+(?P<name>\w+)")


def _loops(text: str, graph: Graph) -> Iterator[PaneLine]:
    """Lines of the loop IR; those under a definition belong to it."""
    origins = {
        buffer.name: definition.origin.lines
        for definition in graph.definitions
        for buffer in definition.buffers
    }
    current: tuple[str, ...] = ()
    for line in text.splitlines():
        found = _DEFINITION.match(line)
        if found:
            current = origins.get(found["name"], ())
        elif re.match(r"^\s*(return|input|graph|mutate)\b", line):
            current = ()
        yield PaneLine(_without_from(line), current)


def _without_from(line: str) -> str:
    return re.sub(r"\s+# from \[.*\]$", "", line)


_LAUNCH = re.compile(r"^\s*(launch|together|chained|call) ")
_KERNEL = re.compile(r"^\s*kernel (?P<name>\w+)\(")


def kernel_origins(program: Program) -> dict[str, tuple[str, ...]]:
    """The user lines of each kernel, over all its launches."""
    from plait_scheduler import Launch

    lines: dict[str, dict[str, None]] = {}
    for step in program.steps:
        if isinstance(step, Launch):
            lines.setdefault(step.kernel, {}).update(dict.fromkeys(step.origin.lines))
    return {kernel: tuple(found) for kernel, found in lines.items()}


def _chain_origins(program: Program) -> dict[str, tuple[str, ...]]:
    """The same of what hosts of GPUs launch in place of chained launches, and of its functions."""
    from plait_scheduler import ChainedKernel, with_chains

    made = with_chains(program)
    found, links = kernel_origins(made), kernel_origins(program)
    for chain in (kernel for kernel in made.kernels if isinstance(kernel, ChainedKernel)):
        names = [kernel.name for kernel in chain.kernels]
        found |= {f"{chain.name}_{number}": links[name] for number, name in enumerate(names)}
    return found


def step_origins(program: Program) -> list[Origin]:
    """The origins of launches and calls, in order."""
    from plait_scheduler import CallExtern, Launch

    return [step.origin for step in program.steps if isinstance(step, (Launch, CallExtern))]


def _program(text: str, program: Program) -> Iterator[PaneLine]:
    kernels = kernel_origins(program)
    steps = iter(step_origins(program))
    current: tuple[str, ...] = ()
    for line in text.splitlines():
        found = _KERNEL.match(line)
        if found:
            current = kernels.get(found["name"], ())
        elif re.match(r"^  \S", line):
            current = ()
        if _LAUNCH.match(line):
            origin = next(steps, None)
            yield PaneLine(_without_from(line), origin.lines if origin else ())
        else:
            yield PaneLine(_without_from(line), current)


def _code(graph: CompiledGraph, program: Program) -> Pane:
    if graph.code is not None and graph.code.source is not None:
        title = "Python host" if graph.code.language == "Python" else graph.code.language
        return _code_pane(title, graph.code.source, program)
    from plait_scheduler import render_python

    return _code_pane("Python host", render_python(program), program)


_STARTS_BLOCK = re.compile(r"^(static|extern|void|def|@|struct|//|class|inline)")


def _code_pane(title: str, source: str, program: Program) -> Pane:
    """Generated code: functions of kernels by name, host statements by the kernel they launch."""
    kernels = kernel_origins(program) | _chain_origins(program)
    everything = {line for origin in step_origins(program) for line in origin.lines}
    lines: list[PaneLine] = []
    current: tuple[str, ...] = ()
    first = None
    for number, text in enumerate(source.splitlines()):
        name = next((k for k in re.findall(r"\w+", text) if _kernel_name(k, kernels)), None)
        if _STARTS_BLOCK.match(text):
            current = kernels[_kernel_name(name, kernels)] if name else ()
            if name and first is None:
                first = number
        origins = current or _mentioned(text, everything)
        lines.append(PaneLine(text, origins))
    language = {"C++": "cpp"}.get(title, "python")
    return Pane(title, language, tuple(_join_statements(lines)), first or 0)


def _kernel_name(word: str | None, kernels: dict[str, tuple[str, ...]]) -> str:
    if word is None:
        return ""
    plain = word.removesuffix("_range")
    return plain if plain in kernels else ""


def _mentioned(text: str, known: set[str]) -> tuple[str, ...]:
    """User lines that a comment of the host program names in brackets."""
    if "[" not in text:
        return ()
    return tuple(sorted(line for line in known if line in text))


def _join_statements(lines: list[PaneLine]) -> Iterator[PaneLine]:
    """In a host function, a comment with user lines speaks for the statement after it."""
    carried: tuple[str, ...] = ()
    for line in lines:
        if line.origins and line.text.lstrip().startswith(("//", "#")):
            carried = line.origins
            yield line
        elif carried and not line.origins and line.text.startswith((" ", "\t")):
            yield PaneLine(line.text, carried)
            if line.text.rstrip().endswith(("}", ");")):
                carried = ()
        else:
            carried = ()
            yield line
