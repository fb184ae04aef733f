"""Writes docs/graph-breaks.md from the tracer's own table of causes.

python docs/graph_breaks.py          # write the page
python docs/graph_breaks.py --check  # fail if the page is not what it would be
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from plait_bytecode_tracer import BREAKS

PAGE = Path(__file__).parent / "graph-breaks.md"
HEAD = """# Graph breaks

Where the tracer meets something that a graph cannot hold, the graph ends: what came before is
compiled, the statement runs as plain Python, and what follows, in all the live frames, is
compiled as one more graph. A break never changes what the program does. `plait.report(compiled)`
lists the breaks of a function with their codes; `plait.compile(f, fullgraph=True)` raises at the
first.
"""


def page() -> str:
    """The page's text."""
    parts = [HEAD]
    for kind in BREAKS.values():
        meaning = textwrap.fill(kind.meaning, 96)
        parts.append(f"## {kind.code}: {kind.title}\n\n{meaning}\n")
        if kind.example:
            parts.append(f"```python\n{textwrap.dedent(kind.example).strip()}\n```\n")
        parts.append(textwrap.fill(f"**What to do.** {kind.hint}", 96) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write or check the page; an exit status."""
    text = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
