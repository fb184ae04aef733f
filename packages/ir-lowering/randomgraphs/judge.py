"""How far results may lie from eager's: float64 is the judge, and says how steady it is.

A program is run in float64 several times, each rounding of eager's moved at random by about as
much as eager rounds. Where these runs agree, so must the compiled program; elements at which they
differ by much, as those behind a comparison of numbers that are nearly equal, say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from randomgraphs.program import Program
from randomgraphs.program import run as run_eagerly

CALLED = ("call_method", "call_function")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RUNS = 6
"""Of float64 with moved roundings."""
MANY_RUNS = 40
"""Where a result differs from what these agree on."""
SLACK = 16.0
"""How much further than these runs go a result may lie."""
UNJUDGED = 8.0
"""And by what factor more where eager itself is float64, of whose sums nothing tells more."""
EXACT = frozenset(
    {
        *("transpose", "unsqueeze", "flatten", "reshape", "movedim", "select", "narrow", "unbind"),
        *("split", "squeeze", "chunk", "swapaxes", "contiguous", "diagonal", "unfold", "expand"),
        *("expand_as", "view", "permute", "t", "clone", "broadcast_to", "flip", "roll", "tril"),
        *("triu", "cat", "stack", "repeat", "repeat_interleave", "tile", "pad", "rot90", "abs"),
        *("neg", "sign", "relu", "floor", "ceil", "round", "trunc", "amax", "amin", "getattr"),
        *("getitem", "gather", "index_select", "take_along_dim", "zeros_like", "ones_like"),
        *("full_like", "new_full", "arange", "full", "eye", "max", "min", "maximum", "minimum"),
        *("where", "masked_fill", "clamp", "sort", "topk", "cummax", "cummin", "unflatten"),
        *("slice_scatter", "select_scatter", "diagonal_scatter", "index_fill", "index_copy"),
        *("hstack", "block_diag", "diag_embed", "diagflat", "embedding", "take", "nan_to_num"),
    }
)
"""Operations that do not round, by name."""
TRUTHS = frozenset(
    {"logical_and", "logical_or", "logical_xor", "logical_not", "any", "all", "count_nonzero"}
    | {"eq", "ne", "bool"}
)
"""Operations that ask of a number whether it is zero, as conversions to bools do."""
EXTREMES = frozenset({"maximum", "minimum", "fmax", "fmin"})
"""Operations on pairs: of two zeros of different signs they give either, eager one where it has a
vector and the other where it has not."""


@dataclass(frozen=True)
class Expected:
    """One result of eager, with what float64 says of it."""

    eager: Tensor
    exact: Tensor
    moved: tuple[Tensor, ...]


def expected(program: Program, runs: int = RUNS, device: str = "cpu") -> list[Expected]:
    """Eager's results on a device, and float64's, by so many runs with moved roundings."""
    with torch.no_grad():
        graph = program.graph()
        plain = _Typed(graph)
        eager = tree_leaves(plain.run(*program.tensors()))
        if device != "cpu":
            eager = run_eagerly(program, device=device)
        values: dict[str, Any] = {}
        exact = tree_leaves(_Wide(graph, plain.kinds, values).run(*program.tensors()))
        wide = [_Wide(graph, plain.kinds, values, seed) for seed in range(runs)]
        moved = [found for each in wide if (found := _moved(program, each))]
    return [
        Expected(one, true, tuple(each[place] for each in moved))
        for place, (one, true) in enumerate(zip(eager, exact, strict=True))
    ]


def _moved(program: Program, wide: _Wide) -> list[Any] | None:
    """The results where roundings are moved; None where an index is then out of bounds."""
    try:
        return tree_leaves(wide.run(*program.tensors()))
    except IndexError:
        return None


class _Typed(fx.Interpreter):
    """Runs eagerly and notes the type of each value."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.kinds: dict[str, torch.dtype] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        for each in tree_leaves(value):
            if isinstance(each, Tensor) and each.is_floating_point():
                self.kinds[n.name] = each.dtype
        return value


