"""How often functions are compiled: what changes from call to call does not compile anew."""

from __future__ import annotations

import abc
import collections
import copy
import logging
import time
import typing

import pytest
import torch
from tracer_oracle import compiled

from plait_bytecode_tracer.guards.native import NATIVE

NAMES = ("Adam", "NAdam", "RAdam", "ASGD", "Adafactor")
SCHEDULES = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.95**epoch),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, max_lr=0.1, total_steps=30, cycle_momentum="betas" in o.defaults
    ),
}


def entries(made):
    return [len(each.entries) for each in made.family()]


def training(name, schedule, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    groups = [
        {"params": list(model[0].parameters())},
        {"params": list(model[1].parameters()), "lr": 0.02},
    ]
    optimizer = getattr(torch.optim, name)(groups, **options)
    return model, optimizer, SCHEDULES[schedule](optimizer)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(3)
def test_steps_of_an_optimizer_are_compiled_whole(name, foreach):
    schedule = list(SCHEDULES)[len(name) % len(SCHEDULES)]
    options = {} if name == "Adafactor" else {"foreach": foreach}
    sides = [training(name, schedule, **options) for _ in range(2)]
    steps = [sides[0][1].step, compiled(lambda: sides[1][1].step())]
    for number in range(20):
        for (model, optimizer, scheduler), step in zip(sides, steps, strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, number / 4 - 1)
            step()
            scheduler.step()
            if number == 12:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for one, other in zip(sides[0][0].parameters(), sides[1][0].parameters(), strict=True):
            assert torch.equal(one, other)
    assert entries(steps[1]) == [3 if name == "RAdam" else 2]  # it begins without momentum
    assert not steps[1].breaks


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.sampled(2)
def test_an_optimizer_counts_the_steps_of_many_parameters(foreach):
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(60)]
    optimizer = torch.optim.Adam(parameters, foreach=foreach)
    step = compiled(lambda: optimizer.step(), data_dependent=False)
    for number in range(4):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, number - 1)
        step()
    assert entries(step) == [2]
    assert not step.breaks


def test_a_loop_with_a_break_is_compiled_a_few_times():
    def program(x):
        whole, part = 0, 0.5
        for place, value in enumerate([1.5] * 100):
            whole += place
            part *= 1.01
            time.sleep(0)
            x = x + whole * value + part
        return x, whole, part

    made = compiled(program)
    for _ in range(2):
        expected, found = program(torch.ones(2)), made(torch.ones(2))
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]
    assert sum(entries(made)) <= 5


def test_functions_that_a_call_makes_are_known_by_their_parts():
    def program(x, n):
        kept = {"scale": lambda y: y * n}

        def add(y, by=n):
            return kept["scale"](y) + by

        time.sleep(0)
        return add(x)

    made = compiled(program)
    for n in (1.5, 2.5, 3.5, 4.5, 5.5):
        assert torch.equal(made(torch.ones(2), n), program(torch.ones(2), n))
    assert entries(made) == [2, 2]


def test_functions_that_are_passed_are_known_by_their_parts():
    def program(x, function):
        return function(x) + 1

    def make(n):
        return lambda y: y * n

    made = compiled(program)
    for n in range(2, 9):
        assert torch.equal(made(torch.ones(2), make(n)), torch.ones(2) * n + 1)
    assert entries(made) == [2]
    assert torch.equal(made(torch.ones(2), lambda y: y - 5), torch.ones(2) - 4)
    reason = str(made.recompiles[-1])
    assert "function has the code of" in reason


def test_a_number_in_a_tensor_is_read_before_the_graph():
    def program(x, step):
        step += 1
        if step.item() > 5:
            return x * step.item()
        return x / (1 - 0.9 ** step.item())

    made = compiled(program)
    x, step, other = torch.ones(2), torch.tensor(0.0), torch.tensor(0.0)
    for _ in range(10):
        assert torch.equal(made(x, step), program(x, other))
        assert torch.equal(step, other)
    assert entries(made) == [2]
    assert str(made.recompiles[0]).startswith("not ((step + 1).item() > 5) no longer holds")


