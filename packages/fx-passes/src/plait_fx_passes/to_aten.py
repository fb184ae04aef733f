"""From a torch-level FX graph to a functional ATen graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.node import Argument, map_arg
from torch.utils._pytree import tree_flatten

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.decompositions import default_decompositions
from plait_fx_passes.errors import AtenTraceError, ProgramRaisesError
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.record.inputs import (
    InputTable,
    SharedStorageWritten,
    Sharing,
    attribute_names,
)
from plait_fx_passes.record.kernels import KernelRefusal
from plait_fx_passes.record.outputs import finish
from plait_fx_passes.record.recorder import Recorder, Rule
from plait_fx_passes.record.rules import composite_rules
from plait_utils.fake import FakeMode
from plait_utils.meta_kernels import call_meta_kernels_directly

# Metadata of a torch-level node that its ATen nodes inherit.
_INHERITED = ("source_line", "stack_trace")


def to_aten(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    decompositions: Mapping[OpOverload, Rule] | None = None,
) -> AtenGraph:
    """Record ``gm`` on fake tensors as a functional ATen graph, for inference.

    Args:
        gm: any FX module: functions, methods, attributes, submodules, in-place operations.
        example_inputs: one real or fake tensor for each placeholder; only geometry, dtype,
            device and which of them share storage matter. They are not changed.
        decompositions: functions to run in place of operators, by overload, in addition to the
            vocabulary's own; None means :func:`default_decompositions`. Pass ``{}`` for none.

    Returns:
        The graph, with ``meta["val"]`` fake tensors and the ``source_line`` of the node that
        each operator came from.

    Raises:
        AtenTraceError: a node cannot be recorded; names it and the user's line.
        ProgramRaisesError: the program raises for inputs of these dtypes and shapes.
    """
    extra = default_decompositions() if decompositions is None else decompositions
    call_meta_kernels_directly()
    merged: dict[int, Sharing] = {}
    while True:
        try:
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
    mode = _fake_mode(example_inputs)
    table = InputTable(mode, attribute_names([gm]), merged)
    recorder = Recorder(mode, table, composite_rules(), decompositions)
    _add_arguments(gm, example_inputs, table, recorder)
    interpreter = _Interpreter(gm, recorder, table)
    grad_mode = torch.is_grad_enabled()
    try:
        # Below autograd, composite operators arrive whole and nothing records gradients; whether
        # the program would is still what the program sets.
        with below_autograd(), torch.set_grad_enabled(grad_mode):
            returned = _plain(interpreter.run())
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
        shared_inputs=table.shared_groups(),
        output_spec=None if flat else spec,
    )


def _fake_mode(example_inputs: Sequence[torch.Tensor]) -> FakeTensorMode:
    for tensor in example_inputs:
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    return FakeMode()


def _add_arguments(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    table: InputTable,
    recorder: Recorder,
) -> None:
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(example_inputs):
        raise AtenTraceError(
            f"the graph has {len(placeholders)} placeholders"
            f" but {len(example_inputs)} example inputs were given"
        )
    for index, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True)):
        with recorder.emitting(_inherited(node)):
            table.add_argument(recorder, node.name, index, example)
    table.finish_arguments(recorder)


def _plain(value: object) -> object:
    """FX keeps containers in immutable kinds of its own; the program returns plain ones."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if type(value) is tuple:
        return tuple(_plain(each) for each in value)
    return value


def _inherited(node: fx.Node) -> dict[str, object]:
    return {key: node.meta[key] for key in _INHERITED if key in node.meta}


class _Interpreter:
    """Runs the torch-level graph once, node by node, on the recorder's fake tensors."""

    def __init__(self, gm: fx.GraphModule, recorder: Recorder, table: InputTable) -> None:
        self._gm = gm
        self._recorder = recorder
        self._arguments = iter(table.arguments)
        self._values: dict[fx.Node, object] = {}

    def run(self) -> object:
        for node in self._gm.graph.nodes:
            if node.op == "output":
                return self._argument(node.args[0])
            self._recorder.meta = _inherited(node)
            try:
                self._values[node] = self._evaluate(node)
            except (SharedStorageWritten, AtenTraceError):
                raise
            except KernelRefusal as refusal:
                raise self._raises(node, refusal.raised) from refusal.raised
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise self._data_dependent(node, error) from error
            except Exception as error:
                raise self._failed(node, error) from error
        raise AtenTraceError("the graph has no output node")

    def _evaluate(self, node: fx.Node) -> object:
        recorder = self._recorder
        if node.op == "placeholder":
            return next(self._arguments)
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        args = cast("tuple[object, ...]", self._argument(node.args))
        kwargs = cast("dict[str, object]", self._argument(node.kwargs))
        with recorder:
            if node.op == "call_function":
                assert callable(node.target)
                return node.target(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            assert node.op == "call_module"
            return self._gm.get_submodule(str(node.target))(*args, **kwargs)

    def _argument(self, argument: object) -> object:
        return map_arg(cast(Argument, argument), self._value)

    def _value(self, node: fx.Node) -> Argument:
        return cast(Argument, self._values[node])

    def _attribute(self, name: str) -> object:
        found: object = self._gm
        for part in name.split("."):
            found = getattr(found, part)
        if isinstance(found, torch.Tensor):
            return self._recorder.fake_for(found)
        return found

    def _failed(self, node: fx.Node, error: Exception) -> AtenTraceError:
        return AtenTraceError(
            f"{node.format_node()} failed: {type(error).__name__}: {error}",
            where=self._recorder.where,
        )

    def _raises(self, node: fx.Node, error: Exception) -> ProgramRaisesError:
        return ProgramRaisesError(
            f"{node.format_node()} raises {type(error).__name__}: {error}",
            where=self._recorder.where,
            hint="run it eagerly: it raises the same there",
        )

    def _data_dependent(self, node: fx.Node, error: Exception) -> AtenTraceError:
        return AtenTraceError(
            f"{node.format_node()} needs the values of its tensors ({error})",
            where=self._recorder.where,
            hint="split the graph before this call, so that it runs eagerly",
        )
