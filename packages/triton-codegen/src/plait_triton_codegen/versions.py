"""Which Tritons and GPUs there is code for."""

from __future__ import annotations

import re
from importlib import metadata

from plait_triton_codegen.errors import TritonDeviceError, TritonVersionError
from plait_utils import warn_once

OLDEST, NEWEST = (3, 6), (3, 9)
"""The Tritons that plait is tested with."""
TESTED = "plait is tested with Triton 3.6 to 3.9"
_INSTALL = "pip install 'triton>=3.6,<3.10'"
ROLES_CAPABILITY = 90
"""Of GPUs on which warps of products may have roles: what multiplies so is their instructions."""
OVERLAP_CAPABILITY = 90
"""Of GPUs on which a kernel starts before the one before it has ended. Newer ones could: but there
products take tensor memory before they wait, which was tried on none, and some drivers do not
record such launches."""
_ROLES_TRITONS = ((3, 6), (3, 7), (3, 8), (3, 9))
"""Tritons whose Gluon has what such kernels need, under the names of `device_roles.py`."""
OLDEST_CAPABILITY = 50
"""Of a GPU: the assemblers of these Tritons know sm_50 and newer."""


def check_triton() -> None:
    """Warn, once, of a Triton that is newer than those tested. Raises TritonVersionError for one
    that is older, and where there is none."""
    version = triton_version()
    found = numbers_of(version)
    if found < OLDEST:
        raise TritonVersionError(f"Triton {version} is too old: {TESTED}", hint=_INSTALL)
    if found > NEWEST:
        advice = f"{TESTED}; if kernels fail: {_INSTALL}"
        warn_once("triton", "version", "Triton %s is newer than what is known: %s", version, advice)


def check_capability(capability: int) -> None:
    """Raises TritonDeviceError for a GPU that Triton has no code for.

    Args:
        capability: such as 90.
    """
    if capability < OLDEST_CAPABILITY:
        raise TritonDeviceError(too_old(capability))


def offers_roles(capability: int) -> bool:
    """Whether a GPU and the Triton that is installed take kernels in Gluon whose warps have roles.

    Args:
        capability: such as 90.
    """
    if capability != ROLES_CAPABILITY:
        return False
    try:
        return numbers_of(triton_version()) in _ROLES_TRITONS
    except TritonVersionError:
        return False


def too_old(capability: int) -> str:
    """What is said of such a GPU."""
    return (
        f"Triton compiles for GPUs of compute capability {OLDEST_CAPABILITY / 10} and newer, and "
        f"this one has {capability / 10}"
    )


def triton_version() -> str:
    """That of the Triton that is installed, under whatever name. Raises TritonVersionError where
    there is none."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        try:
            import triton
        except ModuleNotFoundError as error:
            raise TritonVersionError("Triton is not installed", hint=_INSTALL) from error
        except ImportError as error:
            raise unusable(error) from error
        return str(triton.__version__)


def unusable(error: ImportError) -> TritonVersionError:
    """The error for a Triton that is there and cannot be imported."""
    return TritonVersionError(
        f"Triton cannot be imported: {type(error).__name__}: {error}", hint=f"{_INSTALL}, anew"
    )


def numbers_of(version: str) -> tuple[int, ...]:
    """The first two of a version's numbers."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