def test_the_warning_of_the_limit_names_the_guard_at_fault(caplog):
    def program(x, n):
        time.sleep(0)
        return x, type(n)

    made = compiled(program, recompile_limit=3)
    with caplog.at_level(logging.WARNING):
        for n in (1, 2.5, "a", None, (), []):
            made(torch.ones(2), n)
    assert "has 3 specialisations" in caplog.text
    assert "n == 'a' no longer holds: now None" in caplog.text


@pytest.mark.parametrize(
    "hold", [lambda v: (v,), lambda v: [v], lambda v: {0: v}, lambda v: [(v,)]]
)
@pytest.mark.parametrize("dynamic", [None, False])
def test_a_new_object_at_the_address_of_an_old_one_is_checked_anew(hold, dynamic):
    def program(x, held):
        value = held[0]
        return x * (value[0] if type(value) is tuple else value)

    NATIVE.wait()
    made = compiled(program, dynamic=dynamic)
    x = torch.ones(2)
    for _ in range(2):
        for text in ("1.5", "2.5", "3.5"):
            for _ in range(8):
                assert torch.equal(made(x, hold(float(text))), x * float(text))


def test_classes_that_a_call_makes_are_known_by_their_parts():
    def program(x, n):
        class Base:
            factor = 2

            def apply(self, y):
                return y * self.factor + n

        class Scale(Base):
            def apply(self, y):
                return super().apply(y) + self.by

        made = Scale()
        made.by = n
        time.sleep(0)
        return made.apply(x), Scale.factor

    made = compiled(program)
    for n in (1.5, 2.5, 3.5, 4.5, 5.5):
        assert torch.equal(made(torch.ones(2), n)[0], program(torch.ones(2), n)[0])
    assert entries(made) == [2, 2]


def test_classes_of_other_kinds_that_a_call_makes_are_known_by_their_parts():
    def program(x):
        class Meta(type):
            def __call__(cls, *args):
                return super().__call__(*args)

        class Base(abc.ABC):
            @abc.abstractmethod
            def apply(self, y): ...

        class Row(list, metaclass=Meta):
            def first(self):
                return self[0]

        class Adding(Base):
            def apply(self, y):
                return y + 1

        class OddError(ValueError):
            pass

        time.sleep(0)
        try:
            raise OddError(2)
        except OddError as error:
            return Adding().apply(x) + Row([x]).first() + error.args[0]

    made = compiled(program)
    for n in (1.5, 2.5, 3.5, 4.5):
        assert torch.equal(made(torch.full((2,), n)), program(torch.full((2,), n)))
    assert entries(made) == [1, 1]


def test_a_list_that_grows_in_a_loop_over_a_break_costs_a_bounded_number_of_compiles():
    def program(x, n):
        made = []
        for k in range(n):
            made.append(x + k)
            time.sleep(0)
        return made

    made = compiled(program)
    for n in (12, 30):
        expected, found = program(torch.ones(2), n), made(torch.ones(2), n)
        assert all(map(torch.equal, found, expected))
    assert sum(entries(made)) <= 6


def test_named_tuples_made_before_a_break_do_not_compile_again():
    def program(x, n):
        class Typed(typing.NamedTuple):
            first: typing.Any
            second: int = 2

        Plain = collections.namedtuple("Plain", "a b")
        p, q = Plain(x, 1), Typed(x)
        time.sleep(0)
        return p._replace(b=3).b * q.first + p.a * q.second, type(p) is Plain, type(q) is Typed

    made = compiled(program)
    for n in range(4):
        assert torch.equal(made(torch.full((2,), n), 0)[0], program(torch.full((2,), n), 0)[0])
    assert entries(made) == [1, 1]
