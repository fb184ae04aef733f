"""Whether compiled code may write results over inputs itself, instead of having them copied there.

Nothing of the user's is changed by a call that raises, since eager may run in its place. What a
program's host promises about that decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.codegen import Target
from plait.gpus import tensors_in

if TYPE_CHECKING:
    import torch

    from plait.options import CompileOptions
    from plait_fx_passes import AtenGraph


def writes_inputs(aten: AtenGraph, target: Target, options: CompileOptions) -> bool:
    """Whether code for a flat graph may write to inputs.

    On CPUs kernels do not fail once they run. On a GPU the native host's are compiled before, and
    all memory is there before the first of them that writes; Python, where it has to launch them,
    writes at the end, as do programs of several GPUs.
    """
    if is_on_cpu(aten, target):
        return True
    devices = {each for each in _devices(aten) if each.type != "cpu"}
    on_one_gpu = len(devices) == 1 and next(iter(devices)).type == "cuda"
    return target is Target.BY_DEVICE and on_one_gpu and options.triton_options().native_host


def is_on_cpu(aten: AtenGraph, target: Target) -> bool:
    """Whether code for a flat graph is that of a CPU."""
    return target is not Target.TRITON and {each.type for each in _devices(aten)} <= {"cpu"}


def _devices(aten: AtenGraph) -> set[torch.device]:
    """Where its inputs are, and what it computes."""
    found = {each.device for each in aten.example_inputs if hasattr(each, "device")}
    values = (node.meta.get("val") for node in aten.graph.nodes)
    return found | {each.device for value in values for each in tensors_in(value)}
