"""From a torch-level FX graph to the joint graph of its forward and backward.

One run of the program on fake tensors, with autograd as it is in eager: autograd sits above the
recorder, so what it saves, refuses and computes is what eager does, in-place operations, views,
``detach``, ``no_grad`` and functions with gradients of their own included; the recorder below sees
the operators of the forward and then of the backward, and puts both into one functional graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Argument
from torch.utils._pytree import tree_flatten

from plait_fx_passes.aten_graph import AtenGraph, Mutation, SyntheticBase
from plait_fx_passes.decompositions import default_decompositions
from plait_fx_passes.errors import AtenTraceError, NoGradientsError
from plait_fx_passes.open_sizes import fix_sizes
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.inputs import InputTable, SharedStorageWritten, Sharing, attribute_names
from plait_fx_passes.record.interpreter import Interpreter, add_arguments, fake_mode_of, plain
from plait_fx_passes.record.numbers import holds_numbers, reads_numbers
from plait_fx_passes.record.outputs import Results, finish_results, separate
from plait_fx_passes.record.recorder import Recorder, Rule
from plait_fx_passes.record.rules import composite_rules
from plait_fx_passes.record.settings import kept_settings
from plait_fx_passes.training.arguments import require_gradients
from plait_fx_passes.training.asking import Asking, inputs_read
from plait_fx_passes.training.flow import (
    flow_of,
    looked_at,
    may_raise,
    saved_memory,
    saved_tensors,
)
from plait_fx_passes.training.functions import tells_gradients_apart
from plait_fx_passes.training.inside import saved_inside
from plait_fx_passes.training.joint_graph import JointGraph, is_random
from plait_fx_passes.training.modes import turns_gradients_on
from plait_fx_passes.training.own_backwards import OwnBackwards
from plait_fx_passes.training.passed import passed_outputs
from plait_fx_passes.training.provenance import Provenance
from plait_fx_passes.training.returned import (
    adrift_outputs,
    adrift_results,
    is_made_leaf,
    made_leaves,
    refuse_early_views,
    refuse_unfollowed,
    shown_results,
    spent_outputs,
    spent_results,
)
from plait_fx_passes.training.sharing import (
    SHARED,
    refuse_shared_gradients,
    refuse_shared_values,
    shared_memory,
)
from plait_fx_passes.training.spent import differentiates, uses_up
from plait_fx_passes.training.waypoints import refuse_waypoints
from plait_fx_passes.training.workspaces import keep_workspaces
from plait_utils import dataclass
from plait_utils.interrupts import uninterrupted
from plait_utils.meta_kernels import call_meta_kernels_directly
from plait_utils.wrappings import is_plain


@uninterrupted
def to_joint(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    decompositions: Mapping[OpOverload, Rule] | None = None,
) -> JointGraph:
    """Record ``gm`` and its backward on fake tensors as one functional ATen graph.

    Args:
        gm: any FX module, as for :func:`plait_fx_passes.to_aten`.
        example_inputs: one real or fake tensor for each placeholder; those with
            ``requires_grad``, and parameters of ``gm``, get gradients. They are not changed.
        decompositions: functions to run in place of operators, by overload; None means
            :func:`plait_fx_passes.default_decompositions`.

    A program that differentiates inside, by ``torch.autograd.grad``, may need no gradients from
    outside, as a training step does: its joint graph has no tangents and no gradients, and its
    ``program`` is all of it.

    Raises:
        NoGradientsError: nothing that the program computes needs gradients.
        AtenTraceError: a node cannot be recorded, or gradients cannot be captured: inputs over
            one memory are written to, or an input's geometry changes.
        ProgramRaisesError: the program raises for inputs of these dtypes and shapes.
    """
    return _recorded(gm, example_inputs, decompositions, for_training=True)


@uninterrupted
def record_differentiating(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    decompositions: Mapping[OpOverload, Rule] | None,
) -> AtenGraph:
    """:func:`plait_fx_passes.to_aten` for a program that differentiates inside.

    It is recorded under autograd, and what it returns needs no gradients from outside.
    """
    return _recorded(gm, example_inputs, decompositions, for_training=False).program


def _recorded(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    decompositions: Mapping[OpOverload, Rule] | None,
    *,
    for_training: bool,
) -> JointGraph:
    extra = default_decompositions() if decompositions is None else decompositions
    call_meta_kernels_directly()
    # A program that turns gradients on by itself begins as its caller is; others, asked for
    # gradients, begin with them.
    begins = torch.is_grad_enabled() or (for_training and not turns_gradients_on(gm))
    merged: dict[int, Sharing] = {}
    leaves = True
    # Anomaly mode would look at the values of gradients, which there are none of here.
    with torch.set_grad_enabled(begins), torch.autograd.set_detect_anomaly(False):
        while True:
            try:
                with kept_settings():
                    return _record(gm, example_inputs, extra, merged, for_training, leaves=leaves)
            except AtenTraceError as error:
                if not leaves or not _writes_to_leaf(error):
                    raise
                leaves = False
            except SharedStorageWritten as conflict:
                if differentiates(gm):
                    raise AtenTraceError(SHARED) from conflict
                merged[conflict.key] = conflict.sharing


def _writes_to_leaf(error: AtenTraceError) -> bool:
    """Whether autograd refused to write to an input: it would be right in that for leaves only,
    and whether inputs are leaves is found out when the program runs."""
    return isinstance(error.__cause__, RuntimeError) and "leaf Variable" in str(error.__cause__)


def _record(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    decompositions: Mapping[OpOverload, Rule],
    merged: Mapping[int, Sharing],
    for_training: bool,
    *,
    leaves: bool,
) -> JointGraph:
    if holds_numbers(example_inputs) and not differentiates(gm):
        raise AtenTraceError("numbers that each call gives do not go through autograd")
    mode = fake_mode_of(example_inputs)
    table = InputTable(mode, attribute_names([gm]), merged, gradients=True)
    recorder = Recorder(mode, table, composite_rules(), decompositions)
    add_arguments(gm, example_inputs, table, recorder)
    require_gradients(gm, example_inputs, table, recorder, leaves=leaves)
    refuse_shared_gradients(table)
    before = _followed(table)
    provenance = Provenance()
    own = OwnBackwards(gm, provenance)

    def look(node: fx.Node, values: Mapping[fx.Node, object]) -> None:
        provenance.look(node, values)
        own.look(node, values)

    grad_mode = torch.is_grad_enabled()
    try:
        # Rounded as what takes sums of products apart is, not as eager's kernels are.
        scales = torch.ops.aten.addcmul.default in decompositions
        returned = plain(Interpreter(gm, recorder, table, scales=scales).run(look))
    finally:
        torch.set_grad_enabled(grad_mode)
    flat, spec = tree_flatten(returned)
    _refuse_marks(table)
    _note_writes(table, before)
    refuse_shared_gradients(table)
    recorder.unsaved = shared_memory(recorder, table)
    with torch.no_grad():
        results = finish_results(recorder, table, flat)
    if _detaches(table, results, leaves):
        raise AtenTraceError("the program detaches an input in place, which outlasts the call")
    spent = spent_results(mode, table, results) if uses_up(gm) else frozenset()
    made = made_leaves(table, results, flat)
    adrift = adrift_results(mode, table, results, made, spent)
    if adrift is not None:
        spent |= adrift[1]
    silent = spent | set(adrift[0] if adrift else ())
    tangents = _add_tangents(recorder, table, results, silent) if for_training else []
    if made and tangents:
        raise AtenTraceError("the program returns a leaf that it has made, and what may use it")
    refuse_early_views(results, flat, made)
    if for_training:
        refuse_unfollowed(results, flat, silent.union(made, (each.result for each in tangents)))
    reshaped = recorder.reshaped | recorder.counted
    if reshaped and (tangents or reshaped & set(table.leaves)):
        raise AtenTraceError("the program changes the geometry of an input, under gradients")
    if tangents and holds_numbers(example_inputs):
        raise AtenTraceError("numbers that each call gives do not go through autograd")
    if not tangents and any(_carries_gradient(table, each) for each in results.mutations):
        raise AtenTraceError("the program uses up the gradients of what it writes to an input")
    if not (tangents or adrift or made or differentiates(gm)) and for_training:
        raise NoGradientsError(
            "nothing that the program computes needs gradients", hint="record it with to_aten"
        )
    outputs = [tangent.output for tangent in tangents]
    try:
        if tangents:
            _refuse_hooks(flat, own)
        _refuse_waypoints(results, tangents)
        raises = may_raise(outputs)
        flow = flow_of(outputs, table.leaves)
        kept = saved_tensors(outputs) if tangents else []
        saved = None if kept is None else _saved_memory(recorder, table, outputs, kept)
        views = looked_at(kept or (), _plain_inputs(table))
        ends = {each.result: each.output for each in tangents}
        passed = passed_outputs(gm, flat, results.outputs, ends, table.written, provenance)
    except AtenTraceError:
        raise
    except (RuntimeError, ValueError) as error:  # autograd makes views anew, and may not know how
        raise AtenTraceError(f"its gradients cannot be followed: {error}") from error
    if raises:
        raise AtenTraceError("its backward may raise", hint="run it eagerly: it raises the same")
    forward = set(recorder.graph.nodes)
    gradients = _add_gradients(recorder, table, results, tangents, own)
    given = recorder.graph.find_nodes(op="placeholder")[len(table.sources) :]
    own.refuse_bent(given, gradients.nodes, recorder.graph)
    if reads_numbers(set(recorder.graph.nodes) - forward):
        raise AtenTraceError("its backward reads a number from a gradient")
    read = _inputs_read(recorder, table, forward, gradients.nodes)
    got = [index for index, place in enumerate(gradients.positions) if place is not None]
    flow = flow.including(frozenset(got))
    if not all(flow.reached):
        # Of a view taken without gradients, say: it needs some, and hands none on.
        raise AtenTraceError("a result needs gradients, but its own reach no input")
    refuse_shared_values(recorder, gradients.nodes)
    keep_workspaces(recorder.graph, gm.graph)
    nodes = [*results.nodes, *gradients.nodes]
    with torch.no_grad():  # where there are tangents, autograd's node owns all that it returns
        separate(recorder, nodes, () if tangents else results.mutations)
    recorder.graph.output(cast(Argument, tuple(nodes)))
    _forget_history(recorder)
    fix_sizes(mode)
    is_flat = type(returned) is tuple and len(flat) == len(returned)
    program = AtenGraph(
        graph=recorder.graph,
        inputs=tuple(table.sources),
        outputs=tuple(results.outputs),
        mutations=tuple(results.mutations),
        metadata_mutations=tuple(results.metadata),
        counted=results.counted,
        shared_inputs=table.shared_groups(),
        output_spec=None if is_flat else spec,
        spent=spent_outputs(results, flat, spent),
        made_leaves=made,
        adrift=adrift_outputs(results, flat, adrift[0], spent) if adrift else (),
        differentiates=not tangents,
    )
    return JointGraph(
        program,
        result_count=len(results.nodes),
        tangents=tuple(tangent.result for tangent in tangents),
        gradients=gradients.positions,
        random=any(is_random(node) for node in recorder.graph.nodes),
        flow=flow,
        tells_apart=_tells_apart(gm, outputs, tangents, table),
        begins_without_gradients=not grad_mode,
        saved=_saved_inputs(table, saved or {}),
        saved_results=None if saved is None else _saved_results(results, saved),
        read=read,
        looked_at=tuple(views.items()),
        passed=passed,
    )


def _refuse_waypoints(results: Results, tangents: Sequence[_Tangent]) -> None:
    written = {mutation.result: mutation.input for mutation in results.mutations}
    refuse_waypoints({each.result: each.output for each in tangents}, written)


def _saved_memory(
    recorder: Recorder,
    table: InputTable,
    outputs: Sequence[torch.Tensor],
    kept: Sequence[tuple[torch.Tensor, int]],
) -> dict[int, frozenset[int]]:
    """The storages of which autograd has saved tensors, with the tangents that ask for them."""
    found = saved_memory(kept)
    for index, asking in saved_inside(recorder.view_writes, outputs).items() if outputs else ():
        key = int(table.values[index].untyped_storage()._cdata)
        found[key] = found.get(key, frozenset()) | asking
    return found


def _plain_inputs(table: InputTable) -> dict[int, torch.Tensor]:
    """The inputs that have a memory of their own."""
    return {
        index: value
        for index, value in enumerate(table.values)
        if type(value) is FakeTensor and value.layout is torch.strided
    }


def _saved_inputs(
    table: InputTable, saved: Mapping[int, frozenset[int]]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """The inputs of which autograd has saved what they hold in the end: what one held before the
    program wrote to it, autograd would refuse to use."""
    plain = _plain_inputs(table) if saved else {}
    keys = {index: int(value.untyped_storage()._cdata) for index, value in plain.items()}
    return tuple((index, saved[key]) for index, key in keys.items() if key in saved)


def _saved_results(
    results: Results, saved: Mapping[int, frozenset[int]]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """The results of which autograd has saved the memory."""
    keys = [int(tensor.untyped_storage()._cdata) for tensor in results.tensors]
    return tuple((position, saved[key]) for position, key in enumerate(keys) if key in saved)


def _inputs_read(
    recorder: Recorder, table: InputTable, forward: Set[fx.Node], gradients: Sequence[fx.Node]
) -> tuple[tuple[int, frozenset[int]], ...]:
    placeholders = recorder.graph.find_nodes(op="placeholder")
    inputs, tangents = placeholders[: len(table.sources)], placeholders[len(table.sources) :]
    return inputs_read(Asking(recorder.graph, tangents, gradients, forward), inputs)


@dataclass(frozen=True, slots=True)
class _Tangent:
    """The gradient that is given for one of the program's results."""

    result: int
    output: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Gradients:
    nodes: tuple[fx.Node, ...]
    positions: tuple[int | None, ...]


