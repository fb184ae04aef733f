"""Training through native code: losses, gradients and buffers are those of eager."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import plait

MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)),
    "convolutions": lambda: nn.Sequential(
        *(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 4)),
    ),
    "encoder": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 2)),
        nn.TransformerEncoderLayer(2, 1, 8, batch_first=True, activation="gelu"),
        nn.Flatten(),
        nn.Linear(8, 4),
    ),
    "embedding": lambda: nn.Sequential(
        _Tokens(), nn.Embedding(10, 3), nn.Flatten(), nn.Linear(24, 4)
    ),
}


class _Tokens(nn.Module):
    def forward(self, x):
        return (x.abs() * 3).long().clamp(0, 9)


def steps(run, model, count):
    """The losses of some steps with momentum, and the state of the model after them."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(count):
        x, wanted = torch.randn(6, 8), torch.randint(0, 4, (6,))
        x = x.to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def far(one, other):
    """The largest difference of what `steps` returned twice."""
    losses = [abs(a - b) for a, b in zip(one[0], other[0], strict=True)]
    states = [(one[1][key].double() - other[1][key].double()).abs().max().item() for key in one[1]]
    return max(losses + states)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(2)
def test_a_model_trains_as_in_eager(name):
    torch.manual_seed(0)
    model = MODELS[name]().train()
    other = copy.deepcopy(model)
    fast = plait.compile(other, options={"strict": True})
    exact = copy.deepcopy(model).double()
    precise = copy.deepcopy(exact)
    wanted, got, truth = steps(model, model, 8), steps(fast, other, 8), steps(exact, exact, 8)
    # A norm of two elements that are nearly equal magnifies rounding, eager's as any other.
    assert far(got, truth) <= 4 * far(wanted, truth) + 1e-5
    twice = plait.compile(precise, options={"strict": True})
    torch.testing.assert_close(steps(twice, precise, 8), truth, rtol=1e-7, atol=1e-9)
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}


def test_forces_are_differentiated_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    fast = plait.compile(model, options={"strict": True})
    places, wanted = torch.randn(5, 3).double(), torch.randn(5, 3).double()

    def gradients(run):
        x = places.clone().requires_grad_()
        (forces,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return torch.autograd.grad((forces + wanted).square().sum(), list(model.parameters())[:3])

    torch.testing.assert_close(gradients(fast), gradients(model))


def test_sizes_that_change_compile_for_each():
    weight = torch.randn(4, 4, requires_grad=True)
    fast = plait.compile(lambda x: torch.tanh(x @ weight).sum(0), options={"strict": True})
    for rows in (3, 5, 7, 3):
        x = torch.randn(rows, 4)
        (got,) = torch.autograd.grad(fast(x).sum(), weight)
        (wanted,) = torch.autograd.grad(torch.tanh(x @ weight).sum(), weight)
        torch.testing.assert_close(got, wanted)


def test_an_error_in_the_forward_is_eagers():
    weight = torch.randn(4, 2, requires_grad=True)
    fast = plait.compile(lambda index: weight[index] * 2)
    torch.testing.assert_close(fast(torch.tensor([1])), weight[[1]] * 2)
    with pytest.raises(IndexError, match="out of"):
        fast(torch.tensor([7]))


@pytest.mark.parametrize("create_graph", [False, True])
def test_hooks_of_gradients_are_compiled_with_the_backward(create_graph):
    def function(x, weight):
        hidden = torch.sin(x @ weight)
        mask, kept = hidden > 0, hidden.detach().clone()
        hidden.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
        hidden.register_hook(lambda grad: torch.where(mask, grad * kept, grad))
        x.register_hook(lambda grad: grad * 2)
        hidden.mul_(3)
        hidden.register_hook(lambda grad: grad + 1)
        return hidden.exp().sum()

    torch.manual_seed(0)
    x = torch.randn(4, 5).double().requires_grad_()
    weight = torch.randn(5, 3).double().requires_grad_()
    fast = plait.compile(function, options={"strict": True})
    found = []
    for run in (function, fast):
        given = [x.detach().requires_grad_(), weight]
        first = torch.autograd.grad(run(*given), given, create_graph=create_graph)
        found.append(first)
        if create_graph:
            found[-1] += torch.autograd.grad(first[0].square().sum(), given)
    torch.testing.assert_close(found[1], found[0])
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}
    names = {graph.name for graph in plait.report(fast).graphs}
    assert ("function-0.piece-1.gradients" in names) == create_graph


