"""The pass manager: an ordered list of passes over one private copy of the graph."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import replace

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import PassError, PlaitError, VerificationError
from plait_fx_passes.passes.aligned_products import ALIGNED_PRODUCTS, ALIGNED_WITHIN
from plait_fx_passes.passes.base import Fuel, Memory, Pass, PassContext, names
from plait_fx_passes.passes.batched import BATCHED_PRODUCTS, BATCHES
from plait_fx_passes.passes.casts import MERGE_CASTS
from plait_fx_passes.passes.channels_last import CHANNELS_LAST
from plait_fx_passes.passes.cleanup import COMMON_SUBEXPRESSIONS, DEAD_CODE
from plait_fx_passes.passes.constants import FOLD_CONSTANTS
from plait_fx_passes.passes.constructors import MOVE_CONSTRUCTORS
from plait_fx_passes.passes.device_draws import DEVICE_DRAWS
from plait_fx_passes.passes.in_place import WRITE_IN_PLACE
from plait_fx_passes.passes.joined_products import PRODUCTS_IN_PARTS
from plait_fx_passes.passes.joins import JOIN_PIECES
from plait_fx_passes.passes.narrow_copies import NARROW_COPIES
from plait_fx_passes.passes.near_uses import NEAR_USES
from plait_fx_passes.passes.noops import REMOVE_NOOPS
from plait_fx_passes.passes.product_chains import PRODUCT_CHAINS
from plait_fx_passes.passes.rows import ADD_ROWS
from plait_fx_passes.passes.shared_factors import SHARED_FACTORS
from plait_fx_passes.passes.small_first import SMALL_FIRST
from plait_fx_passes.passes.views import MERGE_VIEWS
from plait_fx_passes.patterns.rules import (
    ATTENTION,
    RECOGNIZE,
    SELECTIONS,
    SIMPLIFY,
    THIN_PRODUCTS,
    VECTOR_PRODUCTS,
)
from plait_fx_passes.quantized.passes import QUANTIZED_LOOP_PRODUCTS, QUANTIZED_PRODUCTS
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.verifier import Ends, Recomputed, verify
from plait_utils import Profile, dataclass
from plait_utils.interrupts import stop_if_interrupted, uninterrupted

DEFAULT_PASSES: tuple[Pass, ...] = (
    FOLD_CONSTANTS,
    MOVE_CONSTRUCTORS,
    MERGE_CASTS,
    REMOVE_NOOPS,
    MERGE_VIEWS,
    SMALL_FIRST,
    JOIN_PIECES,
    NARROW_COPIES,
    COMMON_SUBEXPRESSIONS,
    SIMPLIFY,
    DEAD_CODE,
)
"""Safe for every program: values, strides and aliasing stay what they are, to the last bit."""

NUMERIC_PASSES: tuple[Pass, ...] = (
    *DEFAULT_PASSES,
    ATTENTION,
    PRODUCT_CHAINS,
    SHARED_FACTORS,
    THIN_PRODUCTS,
    RECOGNIZE,
    BATCHED_PRODUCTS,
    replace(REMOVE_NOOPS, name="no-ops-after-rules"),
    replace(MERGE_VIEWS, name="view-chains-after-rules"),
    replace(DEAD_CODE, name="dead-code-after-rules"),
)
"""Also recognize attention and other composites, and take products apart and together; these round
differently than eager."""

QUANTIZED_PASSES: tuple[Pass, ...] = (QUANTIZED_PRODUCTS,)
"""Products of quantized matrices in integers, and with weights that stay packed: the sums of the
former are exact, where eager's are rounded; those of the latter are in another order."""

QUANTIZED_LOOP_PASSES: tuple[Pass, ...] = (QUANTIZED_LOOP_PRODUCTS,)
"""The same for compilers of loops, which unpack weights as they multiply."""

LOOP_PASSES: tuple[Pass, ...] = (
    SELECTIONS,
    replace(DEAD_CODE, name="dead-code-after-selections"),
)
"""As safe as the default ones, and for compilers of loops, to be run behind those: loops compute as
they go what kernels of operators would write to memory."""

DRAWING_PASSES: tuple[Pass, ...] = (DEVICE_DRAWS,)
"""For compilers of loops, behind those: eager's random numbers of a GPU, computed where they are
needed."""

LAYOUT_PASSES: tuple[Pass, ...] = (ADD_ROWS, CHANNELS_LAST, ALIGNED_PRODUCTS)
"""Where in memory values lie: last, and for programs whose loops and calls are compiled for it.
Inputs and results lie as before; a convolution rounds as oneDNN does in that layout, a product as
kernels for its padded size do, and the gradient of a row that is used several times is rounded in
another order."""

LAYOUT_PASSES_OF_KERNELS: tuple[Pass, ...] = (ADD_ROWS, CHANNELS_LAST, ALIGNED_WITHIN)
"""The same where kernels of the compiler's own write products to rows of any length."""


