"""Fake values of the nodes of graphs that have none: of bodies that checkpoints run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from plait_fx_passes.record.interpreter import fake_mode_of
from plait_fx_passes.record.settings import kept_settings


def annotate(program: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give each node its fake value in ``meta["val"]``, for real or fake inputs."""
    mode = fake_mode_of([each for each in inputs if isinstance(each, torch.Tensor)])
    given = [_fake(mode, each) for each in inputs]
    with kept_settings(), mode:
        _Annotator(program, mode).run(*given)


def checkpointed(program: fx.GraphModule) -> Iterator[tuple[str, fx.GraphModule, list[Any]]]:
    """The bodies that checkpoints of a program run, by name, with the fake tensors that they get.

    Those whose results a policy keeps by their operators stay as they are.
    """
    for node in program.graph.find_nodes(op="get_attr", sort=False):
        body = getattr(program, str(node.target), None)
        users = list(node.users)
        if len(users) != 1 or not isinstance(body, fx.GraphModule):
            continue
        (call,) = users
        if getattr(call.target, "__name__", "") != "checkpoint" or call.args[0] is not node:
            continue
        if len(call.args) != 5 or call.kwargs:
            continue
        _, free, args, kwargs, _ = cast("tuple[Any, ...]", call.args)
        inputs = [each for each in tree_leaves((args, kwargs, free)) if isinstance(each, fx.Node)]
        values = [each.meta.get("val") for each in inputs]
        values = [each for each in values if isinstance(each, torch.Tensor)]
        if len(values) == len(body.graph.find_nodes(op="placeholder")):
            yield str(node.target), body, values


class _Annotator(fx.Interpreter):
    """Runs a graph on fake tensors and notes what each node gives."""

    def __init__(self, program: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(program)
        self._mode = mode

    def run_node(self, n: fx.Node) -> Any:
        """The node's value, which it keeps."""
        value = super().run_node(n)
        n.meta["val"] = value
        return value

    def fetch_attr(self, target: str) -> Any:
        """A fake tensor for one of the program's own."""
        return _fake(self._mode, super().fetch_attr(target))


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
    return mode.from_tensor(value) if is_real else value