def _add_tangents(
    recorder: Recorder, table: InputTable, results: Results, spent: frozenset[int]
) -> list[_Tangent]:
    """A placeholder for each result through which gradients flow."""
    recorder.meta = {}
    silent = {m.result for m in results.mutations if not _carries_gradient(table, m)} | spent
    # Of a result of which only detached views are returned, nobody gives a gradient.
    told = shown_results(results.outputs).keys() | {m.result for m in results.mutations}
    silent |= set(range(len(results.tensors))) - told
    found: list[_Tangent] = []
    for position, tensor in enumerate(results.tensors):
        if position in silent or not tensor.requires_grad or is_made_leaf(table, tensor):
            continue
        value = fake_of(recorder.fake_mode, results.nodes[position].meta["val"])
        recorder.placeholder(f"tangent_{position}", value, owned=False)
        found.append(_Tangent(position, tensor, value))
    return found


def _tells_apart(
    gm: fx.GraphModule,
    outputs: Sequence[torch.Tensor],
    tangents: Sequence[_Tangent],
    table: InputTable,
) -> bool:
    """Whether functions of the user's see which gradients are given: then the program runs anew,
    for those that are. Raises AtenTraceError where it writes to inputs that share memory, which it
    does not get again."""
    found = len(tangents) > 1 and tells_gradients_apart(gm, outputs)
    if found and any(isinstance(each, SyntheticBase) for each in table.sources):
        raise AtenTraceError(
            "the program writes to inputs that share memory, and has functions that tell which "
            "gradients they are given"
        )
    return found


