"""Writes the pages of docs/graph-breaks/ from the tracer's own table of causes.

python docs/graph_breaks.py          # write the pages
python docs/graph_breaks.py --check  # fail if they are not what they would be
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from plait_bytecode_tracer import BREAKS, BreakKind

FOLDER = Path(__file__).parent / "graph-breaks"
INDEX = """# Graph breaks

Where the tracer meets something that a graph cannot hold, the graph ends: what came before is
compiled, the statement runs as plain Python, and what follows, in all the live frames, is
compiled as one more graph. A break never changes what the program does. `plait.report(compiled)`
lists the breaks of a function with their codes; `plait.compile(f, fullgraph=True)` raises at the
first.

`plait.lint(f, *args)` lists all of them without compiling anything. On the command line, and in CI,
it takes a function that returns what to call and its arguments; the exit status is 1 where there
are breaks:

```
$ python -m plait lint checks.py:model_and_inputs
$ python -m plait lint my_package.checks:model_and_inputs --json --allow GB0005
```

"""


def pages() -> dict[str, str]:
    """The text of each page by its file's name."""
    rows = "\n".join(f"| [{k.code}]({k.code}.md) | {k.title} |" for k in BREAKS.values())
    contents = "\n".join(BREAKS)
    toctree = f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n"
    index = f"{INDEX}| code | cause |\n|---|---|\n{rows}\n\n{toctree}"
    return {"index.md": index, **{f"{kind.code}.md": page(kind) for kind in BREAKS.values()}}


def page(kind: BreakKind) -> str:
    """The page of one cause."""
    parts = [f"# {kind.code}: {kind.title}", textwrap.fill(kind.meaning, 96)]
    if kind.example:
        parts.append(f"```python\n{textwrap.dedent(kind.example).strip()}\n```")
    parts.append(textwrap.fill(f"**What to do.** {kind.hint}", 96))
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Write or check the pages; an exit status."""
    wanted = pages()
    if "--check" in sys.argv[1:]:
        found = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
        return int(found != wanted)
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
