"""Programs as text that reads back to the same program."""

from plait_ir_lowering import print_value
from plait_scheduler.text.parse import parse_kernel, parse_program
from plait_scheduler.text.print import print_kernel, print_program

__all__ = [
    "parse_kernel",
    "parse_program",
    "print_kernel",
    "print_program",
    "print_value",
]
