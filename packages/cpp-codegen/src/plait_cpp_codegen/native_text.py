"""Of the texts that programs are written with, what one program uses.

A compiler reads all that it is given, and these texts take it as long as a small program does.
So a program begins with the definitions that it names, and those that these name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from plait_cpp_codegen.native_runtime import source_text
from plait_utils import dataclass

_ABI = "abi.h"
"""What programs and the native runtime agree on: all programs have all of it."""
_TEXTS = (
    *("vector.h", "transpose.h", "math.h", "portable.h", "pieces.h", "avx512.h"),
    *("inverse32.h", "math64.h", "tails.h"),
    *(
        "division.h",
        "powers.h",
        "inverse.h",
        "gamma.h",
        "philox.h",
        "parts.h",
        "attention.h",
        "products.h",
        "bytes.h",
        "copies.h",
    ),
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r" *//.*")
_LEADING = re.compile(r"(?://.*\n|\n)+")
_LINE_END = re.compile(r"(?<!\\)\n")
_DIRECTIVE = re.compile(r"#\s*(\w+)")
_ATTRIBUTE = re.compile(r"__attribute__\(\(.*?\)\)")
_TYPES = re.compile(r"^(?:template <[^{}\n]*?> )?(?:struct|using|enum) (\w+)", re.MULTILINE)
_TYPE = re.compile(r"(?:struct|using|enum) (\w+)(?:<([^:{]*)>)?")
_PARAMETERS = re.compile(r"^template <[^<>]*>\s*")
_FUNCTION = re.compile(r"(\w+)(?:<[^()<>]*>)?\(")
_VALUE = re.compile(r"(\w+)(?:\[\w*\])*\s*=")
_INVOCATION = re.compile(r"\b([A-Z_]{3,}\d?)\(")
_INLINE = re.compile(r"\bINLINE\b[^({]*?(\w+)\(")


@dataclass(frozen=True, slots=True)
class _Definition:
    """Lines that are kept or left out together.

    Args:
        text: the lines, comments before them included.
        names: any of these sets of names asks for it; without any it is always there.
        conditions: the preprocessor's conditions around it, the outermost first, as positions of
            their first lines.
    """

    text: str
    names: tuple[frozenset[str], ...]
    conditions: tuple[int, ...]

    def is_named(self, words: set[str]) -> bool:
        return not self.names or any(each <= words for each in self.names)


@dataclass(frozen=True, slots=True)
class _Condition:
    """A line `#if`, `#else`, `#elif` or `#endif`."""

    text: str
    first: int
    """The position of the first line of its condition."""


def native_text(program: Iterable[str]) -> str:
    """What a program begins with, given the texts of its kernels and of its host."""
    items = _items()
    words = {word for text in program for word in _words(text)}
    kept: set[int] = set()
    conditions: set[int] = set()
    waiting = [place for place, item in enumerate(items) if isinstance(item, _Definition)]
    while True:
        found = [place for place in waiting if _definition(place).is_named(words)]
        if not found:
            break
        kept.update(found)
        waiting = [place for place in waiting if place not in kept]
        for place in found:
            words |= _words_at(place)
            conditions.update(_definition(place).conditions)
        for item in items:
            if isinstance(item, _Condition) and item.first in conditions:
                words.update(_words(item.text))
    lines = (
        item.text
        for place, item in enumerate(items)
        if place in kept or (isinstance(item, _Condition) and item.first in conditions)
    )
    return "\n".join([source_text(_ABI), *lines])


def definitions() -> frozenset[str]:
    """All that can be asked for, by name."""
    found = [item for item in _items() if isinstance(item, _Definition)]
    return frozenset(name for each in found for names in each.names for name in names)


def _words(text: str) -> list[str]:
    return _WORD.findall(_COMMENT.sub("", text))


@cache
def _words_at(place: int) -> frozenset[str]:
    return frozenset(_words(_definition(place).text))


def _definition(place: int) -> _Definition:
    found = _items()[place]
    assert isinstance(found, _Definition)
    return found


@cache
def _items() -> tuple[_Definition | _Condition, ...]:
    """All texts in order, taken apart."""
    items: list[_Definition | _Condition] = []
    conditions: list[int] = []
    macros: dict[str, str] = {}
    text = "\n".join(map(source_text, _TEXTS))
    types = frozenset(_TYPES.findall(text))
    for block in _blocks(text):
        code = _LEADING.sub("", block, count=1) if block.startswith("//") else block
        directive = _DIRECTIVE.match(code)
        kind = directive.group(1) if directive else ""
        if kind in ("if", "ifdef", "ifndef"):
            conditions.append(len(items))
        if kind in ("if", "ifdef", "ifndef", "else", "elif", "endif"):
            items.append(_Condition(block, conditions[-1]))
        else:
            items.append(_Definition(block, _names(code, kind, types, macros), tuple(conditions)))
        if kind == "endif":
            conditions.pop()
        if kind == "define":
            macros[code.split(maxsplit=2)[1].partition("(")[0]] = code
    return tuple(items)


def _blocks(text: str) -> Iterator[str]:
    """The lines of each definition, or of each directive outside of any, with its comments."""
    block: list[str] = []
    depth = 0
    for line in _LINE_END.split(text):
        code = line.partition("//")[0].strip()
        if not block and not line:
            continue
        block.append(line)
        is_directive = not depth and code.startswith("#")
        if not is_directive:
            depth += code.count("{") + code.count("(") - code.count("}") - code.count(")")
        ends = code.endswith((";", "}")) or is_directive or _INVOCATION.match(code) is not None
        if not depth and ends:
            yield "\n".join(block)
            block = []


def _names(
    code: str, directive: str, types: frozenset[str], macros: Mapping[str, str]
) -> tuple[frozenset[str], ...]:
    """What asks for a definition: any of these sets of names."""
    if directive:
        return () if directive == "include" else (frozenset(code.split()[1].split("(")[:1]),)
    if _INVOCATION.match(code):
        return tuple(frozenset((name,)) for name in _expanded(code, macros))
    head = _PARAMETERS.sub("", _ATTRIBUTE.sub("", code.partition("{")[0]))
    if "operator" in head:  # of the types that it takes
        return (types & frozenset(_WORD.findall(head)),)
    if found := _TYPE.match(head):
        special = frozenset(_WORD.findall(found.group(2) or ""))
        return (frozenset((found.group(1),)) | (special & types),)
    found = _FUNCTION.search(head)
    value = _VALUE.search(head)
    if value is not None and (found is None or value.start() < found.start()):
        found = value
    assert found is not None, f"nothing is named by {code!r}"
    return (frozenset((found.group(1),)),)


def _expanded(code: str, macros: Mapping[str, str]) -> Iterator[str]:
    """The names of the functions that a macro defines of its first argument."""
    name, _, arguments = code.partition("(")
    argument = arguments.split(",")[0].split(")")[0].strip()
    head, _, body = macros[name].partition(")")
    parameter = head.partition("(")[2].split(",")[0].strip()
    body = re.sub(rf"##{parameter}\b|\b{parameter}##|\b{parameter}\b", argument, body)
    for inner in _INVOCATION.finditer(body):
        if inner.group(1) in macros:
            yield from _expanded(body[inner.start() :], macros)
    yield from _INLINE.findall(body)
