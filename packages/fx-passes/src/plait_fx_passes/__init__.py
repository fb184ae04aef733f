"""From torch.fx graphs to functional ATen graphs, and the passes that improve them."""

from typing import TYPE_CHECKING

from plait_fx_passes._version import __version__
from plait_utils import late_exports

if TYPE_CHECKING:
    from plait_fx_passes.aten_graph import (
        AtenGraph,
        AttributeInput,
        Computed,
        ConstantInput,
        Detached,
        Followed,
        Geometry,
        InputItself,
        InputSource,
        InputView,
        Literal,
        MetadataMutation,
        Mutation,
        OutputSource,
        Repeated,
        ResultView,
        SyntheticBase,
        UserInput,
        ViewStep,
        WithinOutput,
    )
    from plait_fx_passes.attention import FusedAttention, fuse_attention
    from plait_fx_passes.decomposing import decompose
    from plait_fx_passes.decompositions import (
        core_decompositions,
        counter_decompositions,
        default_decompositions,
        moving_decompositions,
    )
    from plait_fx_passes.errors import (
        AtenTraceError,
        CheckFailure,
        GraphTextError,
        NoGradientsError,
        PassError,
        PatternError,
        ProgramRaisesError,
        VerificationError,
    )
    from plait_fx_passes.freezing import (
        FOLD_BATCH_NORMS,
        FOLDING_PASSES,
        MERGE_PRODUCTS,
        PACK_WEIGHTS,
        PACKING_PASSES,
        Frozen,
        can_freeze,
        split_frozen,
    )
    from plait_fx_passes.images import ImageLayout, ImageRole, image_layouts, summarize_layouts
    from plait_fx_passes.open_sizes import Conditions, refuse_open_surroundings, runner
    from plait_fx_passes.own_operators import OWN_OPERATORS, load_operator
    from plait_fx_passes.passes.base import Fuel, Pass, PassContext
    from plait_fx_passes.passes.bisect import Culprit, find_bad_rewrite
    from plait_fx_passes.passes.changes import GraphDiff, PassChange, PassLog
    from plait_fx_passes.passes.collectives import (
        CollectivePart,
        CollectiveParts,
        collective_parts,
        collective_passes,
        communicates,
        parts_runner,
    )
    from plait_fx_passes.passes.device_draws import drawing_passes
    from plait_fx_passes.passes.manager import (
        DEFAULT_PASSES,
        DRAWING_PASSES,
        IN_PLACE_PASSES,
        KERNEL_PASSES,
        LAYOUT_PASSES,
        LAYOUT_PASSES_OF_KERNELS,
        LOOP_PASSES,
        NUMERIC_PASSES,
        QUANTIZED_LOOP_PASSES,
        QUANTIZED_PASSES,
        SUM_PASSES,
        PassRecord,
        run_passes,
    )
    from plait_fx_passes.passes.users_in_place import UsersInPlace, users_in_place
    from plait_fx_passes.patterns import Anything, Match, RewriteRule, Scalar, Tensors, rule_pass
    from plait_fx_passes.printer import print_aten
    from plait_fx_passes.record.journal import Journal, journaled
    from plait_fx_passes.record.written import (
        PartlyWritten,
        is_written_variant,
        partly_written,
        returned_by,
        run_written_variant,
        tensors_written,
    )
    from plait_fx_passes.runtime import bind_inputs, is_direct, wrap_runtime, writable
    from plait_fx_passes.standalone import as_module, optimize
    from plait_fx_passes.subclasses.program import Flattened, flattened
    from plait_fx_passes.to_functional import to_aten
    from plait_fx_passes.training.attention.keeping import KeptAttention, keep_attention
    from plait_fx_passes.training.backwards import Ready, part_of, whole_backward, whole_ready
    from plait_fx_passes.training.choose import PartitionCosts
    from plait_fx_passes.training.consuming import consumed_by, consuming
    from plait_fx_passes.training.gradient_program import GradientProgram
    from plait_fx_passes.training.joint import to_joint
    from plait_fx_passes.training.joint_graph import JointGraph, is_random
    from plait_fx_passes.training.known import Known
    from plait_fx_passes.training.memory import memory_efficient
    from plait_fx_passes.training.partition import Partition, keep_all, partition
    from plait_fx_passes.training.pieces import Piece, in_pieces, run_pieces
    from plait_fx_passes.training.places import SavedInput, SavedResult, SavedSize
    from plait_fx_passes.training.plan import Graphs, TrainingPlan
    from plait_fx_passes.training.plan_data import (
        read_graphs,
        read_plan,
        read_surroundings,
        write_graphs,
        write_plan,
        write_surroundings,
    )
    from plait_fx_passes.training.planning import plan_of
    from plait_fx_passes.training.reading import note_reads
    from plait_fx_passes.training.runtime import run_plan, wrap_training, writable_in_training
    from plait_fx_passes.training.saved import Held, SavedTensor, print_saved
    from plait_fx_passes.training.spent import differentiates
    from plait_fx_passes.training.waypoints import WaypointError
    from plait_fx_passes.verifier import verify
