"""Numbers that are read before the graph runs, of tensors that the code has changed by then."""

from __future__ import annotations

import sys

import pytest
import torch
from tracer_oracle import check, compiled

from plait_bytecode_tracer.errors import TooLongError
from plait_bytecode_tracer.frames.pace import MAX_IDLE_STEPS, STEPS_FOR_EACH, Pace
from plait_bytecode_tracer.graph.memory import Memory


def changed_before(x):
    amount = torch.tensor(1.0)
    amount.add_(1)
    x.add_(amount)
    return x.item(), amount


def changed_through_a_view(x):
    amount = torch.tensor(1.0)
    amount.view(1).mul_(3)
    x.add_(amount)
    return x.item()


def changed_through_its_data(x):
    amount = torch.tensor(1.0)
    amount.data.fill_(4.0)
    x.add_(amount)
    return x.item()


def changed_in_a_list(x):
    amount = torch.tensor(1.0)
    torch._foreach_add_([amount], 1)
    torch._foreach_add_([x], amount)
    return x.item()


def changed_view_in_a_list(x):
    amount = torch.tensor(1.0)
    torch._foreach_add_([amount.detach()], 1)
    x.add_(amount)
    return x.item()


def changed_after(x):
    amount = torch.tensor(2.0)
    x.add_(amount)
    amount.add_(5)
    return x.item(), amount


def changed_between_reads(x):
    amount = torch.tensor(1.0)
    x.add_(amount)
    first = x.item()
    amount.add_(1)
    x.add_(amount)
    return first, x.item()


def made_of_what_is_changed(x):
    amount = torch.tensor(1.0)
    twice = amount * 2
    amount.add_(5)
    x.add_(twice)
    y = torch.tensor(0.0)
    y.add_(amount)
    return x.item(), y.item()


def counted_in_lists(x):
    others = [torch.tensor(0.0), torch.tensor(10.0), x]
    torch._foreach_add_(others, torch.tensor(1.0), alpha=2.0)
    first = [each.item() for each in others]
    torch._foreach_mul_(others, [2.0, 3.0, 4.0])
    return first, [each.item() for each in others]


def in_a_list_twice(x):
    torch._foreach_add_([x, x], 1)
    return x.item()


@pytest.mark.parametrize(
    "function",
    [
        *(changed_before, changed_through_a_view, changed_through_its_data, changed_in_a_list),
        *(changed_view_in_a_list, changed_after, changed_between_reads, made_of_what_is_changed),
        *(counted_in_lists, in_a_list_twice),
    ],
)
def test_constants_are_what_they_are_when_they_are_read(function):
    with torch.no_grad():
        check(function, torch.tensor(3.0), calls=4)


def read_as_another_type(x):
    return x.view(torch.float16).item()


def changed_as_another_type(x):
    x.view(torch.int16).add_(1)
    return x.item()


def read_beside_it(x):
    x.add_(1)
    return x.as_strided((), (), 1).item()


@pytest.mark.parametrize(
    "function", [read_as_another_type, changed_as_another_type, read_beside_it]
)
def test_views_that_are_other_numbers(function):
    fast = compiled(function)
    for value in (1.0, 2.0, 3.0):
        one, other = (torch.tensor([value, 7.0], dtype=torch.bfloat16)[0] for _ in range(2))
        assert function(one) == fast(other)
        assert torch.equal(one, other)


def test_inputs_in_one_memory():
    def function(x, y):
        x.add_(1)
        first = y.item()
        torch._foreach_add_([y], 2)
        return first, x.item()

    base = torch.tensor([1.0, 2.0])
    fast = compiled(function)
    for x, y in ((base[0], base[0]), (base[0], base[1]), (base[1], base[1].view(()))):
        left, right = base.clone(), base.clone()
        places = [each.storage_offset() for each in (x, y)]
        assert function(*(left[n] for n in places)) == fast(*(right[n] for n in places))
        assert torch.equal(left, right)


def steps(count):
    """How many nodes reading the counts of as many tensors looks at, and what it calls."""

    def step(counts, tensors):
        torch._foreach_add_(counts, torch.tensor(1.0), alpha=1.0)
        sizes = [1 - 0.5 ** each.item() for each in counts]
        torch._foreach_div_(tensors, sizes)
        return [each.item() for each in counts]

    fast, calls, looked = compiled(step), [], 0
    touching = Memory.touching

    def counted(self, graph, storage):
        nonlocal looked
        found = touching(self, graph, storage)
        looked += len(found)
        return found

    def note(frame, event, argument):
        calls[-1] += event in ("call", "c_call")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Memory, "touching", counted)
        for number in range(2):  # with constants, then with numbers
            calls.append(0)
            given = [torch.tensor(float(number)) for _ in range(count)]
            others = [torch.ones(2) for _ in range(count)]
            before = sys.getprofile()
            sys.setprofile(note)
            try:
                found = fast(given, others)
            finally:
                sys.setprofile(before)
            assert found == [number + 1.0] * count
    return looked, calls


def test_reading_counts_grows_linearly_with_them():
    steps(4)  # what a first trace in a process looks up
    few, more, many = (steps(count) for count in (8, 16, 32))
    assert many[0] - more[0] == 2 * (more[0] - few[0])
    for first, second, third in zip(few[1], more[1], many[1], strict=True):
        assert third - second <= 1.05 * 2 * (second - first)


def test_programs_go_over_many_tensors_between_operations():
    """They may take the more instructions, the more the graph is given."""
    few, many = Pace(), Pace()
    for _ in range(100):
        many.note_input()
    for each in (few, many):
        each.steps = MAX_IDLE_STEPS + 100 * STEPS_FOR_EACH
    many.require_brief()
    with pytest.raises(TooLongError):
        few.require_brief()
    many.steps += 1
    with pytest.raises(TooLongError):
        many.require_brief()