_Followed: TypeAlias = "dict[int, tuple[object, int]]"


def _followed(table: InputTable) -> _Followed:
    """Of each input, what autograd takes it for the result of, and how often it was changed."""
    return {
        index: (value.grad_fn, value._version)
        for index, value in enumerate(table.values)
        if type(value) is FakeTensor and not value.is_inference()
    }


def _note_writes(table: InputTable, before: _Followed) -> None:
    """What autograd knows of writes to inputs: functions of the user's that change what they are
    given run without gradients, and have some; nobody counts writes through ``.data``."""
    shared = {index for group in table.shared_groups() for index in group}
    for index, (node, version) in before.items():
        value = table.values[index]
        if index in shared or isinstance(table.sources[index], SyntheticBase):
            continue
        if index in table.written and value.requires_grad and value.grad_fn is not node:
            table.written[index] = True
        if index in table.written.keys() - table.written_directly and value._version == version:
            table.uncounted.add(index)


def _refuse_marks(table: InputTable) -> None:
    """Raise AtenTraceError where the program leaves more on an input than values."""
    for index, value in enumerate(table.values):
        if type(value) is not FakeTensor:  # a number that each call gives
            continue
        if value._backward_hooks or value.retains_grad:
            raise AtenTraceError("the program registers hooks on an input")
        made = value.requires_grad and value.is_leaf and index not in table.leaves
        if made and not value._is_view():
            raise AtenTraceError("the program lets an input need gradients")


