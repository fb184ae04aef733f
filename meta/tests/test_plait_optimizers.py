"""Optimizer steps through native code: the parameters and states of eager, step by step."""

import pytest
import torch
from torch import nn

import plait

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "maximize": (torch.optim.SGD, {"lr": 0.1, "maximize": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01}),
    "NAdam": (torch.optim.NAdam, {}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {}),
}


def training(make, options, dtype, foreach, *, fused=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3, bias=False)).to(dtype)
    if fused:
        options = {**options, "fused": True}
    return model, make(model.parameters(), foreach=foreach, **options)


def set_gradients(model, number):
    generator = torch.Generator().manual_seed(number)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = drawn.to(parameter.dtype)


def farthest(model, exact):
    pairs = zip(model.parameters(), exact.parameters(), strict=True)
    return max((a.double() - b).abs().max().item() for a, b in pairs)


FUSED = ("SGD", "momentum", "nesterov", "maximize", "Adam", "amsgrad", "AdamW", "Adagrad")
WAYS = [(name, foreach, False) for name in OPTIMIZERS for foreach in (False, True)]


@pytest.mark.parametrize(
    ("name", "foreach", "fused"), [*WAYS, *((name, False, True) for name in FUSED)]
)
@pytest.mark.sampled(4)
def test_steps_are_those_of_eager(name, foreach, fused):
    """As near to float64 as eager is, with a learning rate that changes."""
    sides = [
        training(*OPTIMIZERS[name], dtype, foreach, fused=fused)
        for dtype in (torch.float32, torch.float32, torch.float64)
    ]
    steps = [sides[0][1].step, plait.compile(sides[1][1].step), sides[2][1].step]
    versions = [parameter._version for parameter in sides[1][0].parameters()]
    for number in range(20):
        for (model, optimizer), step in zip(sides, steps, strict=True):
            set_gradients(model, number)
            step()
            optimizer.param_groups[0]["lr"] *= 0.9
    (eager, _), (found, optimizer), (exact, _) = sides
    assert farthest(found, exact) <= 2 * farthest(eager, exact) + 1e-7
    assert all(p._version > v for p, v in zip(found.parameters(), versions, strict=True))
    for parameter, twin in zip(found.parameters(), eager.parameters(), strict=True):
        mine, other = optimizer.state[parameter], sides[0][1].state[twin]
        assert list(mine) == list(other)
        torch.testing.assert_close(mine, other)
    report = plait.report(steps[1])
    assert all(graph.outcome == "compiled" for graph in report.graphs)
    assert not report.breaks
    assert len(report.graphs) <= 4  # begins, has state, has another learning rate


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.sampled(2)
def test_a_step_of_many_parameters_is_one_parallel_region(foreach):
    """In place, without a copy, and with kernels for the shapes rather than the parameters."""
    parameters = [nn.Parameter(torch.randn(shape)) for shape in [(3, 5), (7,)] * 30]
    optimizer = torch.optim.AdamW(parameters, foreach=foreach)
    step = plait.compile(optimizer.step)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        step()
    graph = plait.report(step).graphs[-1]
    program = graph.record.schedule.program
    kinds = [type(each).__name__ for each in program.steps]
    assert "CopyBack" not in kinds
    assert "CallExtern" not in kinds
    regions = [each for each in program.steps if getattr(each, "together", None) is False]
    assert len(regions) == 1
    assert len(program.kernels) == 3  # for each shape one, and one that counts steps
    assert program.arena_nbytes.as_int() == 0


RATES = [("momentum", False), ("momentum", True), ("AdamW", False), ("NAdam", True)]


@pytest.mark.parametrize(("name", "foreach"), RATES)
def test_a_tensor_as_learning_rate_is_read_when_a_whole_step_runs(name, foreach):
    """One program for all rates, with the clipping of gradients and a schedule around it."""

    def training(dtype):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
        make, options = OPTIMIZERS[name]
        rate = torch.tensor(options.get("lr", 0.01), dtype=dtype)
        optimizer = make(model.parameters(), **{**options, "lr": rate, "foreach": foreach})
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss.detach()

        return model, schedule, step

    kinds = (torch.float32, torch.float32, torch.float64)
    sides = [training(dtype) for dtype in kinds]
    steps = [sides[0][2], plait.compile(sides[1][2]), sides[2][2]]
    for _ in range(5):
        x, y = torch.randn(4, 5), torch.randn(4, 3)
        pairs = zip(steps, kinds, strict=True)
        losses = [step(x.to(dtype), y.to(dtype)) for step, dtype in pairs]
        torch.testing.assert_close(losses[1], losses[0])
        for _, schedule, _ in sides:
            schedule.step()
    (eager, _, _), (found, _, _), (exact, _, _) = sides
    assert farthest(found, exact) <= 2 * farthest(eager, exact) + 1e-6
    report = plait.report(steps[1])
    assert not report.breaks
    assert [graph.outcome for graph in report.graphs] == ["compiled"] * len(report.graphs)
    assert len(report.graphs) <= 2  # the first step makes the state


def test_gradients_see_that_parameters_changed():
    """A backward after a step that overwrote what it needs raises, as in eager."""
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    step = plait.compile(optimizer.step)
    for _ in range(2):
        loss = layer(layer(torch.randn(2, 3))).sum()
        loss.backward(retain_graph=True)
        step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_inputs_that_come_to_share_memory_are_not_taken_for_apart():
    def program(a, b):
        a.mul_(2)
        b.add_(a)
        return b.clone()

    compiled = plait.compile(program)
    for make in (lambda: (torch.ones(4), torch.ones(4)), lambda: (torch.ones(4),) * 2):
        expected, found = make(), make()
        assert torch.equal(compiled(*found), program(*expected))
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", ["capturable", "differentiable"])
def test_other_kinds_of_steps_do_as_eager_does(name):
    def training():
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        return layer, torch.optim.Adam(layer.parameters(), **{name: True})

    sides = [training() for _ in range(2)]
    steps = [sides[0][1].step, plait.compile(sides[1][1].step)]
    outcomes = []
    for (layer, _), step in zip(sides, steps, strict=True):
        for _ in range(3):
            for parameter in layer.parameters():
                parameter.grad = torch.ones_like(parameter)
            try:
                step()
            except Exception as error:
                outcomes.append((type(error), str(error)))
    half = len(outcomes) // 2
    assert outcomes[:half] == outcomes[half:]
    for one, two in zip(sides[0][0].parameters(), sides[1][0].parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_inference_tensors_are_written_in_inference_mode_alone():
    def program(x):
        x.add_(1)
        return x * 2

    compiled = plait.compile(program)
    with torch.inference_mode():
        x = torch.ones(3)
        assert torch.equal(compiled(x), torch.full((3,), 4.0))
    with pytest.raises(RuntimeError, match="outside InferenceMode"):
        compiled(x)
    assert torch.equal(x, torch.full((3,), 2.0))
