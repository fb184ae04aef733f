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
