"""The options of `plait.compile`, checked when it is called."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from plait.errors import CompileArgumentError
from plait_utils import SettingError, Settings, setting

if TYPE_CHECKING:
    from plait_cpp_codegen import CppOptions
    from plait_scheduler import SchedulerOptions

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""The modes of `torch.compile`. On the CPU all of them mean the same to plait."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class PipelineOptions(Settings):
    """What a caller may choose about one compilation."""

    verify: bool = setting(
        False,
        "run every stage's verifier on what the stage made",
        env="PLAIT_VERIFY",
        in_cache_key=False,
    )
    strict: bool = setting(
        False,
        "raise StageError where a graph would otherwise run eagerly",
        env="PLAIT_STRICT",
        in_cache_key=False,
    )
    recompile_limit: int = setting(
        8, "specialisations of one function before further calls run eagerly", in_cache_key=False
    )
    recognize: bool = setting(
        False,
        "recognize hand-written attention and its kin as single operators; rounds differently",
        env="PLAIT_RECOGNIZE",
    )
    disabled_passes: str = setting(
        "", "names of graph passes to leave out, separated by commas", env="PLAIT_DISABLED_PASSES"
    )
    scheduler: tuple[tuple[str, Any], ...] = setting((), "options of the scheduler, by name")
    cpp: tuple[tuple[str, Any], ...] = setting((), "options of the C++ backend, by name")

    @property
    def disabled(self) -> frozenset[str]:
        """The names in `disabled_passes`."""
        return frozenset(name.strip() for name in self.disabled_passes.split(",") if name.strip())

    def scheduler_options(self) -> SchedulerOptions:
        """The scheduler's options."""
        from plait_scheduler import SchedulerOptions

        return _stage_options("scheduler", SchedulerOptions, self.scheduler)

    def cpp_options(self) -> CppOptions:
        """The C++ backend's options, over those of the environment."""
        from plait_cpp_codegen import CppOptions

        return _stage_options("cpp", CppOptions, self.cpp)


def parse_options(options: Mapping[str, Any] | None) -> PipelineOptions:
    """The options of one `plait.compile` call.

    `"scheduler.fuse_pointwise": False` is short for `"scheduler": {"fuse_pointwise": False}`.

    Raises CompileArgumentError, naming the closest valid name, for unknown names and for
    values of a wrong type.
    """
    given = {} if options is None else options
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise CompileArgumentError(
            f"options takes a dictionary with string keys, not {options!r}",
            hint='For example options={"verify": True}.',
        )
    flat, nested = _by_group(given)
    known = [field.name for field in dataclasses.fields(PipelineOptions)]
    for name, value in flat.items():
        if name not in known:
            raise unknown_name("option", name, known)
        if name in nested:
            raise CompileArgumentError(f"option {name!r} takes a dictionary, not {value!r}")
    try:
        parsed = PipelineOptions.from_env(**flat)
    except SettingError as error:
        raise CompileArgumentError(error.message, hint=error.hint) from None
    overrides = {group: tuple(chosen.items()) for group, chosen in nested.items()}
    parsed = dataclasses.replace(parsed, scheduler=overrides["scheduler"], cpp=overrides["cpp"])
    _check_stages(parsed)
    return parsed


def _by_group(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options of the pipeline, and those of its stages by stage."""
    flat: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {"scheduler": {}, "cpp": {}}
    for name, value in given.items():
        group, dot, field = name.partition(".")
        if group in nested and dot:
            nested[group][field] = value
        elif name in nested and isinstance(value, Mapping):
            nested[name].update(value)
        else:
            flat[name] = value
    return flat, nested


def unknown_name(kind: str, name: object, known: Iterable[str]) -> CompileArgumentError:
    """The error for a name that is not one of `known`, with the closest of them."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    listed = ", ".join(repr(each) for each in names)
    meant = f"Did you mean {close[0]!r}? " if close else ""
    return CompileArgumentError(f"there is no {kind} {name!r}", hint=f"{meant}Known: {listed}.")


def _check_stages(options: PipelineOptions) -> None:
    """Check what only the stages know; they are imported only if something is asked of them."""
    if options.scheduler:
        options.scheduler_options()
    if options.cpp:
        options.cpp_options()
    if options.disabled:
        from plait_fx_passes import NUMERIC_PASSES

        known = [each.name for each in NUMERIC_PASSES]
        for name in sorted(options.disabled):
            if name not in known:
                raise unknown_name("pass", name, known)


def _stage_options(group: str, kind: type[S], chosen: tuple[tuple[str, Any], ...]) -> S:
    """A stage's own options, over those of the environment."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name, _ in chosen:
        if name not in known:
            raise unknown_name("option", f"{group}.{name}", [f"{group}.{each}" for each in known])
    try:
        return kind.from_env(**dict(chosen))
    except SettingError as error:
        raise CompileArgumentError(f"options for {group}: {error.message}") from None