else:
    # What runs a program that another process has compiled needs little of this package.
    __getattr__ = late_exports(
        __name__,
        {
            "plait_fx_passes.aten_graph": (
                *("AtenGraph", "AttributeInput", "Computed", "ConstantInput", "Detached"),
                *("Followed", "Geometry", "InputItself", "InputSource", "InputView", "Literal"),
                *("MetadataMutation", "Mutation", "OutputSource", "Repeated", "ResultView"),
                *("SyntheticBase", "UserInput", "ViewStep", "WithinOutput"),
            ),
            "plait_fx_passes.attention": ("FusedAttention", "fuse_attention"),
            "plait_fx_passes.decomposing": ("decompose",),
            "plait_fx_passes.decompositions": (
                *("core_decompositions", "counter_decompositions", "default_decompositions"),
                *("moving_decompositions",),
            ),
            "plait_fx_passes.errors": (
                *("AtenTraceError", "CheckFailure", "GraphTextError", "NoGradientsError"),
                *("PassError", "PatternError", "ProgramRaisesError", "VerificationError"),
            ),
            "plait_fx_passes.freezing": (
                *("FOLD_BATCH_NORMS", "FOLDING_PASSES", "MERGE_PRODUCTS", "PACK_WEIGHTS"),
                *("PACKING_PASSES", "Frozen", "can_freeze", "split_frozen"),
            ),
            "plait_fx_passes.images": (
                *("ImageLayout", "ImageRole", "image_layouts", "summarize_layouts"),
            ),
            "plait_fx_passes.open_sizes": ("Conditions", "refuse_open_surroundings", "runner"),
            "plait_fx_passes.own_operators": ("OWN_OPERATORS", "load_operator"),
            "plait_fx_passes.passes.base": ("Fuel", "Pass", "PassContext"),
            "plait_fx_passes.passes.bisect": ("Culprit", "find_bad_rewrite"),
            "plait_fx_passes.passes.changes": ("GraphDiff", "PassChange", "PassLog"),
            "plait_fx_passes.passes.collectives": (
                *("CollectivePart", "CollectiveParts", "collective_parts", "collective_passes"),
                *("communicates", "parts_runner"),
            ),
            "plait_fx_passes.passes.device_draws": ("drawing_passes",),
            "plait_fx_passes.passes.manager": (
                *("DEFAULT_PASSES", "DRAWING_PASSES", "IN_PLACE_PASSES", "KERNEL_PASSES"),
                *("LAYOUT_PASSES", "LAYOUT_PASSES_OF_KERNELS", "LOOP_PASSES", "NUMERIC_PASSES"),
                *("QUANTIZED_LOOP_PASSES", "QUANTIZED_PASSES", "SUM_PASSES", "PassRecord"),
                *("run_passes",),
            ),
            "plait_fx_passes.passes.users_in_place": ("UsersInPlace", "users_in_place"),
            "plait_fx_passes.patterns": (
                *("Anything", "Match", "RewriteRule", "Scalar", "Tensors", "rule_pass"),
            ),
            "plait_fx_passes.printer": ("print_aten",),
            "plait_fx_passes.record.journal": ("Journal", "journaled"),
            "plait_fx_passes.record.written": (
                *("PartlyWritten", "is_written_variant", "partly_written", "returned_by"),
                *("run_written_variant", "tensors_written"),
            ),
            "plait_fx_passes.runtime": ("bind_inputs", "is_direct", "wrap_runtime", "writable"),
            "plait_fx_passes.standalone": ("as_module", "optimize"),
            "plait_fx_passes.subclasses.program": ("Flattened", "flattened"),
            "plait_fx_passes.to_functional": ("to_aten",),
            "plait_fx_passes.training.attention.keeping": ("KeptAttention", "keep_attention"),
            "plait_fx_passes.training.backwards": (
                *("Ready", "part_of", "whole_backward", "whole_ready"),
            ),
            "plait_fx_passes.training.choose": ("PartitionCosts",),
            "plait_fx_passes.training.consuming": ("consumed_by", "consuming"),
            "plait_fx_passes.training.gradient_program": ("GradientProgram",),
            "plait_fx_passes.training.joint": ("to_joint",),
            "plait_fx_passes.training.joint_graph": ("JointGraph", "is_random"),
            "plait_fx_passes.training.known": ("Known",),
            "plait_fx_passes.training.memory": ("memory_efficient",),
            "plait_fx_passes.training.partition": ("Partition", "keep_all", "partition"),
            "plait_fx_passes.training.pieces": ("Piece", "in_pieces", "run_pieces"),
            "plait_fx_passes.training.places": ("SavedInput", "SavedResult", "SavedSize"),
            "plait_fx_passes.training.plan": ("Graphs", "TrainingPlan"),
            "plait_fx_passes.training.plan_data": (
                *("read_graphs", "read_plan", "read_surroundings", "write_graphs", "write_plan"),
                *("write_surroundings",),
            ),
            "plait_fx_passes.training.planning": ("plan_of",),
            "plait_fx_passes.training.reading": ("note_reads",),
            "plait_fx_passes.training.runtime": (
                *("run_plan", "wrap_training", "writable_in_training"),
            ),
            "plait_fx_passes.training.saved": ("Held", "SavedTensor", "print_saved"),
            "plait_fx_passes.training.spent": ("differentiates",),
            "plait_fx_passes.training.waypoints": ("WaypointError",),
            "plait_fx_passes.verifier": ("verify",),
        },
    )

