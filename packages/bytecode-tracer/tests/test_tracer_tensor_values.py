"""Values of input tensors that decide branches: guarded, few, and never stale."""

from __future__ import annotations

import pytest
import torch
from tracer_oracle import compiled

MASK = torch.tensor([True, True, False])


def masked(x, mask):
    if mask.all():
        return x + 1
    return torch.where(mask, x, 0)


def run(function, *argument_sets, graphs=1, breaks=0, **options):
    """Each call gives what eager gives; how many graphs and breaks that took."""
    traced = compiled(function, **options)
    for arguments in argument_sets:
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        torch.testing.assert_close(traced(*arguments), function(*copies))
    assert len(traced.entries) == graphs
    assert sum(len(member.breaks) for member in traced.family()) == breaks
    return traced


def test_a_branch_on_a_mask_is_guarded():
    x, whole = torch.ones(3), torch.ones(3, dtype=torch.bool)
    traced = run(masked, (x, MASK), (x, ~MASK), (x, whole), (x, MASK), (x, whole), graphs=2)
    (recompile,) = traced.recompiles
    assert recompile.guard == "mask.all() is False"
    assert recompile.found == "True"
    assert "if mask.all():" in recompile.line


def test_the_value_is_read_at_each_call():
    x, mask = torch.ones(3), MASK.clone()
    traced = compiled(masked)
    for fill in (True, False, True):
        mask.fill_(fill)
        torch.testing.assert_close(traced(x, mask), masked(x, mask))


@pytest.mark.parametrize(("data_dependent", "breaks"), [(True, 0), (False, 1)])
def test_a_value_that_keeps_changing_becomes_symbolic_or_breaks(data_dependent, breaks):
    def function(x, n):
        return x * n.item() + 1

    calls = [(torch.ones(3), torch.tensor(n)) for n in (1, 2, 3, 4, 5, 1, 4)]
    run(function, *calls, graphs=4, breaks=breaks, data_dependent=data_dependent)


def test_the_last_specialisation_assumes_no_value():
    def function(x, a, b):
        y = x + 1 if a.any() else x - 1
        return y * 2 if b.any() else y * 3

    ways = [(torch.ones(3), torch.tensor([a]), torch.tensor([b])) for a in (0, 1) for b in (0, 1)]
    traced = run(function, *ways, *ways, graphs=3, breaks=1, recompile_limit=3)
    assert traced.eager_reason is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: x + 1 if m.sum() == 2 else x,
        lambda x, m: x * m.to(torch.float32).sum().item(),
        lambda x, m: x + len(m.tolist()),
        lambda x, m: x * int(m[0]) + float(m[1]),
        lambda x, m: x + 1 if True in m[:2] else x,
        lambda x, m: x + 1 if not (m & torch.tensor([True, False, False])).any() else x,
    ],
)
def test_expressions_of_inputs(function):
    x = torch.ones(3)
    run(function, (x, MASK), (x, ~MASK), (x, MASK), graphs=2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: (m.fill_(True), x + 1 if m.all() else x)[1],
        lambda x, m: (m[:1].logical_not_(), x + 1 if m.all() else x)[1],
        lambda x, m: (m.data.fill_(True), x + 1 if m.all() else x)[1],
        lambda x, m: (torch.logical_not(m, out=m), x + 1 if m.any() else x)[1],
    ],
)
def test_an_input_that_was_changed_before_breaks(function):
    x = torch.ones(3)
    run(function, (x, MASK.clone()), (x, ~MASK), (x, MASK.clone()), breaks=1)


def test_a_change_through_another_input_breaks():
    def function(x, one, other):
        one.fill_(True)
        return x + 1 if other.all() else x

    traced = compiled(function)
    for _ in range(2):
        base = torch.zeros(3, dtype=torch.bool)
        twin = base.detach()
        torch.testing.assert_close(traced(torch.ones(3), base, twin), torch.full((3,), 2.0))
    assert len(traced.breaks) == 1


def test_a_change_of_another_tensor_does_not():
    def function(x, mask):
        y = x.clone()
        y += 1
        return y + 1 if mask.all() else y

    run(function, (torch.ones(3), MASK), (torch.ones(3), MASK))


def test_values_of_numbers_that_training_computes_are_not_assumed():
    run(lambda x: x + 1 if x.sum() > 0 else x, (torch.ones(3),), (-torch.ones(3),), breaks=1)
    run(lambda x, n: x + 1 if torch.rand(3).numel() + torch.randint(2, (1,)) > 9 else x,
        (torch.ones(3), 1), breaks=1)  # fmt: skip


SCALES = {
    "alpha": lambda x, rate: torch.add(x, x, alpha=-rate),
    "value": lambda x, rate: x.clone().addcdiv_(x, x + 1, value=rate),
    "list": lambda x, rate: torch._foreach_add([x, x], [x, x], alpha=rate)[1],
}


@pytest.mark.parametrize("name", SCALES)
def test_a_tensor_that_scales_is_read_when_the_graph_runs(name):
    x = torch.ones(3)
    run(SCALES[name], *((x, torch.tensor(value)) for value in (0.1, 1.0, 0.0)))


def test_a_scale_that_eager_refuses_is_refused():
    function = compiled(SCALES["alpha"])
    for _ in range(2):
        with pytest.raises(RuntimeError, match="alpha must not be a floating point"):
            function(torch.ones(3, dtype=torch.int64), torch.tensor(0.5))


def test_a_number_of_what_needs_gradients_stays_in_the_graph():
    run(lambda w, x: ((w * x).sum() * (w * x).sum().item(), (w * x)[0].tolist()),
        *((torch.ones(3, requires_grad=True), torch.full((3,), value)) for value in (1.0, 2.0)),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_a_reader_that_warns_of_gradients_breaks():
    w = torch.ones(3, requires_grad=True)
    run(lambda w: float((w * 2).sum()), (w,), breaks=1)


def places_follow_each_other(x):
    places = torch.arange(x.relu().shape[1], device=x.device).expand(x.shape[0], -1)
    follow = (places.diff(prepend=places[:, :1] - 1) != 1).cumsum(-1)
    return x * 2 if (follow[:, -1] == 0).all() else x * 3


def many_rows(x):
    return x + 1 if torch.arange(x.shape[0] + 1).sum() > 9 else x - 1


@pytest.mark.parametrize(
    ("function", "graphs"), [(places_follow_each_other, 1), (many_rows, 2)], ids=["one", "two"]
)
def test_a_branch_on_what_follows_from_open_sizes_is_guarded(function, graphs):
    inputs = [(torch.randn(rows, rows + 2),) for rows in (2, 5, 3, 7, 4, 2)]
    run(function, *inputs, graphs=graphs, dynamic=True)


def test_what_follows_from_sizes_of_a_changed_input_is_right():
    def function(x, y):
        x.mul_(2)
        return x + y if torch.arange(x.shape[0]).max() > 2 else x - y

    run = compiled(function, dynamic=True)
    for rows in (2, 3, 4, 6, 3):
        x, y = torch.randn(rows, 2), torch.randn(rows, 2)
        assert torch.equal(run(x.clone(), y), function(x.clone(), y))
