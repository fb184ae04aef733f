"""Functions that make as many elements as an open number says, for numbers."""

from __future__ import annotations

import pytest
import torch
from open_numbers import symbolic

from plait_utils import open_creation
from plait_utils.fake import FakeMode


@pytest.fixture
def counts(monkeypatch):
    """Numbers stand for symbols."""
    monkeypatch.setattr(open_creation, "SymInt", int)


@pytest.mark.parametrize("steps", [2, 3, 5, 16, 101])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None])
def test_numbers_are_spaced_as_torch_spaces_them(counts, steps, dtype):
    for start, end in ((0.0, 1.0), (-3, 7), (5.0, 5.0), (1e3, -1.5)):
        made = open_creation.linspace(start, end, steps, dtype=dtype)
        torch.testing.assert_close(made, torch.linspace(start, end, steps, dtype=dtype))
        assert (made[0], made[-1]) == (start, end)
    powers = open_creation.logspace(0.0, 2.0, steps, 3.0, dtype=dtype)
    torch.testing.assert_close(powers, torch.logspace(0.0, 2.0, steps, 3.0, dtype=dtype))


def test_one_hot_is_that_of_torch(counts):
    classes = torch.tensor([[0, 2], [1, 2]])
    made = open_creation.one_hot(classes, 4)
    torch.testing.assert_close(made, torch.nn.functional.one_hot(classes, 4))
    for classes, count in ((torch.tensor([4]), 4), (torch.tensor([-1]), 4), (classes, 0)):
        with pytest.raises(RuntimeError):
            open_creation.one_hot(classes, count)


def test_what_is_not_known_is_left_to_torch():
    n = symbolic(5)
    assert open_creation.one_hot(torch.tensor([1]), 3) is NotImplemented
    assert open_creation.one_hot(torch.tensor([1.0]), n) is NotImplemented
    assert open_creation.linspace(0, 1, n, dtype=torch.int64) is NotImplemented
    assert open_creation.linspace(0, 1, n, dtype=torch.float16) is NotImplemented
    assert open_creation.linspace(torch.tensor(0.0), 1, n) is NotImplemented
    assert open_creation.logspace(0, 1, n, torch.tensor(2.0)) is NotImplemented


def test_sizes_stay_open():
    n = symbolic(5)
    with FakeMode(n.node.shape_env):
        assert str(open_creation.linspace(0, 1, n).shape[0]) == str(n)
        assert str(open_creation.one_hot(torch.empty(3, dtype=torch.int64), n).shape[1]) == str(n)
