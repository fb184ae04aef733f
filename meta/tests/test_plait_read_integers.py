"""Integers that Python reads from tensors: one capture, whose parts serve all their values."""

from __future__ import annotations

import copy
import math
import threading

import pytest
import torch
from counted import VALUES, call_with, compare, read, same
from torch import nn
from torch.nn import functional

import plait


def as_size(x):
    n = read(x)
    return torch.arange(n) * 2, torch.zeros(n, 3) + 1, torch.ones(2, n + 1), n


def as_end(x):
    n = (x > 0).sum().item()
    return x[:n] * 2, x.narrow(0, 0, n) + 1


def as_beginning(x):
    n = read(x)
    return x[n:] * 2, x[:n].sum() + x[n:].sum(), x[::2][:n]


def as_part(x):
    n = read(x)
    return x[n : n + 3] * 2, x.narrow(0, n, 3) + 1


def from_the_end(x):
    n = read(x)
    return x[-n:] * 2, x[:-n] + 1


def as_bound(x):
    n = read(x)
    return torch.where(torch.arange(x.shape[0]) < n, x, 0.0), x * (torch.arange(20) == n)


def as_scalar(x):
    n = read(x)
    return x * n + n, x.clamp(-n, n), x / (n + 1), torch.full((2,), n), x.add(x, alpha=n)


