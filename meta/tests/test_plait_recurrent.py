"""Recurrent layers: eager's values within rounding, whatever they are made of."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import plait

LAYERS = {
    "gru, both directions, 2 layers": lambda: nn.GRU(6, 5, 2, bidirectional=True),
    "lstm, both directions, 2 layers": lambda: nn.LSTM(6, 5, 2, bidirectional=True),
    "lstm with projections": lambda: nn.LSTM(6, 5, 2, proj_size=3, batch_first=True),
}


def flat(value):
    return [value] if isinstance(value, torch.Tensor) else [t for each in value for t in flat(each)]


def check(module, *inputs):
    """Values, shapes and strides of a call; float64 says what rounding is."""
    compiled = plait.compile(module)
    with torch.no_grad():
        found, expected = flat(compiled(*inputs)), flat(module(*inputs))
        exact = flat(copy.deepcopy(module).double()(*(x.double() for x in inputs)))
        again = flat(compiled(*inputs))
    for one, other, eager, wide in zip(found, again, expected, exact, strict=True):
        assert one.shape == eager.shape
        assert one.stride() == eager.stride()
        assert torch.equal(one, other)
        assert (one.double() - wide).abs().max() <= 2 * (eager.double() - wide).abs().max() + 1e-6
    return plait.report(compiled)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_eager_does(name):
    report = check(LAYERS[name]().eval(), torch.randn(4, 7, 6))
    assert len(report.graphs) == 1
    assert report.breaks == ()


class Steps(nn.Module):
    """Cells in a loop over a sequence."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = None
        states = []
        for step in range(x.shape[0]):
            state = self.cell(x[step], state)
            states.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(states)


def test_kernels_of_unrolled_steps_are_those_of_few_steps():
    cell = nn.GRUCell(16, 16)
    kernels = {check(Steps(cell), torch.randn(steps, 4, 16)).kernels for steps in (6, 14)}
    assert len(kernels) == 1


def test_packed_sequences_give_what_eager_gives():
    layer = nn.LSTM(6, 5, batch_first=True).eval()

    def padded(x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(layer(packed)[0], batch_first=True)[0]

    x, lengths = torch.randn(3, 7, 6), torch.tensor([7, 5, 2])
    with torch.no_grad():
        torch.testing.assert_close(plait.compile(padded)(x, lengths), padded(x, lengths))


MANY = {
    "gru, both directions": lambda: nn.GRU(6, 5, bidirectional=True, batch_first=True),
    "gru without biases": lambda: nn.GRU(6, 5, bias=False),
    "tanh, 2 layers": lambda: nn.RNN(6, 5, 2),
    "relu, both directions": lambda: nn.RNN(6, 5, nonlinearity="relu", bidirectional=True),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MANY)
def test_many_steps_are_one_that_runs_again_and_again(name):
    layer = MANY[name]().eval()
    shapes = [(4, steps, 6) if layer.batch_first else (steps, 4, 6) for steps in (140, 260)]
    reports = [check(layer, torch.randn(shape)) for shape in shapes]
    bodies = layer.num_layers * (2 if layer.bidirectional else 1)
    assert [len(report.graphs) for report in reports] == [1 + bodies] * 2
    few, many = ([graph.kernels for graph in report.graphs[1:]] for report in reports)
    assert few == many
    assert reports[0].breaks == ()


def trained(layer, call, x, state):
    """Results of a step that draws, and gradients of what it is given and of the parameters."""
    torch.manual_seed(3)
    found = flat(call(x, state))
    weights = [torch.linspace(-1, 1, each.numel()).view(each.shape).to(each) for each in found]
    loss = sum((each * weight).sum() for each, weight in zip(found, weights, strict=True))
    return [*found, *torch.autograd.grad(loss, [x, state, *layer.parameters()])]


@pytest.mark.parametrize("make", [nn.GRU, nn.RNN])
def test_many_steps_train(make):
    layer = make(6, 5, 2, batch_first=True, dropout=0.3)
    x = torch.randn(4, 40, 6, requires_grad=True)
    state = torch.randn(2, 4, 5, requires_grad=True)
    compiled = plait.compile(layer)
    wide = copy.deepcopy(layer).double()
    found, expected = trained(layer, compiled, x, state), trained(layer, layer, x, state)
    given = [each.detach().double().requires_grad_() for each in (x, state)]
    exact = trained(wide, wide, *given)
    assert plait.report(compiled).breaks == ()
    assert any("scan" in call for g in plait.report(compiled).graphs for call in g.external_calls)
    for one, eager, right in zip(found, expected, exact, strict=True):
        assert one.stride() == eager.stride()
        off, usual = ((each.double() - right).abs().max() for each in (one, eager))
        assert off <= 2 * usual + 1e-5 * right.abs().max()


def test_one_program_is_for_all_lengths():
    layer = nn.GRU(6, 5, batch_first=True)
    compiled = plait.compile(layer)
    for steps in (8, 130, 50, 3, 77, 300):
        x = torch.randn(4, steps, 6)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layer(x))
    assert len(plait.report(compiled).recompiles) == 1
    training = plait.compile(layer)
    for steps in (8, 70, 50, 3, 90):
        x = torch.randn(4, steps, 6, requires_grad=True)
        found, expected = (torch.autograd.grad(f(x)[0].sin().sum(), x) for f in (training, layer))
        torch.testing.assert_close(found, expected)
    assert len(plait.report(training).recompiles) == 1


