"""A loop IR for tensor programs, and the rules that lower ATen graphs to it."""

from typing import TYPE_CHECKING

from plait_ir_lowering._version import __version__
from plait_ir_lowering.context import LoweringOptions
from plait_ir_lowering.errors import LoopIRError, LoweringError
from plait_ir_lowering.external import external_ops
from plait_ir_lowering.ir.dtypes import DTYPES, DType
from plait_ir_lowering.ir.graph import (
    Body,
    Buffer,
    Definition,
    Device,
    ExternArg,
    ExternCall,
    ExternList,
    Graph,
    Layout,
    Origin,
    OutputRef,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    TensorRef,
    row_major,
)
from plait_ir_lowering.ir.index import (
    Atom,
    IndexExpr,
    Quotient,
    Remainder,
    Sym,
    Var,
    as_index,
    bounds,
)
from plait_ir_lowering.ir.index_queries import atoms, evaluate, product, stride_of, substitute
from plait_ir_lowering.ir.ops import (
    OPS,
    OpSpec,
    ReductionKind,
    ScatterKind,
    TypeMismatchError,
    TypeRule,
    result_dtype,
)
from plait_ir_lowering.ir.values import (
    CheckedIndex,
    Const,
    IndexValue,
    Load,
    Local,
    Masked,
    Op,
    Pack,
    Scalar,
    Value,
    carried,
    components,
    loads_of,
    packed,
    post_order,
    rewrite,
)
from plait_ir_lowering.lower import lower
from plait_ir_lowering.registry import coverage
from plait_ir_lowering.text.print_values import (
    print_argument,
    print_layout,
    print_origin,
    print_value,
)
from plait_ir_lowering.torch_types import from_torch_dtype, to_torch_dtype
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_ir_lowering.interpreter import interpret
    from plait_ir_lowering.text import (
        IndexReader,
        ValueReader,
        parse_argument,
        parse_graph,
        parse_layout,
        parse_origin,
        parse_output,
        print_graph,
        split_commas,
    )
    from plait_ir_lowering.verifier import scan_problem, verify
else:
    __getattr__ = late_exports(
        __name__,
        {
            "plait_ir_lowering.interpreter": ("interpret",),
            "plait_ir_lowering.text": (
                "IndexReader",
                "ValueReader",
                "parse_argument",
                "parse_graph",
                "parse_layout",
                "parse_origin",
                "parse_output",
                "print_graph",
                "split_commas",
            ),
            "plait_ir_lowering.verifier": ("scan_problem", "verify"),
        },
    )

__all__ = [
    "DTYPES",
    "OPS",
    "Atom",
    "Body",
    "Buffer",
    "CheckedIndex",
    "Const",
    "DType",
    "Definition",
    "Device",
    "ExternArg",
    "ExternCall",
    "ExternList",
    "Graph",
    "IndexExpr",
    "IndexReader",
    "IndexValue",
    "Layout",
    "Load",
    "Local",
    "LoopIRError",
    "LoweringError",
    "LoweringOptions",
    "Masked",
    "Op",
    "OpSpec",
    "Origin",
    "OutputRef",
    "Pack",
    "Pointwise",
    "Quotient",
    "Reduction",
    "ReductionKind",
    "Remainder",
    "Scalar",
    "Scan",
    "Scatter",
    "ScatterKind",
    "Sym",
    "TensorRef",
    "TypeMismatchError",
    "TypeRule",
    "Value",
    "ValueReader",
    "Var",
    "__version__",
    "as_index",
    "atoms",
    "bounds",
    "carried",
    "components",
    "coverage",
    "evaluate",
    "external_ops",
    "from_torch_dtype",
    "interpret",
    "loads_of",
    "lower",
    "packed",
    "parse_argument",
    "parse_graph",
    "parse_layout",
    "parse_origin",
    "parse_output",
    "post_order",
    "print_argument",
    "print_graph",
    "print_layout",
    "print_origin",
    "print_value",
    "product",
    "result_dtype",
    "rewrite",
    "row_major",
    "scan_problem",
    "split_commas",
    "stride_of",
    "substitute",
    "to_torch_dtype",
    "verify",
]
