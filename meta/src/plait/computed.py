"""What kernels of plait's compute on a device, for those who compare it with eager's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def computed(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], given: torch.Tensor
) -> Sequence[torch.Tensor]:
    """The results of a traceable function of a tensor, by kernels for the tensor's device.

    Raises RuntimeError where they cannot be compiled or run.
    """
    import torch
    from torch import fx

    from plait.codegen import Target, build
    from plait.options import CompileOptions
    from plait_fx_passes import to_aten
    from plait_ir_lowering import lower
    from plait_scheduler import device_limits, schedule
    from plait_utils import Profile

    class Program(torch.nn.Module):
        def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return function(given)

    options = CompileOptions()
    try:
        loops = lower(to_aten(fx.symbolic_trace(Program()), [given]).graph)
        program = schedule(loops, options=options.scheduler_options(limits=device_limits(loops)))
        results: Sequence[torch.Tensor] = build(program, Target.BY_DEVICE, options, Profile()).run(
            given
        )
    except Exception as error:
        raise RuntimeError(f"kernels could not compute it: {error}") from error
    return results
