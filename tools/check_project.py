"""Checks that no linter makes: imports between packages, peers, changelogs.

- Library code does not import torch's own compiler; only `plait.interop` may.
- A package imports a sibling by its root or a documented public submodule.
- Triton is imported by the Triton backend only.
- The imports at the top of a package's modules form no circle: none works by luck of their order.
- What a package imports when it is asked for is what type checkers see of it, each name once.
- A package's changelog has a heading for its version.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.jit", "torch.export")
PUBLIC_SUBMODULES = frozenset(
    {
        *("plait_utils.fake", "plait_utils.meta_kernels", "plait_utils.numerics"),
        *("plait_utils.config", "plait_fx_passes.backends", "plait_fx_passes.tools"),
        "plait_bytecode_tracer.stored",
        *(
            "plait_scheduler.host",
            "plait_utils.wrappings",
            "plait_utils.background",
            "plait_utils.cached",
            "plait_utils.data_errors",
            "plait_utils.forks",
            "plait_utils.quiet",
            "plait_utils.started",
            "plait_utils.cache_archive",
            "plait_utils.checks",
            "plait_utils.collectives",
            "plait_utils.counters",
            "plait_utils.data_sizes",
            "plait_utils.draws",
            "plait_utils.interrupts",
            "plait_utils.lent_arguments",
            "plait_utils.meeting",
            "plait_utils.open_functions",
            "plait_utils.device_errors",
            "plait_utils.philox",
            "plait_utils.philox_agreement",
            "plait_utils.philox_numbers",
            "plait_utils.plain_writers",
            "plait_utils.precision",
            "plait_utils.turns",
            "plait_utils.with_gradients",
        ),
        *("plait_utils.fake_kernels", "plait_utils.shape_environment", "plait_utils.size_text"),
    }
)


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Every library source file, with the import name of its package."""
    for folder in [*sorted(root.glob("packages/*")), root / "meta"]:
        for package in sorted(folder.glob("src/*")):
            for path in sorted(package.rglob("*.py")):
                yield package.name, path


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The modules that a file imports, and names it takes from packages, with lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.compile":
            yield node.lineno, "torch.compile"


def file_problems(package: str, path: Path, text: str) -> Iterator[str]:
    """What is wrong with the imports of one file."""
    for line, name in imported(ast.parse(text)):
        where = f"{path}:{line}"
        is_peer = name == "torch.compile" or any(
            name == peer or name.startswith(f"{peer}.") for peer in PEERS
        )
        if is_peer and "interop" not in path.parts:
            yield f"{where}: imports {name}, a part of torch's own compiler"
        top = name.split(".")[0]
        if top == "triton" and package != "plait_triton_codegen":
            yield f"{where}: imports triton outside of the Triton backend"
        if top.startswith("plait") and top != package:
            module = ".".join(name.split(".")[:2])
            is_module = (ROOT / "packages").is_dir() and module_exists(module)
            if is_module and module != top and module not in PUBLIC_SUBMODULES:
                yield f"{where}: imports {module}, which is not public"


def module_exists(name: str) -> bool:
    """Whether a dotted name is a module of one of the packages, rather than a name in one."""
    top, _, rest = name.partition(".")
    if not rest:
        return False
    for folder in ROOT.glob(f"packages/*/src/{top}"):
        if f'"{rest}"' in (folder / "__init__.py").read_text():
            return False  # the root exports something of that name
        if (folder / f"{rest}.py").exists() or (folder / rest / "__init__.py").exists():
            return True
    return False


def modules_of(package: Path) -> dict[str, ast.Module]:
    """The modules of a package by name, without those that only stand for a folder."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts): ast.parse(
            path.read_text()
        )
        for path in sorted(package.rglob("*.py"))
        if path.stem != "__init__"
    }


def circle_problems(modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """A circle of imports that modules make as they are loaded, if there is one."""
    graph: dict[str, set[str]] = {}
    for name, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom | ast.Import):
                found = {module for _, module in imported(ast.Module([node], []))}
                graph.setdefault(name, set()).update(found & modules.keys())
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"imports in a circle: {' -> '.join(reversed(error.args[1]))}"


def late_export_problems(path: Path, text: str) -> Iterator[str]:
    """Names that a package imports late (`late_exports`) and type checkers do not see there, or
    the other way round; and names that stand in its table twice."""
    for node in ast.parse(text).body:
        if not isinstance(node, ast.If) or ast.unparse(node.test) != "TYPE_CHECKING":
            continue
        calls = [call for each in node.orelse for call in ast.walk(each) if is_late_exports(call)]
        for call in calls:
            assert isinstance(call, ast.Call)
            tables = [each for each in call.args if isinstance(each, ast.Dict)]
            late = Counter(name for table in tables for name in names_in_table(table))
            seen = Counter(name for each in node.body for name in names_taken(each))
            where = f"{path}:{call.lineno}"
            for module, name in sorted((late - seen).keys()):
                known = (module, name) in seen
                reason = "again" if known else "which type checkers do not see"
                yield f"{where}: exports {name} of {module}, {reason}"
            for module, name in sorted((seen - late).keys()):
                yield f"{where}: does not export {name} of {module}, which type checkers see"


def is_late_exports(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "late_exports"


def names_in_table(table: ast.Dict) -> Iterator[tuple[str, str]]:
    """The modules and names of a table that is given to `late_exports`."""
    for module, names in zip(table.keys, table.values, strict=True):
        assert isinstance(module, ast.Constant)
        for each in ast.walk(names):
            if isinstance(each, ast.Constant):
                yield str(module.value), str(each.value)


def names_taken(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The modules and names of a `from module import names`."""
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from ((node.module, alias.name) for alias in node.names)


def changelog_problems(root: Path) -> Iterator[str]:
    """Packages whose changelog does not name their version."""
    for folder in [*sorted(root.glob("packages/*")), root / "meta"]:
        for version_file in folder.glob("src/*/_version.py"):
            version = re.findall(r'"([^"]+)"', version_file.read_text())[0]
            changelog = folder / "CHANGELOG.md"
            if f"## {version}" not in changelog.read_text():
                yield f"{changelog}: has no heading for version {version}"


def main() -> int:
    problems = list(changelog_problems(ROOT))
    for package, path in sources(ROOT):
        text, place = path.read_text(), path.relative_to(ROOT)
        problems += file_problems(package, place, text)
        if path.stem == "__init__":
            problems += late_export_problems(place, text)
    for folder in [*sorted(ROOT.glob("packages/*/src/*")), *sorted(ROOT.glob("meta/src/*"))]:
        problems += circle_problems(modules_of(folder))
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problems found by tools/check_project.py")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
