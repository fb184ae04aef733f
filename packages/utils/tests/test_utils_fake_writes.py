"""Operators that write to their first argument, which fake tensors remember not to fail."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plait_utils import fake  # noqa: E402  # after the optional torch
from plait_utils.fake_cache import forget_results  # noqa: E402

WRITES = {
    "add": lambda x, y: x.add_(y),
    "number": lambda x, y: x.mul_(2),
    "addcdiv": lambda x, y: x.addcdiv_(y, y, value=0.5),
    "copy": lambda x, y: x.copy_(y),
    "rows": lambda x, y: x[1:].add_(y[:-1]),
    "filled": lambda x, y: x.fill_(y.sum()),
    "masked": lambda x, y: x.masked_fill_(y > 0, 1.0),
    "drawn": lambda x, y: x.uniform_(),
}


@pytest.fixture(autouse=True)
def forgotten():
    forget_results()


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("grad", [False, True])
def test_a_remembered_write_returns_and_counts_as_the_first(name, grad):
    found = []
    mode = fake.FakeMode()
    for _ in range(3):
        real = torch.randn(3, 4), torch.randn(3, 4)
        x, y = map(mode.from_tensor, real)
        y.requires_grad_(grad and name in ("add", "addcdiv", "copy"))
        with mode, torch.set_grad_enabled(grad):
            result = WRITES[name](x, y)
        assert result is x or result._base is x
        described = result.shape, result.stride(), result.dtype, result.requires_grad
        found.append((*described, x._version, type(result.grad_fn).__name__))
    assert found[0] == found[1] == found[2]


def test_what_fails_fails_again():
    mode = fake.FakeMode()
    real = torch.randn(4), torch.randn(4)
    x, y = map(mode.from_tensor, real)
    with mode, torch.no_grad():
        x.add_(y)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                x.to(torch.int32).add_(y)
            with pytest.raises(RuntimeError):
                x.add_(y[1:3])
        x.add_(y)


def test_kernels_run_once_for_tensors_that_are_alike(monkeypatch):
    ran = []
    run = fake.FakeMode._dispatch_anew

    def counted(self, func, *args, **kwargs):
        ran.append(func)
        return run(self, func, *args, **kwargs)

    monkeypatch.setattr(fake.FakeMode, "_dispatch_anew", counted)
    counts = []
    for count in (1, 8):
        forget_results()
        ran.clear()
        mode = fake.FakeMode()
        real = [torch.randn(3) for _ in range(count + 1)]  # of which none takes another's memory
        tensors = list(map(mode.from_tensor, real))
        with mode, torch.no_grad():
            for each in tensors[1:]:
                each.addcmul_(tensors[0], tensors[0])
        counts.append(len(ran))
    assert counts[0] == counts[1]