def test_views_of_inputs_alone_need_no_backward():
    x = torch.randn(3, 4, requires_grad=True)
    fast = plait.compile(lambda x, y: (x.t(), y + 1), options={"strict": True})
    turned, more = fast(x, torch.ones(2))
    assert turned._base is x
    assert not more.requires_grad
    (grad,) = torch.autograd.grad((turned * 2).sum(), x)
    assert torch.equal(grad, torch.full((3, 4), 2.0))
    assert [graph.name for graph in plait.report(fast).graphs] == ["lambda-0"]


@pytest.mark.parametrize("budget", [0, 0.5, 1.0])
def test_a_memory_budget_changes_what_is_saved_and_nothing_else(budget):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 4))
    other = copy.deepcopy(model)
    fast = plait.compile(other, options={"strict": True, "memory_budget": budget})
    wanted, got = steps(model, model, 4), steps(fast, other, 4)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)


def test_memory_budgets_are_between_none_and_all():
    with pytest.raises(plait.OptionError, match="'memory_budget' takes a number from 0 to 1"):
        plait.compile(lambda x: x, options={"memory_budget": 1.5})


STEPS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "sgd-foreach": (torch.optim.SGD, {"lr": 0.05, "weight_decay": 0.1, "foreach": True}),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("clip", [False, True])
def test_a_whole_step_is_one_program(name, clip):
    kind, given = STEPS[name]

    def trained(compile_it):
        torch.manual_seed(0)
        model = MODELS["convolutions"]().double()
        optimizer = kind(model.parameters(), **given)

        def step(x, wanted):
            loss = F.cross_entropy(model(x), wanted)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = compile_it(step)
        torch.manual_seed(1)
        losses = [
            run(torch.randn(6, 8).double(), torch.randint(0, 4, (6,))).item() for _ in range(5)
        ]
        return losses, model.state_dict(), run

    fast = trained(lambda step: plait.compile(step, fullgraph=True, options={"strict": True}))
    torch.testing.assert_close(fast[:2], trained(lambda step: step)[:2])
    found = plait.report(fast[2])
    assert {graph.outcome for graph in found.graphs} == {"compiled"}
    assert len(found.graphs) <= 2  # the buffers of the momentum come in the first step


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_schedule_outside_of_the_step_costs_two_programs(kind):
    def trained(compile_it):
        torch.manual_seed(0)
        model = MODELS["mlp"]().double()
        optimizer = kind(model.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        run = compile_it(step)
        for _ in range(6):
            run(torch.randn(4, 8).double())
            schedule.step()
        return model.state_dict(), run

    fast, run = trained(lambda step: plait.compile(step, fullgraph=True, options={"strict": True}))
    torch.testing.assert_close(fast, trained(lambda step: step)[0])
    assert [graph.outcome for graph in plait.report(run).graphs] == ["compiled"] * 2


def test_a_loss_on_forces_inside_is_differentiated_outside():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).double()

    def loss_of(positions, forces):
        positions = positions.detach().requires_grad_()
        distances = (positions[:, None] - positions).square().sum(-1, keepdim=True)
        energy = model(distances).sum()
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return (gradient + forces).square().mean() + 0.1 * energy

    fast = plait.compile(loss_of, fullgraph=True, options={"strict": True})
    positions, forces = torch.randn(6, 3).double(), torch.randn(6, 3).double()
    parameters = list(model.parameters())
    got, wanted = fast(positions, forces), loss_of(positions, forces)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got, parameters), torch.autograd.grad(wanted, parameters)
    )
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}


