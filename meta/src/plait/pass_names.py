"""The names of the passes that the option `disabled_passes` may leave out."""

from __future__ import annotations

import plait_fx_passes as fx_passes
from plait.errors import unknown_name
from plait.options import ATTENTION_CALLS, ATTENTION_GRADIENTS, IN_BUCKETS, CompileOptions


def check_disabled(options: CompileOptions) -> None:
    """Raises OptionError, naming the closest pass, where one of `disabled` is none."""
    known = known_names(options)
    for name in sorted(options.disabled):
        if name not in known:
            raise unknown_name("pass", name, known)


def known_names(options: CompileOptions) -> list[str]:
    """Every pass that there is, whether these options choose it or not."""
    user = options.user_passes
    plaits = (
        *fx_passes.NUMERIC_PASSES,
        *fx_passes.LOOP_PASSES,
        *fx_passes.DRAWING_PASSES,
        *fx_passes.QUANTIZED_LOOP_PASSES,
        *fx_passes.SUM_PASSES,
        *fx_passes.LAYOUT_PASSES,
    )
    frozen = (*fx_passes.FOLDING_PASSES, *fx_passes.PACKING_PASSES)
    of_groups = fx_passes.collective_passes()
    chosen = (*plaits, *frozen, *of_groups, *options.passes(), *user.after_grad)
    ours = (ATTENTION_CALLS, ATTENTION_GRADIENTS, IN_BUCKETS)
    return list(dict.fromkeys([*ours, *(each.name for each in chosen)]))
