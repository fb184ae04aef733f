"""Rewrite rules, and the pass that applies a table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeAlias, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.errors import PassError, PatternError, PlaitError
from plait_fx_passes.layouts import same_strides
from plait_fx_passes.passes.base import Pass, PassContext, made_by
from plait_fx_passes.patterns.expressions import Kind, Pattern, Wildcard, trace_pattern
from plait_fx_passes.patterns.matching import Match, find_matches
from plait_fx_passes.patterns.ordering import make_room
from plait_fx_passes.record.aliases import new_base, with_layout
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.record.inputs import NothingToLift
from plait_fx_passes.record.recorder import Recorder
from plait_fx_passes.record.rules import composite_rules
from plait_fx_passes.verifier import Ends
from plait_utils import dataclass
from plait_utils.cached import cached_property


def _always(match: Match) -> bool:
    return True


@dataclass(frozen=True)
class RewriteRule:
    """Where ``pattern`` is found, compute ``replacement`` instead.

    Both are plain Python functions with the same parameters. The pattern is written with ATen
    overloads, arithmetic operators and those torch functions that are one operator; parameters
    annotated ``Scalar`` or ``Anything`` stand for numbers or other arguments, ``Tensors`` for a run
    of tensors in a list, all others for a tensor. A pattern with several results returns a tuple of
    them, each but the first with a tensor that one before it has; the replacement returns as many.
    It may call anything: it is recorded as a program is.

    Attributes:
        name: unique within a table; names the rule in reports and errors.
        where: decides on a match by its shapes, dtypes, devices, numbers and users.
        shared: match also where inner values are used elsewhere.
        priority: rules of a higher one are tried first; equal ones in the table's order.
        doc: what it does and why it is right.
    """

    name: str
    pattern: Callable[..., object]
    replacement: Callable[..., object]
    where: Callable[[Match], bool] = _always
    shared: bool = False
    priority: int = 0
    doc: str = ""

    @cached_property
    def traced(self) -> Pattern:
        """What the pattern says; traced when first used.

        Raises PatternError, which names the rule.
        """
        try:
            return trace_pattern(self.pattern)
        except Exception as error:
            known = error if isinstance(error, PlaitError) else None
            told = f"{type(error).__name__}: {error}" if known is None else known.message
            raise PatternError(
                f"the pattern of the rule {self.name!r} cannot be traced: {told}",
                hint=None if known is None else known.hint,
            ) from error

    def find(self, node: fx.Node) -> Match | None:
        """The first match whose first result ``node`` computes and that ``where`` takes, if any."""
        matches = find_matches(self.traced, node, shared=self.shared)
        return next((match for match in matches if self.where(match)), None)


def rule_pass(name: str, rules: Sequence[RewriteRule], doc: str = "") -> Pass:
    """A pass that applies the rules, at each node the first that matches.

    Raises:
        ValueError: two rules have one name.
    """
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise ValueError(f"two rules are named {rule.name!r}")
        seen.add(rule.name)
    table = tuple(sorted(rules, key=lambda rule: -rule.priority))
    index = cache(lambda: _by_anchor(table))

    def rewrite(context: PassContext) -> None:
        apply_rules(context, index())

    return Pass(name, rewrite, doc or f"rewrite rules: {', '.join(sorted(seen))}")


Index: TypeAlias = "Mapping[OpOverload, tuple[RewriteRule, ...]]"
"""The rules by the operator of their first result, in the order in which they are tried."""


def _by_anchor(rules: Sequence[RewriteRule]) -> Index:
    index: dict[OpOverload, list[RewriteRule]] = {}
    for rule in rules:
        index.setdefault(rule.traced.anchor, []).append(rule)
    return {anchor: tuple(found) for anchor, found in index.items()}


def apply_rules(context: PassContext, index: Index) -> None:
    """Apply the rules once, from the results up."""
    for node in reversed(list(context.graph.nodes)):
        for anchor in _anchors(node):
            rule = _first_match(context, index.get(anchor, ()), node)
            if rule is not None:
                context.matches[rule.name] += 1
                break


def _anchors(node: fx.Node) -> Iterable[OpOverload]:
    if isinstance(node.target, OpOverload):
        yield node.target
    elif node.op == "call_function" and node.all_input_nodes:
        producer = node.all_input_nodes[0]
        if isinstance(producer.target, OpOverload):
            yield producer.target


def _first_match(
    context: PassContext, rules: Sequence[RewriteRule], node: fx.Node
) -> RewriteRule | None:
    for rule in rules:
        if not node.users:
            return None
        try:
            match = rule.find(node)
            if match is not None and _replace(context, rule, match):
                return rule
        except Exception as error:
            raise _failure(rule, node, error) from error
    return None


def _failure(rule: RewriteRule, node: fx.Node, error: Exception) -> PassError:
    line = node.meta.get("source_line")
    known = isinstance(error, PlaitError)
    return PassError(
        f"the rule {rule.name!r} failed at %{node.name}: "
        + (cast(PlaitError, error).message if known else f"{type(error).__name__}: {error}"),
        where=None if line is None else str(line),
        hint=cast(PlaitError, error).hint if known else None,
    )


def _replace(context: PassContext, rule: RewriteRule, match: Match) -> bool:
    """Record the replacement before the results' users, and let these use it."""
    mode = context.fake_mode
    assert mode is not None
    room = make_room(match)
    if room is None:
        return False
    meta = {key: value for key, value in match.anchor.meta.items() if key != "val"}
    meta |= made_by(rule.name, *sorted(match.nodes))
    recorder = Recorder(mode, NothingToLift(), composite_rules(), {})
    recorder.graph, recorder.meta = context.graph, meta
    arguments = [_argument(recorder, wildcard, match) for wildcard in rule.traced.wildcards]
    with room.inserting():
        with below_autograd(), recorder:
            returned = rule.replacement(*arguments)
        made = _checked(recorder, match, returned)
    wanted = match.results
    if not context.replace_all(match.anchors, made):
        room.clear()
        return False
    room.settle()
    if not all(map(same_strides, _tensors_of(made), wanted)):
        _follow_layouts(context, made)
    for node in sorted(match.nodes, reverse=True):
        if not node.users:
            context.graph.erase_node(node)
    return True


