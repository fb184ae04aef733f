"""Programs of the CPU compile whatever the default device is."""

import pytest
import torch
from torch import nn

import plait

STRICT = {"strict": True, "warm_start": False}


@pytest.fixture(autouse=True)
def without_data():
    """Tensors that are made without a device have no data."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_inference_under_another_default_device():
    def program(x):
        return torch.softmax(x, 0) + x.cumsum(0), x.to(torch.float8_e4m3fn)

    x = torch.arange(6.0, device="cpu").reshape(2, 3)
    found, expected = plait.compile(program, options=STRICT)(x), program(x)
    torch.testing.assert_close(found[0], expected[0])
    assert torch.equal(found[1].view(torch.uint8), expected[1].view(torch.uint8))


def test_a_training_step_under_another_default_device():
    model = nn.Linear(3, 2, device="cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.ones(4, 3, device="cpu")
    compiled = plait.compile(step, options=STRICT)
    losses = [float(compiled(x)) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert not plait.report(compiled).eager_graphs


def test_a_program_takes_the_default_device():
    compiled = plait.compile(lambda x: (torch.ones(3) + 1, x + 1))
    made, given = compiled(torch.ones(2, device="cpu"))
    assert (made.device.type, given.device.type) == ("meta", "cpu")
