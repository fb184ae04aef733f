"""torch's environment of symbolic sizes, without torch's own compiler behind it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch._guards

from plait_utils.forks import new_lock

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_VALIDATOR = "torch.fx.experimental.validator"
_lock = new_lock()
_made: list[type[ShapeEnv]] = []


class Noted(list[Any]):
    """A list that calls somebody for each element that is added."""

    def __init__(self, notice: Callable[[Any], None]) -> None:
        super().__init__()
        self._notice = notice

    def append(self, item: Any) -> None:
        super().append(item)
        self._notice(item)


class Place(torch._guards.Source):
    """Where an environment thinks that a symbol is from."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name


def make_environment(on_guard: Callable[[Any], None]) -> ShapeEnv:
    """An environment in which no two sizes are taken for equal because they are so now.

    Its constructor imports torch's validator of translations, which needs the compiler and
    stays off: an empty one stands in for it meanwhile.
    """
    with _lock:
        if not _made:
            _drop_trace_handler()
            _made.append(_environment_class())
        stands_in = _VALIDATOR not in sys.modules
        if stands_in:
            validator: Any = types.ModuleType(_VALIDATOR)
            validator.translation_validation_enabled = lambda: False
            sys.modules[_VALIDATOR] = validator
        try:
            made = _made[0](duck_shape=False, specialize_zero_one=True, should_record_events=False)
        finally:
            if stands_in:
                del sys.modules[_VALIDATOR]
    made.guards = Noted(on_guard)
    return made


def _drop_trace_handler() -> None:
    """Log once to torch's structured trace: where that is off, its handler goes away with it.

    While it is there, each new symbol is logged with a traceback, whose files are looked up
    in a way that imports torch's compiler.
    """
    from torch._logging import trace_structured  # type: ignore[attr-defined]  # not listed

    trace_structured("artifact", suppress_context=True, record_logging_overhead=False)


def _environment_class() -> type[ShapeEnv]:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, SLoc  # type: ignore[attr-defined]  # not listed

    class Environment(ShapeEnv):
        """It asks no Python frames where guards come from: the trace knows the user's line."""

        fixed: Mapping[Any, Any] = types.MappingProxyType({})
        """Symbols that are numbers, for whoever records with the environment to say."""

        def _get_stack_summary(
            self, is_debug: bool = False, framework_loc: str | None = None
        ) -> tuple[SLoc, str]:
            return SLoc(framework_loc, None), ""

        def _get_user_frame(self) -> types.FrameType | None:
            return None

        def _log_guard(self, prefix: str, g: Any, forcing_spec: bool) -> None:
            """Nothing is logged."""

    return Environment
