"""Which random operators draw the same numbers: those that a checkpoint runs again.

`torch.utils.checkpoint` runs its region a second time in the backward, from the generator's state
of the first. Fake kernels leave generators where they are, so this goes by what is computed: an
operator that is run again draws what the one draws that computes the same from the same inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.op_info import op_info

_Key: TypeAlias = "tuple[object, ...]"
Call: TypeAlias = "tuple[OpOverload, tuple[object, ...], Mapping[str, object]]"
"""An operator and its arguments, of which tensors are nodes."""


class Draws:
    """The random operators of a recording, by what they compute."""

    def __init__(self) -> None:
        self._noted: list[tuple[fx.Node, Call]] = []
        self._drawn: dict[_Key, list[fx.Node]] = {}
        self._numbers: dict[fx.Node, int] = {}
        self._interned: dict[_Key, int] = {}

    def note(
        self,
        node: fx.Node,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> None:
        """A random operator of the forward was recorded, for a call: its own, or one that was taken
        apart into it and others."""
        # What it computes is asked only where something is run again.
        self._noted.append((node, (func, args, kwargs)))

    def first(
        self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> fx.Node:
        """The node of the forward that this call runs again.

        Raises:
            AtenTraceError: there is none, or it could be one of several.
        """
        while self._noted:
            node, call = self._noted.pop(0)
            key = self._key(*call)
            self._drawn.setdefault(key, []).append(node)
        found = self._drawn.get(self._key(func, args, kwargs), [])
        if len(found) != 1:
            raise AtenTraceError(
                f"its backward runs {func} again, and "
                + ("several calls" if found else "no call")
                + " of the forward computed the same",
                hint="run it eagerly",
            )
        return found[0]

    def _key(self, func: object, args: object, kwargs: Mapping[str, object]) -> _Key:
        return func, self._value_key(args), self._value_key(tuple(kwargs.items()))

    def _value_key(self, argument: object) -> object:
        if isinstance(argument, fx.Node):
            return fx.Node, self._number(argument)
        if isinstance(argument, (list, tuple)):
            return tuple(map(self._value_key, argument))
        return type(argument), repr(argument)

    def _number(self, node: fx.Node) -> int:
        """Equal for nodes that compute the same from the same placeholders."""
        waiting = [node]
        while waiting:
            last = waiting[-1]
            if last in self._numbers:
                waiting.pop()
                continue
            missing = [each for each in last.all_input_nodes if each not in self._numbers]
            waiting += missing
            if not missing:
                waiting.pop()
                key = self._key(last.target, last.args, last.kwargs)
                unique = last.op == "placeholder" or _is_random(last)
                self._numbers[last] = self._interned.setdefault(
                    (last,) if unique else key, len(self._interned)
                )
        return self._numbers[node]


def _is_random(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and op_info(node.target).random
