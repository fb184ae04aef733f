"""How a function is compiled, which all that goes on after its breaks shares."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from plait_bytecode_tracer.shapes.policy import History
from plait_utils import Profile, dataclass

if TYPE_CHECKING:
    from plait_bytecode_tracer.capture import Capture
    from plait_bytecode_tracer.dispatch import CompiledFunction

Backend: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[torch.Tensor], "Capture"], Any]
"""Makes a graph callable: it takes the graph's inputs and returns its outputs."""


@dataclass(slots=True)
class Settings:
    """How a function is compiled; shared with its continuations."""

    backend: Backend
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = 8
    native_guards: bool = True
    data_dependent: bool = True
    data_floats: bool = True
    data_sizes: bool = False
    orders_draws: bool = False
    profile: Profile = field(default_factory=Profile)
    before_trace: Callable[[Sequence[Any]], object] | None = None
    """Is called with a call's arguments before it is traced."""
    continuations: dict[Hashable, CompiledFunction] = field(default_factory=dict)
    """Of all places where the function was broken, by what they are."""
    histories: dict[Any, History] = field(default_factory=dict)
    """What continuations were called with, by their code: each specialisation has its own."""

    def history_of(self, function: types.FunctionType) -> History:
        """What a function has been called with, and others of the same code."""
        code = function.__code__
        key = (function.__qualname__, code.co_firstlineno, code.co_code)
        return self.histories.setdefault(key, History())
