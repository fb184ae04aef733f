"""Programs as text that reads back to the same program."""

from typing import TYPE_CHECKING

from plait_ir_lowering import print_value
from plait_scheduler.text.print import print_kernel, print_program
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_scheduler.text.parse import parse_kernel, parse_program
else:
    __getattr__ = late_exports(
        __name__,
        {
            "plait_scheduler.text.parse": (
                "parse_kernel",
                "parse_program",
            ),
        },
    )

__all__ = [
    "parse_kernel",
    "parse_program",
    "print_kernel",
    "print_program",
    "print_value",
]