def in_arithmetic(x):
    n = read(x)
    return x * (n // 2 + 1) - n % 3, 2 * n, -n, abs(n - 5), n**2, max(n, 3), min([n, 4])


def as_listed(x):
    n, (m,) = (x > 0).sum().tolist(), (x > 3).sum(0, keepdim=True).tolist()
    return x * n + m, n - m


def as_several(x):
    counts = (x.view(2, 10) > 0).sum(1)
    return [each * 2 for each in x[: int(counts.sum())].split(counts.tolist())]


def as_place(x):
    n = read(x)
    table = x.view(4, 5)
    parts = table[n % 4, n % 5], table[:, n % 5], table[..., n % 5, None]
    return x[n], x.select(0, n) * 2, *parts, table[torch.tensor([0, 2]), n % 5]


def as_written_place(x):
    n = read(x)
    x[n] = 9
    x.view(4, 5)[:, n % 5] += 1
    x[:n] *= 2
    return x * 2


def as_tensor(x):
    n = read(x)
    numbers = torch.tensor([n, 2, n * 3]), torch.tensor([[n * 0.5], [1]]), torch.as_tensor(n)
    return torch.tensor(n) + x, *numbers, torch.tensor(n, dtype=torch.int32)


def as_tensor_in_an_index(x):
    n = (x > 0).sum()
    return x[n] * 2, x[:n] + 1, x[n:].sum(), x.view(4, 5)[n % 4, torch.tensor([0, 1])]


def as_tensor_in_a_size(x):
    n = (x > 0).sum()
    return torch.arange(n), torch.zeros(n, 2) + 1, x.narrow(0, 0, n) * 2


def as_exponent(x):
    n = read(x)
    return x * 0.9**n, x * (1 - 0.99**n)


def in_functions(x):
    n = read(x)
    return x * float(n), x * math.sqrt(n), x * (1 / (n + 1)), x.sum() / max(n, 1)


def of_floats(x):
    total = (x > 0).float().sum()
    return x[: int(total)] * 2, math.ceil(total.item() / 2), x * total.item()


def of_two(x):
    n, m = read(x), int((x > 3).sum())
    return torch.ones(n + 1, m + 1) * n, x[: n - m] * m, sum([n, m])


def inside_another(x):
    y = x[: read(x)] * 2
    m = int((y > 4).sum())
    return y[:m] + 1, torch.arange(m)


def with_chosen(x):
    y = x[x > 0]
    return y * torch.arange(read(x)), y[: read(x)]


def padded(x):
    n = read(x)
    return functional.pad(x[:n], (0, 20 - n)), torch.cat([x[:n], torch.zeros(20 - n)])


def expanded(x):
    n = read(x)
    return x.sum().expand(n) * 2, x.expand(n, 20).mean(1), x.repeat(n)


def reduced(x):
    n = read(x)
    y = x[:n]
    return y.softmax(0), torch.outer(y, y), y @ y, y.cumsum(0)


def returned(x):
    n = read(x)
    return {"n": n, "all": [n + 1, (n, x + 1)]}


def compared(x):
    n = read(x)
    return n > 3, n == 5, x + 1


def checked(x):
    n = read(x)
    assert n < 9, f"too many: {n}"
    if n == 1:
        raise ValueError("one")
    return x[:n] + 1


def divided(x):
    return x * (1.0 / read(x))


def out_of_range(x):
    return x[read(x) + 4] * 2


def too_long(x):
    return x.narrow(0, 0, read(x) * 3) * 2


def negative_size(x):
    return torch.zeros(read(x) - 3) + 1


def handled(x):
    try:
        return torch.zeros(read(x) - 3) + 1
    except RuntimeError as error:
        return str(error)


def negative(x):
    n = read(x) - 20
    return x * n, n, x + 2 * n


def large(x):
    n = read(x) * 10**15
    return torch.tensor(n), torch.full((2,), n), n * n * n


def hashed(x):
    return x * ((read(x) * 6364136223846793005 + 1) % 97)


def written_before(x):
    x.mul_(2)
    return x[: read(x)] * 2


def written_after(x):
    y = x[: read(x)] * 2
    x.add_(1)
    return y


def read_again(x):
    count = (x > 0).sum()
    first = int(count)
    count.data.add_(1)
    second = int(count)
    count += 1
    return first, second, torch.zeros(int(count)), x[: -(-first // 2)]


def drawn(x):
    return torch.rand(3), torch.rand(read(x)), torch.rand(2)


def printed(x):
    print("before")
    y = torch.ones(read(x)) * 2
    print("after")
    return y


WHOLE = {
    as_size: 4,
    as_end: 4,
    as_beginning: 4,
    as_part: 4,
    from_the_end: 3,
    as_bound: 4,
    as_scalar: 4,
    in_arithmetic: 4,
    as_listed: 6,
    as_several: 8,
    as_place: 4,
    as_written_place: 8,
    as_tensor: 4,
    as_tensor_in_an_index: 7,
    as_tensor_in_a_size: 4,
    as_exponent: 2,
    in_functions: 4,
    of_floats: 5,
    of_two: 7,
    inside_another: 9,
    with_chosen: 8,
    padded: 4,
    expanded: 4,
    reduced: 4,
    returned: 2,
    compared: 2,
    checked: 3,
    divided: 3,
    out_of_range: 4,
    too_long: 5,
    negative_size: 2,
    handled: 2,
    negative: 4,
    large: 4,
    hashed: 7,
    written_before: 4,
    written_after: 4,
    read_again: 6,
    drawn: 4,
    printed: 4,
}
"""Programs that are captured whole, and of how many compiled ones the calls are made.

The first reads the integer; others are for integers from 2 on, for 0 and for 1.
"""


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
@pytest.mark.sampled(4)
def test_integers_of_all_values_are_right_in_one_graph(program, capsys):
    compiled = plait.compile(program, fullgraph=True)
    compare(compiled, program)
    report = plait.report(compiled)
    assert {graph.outcome for graph in report.graphs} == {"compiled"}
    assert (len(compiled.entries), len(report.graphs)) == (1, WHOLE[program])
    lines = capsys.readouterr().out.split()
    assert lines == (["before", "after"] * 2 * len(VALUES) if program is printed else [])


def branches(x):
    n = read(x)
    return x + n if n > 3 else x - n


def loops(x):
    for place in range(read(x)):
        x = x + place
    return x


def takes_from_a_list(x):
    return x * [1, 2, 3][read(x) % 3]


def shows(x):
    n = read(x)
    return f"{n} of them", x + n


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (branches, "GB0003"),
        (loops, "GB0004"),
        (takes_from_a_list, "GB0004"),
        (shows, "GB0004"),
        (lambda x: torch.tril_indices(read(x), 3), "GB0004"),
    ],
)
def test_what_python_asks_of_an_integer_breaks_there(program, code):
    compiled = plait.compile(program)
    compare(compiled, program)
    assert compiled.breaks[0].code == code
    assert len(compiled.entries) == 1


def test_a_value_that_can_be_known_is_taken_where_it_is_asked_for():
    def of_marks(x, marks):
        n = int(marks.sum())
        return x + n if n > 3 else x[: n + 1]

    compiled = plait.compile(of_marks)
    for count in VALUES:
        marks = (torch.arange(20) < count).long()
        same(compiled(call_with(3), marks), of_marks(call_with(3), marks))
    assert "int(marks.sum()) is 2" in str(compiled.recompiles[0])


def test_a_value_that_nothing_asks_for_is_not_taken():
    def of_marks(x, marks):
        return x[: int(marks.sum())] * 2

    compiled = plait.compile(of_marks, fullgraph=True)
    for count in VALUES:
        marks = (torch.arange(20) < count).long()
        same(compiled(call_with(3), marks), of_marks(call_with(3), marks))
    assert len(compiled.entries) == 1


def test_an_argument_that_holds_an_integer_is_an_open_number():
    def program(x, n):
        k = int(n)
        return x[:k] * k if k % 2 else x - k

    compiled = plait.compile(program, fullgraph=True)
    for count in (2, 5, 0, 1, 17, 9, 8, 12):
        n = torch.tensor(count)
        same(compiled(call_with(3), n), program(call_with(3), n))
    assert "n.item() % 2" in str(compiled.recompiles[0])
    assert len(compiled.entries) == 3  # even, odd, and 1


class Padded(nn.Module):
    """Rows of several lengths, up to the longest."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x, lengths):
        longest = int(lengths.max())
        mask = torch.arange(longest)[None] < lengths[:, None]
        y = self.linear(x[:, :longest]).tanh() * mask[..., None]
        self.calls += 1
        return y.sum((1, 2)) / lengths, y.mean() * 0.9**longest, longest


def test_gradients_flow_through_sizes_that_are_read():
    torch.manual_seed(0)
    mine = Padded().double()
    other = copy.deepcopy(mine)
    compiled = plait.compile(mine, fullgraph=True)
    for lengths in ([2, 4], [3, 5], [1, 1], [6, 2], [7, 7], [1, 1]):
        found = []
        for run, layer in ((compiled, mine), (other, other)):
            x = torch.arange(70, dtype=torch.float64).view(2, 7, 5).div(30).requires_grad_()
            sums, mean, longest = run(x, torch.tensor(lengths))
            (sums.sin().sum() + mean).backward()
            found.append((sums, mean, longest, x.grad, layer.linear.weight.grad, layer.calls))
        same(*found)


def test_a_training_step_behind_a_read_is_one_program():
    def made():
        torch.manual_seed(0)
        layer = nn.Linear(20, 3).double()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)

        def step(x):
            n = int((x > 0).sum())
            optimizer.zero_grad()
            loss = layer(x)[:n].square().mean() * n
            loss.backward()
            optimizer.step()
            return loss.item()

        return layer, step

    (mine, step), (other, wanted) = made(), made()
    compiled = plait.compile(step)
    for count in (2, 3, 2, 1, 3, 2):
        x = call_with(count).double()
        assert compiled(x) == pytest.approx(wanted(x))
        same(list(mine.state_dict().values()), list(other.state_dict().values()))
    names = {graph.name for graph in plait.report(compiled).graphs}
    assert not any("backward" in name for name in names)
    assert any("part2" in name for name in names)
    assert not compiled.breaks


def test_threads_have_integers_of_their_own():
    compiled = plait.compile(of_two)
    errors = []

    def calls(count):
        try:
            compare(compiled, of_two, (count,) * 5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=calls, args=(count,)) for count in (2, 9, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


ARGUMENTS = {
    "x[n]": (lambda x, n: x[n] + 1, 3),
    "x[-n]": (lambda x, n: x[-n] + 1, 3),
    "x[:, n]": (lambda x, n: x.view(4, 5)[:, n % 5] + 1, 3),
    "x[i, n]": (lambda x, n: x.view(4, 5)[torch.tensor([0, 2]), n % 5] + 1, 3),
    "tensor": (lambda x, n: torch.tensor(n) + x, 3),
    "tensors": (lambda x, n: torch.tensor([n, n + 1, 3]) + x[:3], 3),
    "floats": (lambda x, n: torch.tensor(n, dtype=torch.float32) + x, 3),
    "power": (lambda x, n: x * 0.9**n, 2),
    "bias": (lambda x, n: x / (1 - 0.999 ** (n + 1)), 2),
    "root": (lambda x, n: x * math.sqrt(n), 2),
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.sampled(3)
def test_integers_that_are_passed_stay_open_as_places_tensors_and_exponents(name):
    program, programs = ARGUMENTS[name]
    compiled = plait.compile(program, fullgraph=True)
    for n in (3, 2, 5, 9, 17, 4, 13, 1):
        same(compiled(call_with(3), n), program(call_with(3), n))
    assert len(compiled.entries) == 2
    assert len(plait.report(compiled).graphs) == programs


def test_arithmetic_on_integers_is_exact():
    def program(x, n):
        return x * ((n * 6364136223846793005 + 1) % 97), x * (n * n * n % 7)

    compiled = plait.compile(program, fullgraph=True)
    for n in (3, 4, 5, 2**31 - 1, 2**32 + 7, 2**50 + 1, 2**62 - 1, -(2**40) - 5):
        same(compiled(call_with(3), n), program(call_with(3), n))
