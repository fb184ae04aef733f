"""Errors that only the run of a graph raises, where the graph changes tensors: who sees them."""

from __future__ import annotations

import contextlib
import logging

import torch

from conformance.declare import case, t

_logger = logging.getLogger("conformance.failing_graphs")


def _places():
    """A tensor to change, a place that may be out of range, what is read, and where to note."""
    return [(t(3), torch.tensor([n]), t(4), []) for n in (1, 9, 2, 7)]


@case(_places)
def noted_before_the_error(x, place, table, seen):
    seen.append("begun")
    y = table[place]
    x.add_(1)
    seen.append("read")
    return y + x.sum()


@case(_places)
def handled_after_a_change(x, place, table, seen):
    x.add_(1)
    try:
        y = table[place]
    except IndexError:
        seen.append("out of range")
        y = table.sum()
    return y + x


@case(_places)
def handled_before_a_change(x, place, table, seen):
    try:
        y = table[place]
        x.add_(1)
    except IndexError:
        seen.append("out of range")
        y = table.sum()
    return y + x


@case(_places)
def handled_by_the_caller_of_a_function(x, place, table, seen):
    def read():
        x.mul_(2)
        return table.index_select(0, place)

    try:
        y = read()
    except (IndexError, RuntimeError):
        seen.append(x.sum())
        y = table[:1]
    return y + x


@case(lambda: [(t(5), torch.tensor([n]), t(4), []) for n in (1, 9, 2, 7)])
def handled_after_a_dropout_that_does_nothing(x, place, table, seen):
    table = torch.nn.functional.dropout(table, 0.5, False)
    try:
        return table[place] + x
    except IndexError:
        seen.append("out of range")
        return x


@case(_places)
def own_tensor_changed(x, place, table, seen):
    made = torch.zeros(4)
    made[1] = 5
    made.mul_(2)
    seen.append("begun")
    try:
        return made[place] + x
    except IndexError:
        return made.sum() + x


@case(_places)
def change_that_fails_itself(x, place, table, seen):
    total = x.sum()
    try:
        x.index_fill_(0, place, 7.0)
    except (IndexError, RuntimeError):
        seen.append(total)
    return x * total


@case(_places)
def printed_before_the_error(x, place, table, seen):
    print("begun")
    y = table[place]
    x.add_(1)
    print("read")
    return y + x.sum()


@case(_places)
def logged_before_the_error(x, place, table, seen):
    _logger.warning("begun")
    seen.append(len(seen))
    made = torch.ones(4).mul_(3)
    return made[place] * table[place] + x


@case(lambda: [(torch.arange(3), torch.tensor(n), []) for n in (2, 0, 1)])
def integers_divided(x, by, seen):
    x.add_(4)
    try:
        return x // by
    except RuntimeError:
        seen.append("by zero")
        return x


@case(lambda: [(torch.eye(2) * n, t(2), []) for n in (2, 0, 1)])
def singular(matrix, x, seen):
    seen.append("begun")
    x.mul_(2)
    try:
        inverse = torch.linalg.inv(matrix)
    except RuntimeError as error:
        return type(error).__name__, x
    return inverse @ x, x


def _seeded():
    for number, args in enumerate(_places()):
        torch.manual_seed(number)
        yield args


@case(_seeded)
def handled_after_random_numbers(x, place, table, seen):
    y = torch.rand(3)
    try:
        z = table[place]
    except IndexError:
        seen.append("out of range")
        z = table.sum()
    return y + z, torch.rand(2)


@case(_seeded)
def noted_between_random_numbers(x, place, table, seen):
    seen.append(torch.rand(2))
    y = torch.nn.functional.dropout(table, 0.5)[place]
    seen.append(torch.randn(2))
    return y


@case(_seeded, then=lambda result: torch.rand(2))
def drawn_into_what_is_made(x, place, table, seen):
    made = torch.nn.Linear(3, 2)
    print("made", tuple(made.weight.shape))
    return torch.nn.functional.embedding(place, made.weight) + torch.rand(())


@case(_seeded)
def drawn_into_an_argument(x, place, table, seen):
    x.uniform_()
    try:
        return table[place] + x
    except IndexError:
        return x


@case(_seeded)
def attention_that_draws(x, place, table, seen):
    q = table.reshape(1, 1, 4, 1).expand(1, 1, 4, 2)
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    try:
        return y[0, 0, place], torch.rand(2)
    except IndexError:
        return torch.rand(2)


def _dtypes():
    kinds = (torch.float32, torch.int64, torch.float64, torch.bool, torch.complex64)
    return [(t(2, 2).to(kind), [t(2), t(2)], []) for kind in (*kinds, torch.float32)]