def _tensors_of(nodes: Sequence[fx.Node]) -> list[torch.Tensor]:
    return [node.meta["val"] for node in nodes]


def _follow_layouts(context: PassContext, made: Sequence[fx.Node]) -> None:
    """Let what follows from results that lie otherwise lie as its operators then lay it out.

    Raises VerificationError where that reaches a result of the graph.
    """
    ends = Ends.of(context.aten)
    context.update(user for node in made for user in node.users)
    ends.check(context.aten)


def _argument(recorder: Recorder, wildcard: Wildcard, match: Match) -> object:
    bound = match.bindings[wildcard.name]
    if wildcard.kind is Kind.TENSOR:
        return _fake(recorder, cast(fx.Node, bound))
    if wildcard.kind is Kind.TENSORS:
        return [_fake(recorder, node) for node in cast("tuple[fx.Node, ...]", bound)]
    return bound


def _fake(recorder: Recorder, node: fx.Node) -> FakeTensor:
    # An object of its own, so that the recorder knows which node each argument is.
    fake = fake_of(recorder.fake_mode, node.meta["val"])
    recorder.bind(fake, new_base(fake, node.meta, node=node))
    return fake


def _checked(recorder: Recorder, match: Match, returned: object) -> list[fx.Node]:
    several = isinstance(returned, (list, tuple))
    results = list(cast("Sequence[object]", returned)) if several else [returned]
    if len(results) != len(match.anchors):
        raise PatternError(
            f"the replacement returns {len(results)} results, the pattern {len(match.anchors)}"
        )
    pairs = zip(results, match.results, strict=True)
    return [_checked_one(recorder, result, wanted) for result, wanted in pairs]


def _checked_one(recorder: Recorder, result: object, wanted: torch.Tensor) -> fx.Node:
    if not isinstance(result, FakeTensor):
        raise PatternError("the replacement does not return a tensor")
    if (result.shape, result.dtype, result.device) != (wanted.shape, wanted.dtype, wanted.device):
        raise PatternError(
            f"the replacement returns {_told(result, wanted)} for {_told(wanted, result)}",
            hint="restrict the rule with where=",
        )
    return with_layout(recorder, recorder.node_of(result), wanted)


def _told(tensor: torch.Tensor, other: torch.Tensor) -> str:
    on = "" if tensor.device == other.device else f" on {tensor.device}"
    return f"{tensor.dtype}{list(tensor.shape)}{on}"
