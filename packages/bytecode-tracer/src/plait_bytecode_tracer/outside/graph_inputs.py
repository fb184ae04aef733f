"""What the graph of a trace is given."""

from __future__ import annotations

import torch
from torch import fx

from plait_bytecode_tracer.values.sources import Source
from plait_utils import dataclass


@dataclass(slots=True)
class GraphInput:
    """A tensor that the graph reads: its source, placeholder and real tensor."""

    source: Source
    node: fx.Node
    tensor: torch.Tensor | None
    """None once the call is captured."""

    @property
    def real(self) -> torch.Tensor:
        """The tensor, while the call is traced."""
        assert self.tensor is not None
        return self.tensor
