"""How a value is reached from the call's arguments, as Python text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Constants:
    """Objects that generated code refers to by name; each object has one name."""

    names: dict[int, str] = field(default_factory=dict)
    objects: dict[str, object] = field(default_factory=dict)

    def name(self, value: object) -> str:
        """The name of an object in the namespace of generated code."""
        known = self.names.get(id(value))
        if known is None:
            known = f"_c{len(self.names)}"
            self.names[id(value)] = known
            self.objects[known] = value
        return known


@dataclass(frozen=True, slots=True)
class Source:
    """A way to a value: a Python expression over arguments, and words for people."""

    code: str
    text: str
    base: Source | None = None
    """What it is read from; its guards come first."""

    def attribute(self, name: str) -> Source:
        return Source(f"{self.code}.{name}", f"{self.text}.{name}", self)

    def own_attribute(self, name: str, table: str) -> Source:
        """What the object itself holds under a name; `table` names a reader of its dict."""
        own = Source(f"{table}({self.code})", f"{self.text}.__dict__", self)
        return Source(f"{own.code}[{name!r}]", f"{self.text}.{name}", own)

    def item(self, key: str, shown: str) -> Source:
        return Source(f"{self.code}[{key}]", f"{self.text}[{shown}]", self)

    def parameter(self, kind: str, name: str) -> Source:
        """A parameter, buffer or submodule of an nn.Module; `kind` names the dictionary."""
        container = Source(f"{self.code}.{kind}", f"{self.text}.{kind}", self)
        return Source(f"{container.code}[{name!r}]", f"{self.text}.{name}", container)
