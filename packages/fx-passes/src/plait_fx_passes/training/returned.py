"""What a program returns that needs gradients, other than what they flow through to its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plait_fx_passes.aten_graph import Computed, OutputSource, ResultView
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.inputs import InputTable
from plait_fx_passes.record.outputs import Results
from plait_fx_passes.training.adrift import Steps, steps_adrift
from plait_fx_passes.training.spent import is_spent


def shown_results(outputs: Sequence[OutputSource]) -> dict[int, tuple[int, bool]]:
    """For each result, an output that is it, or else is a view of it (then True) through which
    gradients flow: a detached one says nothing of what it was cut off from."""
    found: dict[int, tuple[int, bool]] = {}
    for position, output in enumerate(outputs):
        if isinstance(output, Computed):
            found[output.result] = position, False
        elif isinstance(output, ResultView) and not output.detached:
            found.setdefault(output.result, (position, True))
    return found


def spent_results(mode: FakeTensorMode, table: InputTable, results: Results) -> frozenset[int]:
    """The results of which the program itself has used up autograd's graph."""
    inputs = [leaf for leaves in table.leaves.values() for leaf in leaves]
    tensors = enumerate(results.tensors)
    return frozenset(position for position, tensor in tensors if is_spent(mode, tensor, inputs))


def adrift_results(
    mode: FakeTensorMode,
    table: InputTable,
    results: Results,
    made: Sequence[int],
    spent: frozenset[int],
) -> tuple[dict[int, Steps], frozenset[int]] | None:
    """Where the gradients of no result reach an input: what a backward from each runs, and which
    the program has used up."""
    written = {mutation.result for mutation in results.mutations}
    viewed = {each.result for each in results.outputs if isinstance(each, ResultView)}
    found = {
        position: tensor
        for position, tensor in enumerate(results.tensors)
        if tensor.requires_grad and position not in spent and not is_made_leaf(table, tensor)
    }
    if made or found.keys() & (written | viewed):
        return None
    try:
        return steps_adrift(mode, found, table.leaves)
    except (RuntimeError, ValueError):  # of views that autograd does not make anew
        return None


def adrift_outputs(
    results: Results,
    flat: Sequence[object],
    steps: Mapping[int, Steps],
    spent: frozenset[int],
) -> tuple[tuple[int, Steps], ...]:
    """The outputs among such results, with their steps."""
    return tuple(
        (position, steps[output.result])
        for position, (output, leaf) in enumerate(zip(results.outputs, flat, strict=True))
        if isinstance(output, Computed)
        and output.result in steps
        and output.result not in spent
        and isinstance(leaf, torch.Tensor)
        and leaf.requires_grad
    )


def made_leaves(table: InputTable, results: Results, flat: Sequence[object]) -> tuple[int, ...]:
    """The results that are leaves of autograd, and no inputs. Raises AtenTraceError for
    parameters, which are of a class of their own."""
    if any(isinstance(leaf, torch.nn.Parameter) and is_made_leaf(table, leaf) for leaf in flat):
        raise AtenTraceError("the program returns a parameter that it has made")
    tensors = enumerate(results.tensors)
    return tuple(position for position, tensor in tensors if is_made_leaf(table, tensor))


def refuse_early_views(results: Results, flat: Sequence[object], made: Sequence[int]) -> None:
    """Raise AtenTraceError for a view of a leaf that is one itself: it was taken before its base
    was one, and autograd knows nothing between them."""
    for output, leaf in zip(results.outputs, flat, strict=True):
        is_view = isinstance(output, ResultView) and output.result in made and not output.detached
        if is_view and isinstance(leaf, torch.Tensor) and leaf.is_leaf:
            raise AtenTraceError("it returns a view of a tensor that it made a leaf after that")


def refuse_unfollowed(results: Results, flat: Sequence[object], followed: Set[int]) -> None:
    """Raise AtenTraceError where an output needs gradients, but the result that it is, or looks
    at, is not among those that autograd is told of."""
    for output, leaf in zip(results.outputs, flat, strict=True):
        if not isinstance(output, (Computed, ResultView)) or output.result in followed:
            continue
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            raise AtenTraceError("it returns a tensor whose gradients nothing is told of")


def is_made_leaf(table: InputTable, tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf that needs gradients, and no input."""
    # Views are asked no further: autograd makes them anew where their base was written to.
    if not tensor.requires_grad or tensor._is_view():
        return False
    return tensor.is_leaf and table.index_of(tensor) is None


def spent_outputs(
    results: Results, flat: Sequence[object], spent: frozenset[int]
) -> tuple[int, ...]:
    """The outputs of results whose graph is used up."""
    return tuple(
        position
        for position, (output, leaf) in enumerate(zip(results.outputs, flat, strict=True))
        if isinstance(output, (Computed, ResultView))
        and output.result in spent
        and isinstance(leaf, torch.Tensor)
        and leaf.requires_grad
    )
