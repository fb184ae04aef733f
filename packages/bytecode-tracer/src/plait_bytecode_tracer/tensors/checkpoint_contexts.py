"""What makes the contexts of a checkpoint, in a graph."""

from __future__ import annotations

from typing import Any

import torch


class Contexts(torch.nn.Module):
    """A function without arguments that makes the two contexts: of a policy that only looks.

    A policy decides by the operator what is kept and what is computed again, which changes no
    value. It is called where the graph runs and where it is compiled.
    """

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make
