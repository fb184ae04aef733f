"""One program for many sizes: example inputs with symbolic sizes, and when the program fits.

The captured graph is recorded anew over sizes of an environment of its own. Whatever the stages
ask of a size is answered for the inputs at hand and noted as a condition (`int(size)` included,
which fixes it). The program is right for all inputs that meet the conditions; they are
checked before it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias

from plait_utils import dataclass

if TYPE_CHECKING:
    import torch
    from torch import fx

_LEAST = 2
"""Sizes 0 and 1 behave as no other: a size that a program is given is none of these."""

Fits: TypeAlias = Callable[[Sequence[Any]], bool]
"""Whether a graph's inputs are such as a program is right for."""


class FixedSizesError(Exception):
    """The sizes of a graph cannot be left open."""


@dataclass(frozen=True, slots=True)
class _Sized:
    """A tensor with symbolic sizes: its place among the inputs, what its sizes and strides are."""

    place: int
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OpenSizes:
    """The symbolic sizes of one recording of a captured graph.

    `examples` are fakes of its tensors, by the place of each among its inputs.
    """

    examples: dict[int, torch.Tensor]
    _environment: Any
    _reads: dict[Any, str]
    """For each symbol of the environment, Python that reads it from the inputs."""
    _sized: tuple[_Sized, ...]
    conditions: list[str] = field(default_factory=list)
    """The Python of what says for which inputs the program is right, once that is asked for."""

    def fits(self, inputs: Sequence[Any]) -> Fits:
        """What says whether the conditions that were noted so far hold for other inputs.

        Raises FixedSizesError where all sizes are fixed, or a condition cannot be checked.
        """
        import torch

        environment = self._environment
        if environment.deferred_runtime_asserts or not any(
            environment.replace(symbol).free_symbols for symbol in self._reads
        ):
            fixed = ", ".join(str(guard.expr) for guard in environment.guards)
            raise FixedSizesError(f"what is computed depends on the sizes: {fixed}")
        source = self._source()
        self.conditions.append(source)
        namespace: dict[str, Any] = {"math": math, "torch": torch}
        exec(compile(source, "<plait conditions on sizes>", "exec"), namespace)
        fits: Fits = namespace["fits"]
        try:
            holds = fits(inputs)
        except NameError as error:
            raise FixedSizesError(f"a condition on sizes has no Python: {error}") from error
        if not holds:
            raise FixedSizesError("the inputs lie otherwise in memory than they were captured")
        return fits

    def _source(self) -> str:
        from plait_utils.size_text import python_of

        names = {symbol: f"n{number}" for number, symbol in enumerate(self._reads)}
        lines = [f"{names[symbol]} = {read}" for symbol, read in self._reads.items()]
        checks = [f"{name} >= {_LEAST}" for name in names.values()]
        for each in self._sized:
            for what in ("shape", "stride"):
                numbers = "".join(f"{python_of(n, names)}, " for n in getattr(each, what))
                call = "()" if what == "stride" else ""
                checks.append(f"inputs[{each.place}].{what}{call} == ({numbers})")
        checks += [python_of(guard.expr, names) for guard in self._environment.guards]
        result = "\n        and ".join(dict.fromkeys(checks))
        body = [*lines, f"return bool(\n        {result}\n    )"]
        return "\n    ".join(["def fits(inputs):", *body])


def open_sizes(captured: fx.GraphModule, inputs: Sequence[Any]) -> OpenSizes:
    """Fakes of a captured graph's tensors whose sizes are symbolic where they were captured so.

    Raises FixedSizesError where that cannot be: tensors that are not plain or share memory, sizes
    that are computed of others which no tensor has.
    """
    import torch

    from plait_utils.fake import FakeMode
    from plait_utils.shape_environment import make_environment

    placeholders = captured.graph.find_nodes(op="placeholder")
    tensors = [
        (place, node.meta["val"], value)
        for place, (node, value) in enumerate(zip(placeholders, inputs, strict=False))
        if isinstance(value, torch.Tensor)
    ]
    _refuse_unusual([value for _, _, value in tensors])
    sizes = _Symbols(make_environment(lambda guard: None))
    mode = FakeMode(sizes.environment)
    sized = [each for each in tensors if each[1]._has_symbolic_sizes_strides]
    for computed in (False, True):
        for place, fake, value in sized:
            read = f"inputs[{place}].shape[%d]"
            sizes.read(read, fake.shape, value.shape, computed=computed)
        for place, fake, value in sized:
            read = f"inputs[{place}].stride(%d)"
            sizes.read(read, fake.stride(), value.stride(), computed=computed)
    examples: dict[int, torch.Tensor] = {}
    found: list[_Sized] = []
    for place, fake, value in tensors:
        if not fake._has_symbolic_sizes_strides:
            examples[place] = mode.with_sizes(value)
            continue
        shape = tuple(map(sizes.like, fake.shape))
        stride = tuple(map(sizes.stride, fake.stride(), value.stride()))
        examples[place] = mode.with_sizes(value, shape, stride)
        found.append(_Sized(place, tuple(map(_plain, shape)), tuple(map(_plain, stride))))
    if not sizes.reads:
        raise FixedSizesError("no size is symbolic")
    return OpenSizes(examples, sizes.environment, sizes.reads, tuple(found))


