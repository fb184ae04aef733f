"""Random numbers that are the same in each run of a case."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(number: int) -> None:
    """Let all generators that models draw from begin anew: a speech model masks by NumPy's."""
    torch.manual_seed(number)
    np.random.seed(number)  # the generator that they use
    random.seed(number)
