"""The loop IR as text that reads back to the same graph."""

from typing import TYPE_CHECKING

from plait_ir_lowering.text.print_values import (
    print_argument,
    print_layout,
    print_origin,
    print_sums,
    print_value,
)
from plait_ir_lowering.text.sizes import parse_size, print_size
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_ir_lowering.text.graphs import parse_graph, print_graph
    from plait_ir_lowering.text.parse_values import (
        IndexReader,
        ValueReader,
        parse_argument,
        parse_factors,
        parse_layout,
        parse_origin,
        parse_output,
        parse_refs,
        parse_sums,
        split_commas,
    )
else:
    __getattr__ = late_exports(
        __name__,
        {
            "plait_ir_lowering.text.graphs": (
                "parse_graph",
                "print_graph",
            ),
            "plait_ir_lowering.text.parse_values": (
                "IndexReader",
                "ValueReader",
                "parse_argument",
                "parse_factors",
                "parse_layout",
                "parse_origin",
                "parse_output",
                "parse_refs",
                "parse_sums",
                "split_commas",
            ),
        },
    )

__all__ = [
    "IndexReader",
    "ValueReader",
    "parse_argument",
    "parse_factors",
    "parse_graph",
    "parse_layout",
    "parse_origin",
    "parse_output",
    "parse_refs",
    "parse_size",
    "parse_sums",
    "print_argument",
    "print_graph",
    "print_layout",
    "print_origin",
    "print_size",
    "print_sums",
    "print_value",
    "split_commas",
]