LSTMS = {
    "plain": lambda: nn.LSTM(6, 5),
    "both directions, 2 layers": lambda: nn.LSTM(6, 5, 2, bidirectional=True, batch_first=True),
    "without biases": lambda: nn.LSTM(6, 5, 2, bias=False),
    "dropout, not in training": lambda: nn.LSTM(6, 5, 2, dropout=0.3).eval(),
}


class Around(nn.Module):
    """An LSTM between other layers."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(4, 6), layer
        self.last = nn.Linear(5 * (2 if layer.bidirectional else 1), 3)

    def forward(self, x):
        found, (state, memory) = self.layer(self.first(x).relu() * 2)
        return self.last(found.tanh()) * 3, state, memory


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LSTMS)
def test_one_program_is_for_all_lengths_and_batches_of_an_lstm(name):
    model = Around(LSTMS[name]())
    sizes = [(12, 3), (7, 3), (9, 4), (30, 2), (64, 5), (2, 9)]
    compiled = plait.compile(model)
    with torch.no_grad():
        for size in sizes:
            x = torch.randn(*size, 4)
            for one, eager in zip(flat(compiled(x)), flat(model(x)), strict=True):
                torch.testing.assert_close(one, eager)
                assert one.stride() == eager.stride()
    assert 1 <= len(plait.report(compiled).recompiles) <= 2
    calls = plait.report(compiled).graphs[-1].external_calls
    assert any("mkldnn_rnn_layer" in call for call in calls)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LSTMS)
def test_one_program_trains_an_lstm_over_all_lengths(name):
    """What an LSTM keeps for its backward is of fixed sizes: it runs as it is, between pieces."""
    model = Around(LSTMS[name]())
    compiled = plait.compile(model)
    for steps in (12, 7, 9, 30, 64, 2, 11, 13, 20, 40):
        x = torch.randn(*((3, steps) if model.layer.batch_first else (steps, 3)), 4)
        x.requires_grad_()

        def gradients(run, x=x):
            found = flat(run(x))
            loss = sum((each.sin() * each).sum() for each in found)
            return [*found, *torch.autograd.grad(loss, [x, *model.parameters()])]

        for one, eager in zip(gradients(compiled), gradients(model), strict=True):
            torch.testing.assert_close(one, eager)
    report = plait.report(compiled)
    assert len(report.recompiles) == 1
    assert "of fixed sizes" in str(report)
    assert "in 3 pieces, 1 of them as captured" in str(report)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", ["projections", "float64", "dropout in training"])
def test_other_lstms_over_several_lengths(case):
    layer = nn.LSTM(
        *(6, 5, 2),
        proj_size=3 if case == "projections" else 0,
        dropout=0.5 if case == "dropout in training" else 0.0,
    ).to(torch.float64 if case == "float64" else torch.float32)
    compiled = plait.compile(layer)
    for steps in (5, 9, 12):
        x = torch.randn(steps, 3, 6).to(next(layer.parameters()).dtype)
        torch.manual_seed(steps)
        found = flat(compiled(x))
        torch.manual_seed(steps)
        for one, eager in zip(found, flat(layer(x)), strict=True):
            torch.testing.assert_close(one, eager)


def called(inputs, states, weights, count):
    return torch.gru(inputs, states, weights, True, count, 0.0, False, False, False)


def test_what_torch_refuses_is_refused_in_its_words():
    layer = nn.GRU(6, 5).requires_grad_(False)
    inputs, states = torch.randn(200, 4, 6), torch.randn(1, 4, 5)
    weights = layer._flat_weights
    wrong = (
        (inputs[..., :4], states, weights, 1),
        (inputs, states[:, :2], weights, 1),
        (inputs.double(), states, weights, 1),
        (inputs, states, weights, 2),
        (inputs, states, weights[:2], 1),
    )
    for given in wrong:
        with pytest.raises(RuntimeError) as expected:
            called(*given)
        with pytest.raises(RuntimeError) as found:
            plait.compile(called)(*given)
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_many_steps_under_autocast():
    layer = nn.GRU(6, 5).requires_grad_(False)
    x = torch.randn(150, 4, 6)
    compiled = plait.compile(layer)
    with torch.autocast("cpu", torch.bfloat16):
        for one, eager in zip(flat(compiled(x)), flat(layer(x)), strict=True):
            assert one.dtype == eager.dtype
            torch.testing.assert_close(one, eager, rtol=0.05, atol=0.05)


def test_what_has_no_batches_in_eager_has_none():
    layer = nn.GRU(6, 5).requires_grad_(False)

    def in_batches(x):
        return torch.vmap(lambda each: layer(each)[0], in_dims=1, out_dims=1)(x)

    for function in (in_batches, plait.compile(in_batches)):
        with pytest.raises(RuntimeError, match="Batching rule not implemented"):
            function(torch.randn(150, 2, 4, 6))
