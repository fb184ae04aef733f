"""What a `torch.autograd.Function` reads and does beside its arguments, where gradients are on."""

import pytest
import torch

import plait

SCALE = 1.0
HELD = {"scale": 1.0}
WEIGHTS = [torch.ones(3)]
SEEN = []


class Reading(torch.autograd.Function):
    scale = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, given):
        (x,) = ctx.saved_tensors
        return given * x.cos() * SCALE * HELD["scale"] * Reading.scale * WEIGHTS[0]


class ReadingForward(torch.autograd.Function):
    scale = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.kept = HELD["scale"]
        return x * SCALE * ReadingForward.scale + WEIGHTS[0]

    @staticmethod
    def backward(ctx, given):
        return given * ctx.kept


class Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, given):
        SEEN.append(given * 2)
        return given * 2


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count = 0
        return x * 2

    @staticmethod
    def backward(ctx, given):
        ctx.count += 1
        return given * ctx.count


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, given):
        if SCALE == 3.0:
            raise ValueError("no gradient")
        return given * 2


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x.exp(), x.sin()

    @staticmethod
    def backward(ctx, first, second):
        return first if second is None else second


def gradient(run, x, again=False):
    x = x.clone().requires_grad_()
    try:
        result = run(x)
        grads = [
            torch.autograd.grad(result.sum(), x, retain_graph=True)[0] for _ in range(1 + again)
        ]
        return [result.detach(), *grads]
    except ValueError as error:
        return str(error)


@pytest.fixture
def world():
    global SCALE
    SEEN.clear()
    yield
    SCALE, HELD["scale"], WEIGHTS[0] = 1.0, 1.0, torch.ones(3)
    Reading.scale = ReadingForward.scale = 1.0


def change(number):
    global SCALE
    parts = number % 4
    SCALE = float(number) if parts == 0 else SCALE
    HELD["scale"] = number * 0.5 if parts == 1 else HELD["scale"]
    WEIGHTS[0] = torch.full((3,), float(number)) if parts == 2 else WEIGHTS[0]
    Reading.scale = ReadingForward.scale = float(number) if parts == 3 else Reading.scale


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("function", [Reading, ReadingForward])
def test_what_they_read_is_what_it_is_in_each_call(function):
    def program(x):
        return function.apply(x * 2) * 3

    run = plait.compile(program)
    for number in range(2, 16):
        change(number)
        x = torch.tensor([0.1, 0.2, 0.3])
        torch.testing.assert_close(gradient(run, x), gradient(program, x))


@pytest.mark.usefixtures("world")
def test_an_error_of_a_backward_is_raised():
    global SCALE

    def program(x):
        return Raising.apply(x * 2)

    run = plait.compile(program)
    for scale in (1.0, 3.0, 1.0):
        SCALE = scale
        found, expected = (gradient(each, torch.ones(3)) for each in (run, program))
        assert str(found) == str(expected)


@pytest.mark.usefixtures("world")
def test_what_a_backward_notes_is_noted_each_time():
    run = plait.compile(lambda x: Noting.apply(x * 2) + 1)
    for count in range(1, 4):
        gradient(run, torch.ones(3), again=True)
        assert len(SEEN) == 2 * count
    assert all(type(each) is torch.Tensor and each.tolist() == [2.0] * 3 for each in SEEN)


def test_what_a_backward_keeps_is_there_the_next_time():
    def program(x):
        return Counting.apply(x * 2) + 1

    run = plait.compile(program)
    for _ in range(3):
        found, expected = (gradient(each, torch.ones(3), again=True) for each in (run, program))
        torch.testing.assert_close(found, expected)


def test_another_backward_is_used():
    class Mine(torch.autograd.Function):
        forward = Noting.forward
        backward = staticmethod(lambda ctx, given: given * 2)

    def program(x):
        return Mine.apply(x * 2)

    run = plait.compile(program)
    for factor in (2, 5, 2):
        Mine.backward = staticmethod(lambda ctx, given, factor=factor: given * factor)
        torch.testing.assert_close(gradient(run, torch.ones(3)), gradient(program, torch.ones(3)))


@pytest.mark.parametrize("function", [Plain, Noting])
def test_functions_that_read_nothing_are_part_of_the_graph(function):
    def program(x):
        found = function.apply(x * 2)
        return found[0] * 3 + found[1].detach() if function is Plain else found

    run = plait.compile(program)
    torch.testing.assert_close(gradient(run, torch.ones(3)), gradient(program, torch.ones(3)))
    assert bool(plait.report(run).breaks) is (function is Noting)


@torch.library.custom_op("plait_tests::reading", mutates_args=())
def reading(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("plait_tests::by_constants", mutates_args=())
def by_constants(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.scale = 2


def by_what_is_held(ctx, given):
    SEEN.append(given)
    return given * HELD["scale"]


def by_what_was_kept(ctx, given):
    return given * ctx.scale * SCALE * torch.ones_like(ctx.saved_tensors[0])


for operator, backward in ((reading, by_what_is_held), (by_constants, by_what_was_kept)):
    operator.register_fake(torch.empty_like)
    operator.register_autograd(backward, setup_context=keep)


@pytest.mark.usefixtures("world")
def test_backwards_of_operators_see_what_is_held_in_each_call():
    run = plait.compile(lambda x: reading(x * 2) + 1)
    for number in range(1, 4):
        HELD["scale"] = float(number)
        _, given = gradient(run, torch.ones(3))
        assert given.tolist() == [2.0 * number] * 3
        assert len(SEEN) == number


def test_operators_whose_backward_computes_are_part_of_the_graph():
    run = plait.compile(lambda x: by_constants(x * 2) + 1)
    assert gradient(run, torch.ones(3))[1].tolist() == [4.0] * 3
    assert not plait.report(run).breaks


def test_a_backward_of_an_operator_counts_in_the_function_around_it():
    count = 0

    @torch.library.custom_op("plait_tests::counting", mutates_args=())
    def counting(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def backward(ctx, given):
        nonlocal count
        count += 1
        return given * count

    counting.register_fake(torch.empty_like)
    counting.register_autograd(backward)
    run = plait.compile(lambda x: counting(x * 2) + 1)
    for number in range(1, 4):
        assert gradient(run, torch.ones(3))[1].tolist() == [2.0 * number] * 3
        assert count == number