def _refuse_hooks(outputs: Sequence[object], own: OwnBackwards) -> None:
    """Raise AtenTraceError where the program registers hooks on what it returns: those of the
    caller's come after them, on the way of the same gradient."""
    for each in outputs:
        if not isinstance(each, torch.Tensor) or each.is_leaf:
            continue
        if each.retains_grad:
            raise AtenTraceError("the program keeps the gradient of what it returns")
        if each._backward_hooks:
            own.refuse_hooks_on(each)


def _detaches(table: InputTable, results: Results, leaves: bool) -> bool:
    """Whether an input that needs gradients is cut off from them in place; one that is a leaf
    can be written to, with gradients enabled, only after that."""
    return any(not table.values[index].requires_grad for index in table.leaves) or (
        leaves and any(m.input in table.leaves and m.grad for m in results.mutations)
    )


def _forget_history(recorder: Recorder) -> None:
    """Give nodes values that autograd does not follow: its own nodes would live on with them, and
    refuse later uses of those that the program wrote to."""
    for node in recorder.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.requires_grad:
            node.meta["val"] = fake_of(recorder.fake_mode, value)
        elif isinstance(value, (tuple, list)):
            node.meta["val"] = type(value)(
                fake_of(recorder.fake_mode, each)
                if isinstance(each, torch.Tensor) and each.requires_grad
                else each
                for each in value
            )


