"""Runs a torch-level graph once, node by node, under the recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.node import Argument, map_arg
from torch.utils._pytree import tree_leaves, tree_map

from plait_fx_passes.errors import AtenTraceError, ProgramRaisesError
from plait_fx_passes.record.fused_optimizers import rule_of
from plait_fx_passes.record.inputs import InputTable, SharedStorageWritten
from plait_fx_passes.record.kernels import KernelRefusal
from plait_fx_passes.record.numbers import as_tensor, computed, is_number
from plait_fx_passes.record.recorder import Recorder
from plait_fx_passes.record.scaling import scaling_rule
from plait_utils.fake import FakeMode
from plait_utils.interrupts import stop_if_interrupted
from plait_utils.open_functions import open_call

Look: TypeAlias = "Callable[[fx.Node, Mapping[fx.Node, object]], None]"

# Metadata of a torch-level node that its ATen nodes inherit.
_INHERITED = ("source_line", "stack_trace", "is_anchor")


def fake_mode_of(example_inputs: Sequence[torch.Tensor]) -> FakeTensorMode:
    """The fake mode of the example inputs; a new one for real tensors."""
    for tensor in example_inputs:
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    return FakeMode()


def add_arguments(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    table: InputTable,
    recorder: Recorder,
) -> None:
    """A placeholder for each of the graph's."""
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


def plain(value: object) -> object:
    """FX keeps containers in immutable kinds of its own; the program returns plain ones."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if type(value) is tuple:
        return tuple(plain(each) for each in value)
    return value


def _inherited(node: fx.Node) -> dict[str, object]:
    return {key: node.meta[key] for key in _INHERITED if key in node.meta}


class Interpreter:
    """Runs the torch-level graph once, node by node, on the recorder's fake tensors.

    ``scales`` says that tensors which are given for numbers may be multiplied by instead.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        recorder: Recorder,
        table: InputTable,
        *,
        scales: bool = False,
    ) -> None:
        self._gm = gm
        self._recorder = recorder
        self._arguments = iter(table.arguments)
        self._scales = scales
        self._values: dict[fx.Node, object] = {}

    def run(self, look: Look | None = None) -> object:
        """What the graph returns; ``look`` is told after each node what all have computed."""
        for node in self._gm.graph.nodes:
            stop_if_interrupted()
            if node.op == "output":
                return self._returned(self._argument(node.args[0]))
            self._recorder.meta = _inherited(node)
            try:
                self._values[node] = self._evaluate(node)
                self._note_counts(node)
                if look is not None:
                    look(node, self._values)
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
            scaled = scaling_rule(node.target, args, kwargs) if self._scales else None
            if scaled is not None:
                return scaled()
            made = open_call(node.op, node.target, args, kwargs)
            if made is not NotImplemented:
                return made
            if node.op == "call_function":
                assert callable(node.target)
                number = computed(node.target, args)
                if number is not None:
                    return number
                held = as_tensor(node.target, args, kwargs)
                if held is not None:
                    return held
                rule = rule_of(node.target) if any(map(is_number, kwargs.values())) else None
                if rule is not None and rule(*args, **kwargs) is not NotImplemented:
                    return None
                return node.target(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            assert node.op == "call_module"
            return self._gm.get_submodule(str(node.target))(*args, **kwargs)

    def _returned(self, value: object) -> object:
        """What the program returns, with tensors that hold its numbers in the place of these."""

        def held(leaf: object) -> object:
            return self._recorder.holding(leaf) if is_number(leaf) else leaf

        return tree_map(held, value)

    def _note_counts(self, node: fx.Node) -> None:
        """What the graph says of how autograd counts changes, which operators do not."""
        value, recorder = self._values[node], self._recorder
        if node.target is getattr and node.args[1] == "data" and isinstance(value, torch.Tensor):
            recorder.bind_lineage(value, replace(recorder.lineage_of(value), uncounted=True))
        elif node.target is torch.autograd.graph.increment_version:
            for each in tree_leaves(self._argument(node.args)):
                recorder.count_change(each)

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
