"""What one step of a recurrent layer tells of all of them."""

import itertools

import pytest
import torch
from torch import _VF, nn

from plait_bytecode_tracer.tensors.recurrent import call_of_one_step
from plait_utils.fake import FakeMode

KINDS = (_VF.gru, _VF.rnn_tanh, _VF.rnn_relu)


def layer_arguments(kind, bidirectional, batch_first, dtype=torch.float32):
    made = nn.GRU if kind == _VF.gru else nn.RNN
    layer = made(5, 4, 2, bidirectional=bidirectional, batch_first=batch_first, dtype=dtype)
    layer.requires_grad_(False)
    state = torch.randn(4 if bidirectional else 2, 3, 4, dtype=dtype)
    shape = (3, 6, 5) if batch_first else (6, 3, 5)
    weights = list(layer._flat_weights)
    tail = (True, 2, 0.0, False, bidirectional, batch_first)
    return torch.randn(shape, dtype=dtype), state, weights, *tail


def faked(mode, value):
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value)
    return [faked(mode, each) for each in value] if isinstance(value, list) else value


FLAGS = list(itertools.product([False, True], [False, True]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bidirectional", "batch_first"), FLAGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_shapes_and_strides_are_those_of_all_steps(kind, bidirectional, batch_first, dtype):
    arguments = layer_arguments(kind, bidirectional, batch_first, dtype)
    wanted = kind(*arguments)
    mode = FakeMode()
    with torch.no_grad(), mode:
        found = call_of_one_step(kind, tuple(faked(mode, each) for each in arguments), {})
    assert found is not NotImplemented
    for fake, real in zip(found, wanted, strict=True):
        assert fake.dtype == real.dtype
        assert fake.shape == real.shape
        assert fake.stride() == real.stride()
        assert fake.device == real.device


def test_a_call_that_fails_is_made_as_it_is_for_its_own_error():
    inputs, state, *rest = layer_arguments(_VF.gru, False, False)
    for wrong in ((inputs[..., :3], state), (inputs, state[:, :2]), (inputs.double(), state)):
        with torch.no_grad():
            assert call_of_one_step(_VF.gru, (*wrong, *rest), {}) is NotImplemented


def test_what_one_step_does_not_tell_is_called_as_it_is():
    inputs, state, *rest = layer_arguments(_VF.gru, False, False)
    call = inputs, state, *rest
    assert call_of_one_step(_VF.gru, call, {}) is NotImplemented  # with gradients
    with torch.no_grad():
        assert call_of_one_step(_VF.lstm, call, {}) is NotImplemented
        assert call_of_one_step(_VF.gru, (inputs[:1], *call[1:]), {}) is NotImplemented
        assert call_of_one_step(_VF.gru, (inputs[:0], *call[1:]), {}) is NotImplemented
        packed = inputs[:, 0], torch.ones(6, dtype=torch.int64), state, *rest[:-1]
        assert call_of_one_step(_VF.gru, packed, {}) is NotImplemented
