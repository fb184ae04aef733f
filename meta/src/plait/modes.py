"""The modes of `plait.compile`: choices of options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from plait.options import CompileOptions, by_group

_TIMED: dict[str, Any] = {"never_slower": True, "cpp.autotune": True, "triton.autotune": True}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    # The C++ compiler takes 10 to 35% less time so; other stages have nothing that is optional.
    "fast-compile": {"cpp.fast_build": True},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {**_TIMED, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": _TIMED,
}
"""The modes of `torch.compile` and `"fast-compile"`: the options that each chooses, where neither
the caller nor the environment has."""


def in_mode(mode: str, settings: CompileOptions, options: object) -> CompileOptions:
    """The options with those that a mode chooses, where nothing else has chosen."""
    given, nested = by_group(options if isinstance(options, Mapping) else {})
    chosen: dict[str, Any] = {}
    for name, value in MODES[mode].items():
        group, dot, field_name = name.partition(".")
        if not dot:
            variable = CompileOptions.__dataclass_fields__[name].metadata["env"]
            if name not in given and variable not in os.environ:
                chosen[name] = value
        elif not nested[group].keys() & _SAME[name] and not os.environ.keys() & _VARIABLES[name]:
            chosen[group] = (*getattr(settings, group), (field_name, value))
    return dataclasses.replace(settings, **chosen)


_SAME = {
    "cpp.fast_build": {"fast_build", "optimization"},
    "cpp.autotune": {"autotune"},
    "triton.autotune": {"autotune"},
}
_VARIABLES = {
    "cpp.fast_build": {"PLAIT_FAST_BUILD", "PLAIT_CXX_OPTIMIZATION"},
    "cpp.autotune": {"PLAIT_AUTOTUNE"},
    "triton.autotune": {"PLAIT_AUTOTUNE"},
}
"""The variables of the environment that say the same of a stage as an option that a mode chooses,
or otherwise."""
