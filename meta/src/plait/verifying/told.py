"""What a verification found."""

from __future__ import annotations

import threading
from dataclasses import field

from plait_utils import dataclass, get_logger


@dataclass(frozen=True, slots=True)
class Difference:
    """One call that was not as in eager, and therefore ran eagerly."""

    what: str
    """What differs: "result 0", "the gradient of x"."""
    amount: str
    """How much."""
    node: str
    """The first node that differs, or the stage that is at fault."""

    def __str__(self) -> str:
        return f"{self.what} differs from eager ({self.amount}); first at {self.node}"


@dataclass(slots=True)
class Verification:
    """Calls of one graph that were compared with eager."""

    name: str
    calls: int = 0
    differences: list[Difference] = field(default_factory=list)
    skipped: str | None = None
    """Why calls could not be compared."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def compared(self) -> None:
        """Count a call."""
        with self._lock:
            self.calls += 1

    def tell(self, difference: Difference) -> None:
        """Keep a difference, and warn."""
        with self._lock:
            self.differences.append(difference)
        get_logger("verify").warning("%s: %s. It runs eagerly from here on.", self.name, difference)

    def __str__(self) -> str:
        if self.differences:
            return f"{self.differences[0]}; runs eagerly since"
        calls = f"{self.calls} call{'s' * (self.calls != 1)} as in eager"
        return calls if self.skipped is None else f"{calls}; not compared: {self.skipped}"
