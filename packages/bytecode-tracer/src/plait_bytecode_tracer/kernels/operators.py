"""Launches of Triton kernels as operators of the dispatcher, in the namespace ``plait_kernels``.

An operator stands for a kernel with the arguments that cannot differ from call to call; tensors,
integers and floats are its own arguments, and the sizes of the grid. Its schema says which tensors
are written to, so the stages behind treat it as any operator of a user's that writes.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch._ops import OpOverload

from plait_bytecode_tracer.kernels.writes import python_of
from plait_utils import dataclass
from plait_utils.forks import new_lock
from plait_utils.plain_writers import NAMESPACE

Grid = tuple[object, ...]
_lock = new_lock()


@dataclass(frozen=True, slots=True)
class Given:
    """The place of an argument among those of the operator."""

    place: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of a kernel: what is not a :class:`Given` is the same in each call."""

    kernel: Any
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    grids: tuple[tuple[tuple[tuple[str, object], ...], Grid], ...]
    """The grid for the values that a configuration gives to parameters; one where there is none."""
    schema: str
    only_writes: bool
    """Whether it does nothing but write to tensors: no printing, no checks."""

    def run(self, given: Sequence[object]) -> None:
        """Launch the kernel."""

        def filled(value: object) -> object:
            return given[value.place] if isinstance(value, Given) else value

        grids = [(dict(chosen), tuple(map(filled, grid))) for chosen, grid in self.grids]
        named = {name: filled(value) for name, value in self.kwargs}
        grid: object = grids[0][1] if len(grids) == 1 else _chooser(grids)
        self.kernel.run(*map(filled, self.args), grid=grid, warmup=False, **named)


def _chooser(grids: list[tuple[dict[str, object], Grid]]) -> Callable[[dict[str, object]], Grid]:
    """The grid of the configuration that the kernel is launched with."""

    def grid(meta: dict[str, object]) -> Grid:
        for chosen, found in grids:
            if all(name in meta and _plain(meta[name]) == chosen[name] for name in chosen):
                return found
        raise RuntimeError("a kernel's configuration that was not there when it was compiled")

    return grid


def _plain(value: object) -> object:
    """What a constant of Triton's holds."""
    return getattr(value, "value", value)


_launches: dict[str, Launch] = {}
"""By the names of their operators, which last as long as the process."""


def operator_of(launch: Launch) -> OpOverload:
    """The operator that stands for a launch."""
    function = python_of(launch.kernel)
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    parts = (function.__module__, function.__qualname__, source, launch.schema)
    fixed = repr((launch.args, launch.kwargs, launch.grids, launch.only_writes))
    digest = hashlib.sha256("\0".join((*parts, fixed)).encode()).hexdigest()[:12]
    with _lock:
        name, count = f"{function.__name__}_{digest}", 0
        while _launches.get(name, launch) != launch:  # another kernel of the same source
            count += 1
            name = f"{function.__name__}_{digest}_{count}"
        if name not in _launches:
            _define(name, launch)
            _launches[name] = launch
        return cast(OpOverload, getattr(getattr(torch.ops, NAMESPACE), name).default)


@cache
def _library() -> torch.library.Library:
    return torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's


def _define(name: str, launch: Launch) -> None:
    """One that does more than to write is tagged as random: it is not left out, merged or moved."""
    library: Any = _library()  # whose methods torch leaves untyped
    tags = () if launch.only_writes else (torch.Tag.nondeterministic_seeded,)
    library.define(name + launch.schema, tags=tags)

    def run(*given: object) -> None:
        launch.run(given)

    library.impl(name, run, "CompositeExplicitAutograd")
    operator: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    torch.library.register_fake(f"{NAMESPACE}::{name}", lambda *_: None, lib=library)
    written = [n for n, each in enumerate(operator._schema.arguments) if each.alias_info]
    after = torch._C._after_ADInplaceOrView_keyset

    def note_writes(keys: Any, *given: Any) -> None:
        for place in written:
            torch.autograd.graph.increment_version(given[place])
        operator.redispatch(keys & after, *given)

    library.impl(name, note_writes, "ADInplaceOrView", with_keyset=True)