@case(_dtypes)
def products_of_dtypes(x, changed, seen):
    seen.append("begun")
    torch._foreach_mul_(changed, 2.0)
    y = torch.nn.functional.linear(x, t(2, 2))
    seen.append("done")
    return y


@case(_dtypes)
def kernels_of_dtypes(x, changed, seen):
    found = []
    functions = (torch.relu, torch.neg, lambda v: v.softmax(0), lambda v: v & v, torch.var)
    for function in functions:
        torch._foreach_add_(changed, 1.0)
        try:
            found.append(function(x))
        except (RuntimeError, NotImplementedError) as error:
            found.append(type(error).__name__)
    return found


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Looked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, place):
        return table[place] * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sum().expand(4), None


@torch.library.custom_op("conformance::refusing", mutates_args=())
def refusing(place: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    if int(place) > 3:
        raise ValueError("out of range")
    return table[place]


@refusing.register_fake
def _(place, table):
    return table.new_empty(place.shape)


def _with_gradients():
    return [(t(3, grad=True), place, t(4, grad=True), seen) for _, place, _, seen in _places()]


@case(_with_gradients)
def handled_before_a_function(x, place, table, seen):
    try:
        y = table[place]
    except IndexError:
        seen.append("out of range")
        y = table.sum()
    return Doubled.apply(x) + y


@case(_with_gradients)
def handled_around_a_function(x, place, table, seen):
    try:
        return Looked.apply(table, place) + x
    except IndexError:
        seen.append("out of range")
        return x


@case(_with_gradients)
def handled_before_a_transform(x, place, table, seen):
    try:
        y = table[place]
    except IndexError:
        seen.append("out of range")
        y = table.sum()
    return torch.vmap(lambda row: row * 2)(x) + y


@case(_places)
def handled_around_an_operator(x, place, table, seen):
    try:
        return refusing(place, table) + x
    except ValueError as error:
        seen.append(str(error))
        return x


@case(_places)
def handled_before_an_operator(x, place, table, seen):
    try:
        y = table[place]
    except IndexError:
        seen.append("out of range")
        y = table.sum()
    return refusing(torch.tensor(1), table) + y


class Noting:
    def __init__(self, seen):
        self.seen = seen

    def __enter__(self):
        self.seen.append("entered")

    def __exit__(self, kind, error, traceback):
        self.seen.append(kind is None)
        return kind is ValueError


@case(_places)
def left_by_an_operator(x, place, table, seen):
    with Noting(seen):
        return refusing(place, table) + x
    return x


@case(_places)
def mode_left_by_an_operator(x, place, table, seen):
    with torch.no_grad():
        return refusing(place, table) + x


@case(_places)
def mode_of_before_a_break_left_by_an_operator(x, place, table, seen):
    with torch.autocast("cpu"):
        y = x + 1
        if float(y.sum()) > 1000:
            return y
        return refusing(place, table) + x


def _statistics():
    """What is normalized, the running mean that this changes, what is read and where, notes."""
    return [
        (t(4, 3), torch.zeros(3), torch.ones(3), t(5), torch.tensor([n]), []) for n in (1, 9, 2, 7)
    ]


@case(_statistics, then=lambda result: torch.is_autocast_enabled("cpu"))
def read_under_a_mode_after_statistics(x, mean, variance, table, place, seen):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.nn.functional.batch_norm(x, mean, variance, training=True)
        y = y.sum() + table.index_select(0, place)
    return y


@case(_statistics)
def read_under_a_manager_that_swallows(x, mean, variance, table, place, seen):
    with contextlib.suppress(IndexError):
        y = torch.nn.functional.batch_norm(x, mean, variance, training=True)
        return y.sum() + table.index_select(0, place)
    return mean + 1


class _Noting:
    def __init__(self, seen):
        self.seen = seen

    def __enter__(self):
        self.seen.append("entered")

    def __exit__(self, kind, error, traceback):
        self.seen.append(None if kind is None else kind.__name__)


@case(_statistics)
def read_under_a_manager_that_notes(x, mean, variance, table, place, seen):
    with _Noting(seen), torch.no_grad():
        y = torch.nn.functional.batch_norm(x, mean, variance, training=True)
        return y.sum() + table.index_select(0, place)


@case(_statistics)
def read_before_a_final_note(x, mean, variance, table, place, seen):
    try:
        with torch.no_grad():
            y = torch.nn.functional.batch_norm(x, mean, variance, training=True)
            return y.sum() + table.index_select(0, place)
    finally:
        seen.append(mean.sum())
