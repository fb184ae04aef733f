"""Operators that only check values, where the one that computed these can check them itself.

``torch.linalg`` takes its functions apart under autograd: ``inv`` is ``linalg_inv_ex`` and then
``_linalg_check_errors`` of what that says went wrong. A graph of values has no place for the
second, but the first can be asked to check on its way.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import OpOverload

_CHECK = torch.ops.aten._linalg_check_errors.default
_OPTION = "check_errors"


def ask_to_check(func: OpOverload, args: Sequence[object]) -> bool:
    """Let the operator whose errors ``func`` would look at raise them; whether it can."""
    info = args[0] if func is _CHECK else None
    if not isinstance(info, fx.Node) or info.target is not operator.getitem:
        return False
    made = info.args[0]
    if not isinstance(made, fx.Node) or not isinstance(made.target, OpOverload):
        return False
    names: Sequence[str] = [each.name for each in made.target._schema.arguments]
    if _OPTION not in names:
        return False
    position = names.index(_OPTION)
    if position < len(made.args):
        made.update_arg(position, True)
    else:
        made.update_kwarg(_OPTION, True)
    return True