class _Wide(fx.Interpreter):
    """Runs with every float as float64, and its roundings moved, if there is a seed.

    Args:
        exact: the values of all nodes where they are not, which such a run fills.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        kinds: dict[str, torch.dtype],
        exact: dict[str, Any],
        seed: int | None = None,
    ) -> None:
        super().__init__(graph)
        self.kinds = kinds
        self.exact = exact
        self.random = None if seed is None else torch.Generator().manual_seed(seed)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return super().run(*args, **kwargs)
        finally:
            torch.set_default_dtype(before)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        """Operands moved as well: a sum rounds by as much as its terms are large, not itself."""
        found = super().fetch_args_kwargs_from_env(n)
        if self.random is not None and _asks_truth(n):
            given = (n.args, n.kwargs)
            found = fx.map_arg(given, lambda each: self._perhaps_zero(self.env[each], each))
        found = tree_map(_widened, found)
        return tree_map_only(Tensor, lambda each: self._moved(each, n), found)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if self.random is None:
            self.exact[n.name] = tree_map_only(Tensor, _wide, value)
            return self.exact[n.name]
        if n.op in CALLED:
            if _name(n) in ("eq", "ne"):
                return self._undecided(value, n)
            if _name(n) in EXTREMES:
                value = self._either_zero(value, n)
        return tree_map_only(Tensor, lambda each: self._moved(_wide(each), n), value)

    def _undecided(self, value: Tensor, node: fx.Node) -> Tensor:
        """Whether floats are equal, where these are that differ by what eager rounds, or do not."""
        kinds = [self.kinds[each.name] for each in node.all_input_nodes if each.name in self.kinds]
        if not kinds:
            return value
        given = super().fetch_args_kwargs_from_env(node)[0][:2]
        one, other = (torch.as_tensor(each, dtype=torch.float64) for each in given)
        near = torch.isclose(one, other, rtol=4 * max(torch.finfo(k).eps for k in kinds), atol=0)
        flipped = torch.rand(value.shape, generator=self.random) < 0.5
        return value ^ (near & (one != other) & flipped)

    def _perhaps_zero(self, value: Any, node: fx.Node) -> Any:
        """Zeros in place of numbers that are not larger than their own rounding, half of them.

        What is added up in one order may be zero, and what was rounded in another.
        """
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        near = value.abs() <= 4 * (value - self.exact[node.name]).abs()
        return value.masked_fill(near & (torch.rand(value.shape, generator=self.random) < 0.5), 0)

    def _either_zero(self, value: Tensor, node: fx.Node) -> Tensor:
        """Zeros of either sign, where one of each was given."""
        if not value.is_floating_point():
            return value
        args, named = super().fetch_args_kwargs_from_env(node)
        one, other = (torch.as_tensor(each) for each in (*args, *named.values()))
        either = (one == 0) & (other == 0) & (torch.signbit(one) != torch.signbit(other))
        flipped = either & (torch.rand(value.shape, generator=self.random) < 0.5)
        return torch.where(flipped, -value, value)

    def _moved(self, value: Tensor, node: fx.Node) -> Tensor:
        kind = self.kinds.get(node.name)
        rounds = self.random is not None and node.op in CALLED and kind is not None
        if not rounds or not value.is_floating_point() or _name(node) in EXACT:
            return value
        assert kind is not None
        step = torch.rand(value.shape, generator=self.random, dtype=torch.float64) * 2 - 1
        return value * (1 + 4 * torch.finfo(kind).eps * step)


def _asks_truth(node: fx.Node) -> bool:
    given = (*node.args, *node.kwargs.values())
    return node.op in CALLED and (_name(node) in TRUTHS or torch.bool in given)


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in FLOATS else value


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__


def difference(got: Sequence[object], wanted: Sequence[Expected]) -> str | None:
    """What is wrong first, in words."""
    if len(got) != len(wanted):
        return f"{len(got)} results, in eager {len(wanted)}"
    for place, (one, each) in enumerate(zip(got, wanted, strict=True)):
        if not isinstance(one, Tensor):
            return f"result {place} is {one!r}"
        kinds = [(t.dtype, tuple(t.shape), steps(t)) for t in (one, each.eager)]
        if kinds[0] != kinds[1]:
            return f"result {place} is {kinds[0]}, in eager {kinds[1]}"
        one, each = one.cpu(), replace(each, eager=each.eager.cpu())
        bad = wrong_elements(one, each)
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            found = [t[at].item() for t in (one, each.eager, each.exact)]
            return (
                f"result {place} at {at} ({int(bad.sum())} of {bad.numel()}) is {found[0]!r}, in "
                f"eager {found[1]!r}, in float64 {found[2]!r} ({one.dtype})"
            )
    return None


def steps(tensor: Tensor) -> tuple[int, ...]:
    """The strides; where a size of one would have its next element is nobody's concern."""
    if not tensor.numel():
        return ()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(step if size > 1 else 0 for size, step in sizes)


def wrong_elements(one: Tensor, each: Expected) -> Tensor:
    """Where a result is not what it may be, as a mask."""
    same = (one == each.eager) | (one.isnan() & each.eager.isnan())
    if one.is_floating_point():
        # An infinity that eager loses, and float64 not.
        same |= (one.double() == each.exact.double()) | (one.isnan() & each.exact.isnan())
    else:
        return ~same & steady(each)
    ours, theirs, true = one.double(), each.eager.double(), each.exact.double()
    info = torch.finfo(one.dtype)
    spread = torch.zeros_like(true)
    for run in each.moved:
        spread = torch.maximum(spread, (run.double() - true).abs())
    slack = SLACK * (UNJUDGED if one.dtype is torch.float64 else 1)
    allowed = 2 * (theirs - true).abs().nan_to_num(0.0) + slack * spread + 4 * info.eps * true.abs()
    near = (ours - true).abs() <= allowed + 4 * info.smallest_normal * info.eps
    # A number too large for 16 bits may or may not have been one on the way.
    narrow = info.bits == 16
    loose = ~theirs.isfinite() & true.isfinite() & ours.isfinite() & (near | narrow)
    odd = ~(ours.isfinite() & theirs.isfinite() & true.isfinite())
    return ~(same | (near & ~odd) | loose) & steady(each)


def steady(each: Expected) -> Tensor:
    """Where the runs in float64 agree on what a result is: a number, or which integer."""
    found = torch.ones_like(each.exact, dtype=torch.bool)
    for run in each.moved:
        if each.eager.is_floating_point():
            found &= run.isfinite() == each.exact.isfinite()
        else:
            found &= run == each.exact
    if not each.eager.is_floating_point():
        found &= each.exact == each.eager
    return found


def vacuous(wanted: Sequence[Expected]) -> tuple[int, int]:
    """How many elements say nothing, or little, and how many there are."""
    loose = total = 0
    for each in wanted:
        total += each.eager.numel()
        unsteady = ~steady(each)
        if each.eager.is_floating_point():
            scale = each.exact.double().abs()
            for run in each.moved:
                unsteady |= SLACK * (run.double() - each.exact.double()).abs() > 0.25 * scale
        loose += int(unsteady.sum())
    return loose, total
