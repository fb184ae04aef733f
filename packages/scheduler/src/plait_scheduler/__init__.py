"""Fusion, ordering and memory planning of loop IR into executable programs."""

from typing import TYPE_CHECKING

from plait_ir_lowering import print_value
from plait_scheduler._version import __version__
from plait_scheduler.alignment import ACCESS_BYTES, aligned_places
from plait_scheduler.attention_masks import (
    KeyLimit,
    KeyLimits,
    Limits,
    in_bounds,
    key_limits,
    may_fail,
    shared_conditions,
    where_all_hold,
    without_masks,
)
from plait_scheduler.combined import members_of, separated
from plait_scheduler.decisions import Decision, DecisionKind, explain
from plait_scheduler.domains import are_apart, batch_offset
from plait_scheduler.errors import ProgramError, ProgramSyntaxError
from plait_scheduler.memory import ArenaPlan, Lifetime, MemoryReport, memory_report, plan_arena
from plait_scheduler.nodes import EXPENSIVE
from plait_scheduler.options import SchedulerOptions
from plait_scheduler.phases import Phase, phases, row_scratch
from plait_scheduler.program import (
    Access,
    Accumulate,
    Allocate,
    AnyKernel,
    ArenaStorage,
    Attend,
    CallExtern,
    ChainedKernel,
    CombinedKernel,
    CopyBack,
    Domain,
    ExternStorage,
    Free,
    InputStorage,
    Kernel,
    Launch,
    Let,
    Mix,
    OnError,
    OutputStorage,
    Param,
    PartStorage,
    Program,
    ProgramBuffer,
    Reduce,
    Return,
    SharedStorage,
    Sort,
    Statement,
    Step,
    Storage,
    Store,
    memory_of,
)
from plait_scheduler.roofline import KernelWork, kernel_work
from plait_scheduler.schedule import (
    Schedule,
    device_limits,
    first_wrong_decision,
    plan,
    schedule,
)
from plait_scheduler.shares import is_below_largest, named_statements, resolved, shares
from plait_scheduler.sizes import SizePlace, at_sizes, estimate, extent_of, size_places
from plait_scheduler.step_names import named
from plait_scheduler.summed import sums_of, variables_of
from plait_scheduler.text.print import print_kernel, print_program
from plait_scheduler.writeback import is_whole
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_scheduler.chained import with_chains
    from plait_scheduler.grouped_products import (
        GROUPED,
        Ends,
        Groups,
        TermGroups,
        without_groups,
        without_term_groups,
    )
    from plait_scheduler.pieces import ProductPiece, SplitPiece, product_pieces, split_pieces
    from plait_scheduler.render.host import KernelRenderer, load_python, render_python
    from plait_scheduler.render.torch_kernel import RenderedKernel, torch_kernel
    from plait_scheduler.text.parse import parse_kernel, parse_program
    from plait_scheduler.verifier import verify_kernel, verify_program
else:
    __getattr__ = late_exports(
        __name__,
        {
            "plait_scheduler.chained": ("with_chains",),
            "plait_scheduler.grouped_products": (
                *("GROUPED", "Ends", "Groups", "TermGroups"),
                *("without_groups", "without_term_groups"),
            ),
            "plait_scheduler.pieces": (
                "ProductPiece",
                "SplitPiece",
                "product_pieces",
                "split_pieces",
            ),
            "plait_scheduler.render.host": ("KernelRenderer", "load_python", "render_python"),
            "plait_scheduler.render.torch_kernel": ("RenderedKernel", "torch_kernel"),
            "plait_scheduler.text.parse": ("parse_kernel", "parse_program"),
            "plait_scheduler.verifier": ("verify_kernel", "verify_program"),
        },
    )

__all__ = [
    "ACCESS_BYTES",
    "EXPENSIVE",
    "GROUPED",
    "Access",
    "Accumulate",
    "Allocate",
    "AnyKernel",
    "ArenaPlan",
    "ArenaStorage",
    "Attend",
    "CallExtern",
    "ChainedKernel",
    "CombinedKernel",
    "CopyBack",
    "Decision",
    "DecisionKind",
    "Domain",
    "Ends",
    "ExternStorage",
    "Free",
    "Groups",
    "InputStorage",
    "Kernel",
    "KernelRenderer",
    "KernelWork",
    "KeyLimit",
    "KeyLimits",
    "Launch",
    "Let",
    "Lifetime",
    "Limits",
    "MemoryReport",
    "Mix",
    "OnError",
    "OutputStorage",
    "Param",
    "PartStorage",
    "Phase",
    "ProductPiece",
    "Program",
    "ProgramBuffer",
    "ProgramError",
    "ProgramSyntaxError",
    "Reduce",
    "RenderedKernel",
    "Return",
    "Schedule",
    "SchedulerOptions",
    "SharedStorage",
    "SizePlace",
    "Sort",
    "SplitPiece",
    "Statement",
    "Step",
    "Storage",
    "Store",
    "TermGroups",
    "__version__",
    "aligned_places",
    "are_apart",
    "at_sizes",
    "batch_offset",
    "device_limits",
    "estimate",
    "explain",
    "extent_of",
    "first_wrong_decision",
    "in_bounds",
    "is_below_largest",
    "is_whole",
    "kernel_work",
    "key_limits",
    "load_python",
    "may_fail",
    "members_of",
    "memory_of",
    "memory_report",
    "named",
    "named_statements",
    "parse_kernel",
    "parse_program",
    "phases",
    "plan",
    "plan_arena",
    "print_kernel",
    "print_program",
    "print_value",
    "product_pieces",
    "render_python",
    "resolved",
    "row_scratch",
    "schedule",
    "separated",
    "shared_conditions",
    "shares",
    "size_places",
    "split_pieces",
    "sums_of",
    "torch_kernel",
    "variables_of",
    "verify_kernel",
    "verify_program",
    "where_all_hold",
    "with_chains",
    "without_groups",
    "without_masks",
    "without_term_groups",
]
