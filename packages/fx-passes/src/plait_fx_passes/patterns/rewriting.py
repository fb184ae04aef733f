"""Rewrite rules, and the pass that applies a table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import cast

from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from plait_fx_passes.errors import PassError, PatternError, PlaitError
from plait_fx_passes.passes.base import Pass, PassContext
from plait_fx_passes.patterns.expressions import Call, Kind, Part, Wildcard, trace_pattern
from plait_fx_passes.patterns.matching import Match, find_match
from plait_fx_passes.record.aliases import new_base, with_layout
from plait_fx_passes.record.fakes import fake_of
from plait_fx_passes.record.guards import below_autograd
from plait_fx_passes.record.inputs import NothingToLift
from plait_fx_passes.record.recorder import Recorder
from plait_fx_passes.record.rules import composite_rules
from plait_utils import dataclass


def _always(match: Match) -> bool:
    return True


@dataclass(frozen=True)
class RewriteRule:
    """Where ``pattern`` is found, compute ``replacement`` instead.

    Both are plain Python functions with the same parameters. The pattern is written with ATen
    overloads, arithmetic operators and those torch functions that are one operator; parameters
    annotated ``Scalar`` or ``Anything`` stand for numbers or other arguments, all others for
    tensors. The replacement may call anything: it is recorded as a program is.

    Attributes:
        name: unique within a table; names the rule in reports and errors.
        where: decides on a match by its shapes, dtypes and numbers.
        shared: match also where inner values are used elsewhere.
        doc: what it does and why it is right.
    """

    name: str
    pattern: Callable[..., object]
    replacement: Callable[..., object]
    where: Callable[[Match], bool] = _always
    shared: bool = False
    doc: str = ""

    @cached_property
    def traced(self) -> tuple[tuple[Wildcard, ...], Call | Part]:
        """The pattern's wildcards and expression; traced when first used."""
        try:
            return trace_pattern(self.pattern)
        except PlaitError:
            raise
        except Exception as error:
            raise PatternError(
                f"the pattern of rule {self.name!r} cannot be traced:"
                f" {type(error).__name__}: {error}"
            ) from error

    @property
    def anchor(self) -> OpOverload:
        """The operator whose calls are tried."""
        expression = self.traced[1]
        return (expression.call if isinstance(expression, Part) else expression).target

    def find(self, node: fx.Node) -> Match | None:
        """The match whose value ``node`` computes, if the rule applies there."""
        match = find_match(self.traced[1], node, shared=self.shared)
        return match if match is not None and self.where(match) else None


def rule_pass(name: str, rules: Sequence[RewriteRule], doc: str = "") -> Pass:
    """A pass that applies the rules, the first that matches at each node.

    Raises:
        ValueError: two rules have one name.
    """
    seen: set[str] = set()
    for rule in rules:
        if rule.name in seen:
            raise ValueError(f"two rules are named {rule.name!r}")
        seen.add(rule.name)
    table = tuple(rules)

    def rewrite(context: PassContext) -> None:
        apply_rules(context, table)

    return Pass(name, rewrite, doc or f"rewrite rules: {', '.join(sorted(seen))}")


@lru_cache(maxsize=64)
def _by_anchor(rules: tuple[RewriteRule, ...]) -> Mapping[OpOverload, tuple[RewriteRule, ...]]:
    index: dict[OpOverload, list[RewriteRule]] = {}
    for rule in rules:
        index.setdefault(rule.anchor, []).append(rule)
    return {anchor: tuple(found) for anchor, found in index.items()}


def apply_rules(context: PassContext, rules: tuple[RewriteRule, ...]) -> dict[str, int]:
    """Apply the rules once, from the results up; returns how often each one did."""
    applied: dict[str, int] = {}
    index = _by_anchor(rules)
    for node in reversed(list(context.graph.nodes)):
        for anchor in _anchors(node):
            rule = _first_match(context, index.get(anchor, ()), node)
            if rule is not None:
                applied[rule.name] = applied.get(rule.name, 0) + 1
                break
    return applied


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
        except PlaitError:
            raise
        except Exception as error:
            raise PassError(
                f"the rule {rule.name!r} failed at %{node.name}: {type(error).__name__}: {error}",
                where=None if (line := node.meta.get("source_line")) is None else str(line),
            ) from error
    return None


def _replace(context: PassContext, rule: RewriteRule, match: Match) -> bool:
    """Record the replacement before the anchor and let the anchor's users use it."""
    mode = context.fake_mode
    assert mode is not None
    meta = {key: value for key, value in match.anchor.meta.items() if key != "val"}
    meta["rule"] = rule.name
    recorder = Recorder(mode, NothingToLift(), composite_rules(), {})
    recorder.graph, recorder.meta = context.graph, meta
    arguments = [_argument(recorder, wildcard, match) for wildcard in rule.traced[0]]
    with context.graph.inserting_before(match.anchor):
        with below_autograd(), recorder:
            result = rule.replacement(*arguments)
        node = _checked(recorder, rule, match, result)
    return context.replace(match.anchor, node)


def _argument(recorder: Recorder, wildcard: Wildcard, match: Match) -> object:
    bound = match.bindings[wildcard.name]
    if wildcard.kind is not Kind.TENSOR:
        return bound
    node = cast(fx.Node, bound)
    # An object of its own, so that the recorder knows which node each argument is.
    fake = fake_of(recorder.fake_mode, node.meta["val"])
    recorder.bind(fake, new_base(fake, node.meta, node=node))
    return fake


def _checked(recorder: Recorder, rule: RewriteRule, match: Match, result: object) -> fx.Node:
    wanted = match.result
    if not isinstance(result, FakeTensor):
        raise PatternError(f"the replacement of rule {rule.name!r} does not return a tensor")
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        raise PatternError(
            f"the replacement of rule {rule.name!r} returns {result.dtype}{list(result.shape)}"
            f" for {wanted.dtype}{list(wanted.shape)}",
            hint="restrict the rule with where=",
        )
    return with_layout(recorder, recorder.node_of(result), wanted)
