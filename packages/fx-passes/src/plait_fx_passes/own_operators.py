"""Operators of this package that programs call: each is there once its module is loaded."""

from __future__ import annotations

from importlib import import_module

_MODULES = {
    "plait_fx_passes::mkldnn_rnn_layer": "plait_fx_passes.training.workspaces",
    "plait_philox::reserve": "plait_utils.philox",
}
"""Those that a program may call without Python: they have no effects of which nobody knows."""

OWN_OPERATORS = frozenset(_MODULES)
"""Their names."""


def load_operator(name: str) -> None:
    """Make an operator of :data:`OWN_OPERATORS` known to torch. Raises KeyError for others."""
    import_module(_MODULES[name])
