"""Every rewrite rule of every table: it fires, leaves near misses, keeps values and gradients.

The cases stand in one table; a rule without any is a failure.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import assert_like_eager, trace

import plait_fx_passes
from plait_fx_passes import (
    DEFAULT_PASSES,
    FOLDING_PASSES,
    IN_PLACE_PASSES,
    KERNEL_PASSES,
    LAYOUT_PASSES,
    LOOP_PASSES,
    NUMERIC_PASSES,
    PACKING_PASSES,
    QUANTIZED_PASSES,
    SUM_PASSES,
    RewriteRule,
    partition,
    rule_pass,
    run_passes,
    to_aten,
    to_joint,
    wrap_runtime,
    wrap_training,
)
from plait_fx_passes.passes import DEAD_CODE
from plait_utils import dataclass


@dataclass(frozen=True)
class Case:
    """Programs that a rule finds something in, and others of the same operators, where it must not.

    ``tolerance`` is of float64, 0 where every bit is kept.
    """

    fires: tuple
    misses: tuple
    inputs: tuple = ((3, 4), (3, 4))
    tolerance: float = 0.0


MATRICES = {"inputs": ((3, 4), (4, 5), (5,)), "tolerance": 1e-12}
THIN = {"inputs": ((512, 3), (3, 512), (512, 4), (4, 512)), "tolerance": 1e-12}
ONE_BATCH = {"inputs": ((1, 3, 4), (1, 4, 5), (1, 3, 5)), "tolerance": 1e-12}
HEADS = {"inputs": ((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 8), (5, 6)), "tolerance": 1e-12}


def attention(weights):
    """A program of queries, keys, values and a mask, from the weights of scores and the mask."""
    return lambda q, k, v, m: weights(q @ k.mT, m) @ v


def soft(scores):
    return torch.softmax(scores, -1)


OTHERWISE = (
    attention(lambda s, m: torch.softmax(s, -2)),
    attention(lambda s, m: torch.sigmoid(s)),
    attention(lambda s, m: soft(s.relu())),
    attention(lambda s, m: soft(s * m)),
    attention(lambda s, m: soft(s) * 2),
)

CASES = {
    "neg-neg": Case((lambda x, y: (-(-x)).sin(),), (lambda x, y: -((-x) + 1), lambda x, y: -x - y)),
    "relu-relu": Case((lambda x, y: x.relu().relu(),), (lambda x, y: x.relu().abs(),)),
    "abs-abs": Case((lambda x, y: x.abs().abs(),), (lambda x, y: x.abs().relu(),)),
    "add-neg": Case(
        (lambda x, y: x + (-y), lambda x, y: (-y) + x),
        (lambda x, y: torch.add(x, -y, alpha=2), lambda x, y: (x > 0) + (-y)),
    ),
    "sub-neg": Case(
        (lambda x, y: x - (-y),), (lambda x, y: (-x) - y, lambda x, y: torch.sub(x, -y, alpha=2))
    ),
    "div-power-of-two": Case(
        (lambda x, y: x / 8, lambda x, y: x / -0.25),
        (lambda x, y: x / 3, lambda x, y: x / 0.0, lambda x, y: x / 2.0**20, lambda x, y: x / y),
    ),
    "sums-of-ones": Case(
        (lambda x, y: x * torch.full_like(x, -3.0).cumsum(1),),
        (
            lambda x, y: torch.full_like(x, 0.5).cumsum(1) * x,
            lambda x, y: torch.full_like(x, 2.0**51).cumsum(1) * x,
            lambda x, y: x.cumsum(0),
        ),
    ),
    "where-same": Case(
        (lambda x, y: torch.where(y > 0, x, x).sin(),),
        (lambda x, y: torch.where(y > 0, x, x + 1), lambda x, y: torch.where(y > 0, x[0], x[0])),
    ),
    "not-not": Case(
        (lambda x, y: x * (y > 0).logical_not().logical_not(),),
        (lambda x, y: x * y.logical_not().logical_not(),),
    ),
    "inverse-inverse": Case(
        (lambda x, y: x * ~~(y > 0), lambda x, y: (~~x.long()).abs()),
        (lambda x, y: x * (~(~(y > 0) & (x > 0))),),
    ),
    "flip-flip": Case(
        (lambda x, y: x.flip([0, 1]).flip([0, 1]).sin(),),
        (lambda x, y: x.flip([0]).flip([1]), lambda x, y: x.flip([0]).sin().flip([0])),
    ),
    "scatter-of-constants": Case(
        (lambda x, y: x * torch.zeros_like(x).scatter(1, y.argmax(1, True), 1.0),),
        (
            lambda x, y: x * torch.zeros_like(x).scatter(1, y.abs().long()[:, :1] * 0 + 1, 1.0),
            lambda x, y: x.scatter(1, y.argmax(1, True), 1.0),
            lambda x, y: x * torch.zeros_like(x).scatter(1, y.sort(1)[1][:, :2], 1.0),
        ),
    ),
    "scatter-of-constant-tensors": Case(
        (lambda x, y: x * torch.zeros_like(x).scatter(1, y.argmax(1, True), torch.ones_like(x)),),
        (
            lambda x, y: x * torch.zeros_like(x).scatter(1, y.argmax(1, True), y),
            lambda x, y: torch.zeros_like(x).scatter(1, x.long()[:, :1] * 0, torch.ones_like(x)),
        ),
    ),
    "one-hot": Case(
        (lambda x, y: x * F.one_hot(y.argmax(1), 4),),
        (lambda x, y: x * F.one_hot(y.abs().clamp(0, 3).long()[:, 0], 4),),
    ),
    "bmm-of-one": Case(
        (lambda a, b, c: a @ b,),
        (lambda a, b, c: a.repeat(2, 1, 1) @ b.repeat(2, 1, 1),),
        **ONE_BATCH,
    ),
    "baddbmm-of-one": Case(
        (
            lambda a, b, c: torch.baddbmm(c, a, b, beta=2, alpha=0.5),
            lambda a, b, c: torch.baddbmm(c[0, 0], a, b),
        ),
        (lambda a, b, c: torch.baddbmm(c, a.repeat(2, 1, 1), b.repeat(2, 1, 1)),),
        **ONE_BATCH,
    ),
    "mm-bias": Case(
        (lambda a, b, c: a @ b + c, lambda a, b, c: c[:1] + a @ b),
        (
            lambda a, b, c: (a @ b).relu() + c,
            lambda a, b, c: a @ b - c,
            lambda a, b, c: a[:1] @ b + c[:, None],
            lambda a, b, c: a @ b + c.expand(2, 3, 5),
        ),
        **MATRICES,
    ),
    "sum-of-products": Case(
        (lambda a, b, c, d: a @ b + c @ d, lambda a, b, c, d: (c @ d) + (a @ b)),
        (
            lambda a, b, c, d: a @ b - c @ d,
            lambda a, b, c, d: torch.add(a @ b, c @ d, alpha=2),
            lambda a, b, c, d: (p := a @ b) + c @ d + p.sin(),
            lambda a, b, c, d: a @ b + c[:1] @ d,
            lambda a, b, c, d: a.repeat(1, 10) @ b.repeat(10, 1) + c @ d,  # long sums
            lambda a, b, c, d: a[:9] @ b + c[:9] @ d,  # a small result
        ),
        **THIN,
    ),
    "outer-product": Case(
        (lambda a, b, c, d: a[:, :1] @ b[:1],),
        (
            lambda a, b, c, d: a @ b,
            lambda a, b, c, d: a[:9, :1] @ b[:1],  # small
            lambda a, b, c, d: a[:, :1].long() @ b[:1].long(),
        ),
        **THIN,
    ),
    "product-with-vector": Case(
        (lambda a, b: a @ b[:, :1], lambda a, b: b[:1] @ a.t()),
        (
            lambda a, b: a @ b[:, :2],
            lambda a, b: a[:, :9] @ b[:9, :1],  # loops anyway
            lambda a, b: (a.bfloat16() @ b[:, :1].bfloat16()).to(a.dtype),
        ),
        inputs=((64, 90), (90, 90)),
        tolerance=1e-12,
    ),
    "silu": Case(
        (lambda x, y: x * torch.sigmoid(x), lambda x, y: torch.sigmoid(x) * x),
        (lambda x, y: x * torch.sigmoid(y), lambda x, y: x.long() * torch.sigmoid(x.long())),
        tolerance=1e-12,
    ),
    "attention-plain": Case((attention(lambda s, m: soft(s)),), OTHERWISE, **HEADS),
    "attention-scaled": Case(
        (attention(lambda s, m: soft(s * 0.3)), attention(lambda s, m: soft(0.3 * s))),
        (*OTHERWISE, attention(lambda s, m: soft(s * 0.0))),
        **HEADS,
    ),
    "attention-divided": Case(
        (attention(lambda s, m: soft(s / 3.0)),),
        (*OTHERWISE, attention(lambda s, m: soft(3.0 / s))),
        **HEADS,
    ),
    "attention-masked": Case(
        (attention(lambda s, m: soft(s + m)), attention(lambda s, m: soft(m + s))),
        (*OTHERWISE, attention(lambda s, m: soft(s - m)), attention(lambda s, m: soft(s + 1))),
        **HEADS,
    ),
    "attention-scaled-masked": Case(
        (attention(lambda s, m: soft(s * 0.5 + m)),),
        (*OTHERWISE, attention(lambda s, m: soft((s + m) * 0.5))),
        **HEADS,
    ),
    "attention-divided-masked": Case(
        (attention(lambda s, m: soft(s / 2.5 + m)),),
        (*OTHERWISE, attention(lambda s, m: soft((s + m) / 2.5))),
        **HEADS,
    ),
}

ELSEWHERE = {
    "constants": "test_fx_passes",
    "constructors": "test_fx_constructors",
    "casts": "test_fx_small_first",
    "no-ops": "test_fx_passes",
    "view-chains": "test_fx_passes",
    "small-first": "test_fx_small_first",
    "joins": "test_fx_joins",
    "narrow-copies": "test_fx_kernel_passes",
    "common-subexpressions": "test_fx_passes",
    "dead-code": "test_fx_passes",
    "product-chains": "test_fx_products",
    "shared-factors": "test_fx_products",
    "batched-products": "test_fx_batching",
    "aligned-products": "test_fx_kernel_passes",
    "quantized-products": "test_fx_quantized_products",
    "rows-into-sums": "test_fx_rows",
    "channels-last": "test_fx_channels_last",
    "batches": "test_fx_batching",
    "near-uses": "test_fx_kernel_passes",
    "products-in-parts": "test_fx_kernel_passes",
    "in-place": "test_fx_in_place",
    "fold-batch-norms": "test_fx_freezing",
    "merge-products": "test_fx_freezing",
    "pack-weights": "test_fx_freezing",
}
"""The passes that are no tables of rules, and the files that test when they rewrite."""


def shipped_rules():
    """All rules that stand in a table of a module of the package."""
    found = {}
    for each in pkgutil.walk_packages(plait_fx_passes.__path__, "plait_fx_passes."):
        for value in vars(importlib.import_module(each.name)).values():
            table = value if isinstance(value, tuple) else (value,)
            found |= {rule.name: rule for rule in table if isinstance(rule, RewriteRule)}
    return found


RULES = shipped_rules()


def given(case, dtype):
    draw = torch.Generator().manual_seed(0)
    return [
        torch.randn(sizes, generator=draw, dtype=torch.float64).to(dtype) for sizes in case.inputs
    ]


def apply(rule, graph):
    """The graph after the rule, and how often it fired."""
    fired = Counter()
    passes = (rule_pass("one", [rule]), DEAD_CODE)
    left = run_passes(graph, passes, observer=lambda r: fired.update(r.matches), verify_each=True)
    return left, fired[rule.name]


def cases(part):
    return [
        pytest.param(name, number, id=f"{name}-{number}")
        for name, case in CASES.items()
        for number in range(len(getattr(case, part)))
    ]


def test_every_rule_has_cases():
    assert CASES.keys() == RULES.keys()
    assert all(case.fires and case.misses for case in CASES.values())


def test_every_rule_says_what_it_does():
    assert all(rule.doc for rule in RULES.values())


def test_every_pass_is_of_rules_or_has_tests_of_its_own():
    tables = (
        *(DEFAULT_PASSES, NUMERIC_PASSES, LOOP_PASSES, QUANTIZED_PASSES, LAYOUT_PASSES),
        *(KERNEL_PASSES, SUM_PASSES, IN_PLACE_PASSES, FOLDING_PASSES, PACKING_PASSES),
    )
    passes = {each.name: each for table in tables for each in table}
    rewrites = {passes[name].rewrite for name in ELSEWHERE}
    of_rules = {"simplify", "selections", "attention", "thin-products", "recognize"}
    of_rules |= {"vector-products"}
    for name, each in passes.items():
        again = each.rewrite in rewrites  # as no-ops run once more behind rules
        assert name in of_rules or name in ELSEWHERE or again, f"{name} has no tests"
    assert passes.keys() >= ELSEWHERE.keys()
    folder = Path(__file__).parent
    for file in ELSEWHERE.values():
        assert (folder / f"{file}.py").exists()


@pytest.mark.parametrize(("name", "number"), cases("fires"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_fires_and_keeps_values(name, number, dtype):
    case = CASES[name]
    gm, inputs = trace(case.fires[number]), given(case, dtype)
    left, fired = apply(RULES[name], to_aten(gm, inputs))
    assert fired == 1
    made = [node for node in left.graph.nodes if node.meta.get("rule") == name]
    assert all(node.meta["made_of"] for node in made)
    tolerance = case.tolerance if dtype is torch.float64 else case.tolerance and 1e-5
    assert_like_eager(name, wrap_runtime(left, left.module()), gm, inputs, tolerance)


@pytest.mark.parametrize(("name", "number"), cases("misses"))
def test_it_leaves_near_misses(name, number):
    case = CASES[name]
    gm, inputs = trace(case.misses[number]), given(case, torch.float64)
    left, fired = apply(RULES[name], to_aten(gm, inputs))
    assert fired == 0
    assert_like_eager(name, wrap_runtime(left, left.module()), gm, inputs, 1e-12)


DIFFERENTIABLE = [each for each in cases("fires") if each.id != "inverse-inverse-1"]  # of integers


@pytest.mark.parametrize(("name", "number"), DIFFERENTIABLE)
def test_it_keeps_gradients(name, number):
    """In the graph of a forward and its backward, whether it finds something there or not."""
    case = CASES[name]
    gm = trace(case.fires[number])
    leaves = [each.requires_grad_() for each in given(case, torch.float64)]

    def gradients(run):
        result = run(*leaves)
        weights = torch.arange(result.numel(), dtype=result.dtype).view(result.shape).cos()
        return torch.autograd.grad(result, leaves, weights, allow_unused=True)

    joint = to_joint(gm, leaves)
    joint = joint.replace_graph(apply(RULES[name], joint.flat())[0].graph)
    parts = partition(joint)
    run = wrap_training(joint, parts, parts.forward.module(), parts.backward.module(), gm)
    for wanted, got in zip(gradients(gm), gradients(run), strict=True):
        assert (wanted is None) == (got is None)
        if wanted is not None:
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
