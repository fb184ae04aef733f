"""From a torch-level FX graph to a functional ATen graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.decompositions import default_decompositions
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.record.inputs import (
    InputTable,
    SharedStorageWritten,
    Sharing,
    attribute_names,
)
from plait_fx_passes.record.interpreter import Interpreter, add_arguments, fake_mode_of, plain
from plait_fx_passes.record.outputs import finish
from plait_fx_passes.record.recorder import Recorder, Rule
from plait_fx_passes.record.rules import composite_rules
from plait_fx_passes.record.settings import kept_settings
from plait_fx_passes.subclasses.ends import enters_wrappers
from plait_fx_passes.training.spent import differentiates
from plait_utils.interrupts import uninterrupted
from plait_utils.meta_kernels import call_meta_kernels_directly


@uninterrupted
def to_aten(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    decompositions: Mapping[OpOverload, Rule] | None = None,
) -> AtenGraph:
    """Record ``gm`` on fake tensors as a functional ATen graph, for inference.

    A program that calls ``torch.autograd.grad`` is recorded with the gradients that it computes.

    Args:
        gm: any FX module: functions, methods, attributes, submodules, in-place operations.
        example_inputs: one real or fake tensor for each placeholder; only geometry, dtype,
            device and which of them share storage matter. They are not changed. A float stands
            for a number that each call gives anew, of whatever value.
        decompositions: functions to run in place of operators, by overload, in addition to the
            vocabulary's own; None means :func:`default_decompositions`. Pass ``{}`` for none.

    Returns:
        The graph, with ``meta["val"]`` fake tensors and the ``source_line`` of the node that
        each operator came from.

    Raises:
        AtenTraceError: a node cannot be recorded; names it and the user's line.
        NumberReadError: what the program does depends on a number that each call gives anew.
        ProgramRaisesError: the program raises for inputs of these dtypes and shapes.
    """
    if differentiates(gm) or enters_wrappers(gm):
        from plait_fx_passes.training.joint import record_differentiating

        return record_differentiating(gm, example_inputs, decompositions)
    extra = default_decompositions() if decompositions is None else decompositions
    call_meta_kernels_directly()
    merged: dict[int, Sharing] = {}
    while True:
        try:
            with kept_settings():
                return _record(gm, example_inputs, extra, merged)
        except SharedStorageWritten as conflict:
            # Rare: the program writes to memory that several inputs share. Knowing which, the
            # second recording treats them as views of one base.
            merged[conflict.key] = conflict.sharing


def _record(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    decompositions: Mapping[OpOverload, Rule],
    merged: Mapping[int, Sharing],
) -> AtenGraph:
    mode = fake_mode_of(example_inputs)
    table = InputTable(mode, attribute_names([gm]), merged)
    recorder = Recorder(mode, table, composite_rules(), decompositions)
    add_arguments(gm, example_inputs, table, recorder)
    interpreter = Interpreter(gm, recorder, table)
    grad_mode = torch.is_grad_enabled()
    try:
        # Below autograd, composite operators arrive whole and nothing records gradients; whether
        # the program would is still what the program sets.
        with below_autograd(), torch.set_grad_enabled(grad_mode):
            returned = plain(interpreter.run())
            leaves, spec = tree_flatten(returned)
            results = finish(recorder, table, leaves)
    finally:
        torch.set_grad_enabled(grad_mode)
    flat = type(returned) is tuple and len(leaves) == len(returned)
    return AtenGraph(
        graph=recorder.graph,
        inputs=tuple(table.sources),
        outputs=tuple(results.outputs),
        mutations=tuple(results.mutations),
        metadata_mutations=tuple(results.metadata),
        counted=results.counted,
        shared_inputs=table.shared_groups(),
        output_spec=None if flat else spec,
    )