__all__ = [
    "DEFAULT_PASSES",
    "DRAWING_PASSES",
    "FOLDING_PASSES",
    "FOLD_BATCH_NORMS",
    "IN_PLACE_PASSES",
    "KERNEL_PASSES",
    "LAYOUT_PASSES",
    "LAYOUT_PASSES_OF_KERNELS",
    "LOOP_PASSES",
    "MERGE_PRODUCTS",
    "NUMERIC_PASSES",
    "OWN_OPERATORS",
    "PACKING_PASSES",
    "PACK_WEIGHTS",
    "QUANTIZED_LOOP_PASSES",
    "QUANTIZED_PASSES",
    "SUM_PASSES",
    "Anything",
    "AtenGraph",
    "AtenTraceError",
    "AttributeInput",
    "CheckFailure",
    "CollectivePart",
    "CollectiveParts",
    "Computed",
    "Conditions",
    "ConstantInput",
    "Culprit",
    "Detached",
    "Flattened",
    "Followed",
    "Frozen",
    "Fuel",
    "FusedAttention",
    "Geometry",
    "GradientProgram",
    "GraphDiff",
    "GraphTextError",
    "Graphs",
    "Held",
    "ImageLayout",
    "ImageRole",
    "InputItself",
    "InputSource",
    "InputView",
    "JointGraph",
    "Journal",
    "KeptAttention",
    "Known",
    "Literal",
    "Match",
    "MetadataMutation",
    "Mutation",
    "NoGradientsError",
    "OutputSource",
    "Partition",
    "PartitionCosts",
    "PartlyWritten",
    "Pass",
    "PassChange",
    "PassContext",
    "PassError",
    "PassLog",
    "PassRecord",
    "PatternError",
    "Piece",
    "ProgramRaisesError",
    "Ready",
    "Repeated",
    "ResultView",
    "RewriteRule",
    "SavedInput",
    "SavedResult",
    "SavedSize",
    "SavedTensor",
    "Scalar",
    "SyntheticBase",
    "Tensors",
    "TrainingPlan",
    "UserInput",
    "UsersInPlace",
    "VerificationError",
    "ViewStep",
    "WaypointError",
    "WithinOutput",
    "__version__",
    "as_module",
    "bind_inputs",
    "can_freeze",
    "collective_parts",
    "collective_passes",
    "communicates",
    "consumed_by",
    "consuming",
    "core_decompositions",
    "counter_decompositions",
    "decompose",
    "default_decompositions",
    "differentiates",
    "drawing_passes",
    "find_bad_rewrite",
    "flattened",
    "fuse_attention",
    "image_layouts",
    "in_pieces",
    "is_direct",
    "is_random",
    "is_written_variant",
    "journaled",
    "keep_all",
    "keep_attention",
    "load_operator",
    "memory_efficient",
    "moving_decompositions",
    "note_reads",
    "optimize",
    "part_of",
    "partition",
    "partly_written",
    "parts_runner",
    "plan_of",
    "print_aten",
    "print_saved",
    "read_graphs",
    "read_plan",
    "read_surroundings",
    "refuse_open_surroundings",
    "returned_by",
    "rule_pass",
    "run_passes",
    "run_pieces",
    "run_plan",
    "run_written_variant",
    "runner",
    "split_frozen",
    "summarize_layouts",
    "tensors_written",
    "to_aten",
    "to_joint",
    "users_in_place",
    "verify",
    "whole_backward",
    "whole_ready",
    "wrap_runtime",
    "wrap_training",
    "writable",
    "writable_in_training",
    "write_graphs",
    "write_plan",
    "write_surroundings",
]
