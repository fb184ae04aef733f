"""Operators of a user's write to inputs themselves where nothing else reads what these were."""

from __future__ import annotations

import threading

import pytest
import torch

import plait

addresses: list[tuple[int, ...]] = []


class TooFarError(Exception):
    pass


@torch.library.custom_op("in_place_tests::put", mutates_args={"cache"})
def put(cache: torch.Tensor, row: torch.Tensor, at: int) -> None:
    addresses.append((cache.data_ptr(),))
    cache[at] = row
    if row[0] > 1e3:
        raise TooFarError("a row is too far")


@torch.library.custom_op("in_place_tests::put_both", mutates_args={"keys", "values"})
def put_both(keys: torch.Tensor, values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    addresses.append((keys.data_ptr(), values.data_ptr()))
    keys[0], values[1] = row, row * 2
    return row.sin()


put_both.register_fake(lambda keys, values, row: torch.empty_like(row))


def one_row(cache, row):
    put(cache, row * 2, 1)
    return (cache * row).sum(1)


def two_rows(cache, row):
    put(cache, row * 2, 1)
    put(cache, row * 3, 2)
    return cache + row


def twice_into_one_row(cache, row):
    put(cache, row * 2, 1)
    put(cache, row.cos(), 1)
    return row + 1


def nothing_read(cache, row):
    put(cache, row, 0)
    return row.exp()


def read_before(cache, row):
    before = cache.sum()
    put(cache, row, 0)
    return before * row


def read_in_between(cache, row):
    put(cache, row, 0)
    between = cache.sum()
    put(cache, row * 2, 1)
    return between * row


def a_part(cache, row):
    put(cache[2:], row, 0)
    return row * 2


def returned(cache, row):
    put(cache, row, 0)
    return cache, row * 2


def a_copy_returned(cache, row):
    put(cache, row, 0)
    return cache.clone()


def a_view_returned(cache, row):
    put(cache, row, 0)
    return cache.t()


def written_further(cache, row):
    put(cache, row, 0)
    cache.mul_(2)
    return row


def of_a_temporary(cache, row):
    made = cache * 2
    put(made, row, 0)
    return made


def both_tables(cache, row):
    other = cache.clone()
    result = put_both(cache, other, row)
    return result + cache.sum(0), other


IN_PLACE = [one_row, two_rows, twice_into_one_row, nothing_read]
COPIED = [
    read_before,
    read_in_between,
    a_part,
    written_further,
    of_a_temporary,
    a_copy_returned,  # which is the operator's
    both_tables,
]
EITHER = [returned, a_view_returned]


def given(order=None):
    draw = torch.Generator().manual_seed(0)
    cache, row = torch.randn(4, 6, generator=draw), torch.randn(6, generator=draw)
    if order is not None:
        cache = cache.t().contiguous().t()
    return cache, row


def outcome(function, inputs):
    addresses.clear()
    made = function(*inputs)
    return made, inputs, list(addresses)


def assert_like_eager(compiled, function, inputs):
    """Results, inputs, and which of them share memory; how often the operator was called."""
    others = [each.clone(memory_format=torch.preserve_format) for each in inputs]
    versions = [each._version for each in inputs]
    wanted, changed, expected = outcome(function, others)
    found, _, calls = outcome(compiled, inputs)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(list(inputs), list(changed))
    assert len(calls) == len(expected)
    for each, other, version in zip(inputs, others, versions, strict=True):
        assert (each._version > version) == (other._version > 0)
    return calls


@pytest.mark.parametrize("function", IN_PLACE, ids=lambda each: each.__name__)
def test_it_writes_to_the_input_itself(function):
    compiled = plait.compile(function)
    for _ in range(2):
        inputs = given()
        calls = assert_like_eager(compiled, function, inputs)
        assert all(each[0] == inputs[0].data_ptr() for each in calls)
    (graph,) = plait.report(compiled).graphs
    assert (graph.outcome, graph.reason) == ("compiled", None)


@pytest.mark.parametrize("function", COPIED, ids=lambda each: each.__name__)
def test_what_is_read_otherwise_is_copied(function):
    compiled = plait.compile(function)
    for _ in range(2):
        inputs = given()
        calls = assert_like_eager(compiled, function, inputs)
        assert inputs[0].data_ptr() not in {address for each in calls for address in each}


@pytest.mark.parametrize("function", EITHER, ids=lambda each: each.__name__)
def test_what_is_returned_is_the_input(function):
    compiled = plait.compile(function)
    inputs = given()
    assert_like_eager(compiled, function, inputs)
    made = compiled(*inputs)
    first = made[0] if isinstance(made, tuple) else made
    assert first.data_ptr() == inputs[0].data_ptr()


def test_two_arguments_are_written_at_once():
    def program(keys, values, row):
        return put_both(keys, values, row * 2) + keys.sum(0) + values.sum(0)

    compiled = plait.compile(program)
    inputs = (*given(), given()[1])
    inputs = (inputs[0], inputs[0].clone(), inputs[2])
    ((keys, values),) = assert_like_eager(compiled, program, inputs)
    assert (keys, values) == (inputs[0].data_ptr(), inputs[1].data_ptr())
    # The same tensor twice, which the program was not compiled for.
    table = torch.zeros(4, 6)
    other = table.clone()
    torch.testing.assert_close(compiled(table, table, inputs[2]), program(other, other, inputs[2]))
    torch.testing.assert_close(table, other)


def test_a_read_of_what_two_arguments_were_compiles():
    def program(keys, values, row):
        before = keys.sum() + values.sum()
        return put_both(keys, values, row) + before

    compiled = plait.compile(program)
    cache, row = given()
    assert_like_eager(compiled, program, (cache, cache * 2, row))
    (graph,) = plait.report(compiled).graphs
    assert graph.reason is None


def test_other_strides_and_open_sizes():
    compiled = plait.compile(one_row, dynamic=True)
    for rows in (3, 5, 9):
        inputs = torch.ones(rows, 6), given()[1]
        ((address,),) = assert_like_eager(compiled, one_row, inputs)
        assert address == inputs[0].data_ptr()
    turned = given("turned")
    assert_like_eager(compiled, one_row, turned)
    spread = torch.zeros(8, 6)[::2], given()[1]
    assert_like_eager(compiled, one_row, spread)


def test_what_it_wrote_before_it_raised_stays_once():
    def program(cache, other, row):
        put(cache, row, 0)
        other.add_(row)
        put(other, row * 2, 1)
        return cache.sum() + other.sum()

    def far(function):
        cache, row = given()
        other = torch.zeros(4, 6)
        with pytest.raises(TooFarError, match="too far"):
            function(cache, other, row.abs() * 400 + 700)
        return cache, other

    compiled = plait.compile(program)
    cache, row = given()
    compiled(cache, torch.zeros(4, 6), row)
    torch.testing.assert_close(far(compiled), far(program))


def test_an_error_of_another_kind_comes_once():
    def program(cache, row, index):
        put(cache, row, 0)
        return cache.sum(0)[index] * row

    compiled = plait.compile(program)
    cache, row = given()
    compiled(cache, row, torch.tensor([0, 1, 2, 3, 4, 5]))
    addresses.clear()
    with pytest.raises(IndexError):
        compiled(cache, row, torch.tensor([0, 1, 2, 3, 4, 77]))
    assert len(addresses) == 1
    torch.testing.assert_close(cache[0], row)


def test_parameters_and_buffers_are_written_too():
    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 6))

        def forward(self, row):
            put(self.cache, row, 2)
            return self.cache.sum(0)

    module, reference = Cached(), Cached()
    compiled = plait.compile(module)
    row = given()[1]
    addresses.clear()
    torch.testing.assert_close(compiled(row), row)
    assert addresses == [(module.cache.data_ptr(),)]
    reference(row)
    torch.testing.assert_close(module.cache, reference.cache)


def test_inference_tensors_are_written_in_inference_mode_alone():
    with torch.inference_mode():
        cache, row = given()
    compiled = plait.compile(one_row)
    with torch.inference_mode():
        compiled(cache, row)
    torch.testing.assert_close(cache[1], row * 2)
    # Torch 2.11 lets operators of a user's write to them elsewhere too.
    with pytest.raises(RuntimeError, match="inference tensor outside InferenceMode"):
        compiled(cache, row.clone())


def test_threads_write_to_their_own():
    compiled = plait.compile(two_rows)
    compiled(*given())
    wrong = []

    def work(seed):
        for n in range(50):
            row = torch.full((6,), float(seed * 100 + n) / 1e3)
            cache, other = torch.zeros(4, 6), torch.zeros(4, 6)
            if not torch.equal(compiled(cache, row), two_rows(other, row)):
                wrong.append(seed)
            if not torch.equal(cache, other):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
