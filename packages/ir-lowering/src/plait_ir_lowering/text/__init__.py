"""The loop IR as text that reads back to the same graph."""

from plait_ir_lowering.text.graphs import parse_graph, print_graph
from plait_ir_lowering.text.parse_values import (
    IndexReader,
    ValueReader,
    parse_argument,
    parse_layout,
    parse_origin,
    parse_output,
    split_commas,
)
from plait_ir_lowering.text.print_values import (
    print_argument,
    print_layout,
    print_origin,
    print_value,
)

__all__ = [
    "IndexReader",
    "ValueReader",
    "parse_argument",
    "parse_graph",
    "parse_layout",
    "parse_origin",
    "parse_output",
    "print_argument",
    "print_graph",
    "print_layout",
    "print_origin",
    "print_value",
    "split_commas",
]
