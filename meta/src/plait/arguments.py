"""The arguments of `plait.compile`, checked."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from plait.errors import OptionError, unknown_name
from plait.modes import MODES, in_mode
from plait.options import CompileOptions, by_group
from plait.passes import PLACES, parse_user_passes
from plait_utils import SettingError, dataclass, shown

NUMERICS = ("default", "strict")
"""How results may differ from eager's: by rounding, or not at all."""
RANDOM = ("eager", "counter")
"""Which random numbers a compiled program draws."""
BACKENDS = ("plait", "python", "triton", "eager", "noop", "aten", "checking", "printing", "dumping")


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
    numerics: object = None,
) -> CompileRequest:
    """The arguments as a request. Raises OptionError, which names what is taken."""
    if not isinstance(fullgraph, bool):
        raise OptionError(f"fullgraph takes True or False, not {shown(fullgraph)}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise OptionError(f"dynamic takes True, False or None, not {shown(dynamic)}")
    chosen_mode = "default" if mode is None else mode
    if not isinstance(chosen_mode, str) or chosen_mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    chosen = "plait" if backend is None else backend
    if isinstance(chosen, str):
        if chosen not in BACKENDS:
            raise unknown_name("backend", chosen, BACKENDS)
    elif not callable(chosen):
        raise OptionError(
            "backend takes a name or a function (graph_module, example_inputs), "
            f"not {shown(backend)}",
            hint=f"Known: {', '.join(map(repr, BACKENDS))}.",
        )
    elif not (takes(chosen, 2, unknown=True) or takes(chosen, 3, unknown=True)):
        raise OptionError(
            f"the backend {shown(chosen)} does not take (graph_module, example_inputs)",
            hint="A backend is a function of these two that returns a function.",
        )
    settings = parse_options(options if numerics is None else _with_numerics(options, numerics))
    settings = in_mode(chosen_mode, settings, options)
    return CompileRequest(fullgraph, dynamic, str(chosen_mode), chosen, settings)


def _with_numerics(options: object, numerics: object) -> object:
    """The options with the argument among them."""
    if not isinstance(numerics, str) or numerics not in NUMERICS:
        raise unknown_name("numerics", numerics, NUMERICS)
    if options is None:
        return {"numerics": numerics}
    return {**options, "numerics": numerics} if isinstance(options, Mapping) else options


def takes(function: Callable[..., Any], count: int, *, unknown: bool) -> bool:
    """Whether a function takes so many positional arguments; `unknown` where it does not say."""
    try:
        signature = inspect.signature(function)
    except Exception:  # a callable object's attributes may raise anything
        return unknown
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def parse_options(options: object) -> CompileOptions:
    """The options of one `plait.compile` call.

    `"scheduler.fuse_pointwise": False` is short for `"scheduler": {"fuse_pointwise": False}`.

    Raises OptionError, naming the closest valid name, for unknown names and for
    values of a wrong type.
    """
    given = {} if options is None else options
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(
            f"options takes a dictionary with string keys, not {shown(options)}",
            hint='For example options={"verify": 3}.',
        )
    flat, nested = by_group(given)
    known = [field.name for field in dataclasses.fields(CompileOptions)]
    for name, value in flat.items():
        if name not in known:
            raise unknown_name("option", name, known)
        if name in nested:
            raise OptionError(f"option {name!r} takes a dictionary, not {shown(value)}")
    try:
        parsed = CompileOptions.from_env(**flat)
    except SettingError as error:
        raise OptionError(error.message, hint=error.hint) from None
    _check_values(parsed)
    _check_together(parsed)
    for place in nested["user_passes"]:
        if place not in PLACES:
            raise unknown_name(
                "option", f"user_passes.{place}", [f"user_passes.{each}" for each in PLACES]
            )
    parsed = dataclasses.replace(
        parsed,
        scheduler=tuple(nested["scheduler"].items()),
        cpp=tuple(nested["cpp"].items()),
        triton=tuple(nested["triton"].items()),
        user_passes=parse_user_passes(nested["user_passes"]),
    )
    _check_stages(parsed)
    return parsed


def _check_values(options: CompileOptions) -> None:
    """Raises OptionError for a value that an option does not take, though it is of its type."""
    if options.recompile_limit < 1:
        raise OptionError(
            "option 'recompile_limit' takes a number above 0, not "
            f"{shown(options.recompile_limit)}",
            hint='backend="eager" runs without compiling.',
        )
    if options.memory_budget is not None and not 0 <= options.memory_budget <= 1:
        raise OptionError(
            f"option 'memory_budget' takes a number from 0 to 1, not {options.memory_budget!r}",
            hint="None lets plait weigh bytes against operations.",
        )
    if options.compile_seconds is not None and not options.compile_seconds >= 0:
        raise OptionError(
            f"option 'compile_seconds' takes a number of seconds, not {options.compile_seconds!r}",
            hint="None lets compiling take as long as it takes.",
        )
    if options.numerics not in NUMERICS:
        raise unknown_name("numerics", options.numerics, NUMERICS)
    if options.random not in RANDOM:
        raise unknown_name("random", options.random, RANDOM)
    if options.verify < 0:
        raise OptionError(f"option 'verify' takes a number of calls, not {shown(options.verify)}")


_ROUND_OTHERWISE = {
    "numeric_rewrites": "Rewrites that change rounding give other bits than eager.",
    "attention_calls": "A fused kernel rounds in other places than the products that it replaces.",
    "attention_gradients": (
        "Weights that are computed again are rounded otherwise than those of the forward."
    ),
}
"""Options that cannot be chosen where all rounding is eager's, and why."""


def _check_together(options: CompileOptions) -> None:
    """Raises OptionError for options that contradict each other."""
    if options.random == "counter" and (options.is_strict or options.verify):
        other = "numerics='strict'" if options.is_strict else "the option 'verify'"
        raise OptionError(
            f"{other} and the option random='counter' contradict each other",
            hint="Its random numbers are others than eager's.",
        )
    for name, reason in _ROUND_OTHERWISE.items():
        if options.is_strict and getattr(options, name):
            raise OptionError(
                f"numerics='strict' and the option {name!r} contradict each other", hint=reason
            )


def _check_stages(options: CompileOptions) -> None:
    """Check what only the stages know; they are imported only if something is asked of them."""
    if options.scheduler:
        options.scheduler_options()
    if options.cpp:
        options.cpp_options()
    if options.triton:
        options.triton_options()
    if options.disabled:
        from plait.pass_names import check_disabled

        check_disabled(options)
