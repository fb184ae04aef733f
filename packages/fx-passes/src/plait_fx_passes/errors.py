"""The errors of this package; each says where in the user's code and what to do."""

from __future__ import annotations

from plait_utils import PlaitError as PlaitError


class AtenTraceError(PlaitError):
    """A torch-level graph could not be turned into a functional ATen graph."""


class ProgramRaisesError(AtenTraceError):
    """The program raises by itself, for inputs like these: no graph does what it does.

    What eager's kernel raised is the ``__cause__``. Run the program eagerly, and it raises that.
    """


class ValuesCheckedError(AtenTraceError):
    """The program checks values and computes nothing from that, which no graph does."""


class VerificationError(PlaitError):
    """A graph breaks a rule of the ATen graph contract."""


class PassError(PlaitError):
    """A pass raised, or left a graph that does not verify; the input graph is untouched.

    ``pass_name`` is the pass's, where one ran; ``of_user`` is for compilers that run passes of
    their users among their own.
    """

    pass_name: str | None = None
    of_user: bool = False


class PatternError(PlaitError):
    """A pattern or a replacement cannot be used as a rewrite rule."""


class CheckFailure(PlaitError):
    """The checking backend met a value that differs from what was traced."""


class NoGradientsError(AtenTraceError):
    """No result of the program needs gradients: at most views of its inputs do."""


class GraphTextError(PlaitError):
    """A graph cannot be written as text, or text or a folder cannot be read as a graph."""
