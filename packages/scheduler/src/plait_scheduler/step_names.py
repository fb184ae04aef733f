"""What errors call a step of a device: its kernel or operator, and the user's lines."""

from __future__ import annotations

from plait_scheduler.program import CallExtern, CopyBack, Launch, Step


def named(step: Step) -> str | None:
    """Such as "the kernel sum_1 of model.py:12 in forward: x.sum()"; None for steps that launch
    nothing."""
    match step:
        case Launch(kernel, origin=origin):
            what = f"the kernel {kernel}"
        case CallExtern(op, origin=origin):
            what = f"the call of {op}"
        case CopyBack(target):
            return f"the copy to the input {target}"
        case _:
            return None
    lines = "; ".join(" ".join(line.split()) for line in origin.lines)
    return f"{what} of {lines}" if lines else what