def _refuse_unusual(tensors: Sequence[torch.Tensor]) -> None:
    from plait_utils.fake import is_plain_tensor

    if not all(map(is_plain_tensor, tensors)):
        raise FixedSizesError("an input is not a plain tensor")
    storages = [each.untyped_storage()._cdata for each in tensors]
    if len(set(storages)) < len(storages):
        raise FixedSizesError("inputs share memory")


def _plain(size: Any) -> Any:
    """A size as an expression of the environment, or a number."""
    return size if isinstance(size, int) else size.node.expr


class _Symbols:
    """The symbols of an environment, for those that a graph was captured with."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.reads: dict[Any, str] = {}
        self._own: dict[Any, Any] = {}
        """For each symbol of the capture, the one that stands for it."""
        self._hints: dict[Any, int] = {}

    def read(
        self, place: str, captured: Sequence[Any], values: Sequence[int], *, computed: bool = False
    ) -> None:
        """Make symbols for what was captured as one.

        What depends on data is a constant where it is 0 or 1. Where it is `computed` of symbols
        that nothing else has, it gets one as a whole.
        """
        from sympy import Integer  # type: ignore[import-untyped]  # it has no types
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        from plait_utils.data_sizes import is_of_data
        from plait_utils.shape_environment import Place

        for dim, (size, value) in enumerate(zip(captured, values, strict=True)):
            theirs = _plain(size)
            if isinstance(theirs, int) or theirs in self._own:
                continue
            depends = any(map(is_of_data, theirs.free_symbols))
            if not theirs.is_Symbol and not (computed and depends and not self._is_known(theirs)):
                continue
            if value < _LEAST and depends:
                self._own[theirs] = Integer(value)
                continue
            if value < _LEAST:
                raise FixedSizesError("a size is 0 or 1")
            symbol = self.environment.create_symbol(
                value,
                Place(f"size{len(self._own)}"),
                dynamic_dim=DimDynamic.DYNAMIC,
                constraint_dim=None,
                positive=True,
            )
            self._own[theirs] = symbol
            self._hints[symbol] = value
            self.reads[symbol] = place % dim

    def like(self, size: Any) -> Any:
        """What was captured, over the symbols of the environment."""
        from plait_utils.shape_environment import Place

        theirs = _plain(size)
        if isinstance(theirs, int) or theirs.is_number:
            return int(theirs)
        known = self._own.get(theirs)
        if known is None and not self._is_known(theirs):
            raise FixedSizesError(f"no tensor has a size of {theirs}")
        ours = theirs.xreplace(self._own) if known is None else known
        if ours.is_number:
            return int(ours)
        hint = int(ours.xreplace(self._hints))
        return self.environment.create_symintnode(ours, hint=hint, source=Place(str(ours)))

    def stride(self, stride: Any, value: int) -> Any:
        """The same for a stride, whose value it is where it depends on data and is another: that
        of a dimension of size 0 or 1 means nothing."""
        from plait_utils.data_sizes import data_symbols

        if not data_symbols(stride):
            return self.like(stride)
        made = self.like(stride)
        return made if self._hint(made) == value else value

    def _hint(self, made: Any) -> int:
        return int(_plain(made).xreplace(self._hints)) if not isinstance(made, int) else made

    def _is_known(self, theirs: Any) -> bool:
        return bool(theirs.free_symbols <= self._own.keys())


def has_open_sizes(examples: Sequence[Any]) -> bool:
    """Whether some example inputs have symbolic sizes."""
    import torch

    return any(
        isinstance(each, torch.Tensor) and each._has_symbolic_sizes_strides for each in examples
    )
