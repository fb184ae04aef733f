"""What `options=` of `plait.compile` may hold, and what each stage gets of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from plait.errors import BackendError, OptionError, unknown_name
from plait.passes import NO_PASSES, UserPasses
from plait.variants import BY_RULE, VARIANTS
from plait_utils import SettingError, Settings, dataclass, setting

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from plait_cpp_codegen import CppOptions
    from plait_fx_passes import Pass
    from plait_ir_lowering import LoweringOptions
    from plait_scheduler import SchedulerOptions
    from plait_triton_codegen import TritonOptions
    from plait_utils.philox_agreement import Compute

ATTENTION_CALLS = "attention-calls"
"""The name of the pass that makes hand-written attention calls."""
ATTENTION_GRADIENTS = "attention-gradients"
"""The name of the pass that lets backwards of attention compute scores again."""
_NO_FUSION = tuple(
    (name, False)
    for name in (
        *("fuse_pointwise", "fuse_reductions", "fuse_siblings", "fuse_attention"),
        *("fuse_mixtures", "inline_producers"),
    )
)
_STRICT_SCHEDULER = (
    ("keep_wide", False),
    ("fuse_mixtures", False),
    ("few_rows", 0),
    ("odd_columns", False),
    ("point_convolutions", False),
)
"""What the scheduler does not do where all rounding is eager's."""
IN_BUCKETS = "gradient-buckets"
"""What cuts graphs under `DistributedDataParallel`; see `plait.buckets`."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class CompileOptions(Settings):
    """What `options=` of `plait.compile` may hold.

    `"scheduler.<name>"`, `"cpp.<name>"` and `"triton.<name>"` reach the options of these stages.
    """

    verify: int = setting(
        0,
        "compare the first so many calls of each graph, gradients included, with eager, and run "
        "eagerly what differs",
        env="PLAIT_VERIFY_CALLS",
        in_cache_key=False,
    )
    verify_stages: bool = setting(
        False,
        "run every stage's verifier on what the stage made",
        env="PLAIT_VERIFY",
        in_cache_key=False,
    )
    strict: bool = setting(
        False,
        "raise StageError for a captured graph that cannot be compiled to native code",
        env="PLAIT_STRICT",
        in_cache_key=False,
    )
    recompile_limit: int = setting(
        8,
        "specialisations of one function, or after a graph break for one module, before further "
        "calls run eagerly",
        in_cache_key=False,
    )
    shape_limit: int = setting(
        16,
        "programs that are compiled for one graph with symbolic sizes before further sizes run "
        "as captured",
        in_cache_key=False,
    )
    open_sizes: bool = setting(
        True,
        "let one program serve all sizes of a graph that was captured with symbolic ones, where "
        "its operators allow it",
        env="PLAIT_OPEN_SIZES",
    )
    warm_start: bool = setting(
        True,
        "store what was traced, so that other processes go without tracing where all is as it was",
        env="PLAIT_WARM_START",
        in_cache_key=False,
    )
    background: bool = setting(
        False,
        "compile in a thread: calls run eagerly until what they need is compiled",
        env="PLAIT_BACKGROUND",
        in_cache_key=False,
    )
    never_slower: bool = setting(
        False,
        "time the first calls of programs for inference against eager, and run eagerly what is "
        "slower compiled",
        env="PLAIT_NEVER_SLOWER",
        in_cache_key=False,
    )
    compile_seconds: float | None = setting(
        None,
        "how long compiling may take, tracing and all graphs together: what is not compiled then "
        "runs eagerly; with `background`, how long calls wait for it",
        env="PLAIT_COMPILE_SECONDS",
        in_cache_key=False,
    )
    fusion: bool = setting(True, "fuse loops into kernels", env="PLAIT_FUSION")
    numerics: str = setting(
        "default",
        '"strict": round wherever eager rounds, and call torch\'s own operators for what loops do '
        "not compute to its last bit",
        env="PLAIT_NUMERICS",
    )
    numeric_rewrites: bool = setting(
        False,
        "allow graph rewrites that change rounding, such as recognizing attention",
        env="PLAIT_NUMERIC_REWRITES",
    )
    attention_calls: bool | None = setting(
        None,
        "make hand-written attention a call of scaled_dot_product_attention before gradients are "
        "recorded, which needs no memory for scores and rounds in other places; None does so where "
        "it is faster, on GPUs",
        env="PLAIT_ATTENTION_CALLS",
    )
    attention_gradients: bool | None = setting(
        None,
        "let the backward of attention that is no call, as of flex_attention, compute its scores "
        "again rather than keep them; None does so on GPUs, whose kernels do it block by block, "
        "unless numerics are strict",
        env="PLAIT_ATTENTION_GRADIENTS",
    )
    freeze: bool = setting(
        False,
        "in calls that need no gradients, compute what follows from parameters and buffers alone "
        "once, and again when one has changed; fold batch norms into weights, merge and pack these",
        env="PLAIT_FREEZE",
    )
    own_products: bool = setting(
        True,
        "on CPUs, multiply matrices of few rows, and small ones, by kernels of plait's own, where "
        "these are measured to be faster than a call of torch's",
        env="PLAIT_OWN_PRODUCTS",
    )
    sort_kernels: bool = setting(
        True,
        "on GPUs, sort short rows, and find their largest elements and medians, by kernels of "
        "plait's own; of equal elements the first come first",
        env="PLAIT_SORT_KERNELS",
    )
    cuda_graphs: bool = setting(
        False,
        "on GPUs, record what a program launches as a CUDA graph, and launch it as one",
        env="PLAIT_CUDA_GRAPHS",
    )
    random: str = setting(
        "eager",
        '"eager": the random numbers that eager draws, on GPUs computed by loops; "counter": those '
        "of a counter-based generator, which loops compute; its keys come from torch's generators",
        env="PLAIT_RANDOM",
    )
    memory_budget: float | None = setting(
        None,
        "what training saves between forward and backward: from 0, as little as can be, to 1, all "
        "that the backward uses; None weighs bytes against operations",
        env="PLAIT_MEMORY_BUDGET",
    )
    disabled_passes: str = setting(
        "", "names of graph passes to leave out, separated by commas", env="PLAIT_DISABLED_PASSES"
    )
    user_passes: UserPasses = setting(
        NO_PASSES,
        "passes of your own, by place: before_grad, before_grad_last, joint_first, joint_last, "
        "after_grad",
    )
    join_collectives: bool = setting(
        False,
        "make collectives of several processes as one, and start them in another order, where all "
        "processes run the same program on tensors of the same sizes",
        env="PLAIT_JOIN_COLLECTIVES",
    )
    scheduler: tuple[tuple[str, Any], ...] = setting((), "options of the scheduler, by name")
    cpp: tuple[tuple[str, Any], ...] = setting((), "options of the C++ backend, by name")
    triton: tuple[tuple[str, Any], ...] = setting((), "options of the Triton backend, by name")

    @property
    def disabled(self) -> frozenset[str]:
        """The names in `disabled_passes`."""
        return frozenset(name.strip() for name in self.disabled_passes.split(",") if name.strip())

    @property
    def is_strict(self) -> bool:
        """Whether results are eager's to the last bit."""
        return self.numerics == "strict"

    @property
    def draws_in_loops(self) -> bool:
        """Whether loops compute eager's random numbers of GPUs. What is compared with operators is
        to draw as they do."""
        return self.random == "eager" and not self.is_strict and not self.verify

    def decompositions(self) -> dict[OpOverload, Callable[..., object]] | None:
        """What operators are taken apart into; None for the defaults."""
        from plait_fx_passes import (
            counter_decompositions,
            default_decompositions,
            moving_decompositions,
        )

        if self.is_strict:
            return moving_decompositions()
        if self.random == "counter":
            return default_decompositions() | counter_decompositions()
        return None

    def lowering_options(self, variant: str = BY_RULE) -> LoweringOptions:
        """The options of lowering, for one of the variants of `plait.variants`.

        Whether torch's algorithms are to be deterministic is read here; guards compare it."""
        import torch

        from plait_ir_lowering import LoweringOptions

        varied = VARIANTS.get(variant, {})
        known = {each.name for each in dataclasses.fields(LoweringOptions)}
        chosen = {name: value for name, value in varied.items() if name in known}
        own = {
            "exact": self.is_strict,
            "own_products": self.own_products,
            "sort_kernels": self.sort_kernels,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        return LoweringOptions(**{**own, **chosen})

    def passes(self, compute: Compute | None = None) -> tuple[Pass, ...]:
        """The passes over ATen graphs, in order; `disabled` ones are among them.

        ``compute`` gives what kernels compute on a GPU, for the random numbers that they are to
        make by the GPU's own functions."""
        from plait_fx_passes import (
            DEFAULT_PASSES,
            LAYOUT_PASSES,
            LAYOUT_PASSES_OF_KERNELS,
            LOOP_PASSES,
            NUMERIC_PASSES,
            QUANTIZED_LOOP_PASSES,
            SUM_PASSES,
            drawing_passes,
        )

        own = NUMERIC_PASSES if self.numeric_rewrites else DEFAULT_PASSES
        sums = SUM_PASSES if self.numeric_rewrites else ()
        has_kernels = dict(self.scheduler).get("odd_columns", True)
        layouts = LAYOUT_PASSES_OF_KERNELS if has_kernels else LAYOUT_PASSES
        layouts = () if self.is_strict else (*QUANTIZED_LOOP_PASSES, *sums, *layouts)
        folds, packs = self._freezing_passes()
        # A dropout draws by where its operand lies in eager: before copies are left out.
        drawing = drawing_passes(compute) if self.draws_in_loops else ()
        user, plaits = self.user_passes, (*drawing, *own, *LOOP_PASSES, *folds, *layouts, *packs)
        return (*user.joint_first, *plaits, *user.joint_last)

    def collective_passes(self) -> tuple[Pass, ...]:
        """The passes over graphs with collectives, before these are cut at them."""
        from plait_fx_passes import collective_passes

        chosen = collective_passes(in_order=not self.join_collectives)
        return tuple(each for each in chosen if each.name not in self.disabled)

    def _freezing_passes(self) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
        """Those over frozen graphs before images are laid out, and those behind."""
        if not self.freeze or self.is_strict:
            return (), ()
        from plait_fx_passes import FOLDING_PASSES, PACKING_PASSES

        return FOLDING_PASSES, PACKING_PASSES

    def scheduler_options(
        self, variant: str = BY_RULE, limits: Mapping[str, int] | None = None
    ) -> SchedulerOptions:
        """The scheduler's options, for one of the variants of `plait.variants`, over the limits
        that suit a device."""
        from plait_scheduler import SchedulerOptions

        varied = VARIANTS.get(variant, {})
        known = {each.name for each in dataclasses.fields(SchedulerOptions)}
        forced = tuple((name, value) for name, value in varied.items() if name in known)

        chosen = self.scheduler if self.fusion else (*_NO_FUSION, *self.scheduler)
        exact = _STRICT_SCHEDULER if self.is_strict else ()
        named = (*(limits or {}).items(), *chosen, *exact, *forced)
        return _stage_options("scheduler", SchedulerOptions, named)

    def cpp_options(self) -> CppOptions:
        """The C++ backend's options, over those of the environment."""
        from plait_cpp_codegen import CppOptions

        return _stage_options("cpp", CppOptions, self.cpp)

    def triton_options(self) -> TritonOptions:
        """The Triton backend's options, over those of the environment; how torch multiplies f32 is
        read here, and guards compare it. Raises BackendError where that is not installed."""
        try:
            from plait_triton_codegen import TritonOptions
        except ImportError as error:
            raise BackendError(
                f"the Triton backend is not installed ({error})", hint="pip install plait[triton]"
            ) from error
        from plait_utils.precision import is_tf32_allowed

        usual = (("tf32", is_tf32_allowed()),)
        return _stage_options("triton", TritonOptions, (*usual, *self.triton))


def _stage_options(group: str, kind: type[S], chosen: tuple[tuple[str, Any], ...]) -> S:
    """A stage's own options, over those of the environment."""
    known = [field.name for field in dataclasses.fields(kind)]
    for name, _ in chosen:
        if name not in known:
            raise unknown_name("option", f"{group}.{name}", [f"{group}.{each}" for each in known])
    try:
        return kind.from_env(**dict(chosen))
    except SettingError as error:
        raise OptionError(f"options for {group}: {error.message}", hint=error.hint) from None


def by_group(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options of the pipeline, and those of its stages by stage."""
    flat: dict[str, Any] = {}
    groups = "scheduler", "cpp", "triton", "user_passes"
    nested: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in given.items():
        group, dot, field = name.partition(".")
        if group in nested and dot:
            nested[group][field] = value
        elif name in nested and isinstance(value, Mapping):
            nested[name].update(value)
        else:
            flat[name] = value
    return flat, nested