KERNEL_PASSES: tuple[Pass, ...] = (
    BATCHES,
    replace(DEAD_CODE, name="dead-code-after-batches"),
    NEAR_USES,
)
"""For graphs that ATen's kernels run, in their order, behind the other passes: small calls at once,
where launching them is what takes time, and values made when they are used. Batches round as
kernels do for what lies elsewhere."""


SUM_PASSES: tuple[Pass, ...] = (VECTOR_PRODUCTS,)
"""For compilers of loops: products with vectors as sums, in another order than eager's."""


IN_PLACE_PASSES: tuple[Pass, ...] = (PRODUCTS_IN_PARTS, WRITE_IN_PLACE)
"""The end of a list, for graphs that ATen's kernels run; what they write they write as they go, as
eager does, so where a program raises, its inputs may have changed."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did: its name, seconds, rewrites made and the graph it left.

    ``matches`` counts the rewrites by rule, for passes of rules. ``graph`` is the manager's private
    copy, still to be changed by later passes; observers that keep it must copy it. ``is_own`` tells
    this package's passes, which count all that they change, from a user's.
    """

    name: str
    seconds: float
    rewrites: int
    matches: Mapping[str, int]
    graph: AtenGraph
    is_own: bool = True


Observer = Callable[[PassRecord], None]


@uninterrupted
def run_passes(
    graph: AtenGraph,
    passes: Sequence[Pass] = DEFAULT_PASSES,
    *,
    profile: Profile | None = None,
    fuel: int | None = None,
    disabled: Set[str] = frozenset(),
    observer: Observer | None = None,
    verify_each: bool | None = None,
) -> AtenGraph:
    """Run passes in order over a copy of ``graph``.

    Args:
        graph: not changed.
        passes: what to run; names must differ.
        profile: gets a phase for each pass and its rewrites as counter ``passes/<name>``.
        fuel: the largest number of elementary rewrites over all passes; None for any number.
        disabled: names of passes to leave out.
        observer: called after each pass; `PassLog` is one. If it has a method ``begin``, that gets
            the private copy before the first pass.
        verify_each: check the ATen graph contract after each pass, and that inputs and results
            have the same sizes, strides, dtypes and devices as before; None after passes that are
            not this package's.

    Returns:
        The improved graph: the same inputs, outputs, mutations and aliasing.

    Raises:
        PassError: a pass raised, went on for ever, or left a graph that does not verify.
        ValueError: two passes have one name, or ``disabled`` names no pass.
    """
    known = names(passes)
    if len(set(known)) != len(known):
        raise ValueError(f"two passes have the same name: {known}")
    if WRITE_IN_PLACE in passes[:-1]:
        raise ValueError(f"{WRITE_IN_PLACE.name!r} is the last pass where it is one")
    if any("in_place" in node.meta for node in graph.graph.nodes):
        raise PassError("the graph writes in place, so that nothing of it may be moved any more")
    unknown = sorted(disabled - set(known))
    if unknown:
        raise ValueError(f"no such passes: {unknown}; there are {list(known)}")
    private = graph.copy()
    tank = Fuel(fuel)
    context = PassContext(private, Memory.of(private), private.fake_mode, tank)
    ends, recomputed = Ends.of(private), Recomputed()
    begin = getattr(observer, "begin", None)
    if begin is not None:
        begin(private)
    for each in passes:
        stop_if_interrupted()
        if each.name in disabled:
            continue
        with nullcontext() if profile is None else profile.phase(each.name):
            check = not each.is_own if verify_each is None else verify_each
            record = _run_one(each, context, (ends, recomputed) if check else None)
        if profile is not None:
            profile.count(f"passes/{each.name}", record.rewrites)
        if observer is not None:
            observer(record)
    return private


def _run_one(
    each: Pass, context: PassContext, checked: tuple[Ends, Recomputed] | None
) -> PassRecord:
    """Run a pass, and check what it leaves if it is told which ends that is to have, and which
    calls the passes before have left right."""
    context.rewrites, context.matches, context.running = 0, Counter(), each.name
    context.fuel.bound(len(context.graph.nodes))
    started = time.perf_counter()
    try:
        with below_autograd():
            each.rewrite(context)
    except Exception as error:
        raise _failure(each, error) from error
    seconds = time.perf_counter() - started
    if checked is not None:
        ends, recomputed = checked
        try:
            ends.check(context.aten)
            verify(context.aten, recomputed=recomputed)
        except VerificationError as error:
            raise _failed(
                each, "left a graph that does not verify: " + error.message, error.where
            ) from error
    made = context.rewrites, context.matches
    return PassRecord(each.name, seconds, *made, context.aten, each.is_own)


def _failure(each: Pass, error: Exception) -> PassError:
    if not isinstance(error, PlaitError):
        return _failed(each, f"failed: {type(error).__name__}: {error}")
    return _failed(each, f"failed: {error.message}", error.where, error.hint)


def _failed(
    each: Pass, message: str, where: str | None = None, hint: str | None = None
) -> PassError:
    leave = f"run_passes(..., disabled={{{each.name!r}}}) leaves it out"
    error = PassError(f"the pass {each.name!r} {message}", where=where, hint=hint or leave)
    error.pass_name = each.name
    return error
