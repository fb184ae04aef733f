"""Parts of tensors at places that depend on data: their sizes, and what is assumed of these."""

import pytest
import torch
from open_numbers import symbolic
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


@pytest.mark.parametrize("place", [slice(1, None), slice(-2, None), slice(1, 4), slice(1, None, 2)])
def test_a_part_of_a_number_of_elements_has_a_size_that_follows_from_it(place):
    environment = make_environment(lambda guard: None)
    with FakeMode(environment):
        count = torch.empty((), dtype=torch.long).item()
        made = torch.empty(count)[place]
    size = formula(made.shape[0])
    (symbol,) = size.free_symbols
    assert str(symbol) == "u0"
    for each in range(8):
        assert size.subs(symbol, each) == len(range(each)[place])


@pytest.mark.parametrize(("value", "fits"), [(7, True), (-3, True), (20, False), (-21, False)])
def test_a_place_that_changes_is_guarded_to_lie_in_the_tensor(value, fits):
    environment = make_environment(lambda guard: None)
    n = symbolic(value, environment)
    with FakeMode(environment):
        x = torch.empty(20)
        if fits:
            assert x.select(0, n).shape == ()
        else:
            with pytest.raises(IndexError, match="out of range"):
                x.select(0, n)
    (symbol,) = n.node.expr.free_symbols

    def holds(other):
        return all(bool(guard.expr.subs(symbol, other)) for guard in environment.guards)

    assert holds(value)
    assert not fits or (not holds(20) and not holds(-21))


WRITES = {
    "of its size": lambda x, n: x[:n].copy_(x[20 - n :]),
    "of one": lambda x, n: x[:n].copy_(torch.empty(1)),
    "of none": lambda x, n: x[:n].copy_(torch.empty(())),
    "in rows": lambda x, n: x.view(4, 5)[:, :n].copy_(x[:n]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_to_a_part_asks_nothing_of_its_size(name):
    environment = make_environment(lambda guard: None)
    with FakeMode(environment):
        x = torch.empty(20)
        WRITES[name](x, torch.empty((), dtype=torch.long).item())
    assert not environment.guards


@pytest.mark.parametrize("rounds", [False, True])
def test_a_linear_layer_asks_nothing_of_how_many_it_is_given(rounds):
    environment = make_environment(lambda guard: None)
    with FakeMode(environment), torch.autocast("cpu", enabled=rounds):
        x, n = torch.empty(2, 9, 5), torch.empty((), dtype=torch.long).item()
        given = (x[:, :n], torch.empty(3, 5), torch.empty(3))
        made = open_call("call_function", functional.linear, given, {})
        if made is NotImplemented:  # torch's own leaves such sizes open
            made = functional.linear(*given)
    assert (made.dim(), str(made.shape[1])) == (3, "u0")
    assert made.dtype is (torch.bfloat16 if rounds else torch.float32)
