"""Values that the code after the graph needs from the call."""

from __future__ import annotations

from dataclasses import field

from plait_bytecode_tracer.values.sources import Access, Source
from plait_utils import dataclass


@dataclass(slots=True)
class Reads:
    """The sources that residual code reads, each under a name of its own.

    They are read before the graph runs, along with the guards.
    """

    sources: dict[str, Source] = field(default_factory=dict)
    """By name."""
    names: dict[str, str] = field(default_factory=dict)
    """By the source's code."""

    def value(self, source: Source) -> str:
        """The name of a source's value."""
        if source.access in (Access.ARGUMENT, Access.CONSTANT):
            return source.code
        known = self.names.get(source.code)
        if known is None:
            known = f"_b{len(self.names)}"
            self.names[source.code] = known
            self.sources[known] = source
        return known
