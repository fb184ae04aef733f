"""The arguments of `plait.compile`, checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plait.errors import OptionError
from plait_utils import SettingError, Settings, setting

MODES = ("default",)
BACKENDS = ("plait", "python", "triton", "eager", "noop", "aten", "checking", "printing", "dumping")


@dataclass(frozen=True)
class CompileOptions(Settings):
    """What `options=` may hold."""

    verify: bool = setting(
        False, "check every stage's output", env="PLAIT_VERIFY", in_cache_key=False
    )
    strict: bool = setting(
        False, "raise where a stage fails instead of running the graph eagerly", in_cache_key=False
    )
    recompile_limit: int = setting(
        8, "specialisations of one function before calls run eagerly", in_cache_key=False
    )
    fusion: bool = setting(True, "fuse loops into kernels")
    numeric_rewrites: bool = setting(
        False, "allow graph rewrites that change rounding, such as recognising attention"
    )


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """Checked arguments of one `plait.compile`."""

    fullgraph: bool
    dynamic: bool | None
    mode: str
    backend: str | Callable[..., Any]
    options: CompileOptions


def check_arguments(
    fullgraph: object,
    dynamic: object,
    mode: object,
    backend: object,
    options: object,
) -> CompileRequest:
    """The arguments as a request. Raises OptionError, which names what is taken."""
    if not isinstance(fullgraph, bool):
        raise OptionError(f"fullgraph takes True or False, not {fullgraph!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise OptionError(f"dynamic takes True, False or None, not {dynamic!r}")
    chosen_mode = "default" if mode is None else mode
    if chosen_mode not in MODES:
        raise OptionError(f"there is no mode {mode!r}", hint=_hint(mode, MODES))
    chosen = "plait" if backend is None else backend
    if isinstance(chosen, str):
        if chosen not in BACKENDS:
            raise OptionError(f"there is no backend {chosen!r}", hint=_hint(chosen, BACKENDS))
    elif not callable(chosen):
        raise OptionError(
            f"backend takes a name or a function (graph_module, example_inputs), not {backend!r}"
        )
    given = {} if options is None else options
    if not isinstance(given, Mapping):
        raise OptionError(f"options takes a dict, not {options!r}")
    try:
        settings = CompileOptions.from_env(**dict(given))
    except (SettingError, TypeError) as error:
        message = error.message if isinstance(error, SettingError) else str(error)
        hint = error.hint if isinstance(error, SettingError) else None
        raise OptionError(message, hint=hint) from error
    return CompileRequest(fullgraph, dynamic, str(chosen_mode), chosen, settings)


def _hint(name: object, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    listed = ", ".join(repr(k) for k in known)
    return f"Did you mean {close[0]!r}?" if close else f"plait knows {listed}."