def test_a_call_that_asks_for_gradients_itself_is_compiled():
    weight = torch.randn(3, 4).double()

    def function(places):
        places.requires_grad_(True)
        return torch.tanh(places @ weight).square().sum()

    fast = plait.compile(function, options={"strict": True})
    x = torch.randn(5, 3).double()
    found = []
    for run in (function, fast):
        given = x.clone()
        run(given).backward()
        found.append(given.grad)
    torch.testing.assert_close(found[1], found[0])
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}
    assert not plait.report(fast).breaks


def test_the_report_says_what_is_saved_and_why():
    weight = torch.randn(8, 16, requires_grad=True)
    fast = plait.compile(lambda x: F.gelu(torch.tanh(x @ weight) * 2).sum())
    fast(torch.randn(4, 8)).backward()
    report = plait.report(fast)
    graph = report.graphs[0]
    assert graph.saved[0].shape == (4, 16)
    assert graph.saved[0].bytes == 4 * 16 * 4
    assert "256 B in 1 tensors held for the backward" in graph.saved_total
    assert graph.saved_total in str(report)
    assert graph.saved[0].why in str(report)
    assert "Saved for the backward" in report.html()


def test_a_function_that_tells_gradients_apart_is_given_none():
    class Apart(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.set_materialize_grads(False)
            return value * 1, value * 2

        @staticmethod
        def backward(ctx, one, other):
            return one * 5 if other is None else one + other

    def program(x):
        one, other = Apart.apply(x)
        return one.sum(), other

    x = torch.ones(3, requires_grad=True)
    fast = plait.compile(program)
    (gradient,) = torch.autograd.grad(fast(x)[0], x)
    assert torch.equal(gradient, torch.full((3,), 5.0))
    found = [torch.autograd.grad(sum(map(torch.sum, run(x))), x) for run in (fast, program)]
    assert torch.equal(found[0][0], found[1][0])
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}


def test_backward_hooks_of_modules_are_compiled() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        model[1].register_full_backward_pre_hook(lambda module, grads: (grads[0].clamp(-1, 1),))
        model[1].register_full_backward_hook(lambda module, grads, outs: (grads[0] * outs[0],))
        models.append(model)
    fast = plait.compile(models[1], fullgraph=True)
    x = torch.randn(5, 3, dtype=torch.float64)
    for model in (models[0], fast):
        model(x).square().sum().backward()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}


def _saves_products(ctx, op, *args, **kwargs):
    is_product = op == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.MUST_RECOMPUTE


@pytest.mark.parametrize(("policy", "saved"), [(_saves_products, 2), (None, 0)])
def test_checkpoints_save_what_their_policy_says(policy, saved) -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    chosen = {} if policy is None else {"context_fn": contexts}

    def block(x, w):
        return ((x @ w).sin() @ w).tanh()

    def function(x, w):
        return checkpoint(block, x, w, use_reentrant=False, **chosen) * 2

    fast = plait.compile(function, fullgraph=True)
    found = []
    for call in (function, fast):
        torch.manual_seed(0)
        given = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        call(*given).square().sum().backward()
        found.append([tensor.grad for tensor in given])
    torch.testing.assert_close(found[1], found[0])
    assert f"in {saved} tensors held for the backward" in str(plait.report(fast))


def test_shared_memory_is_written_beside_gradients() -> None:
    def program(w, x, y):
        x.add_(1)
        y.mul_(2)
        return (w * w).sin(), x + y.sum()

    def arguments():
        base = torch.arange(6.0)
        return [torch.ones(3, requires_grad=True), base[:4], base[2:]]

    fast = plait.compile(program, fullgraph=True)
    for _ in range(2):
        ours, eager = arguments(), arguments()
        got, wanted = fast(*ours), program(*eager)
        got[0].sum().backward()
        wanted[0].sum().backward()
        torch.testing.assert_close([*got, *ours], [*wanted, *eager])
        torch.testing.assert_close(ours[0].grad, eager[0].grad)
    assert {graph.outcome for graph in plait.report(fast).graphs} == {"compiled"}
