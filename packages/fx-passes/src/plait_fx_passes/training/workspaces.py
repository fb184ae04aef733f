"""Operators that keep something for their backward only where autograd calls them.

Compiled code runs below autograd: there `mkldnn_rnn_layer`, an LSTM on the CPU, gives no
workspace, which its backward reads.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from plait_fx_passes.errors import AtenTraceError

_WORKSPACES = {torch.ops.aten.mkldnn_rnn_layer.default: 3}
"""Which of an operator's results that is."""


def refuse_workspaces(graph: fx.Graph) -> None:
    """Raise `AtenTraceError` where a backward reads a workspace that compiled code cannot give."""
    for target, place in _WORKSPACES.items():
        for node in graph.find_nodes(op="call_function", target=target):
            parts = [user for user in node.users if user.target is operator.getitem]
            if any(part.args[1] == place and part.users for part in parts):
                line = node.meta.get("source_line")
                raise AtenTraceError(
                    f"{target} tells its backward something only where autograd calls it",
                    where=None if line is None else str(line),
                    hint="an LSTM on the CPU trains in eager code",
                )