def _carries_gradient(table: InputTable, mutation: Mutation) -> bool:
    """Whether autograd follows what is written to an input, and not only its memory changes."""
    return mutation.grad and table.values[mutation.input].grad_fn is not None


def _add_gradients(
    recorder: Recorder,
    table: InputTable,
    results: Results,
    tangents: Sequence[_Tangent],
    own: OwnBackwards,
) -> _Gradients:
    """Run the backward under the recorder."""
    if not tangents:
        return _Gradients((), (None,) * len(table.sources))
    wanted = [(index, leaf) for index, leaves in table.leaves.items() for leaf in leaves]
    outputs = [tangent.output for tangent in tangents]
    given = [tangent.value for tangent in tangents]
    inputs = [leaf for _, leaf in wanted]
    recorder.enter_backward(own.note)
    try:
        with torch._C._DisableAutocast(), recorder:
            found = _differentiate(outputs, inputs, given)
    except AtenTraceError:
        raise
    except Exception as error:  # also what a backward of the user's raises
        raise AtenTraceError(
            f"its backward raises: {error}", hint="run it eagerly: it raises the same there"
        ) from error
    sums: dict[int, torch.Tensor] = {}
    for (index, _), gradient in zip(wanted, found, strict=True):
        if gradient is not None:
            if not is_plain(type(gradient)):
                raise AtenTraceError("the gradient of a plain tensor is of a tensor subclass")
            with torch.no_grad(), recorder:
                sums[index] = sums[index] + gradient if index in sums else gradient
    positions: list[int | None] = [None] * len(table.sources)
    for place, index in enumerate(sums):
        positions[index] = len(results.nodes) + place
    nodes = [recorder.node_of(gradient) for gradient in sums.values()]
    return _Gradients(tuple(nodes), tuple(positions))


def _differentiate(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """The gradients of leaves, also through reentrant checkpoints, which only `backward` passes."""
    try:
        return torch.autograd.grad(outputs, inputs, given, allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        fakes = all(isinstance(each, FakeTensor) for each in inputs)
        if not fakes or "use_reentrant=True" not in str(error):
            raise
    for leaf in inputs:
        leaf.grad = None
    torch.autograd.backward(outputs, given)
    found = [leaf.grad for leaf in inputs]
    for leaf in inputs:
        leaf.grad = None
    return found
