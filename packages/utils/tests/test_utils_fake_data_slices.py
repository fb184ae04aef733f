"""Parts of tensors at places that depend on data: their sizes, and what is assumed of these."""

import pytest
import torch
from torch.nn import functional

from plait_utils.data_sizes import formula
from plait_utils.fake import FakeMode
from plait_utils.open_functions import open_call
from plait_utils.shape_environment import make_environment


def narrow(x, n):
    return open_call("call_method", "narrow", (x, 0, n, 3), {})


PARTS = {
    "to": (lambda x, n: x[:n], "u0", "0", {"0 <= u0", "u0 <= 20"}),
    "from": (lambda x, n: x[n:], "20 - u0", "u0", {"0 <= u0", "u0 <= 20"}),
    "to the last": (lambda x, n: x[:-n], "20 - u0", "0", {"0 < u0", "u0 <= 20"}),
    "the last": (lambda x, n: x[-n:], "u0", "20 - u0", {"0 < u0", "u0 <= 20"}),
    "between": (lambda x, n: x[n : n + 3], "3", "u0", {"0 <= u0", "u0 <= 20", "u0 <= 17"}),
    "narrow": (narrow, "3", "u0", {"0 <= u0", "u0 <= 20", "u0 <= 17"}),
    "steps": (lambda x, n: x[:n:2], "((u0 + 1)//2)", "0", {"0 <= u0", "u0 <= 20"}),
    "rounded up": (lambda x, n: x[: -(-n // 2)], "-(((-u0)//2))", "0", None),
    "padded": (lambda x, n: functional.pad(x, (1, n)), "u0 + 21", "0", {"0 <= u0"}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_the_size_that_follows_from_its_places(name):
    run, size, offset, assumed = PARTS[name]
    environment = make_environment(lambda guard: None)
    with FakeMode(environment):
        x = torch.empty(20)
        n = torch.empty((), dtype=torch.long).item()
        made = run(x, n)
    asserts = environment.deferred_runtime_asserts.values()
    assert str(formula(made.shape[0])) == size
    assert str(formula(made.storage_offset())) == offset
    if assumed is not None:
        assert {str(each.expr) for found in asserts for each in found} == assumed
