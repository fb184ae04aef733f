"""Builds the native check once per machine, in the background, and loads it."""

from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from plait_bytecode_tracer.guards.exact import ABSENT, same_constant, same_order
from plait_bytecode_tracer.guards.kinds import storage_pattern
from plait_bytecode_tracer.guards.native.units import (
    GUARDS,
    TENSORS,
    BuildError,
    Compiling,
    Unit,
    suffix,
)
from plait_bytecode_tracer.residual.steps import Step, run_steps
from plait_utils import CacheError, DiskCache, get_logger
from plait_utils.forks import new_lock
from plait_utils.quiet import wait_until_quiet

_TIMEOUT_SECONDS = 120
_PATIENCE_SECONDS = 60
"""How long what is compiled goes first."""
_SWITCH = "PLAIT_NATIVE_GUARDS"
"""Set to 0 in the environment, it keeps guards in Python."""


class NativeGuards:
    """The native module, as it comes to be.

    It is loaded at once where an earlier process has built it, else built by a thread.
    Until it is there, and where it cannot be, `module` is None.
    """

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self.tensors: ModuleType | None = None
        """The extension of tensors.cpp, where it could be compiled."""
        self.failure: str | None = None
        """Why there is no native check, if that is known."""
        self._lock = new_lock()
        self._thread: threading.Thread | None = None
        self._compiling = Compiling(_TIMEOUT_SECONDS)
        self._waiting: list[Callable[[], None]] = []
        self._is_waited_for = False

    def request(
        self, ready: Callable[[], None] | None = None, *, builds: bool = True
    ) -> ModuleType | None:
        """The module if it is there; else start getting it, and call `ready` when it has come.

        Never waits for a compiler. Without `builds` the module is built once somebody else asks.
        `ready` is called from another thread.
        """
        if self.module is not None or self.failure is not None:
            return self.module
        with self._lock:
            if self._thread is None and self.module is None and self.failure is None:
                self._start(builds)
            if self.module is None and self.failure is None and ready is not None:
                self._waiting.append(ready)
        return self.module

    def wait(self, timeout: float = _TIMEOUT_SECONDS) -> ModuleType | None:
        """The module, once it is built; None where it cannot be."""
        self.request()
        if self._thread is not None:
            self._is_waited_for = True
            self._thread.join(timeout)
        return self.module

    def reset(self) -> None:
        """Forget the module and any failure, so that the next request starts anew."""
        self.wait()
        with self._lock:
            self.module = self.tensors = self.failure = self._thread = None
            self._is_waited_for = False

    def _start(self, builds: bool) -> None:
        try:
            if os.environ.get(_SWITCH) == "0":
                raise BuildError(f"{_SWITCH} is 0")
            cache = DiskCache()
            guards, tensors = (cache.get_file(u.key(), suffix()) for u in (GUARDS, TENSORS))
            if guards is not None and tensors is not None:
                self.module, self.tensors = _load(guards, tensors)
                return
        except (BuildError, OSError, ImportError) as error:
            self._fail(error)
            return
        if not builds:
            return
        self._thread = threading.Thread(
            target=self._build, args=(cache,), name="plait-guards-build", daemon=True
        )
        atexit.register(self._stop)
        self._thread.start()

    def _build(self, cache: DiskCache) -> None:
        wait_until_quiet(_PATIENCE_SECONDS, lambda: self._is_waited_for)
        try:
            guards = self._built(cache, GUARDS)
            try:
                tensors = self._built(cache, TENSORS)
            except (BuildError, CacheError, OSError) as error:
                get_logger("tracer").debug("guards read tensors by calls: %s", error)
                tensors = None
            module, reader = _load(guards, tensors)
        except (BuildError, CacheError, OSError, ImportError) as error:
            self._fail(error)
            return
        with self._lock:
            self.module, self.tensors = module, reader
            waiting, self._waiting = self._waiting, []
        for ready in waiting:
            if not self._compiling.is_stopped:
                ready()

    def _built(self, cache: DiskCache, unit: Unit) -> Path:
        return cache.get_or_build(unit.key(), suffix(), self._compiling.run(unit))

    def _fail(self, error: Exception) -> None:
        self.failure = str(error)
        self._waiting.clear()
        get_logger("tracer").debug("guards are checked in Python: %s", error)

    def _stop(self) -> None:
        """At the interpreter's end: end the compiler, and let the thread tidy up."""
        self._compiling.stop()
        thread = self._thread
        if self._compiling.has_begun and thread not in (None, threading.current_thread()):
            thread.join(timeout=5)


def _load(guards: Path, tensors: Path | None) -> tuple[ModuleType, ModuleType | None]:
    module = _extension(GUARDS, guards)
    reading = None if tensors is None else _reading(tensors)
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        raise BuildError("this torch has no DLPack exchange table")
    tensor = torch._C.TensorBase
    try:
        module.setup(
            *(table, tensor.requires_grad, tensor.is_neg, tensor.is_conj),
            *(None if reading is None else reading.reader(), same_constant, same_order),
            *(storage_pattern, ABSENT, torch.Tensor, torch.nn.Parameter, Step, run_steps),
        )
    except (TypeError, RuntimeError, ValueError) as error:
        raise BuildError(str(error)) from error
    return module, reading


def _extension(unit: Unit, path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(unit.name, str(path))
    spec = importlib.util.spec_from_loader(unit.name, loader)
    if spec is None:
        raise BuildError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _reading(path: Path) -> ModuleType | None:
    """What reads tensors where they are; None where it does not read what they are."""
    try:
        module = _extension(TENSORS, path)
    except (BuildError, ImportError) as error:
        get_logger("tracer").debug("guards read tensors by calls: %s", error)
        return None
    found: list[bool] = []
    # No mode of this thread's reaches tensors of another.
    thread = threading.Thread(
        target=lambda: found.append(_reads(module)), name="plait-guards-probe"
    )
    try:
        thread.start()
    except RuntimeError:  # the process is about to end
        return None
    thread.join()
    return module if found == [True] else None


def _reads(module: ModuleType) -> bool:
    """Whether tensors of several kinds are found to be what they are."""
    plain = torch.arange(12.0).reshape(3, 4)
    pairs = plain.to(torch.complex64)
    probes = {
        6: (plain, torch.nn.Parameter(plain), plain.T[1:], torch._neg_view(plain), plain[:0]),
        4: (torch.tensor(7),),
        9: (pairs, pairs.conj()),
    }
    return all(
        module.find(probe, probe._cdata) and module.describe(probe) == (number, *_described(probe))
        for number, tensors in probes.items()
        for probe in tensors
    )


def _described(tensor: torch.Tensor) -> tuple[object, ...]:
    """What tensors.cpp reads of a tensor of the CPU beside its dtype, as Python reads it."""
    return (
        *(-1, tensor.data_ptr(), tuple(tensor.shape), tensor.stride()),
        *(tensor.requires_grad, tensor.is_neg(), tensor.is_conj()),
    )


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
