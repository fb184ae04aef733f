"""Builds the native check once per machine, in the background, and loads it."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.resources
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from plait_bytecode_tracer.guards.exact import ABSENT, same_constant, same_order
from plait_bytecode_tracer.guards.kinds import storage_pattern
from plait_bytecode_tracer.residual.steps import Step, run_steps
from plait_utils import DiskCache, get_logger, stable_hash

_NAME = "plait_guards"
_FLAGS = ("-O3", "-shared", "-fPIC", "-w")
_COMPILERS = ("cc", "gcc", "clang", "g++", "clang++")
_TIMEOUT_SECONDS = 120
_SWITCH = "PLAIT_NATIVE_GUARDS"
"""Set to 0 in the environment, it keeps guards in Python."""


class BuildError(Exception):
    """The native check cannot be built or loaded; the Python one goes on."""


class NativeGuards:
    """The native module, as it comes to be.

    It is loaded at once where an earlier process has built it, else built by a thread.
    Until it is there, and where it cannot be, `module` is None.
    """

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self.failure: str | None = None
        """Why there is no native check, if that is known."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._compiler: subprocess.Popen[bytes] | None = None
        self._waiting: list[Callable[[], None]] = []
        self._stopping = False

    def request(self, ready: Callable[[], None] | None = None) -> ModuleType | None:
        """The module if it is there; else start getting it, and call `ready` when it has come.

        Never waits for a compiler. `ready` is called from another thread.
        """
        if self.module is not None or self.failure is not None:
            return self.module
        with self._lock:
            if self._thread is None and self.module is None and self.failure is None:
                self._start()
            if self.module is None and self.failure is None and ready is not None:
                self._waiting.append(ready)
        return self.module

    def wait(self, timeout: float = _TIMEOUT_SECONDS) -> ModuleType | None:
        """The module, once it is built; None where it cannot be."""
        self.request()
        if self._thread is not None:
            self._thread.join(timeout)
        return self.module

    def reset(self) -> None:
        """Forget the module and any failure, so that the next request starts anew."""
        self.wait()
        with self._lock:
            self.module, self.failure, self._thread = None, None, None

    def _start(self) -> None:
        try:
            if os.environ.get(_SWITCH) == "0":
                raise BuildError(f"{_SWITCH} is 0")
            cache, key = DiskCache(), _key()
            built = cache.get_file(key, _suffix())
            if built is not None:
                self.module = _load(built)
                return
        except (BuildError, OSError, ImportError) as error:
            self._fail(error)
            return
        self._thread = threading.Thread(
            target=self._build, args=(cache, key), name="plait-guards-build", daemon=True
        )
        atexit.register(self._stop)
        self._thread.start()

    def _build(self, cache: DiskCache, key: str) -> None:
        try:
            module = _load(cache.get_or_build(key, _suffix(), self._compile))
        except (BuildError, OSError, ImportError) as error:
            self._fail(error)
            return
        with self._lock:
            self.module = module
            waiting, self._waiting = self._waiting, []
        for ready in waiting:
            if not self._stopping:
                ready()

    def _fail(self, error: Exception) -> None:
        self.failure = str(error)
        self._waiting.clear()
        get_logger("tracer").debug("guards are checked in Python: %s", error)

    def _compile(self, output: Path) -> None:
        import sysconfig  # with its data, which a warm start does without

        compiler = _compiler()
        include = sysconfig.get_path("include")
        if not Path(include, "Python.h").exists():
            raise BuildError(f"Python's headers are not installed in {include}")
        for name, text in _sources().items():
            output.with_name(name).write_text(text, encoding="utf-8")
        source = output.with_name("guarded.c")
        command = [compiler, *_FLAGS, "-x", "c", f"-I{include}", str(source), "-o", str(output)]
        if self._stopping:
            raise BuildError("the process is about to end")
        self._compiler = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        try:
            _, errors = self._compiler.communicate(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._compiler.kill()
            raise BuildError(f"{compiler} took longer than {_TIMEOUT_SECONDS} s") from error
        if self._compiler.returncode != 0:
            words = errors.decode(errors="replace").strip()
            raise BuildError(f"{compiler} failed: {words[:1000]}")

    def _stop(self) -> None:
        """At the interpreter's end: end the compiler, and let the thread tidy up."""
        self._stopping = True
        if self._compiler is not None and self._compiler.poll() is None:
            self._compiler.kill()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)


def _sources() -> dict[str, str]:
    """The C files by name: one translation unit, and what it includes."""
    folder = importlib.resources.files(__package__)
    return {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith((".c", ".h"))
    }


def _suffix() -> str:
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def _key() -> str:
    """What the binary depends on: the source, and the interpreter that loads it.

    The compiler is not among it: any that builds this builds the same behaviour.
    """
    sources = tuple(_sources().items())
    return stable_hash(
        "native guards", sources, _suffix(), sys.platform, platform.machine(), _FLAGS
    )


def _compiler() -> str:
    configured = os.environ.get("CC", "").split()
    for name in (*configured[:1], *_COMPILERS):
        path = shutil.which(name)
        if path is not None:
            return path
    raise BuildError("no C compiler was found")


def _load(path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_loader(_NAME, loader)
    if spec is None:
        raise BuildError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        raise BuildError("this torch has no DLPack exchange table")
    tensor = torch._C.TensorBase
    try:
        module.setup(
            *(table, tensor.requires_grad, tensor.is_neg, tensor.is_conj),
            *(same_constant, same_order, storage_pattern, ABSENT),
            *(torch.Tensor, torch.nn.Parameter, Step, run_steps),
        )
    except (TypeError, RuntimeError, ValueError) as error:
        raise BuildError(str(error)) from error
    return module


NATIVE = NativeGuards()
"""The one native module of this process."""


def wait_for_native_guards(timeout: float = _TIMEOUT_SECONDS) -> str | None:
    """Wait, at most some seconds, until guards are checked natively: for measurements.

    Returns None once they are, else why they are not (yet). Nothing else needs to wait:
    until then, the same guards are checked in Python.
    """
    if NATIVE.wait(timeout) is not None:
        return None
    return NATIVE.failure or f"the native check was not built within {timeout} s"
