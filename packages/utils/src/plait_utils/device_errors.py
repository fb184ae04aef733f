"""Errors of GPUs that come late: a kernel's shows where something else is called after it.

Such an error stays: the GPU's context is lost, and whatever the process asks of it next fails in
the same way, under the name of what was asked. Nothing here imports torch until it is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from plait_utils.errors import PlaitError

SETTING = "PLAIT_CHECK_LAUNCHES"
"""The environment variable of the option `check_launches`."""
_LOST = "the GPU's context is lost: restart the process"
EARLIER = (
    "it may be the error of a kernel that was launched before, by whatever program; "
    f"{SETTING}=1 waits for each kernel and names the one that fails"
)


class DeviceFailedError(PlaitError, RuntimeError):
    """A kernel has failed on a GPU, which this process cannot use any more.

    Nothing is to be run in place of the program: it would raise the same at an innocent line.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = _LOST) -> None:
        super().__init__(message, where=where, hint=hint)


class HalfWrittenError(DeviceFailedError):
    """The GPU did not take a launch that follows others which have changed inputs.

    All that can be known to fail fails before the first of these, so this is the driver's, for want
    of its own memory, or of a copy that torch makes at the end. Nothing is to be run in place of
    the program: it would change them again.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = "what the program writes to may hold its new values or the old ones",
    ) -> None:
        super().__init__(message, where=where, hint=hint)


def lost_reason(devices: Collection[int]) -> str | None:
    """What waiting for these GPUs raises; None where nothing has failed on them, or it cannot be
    told, as while a CUDA graph is recorded."""
    import torch

    cuda = torch.cuda
    if not devices or not cuda.is_initialized() or cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]  # torch's
        return None
    try:
        for device in devices:
            cuda.synchronize(device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


@contextmanager
def waited_for(what: str, *devices: int) -> Iterator[None]:
    """Waits for GPUs after what is done within.

    Raises DeviceFailedError, which names `what`, where anything has failed on them by then.
    """
    try:
        yield
    except RuntimeError as error:
        reason = lost_reason(devices)
        if reason is None:
            raise
        raise DeviceFailedError(f"{what} failed: {reason}") from error
    reason = lost_reason(devices)
    if reason is not None:
        raise DeviceFailedError(f"{what} failed: {reason}")
