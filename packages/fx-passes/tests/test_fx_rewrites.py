"""A sample of the suite of random graphs through all passes (`python -m rewrites`)."""

from collections import Counter

import pytest
import torch
from gradients.score import Outcome
from rewrites import check
from rewrites.programs import Kind

from plait_fx_passes import DEFAULT_PASSES, Pass

aten = torch.ops.aten


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.value)
def test_random_graphs_compute_the_same_after_passes(kind):
    fired = Counter()
    verdicts = [check.check(number, kind, fired) for number in range(60)]
    wrong = [each for each in verdicts if each.outcome is Outcome.WRONG]
    assert not wrong, f"{wrong[0].case}: {wrong[0].detail}"
    assert sum(each.outcome is Outcome.EQUAL for each in verdicts) > 25
    assert sum(fired[each.name] > 0 for each in DEFAULT_PASSES) > 5


def test_a_wrong_rewrite_is_told(monkeypatch):
    def take_sums_for_differences(context):
        for node in context.graph.find_nodes(op="call_function", target=aten.add.Tensor):
            if node.meta["val"].dtype is torch.bool:
                continue  # which has no differences
            with context.graph.inserting_before(node):
                other = context.graph.call_function(aten.sub.Tensor, node.args)
            other.meta = dict(node.meta)
            context.replace(node, other)

    wrong = Pass("sums", take_sums_for_differences)
    monkeypatch.setitem(check.PASSES, Kind.EXACT, (*DEFAULT_PASSES, wrong))
    verdicts = [check.check(number, Kind.EXACT, Counter()) for number in range(60)]
    told = [each.detail for each in verdicts if each.outcome is Outcome.WRONG]
    assert told
    assert all("of the pass sums" in each for each in told)
