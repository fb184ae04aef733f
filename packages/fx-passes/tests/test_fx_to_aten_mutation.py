"""Mutation, views and aliasing: recorded programs do to their callers what eager does."""

from __future__ import annotations

import pytest
import torch
from fx_oracle import check_program
from torch import fx


def set_item(target, index, value):
    target[index] = value


def make(like, constructor, *args):
    """A tensor made while the program runs: the proxy argument keeps it from running earlier."""
    return getattr(torch, constructor)(*args)


fx.wrap("set_item")
fx.wrap("make")


def _in_place(x):
    x.add_(1)
    return x * 2


def _in_place_returned(x):
    return x.mul_(3)


def _in_place_on_view(x):
    x[0].add_(1)
    return x.sum()


def _in_place_on_column(x):
    x[:, 1].mul_(2)
    return x + 1


def _in_place_on_strided_slice(x):
    x[::2].copy_(x[1::2])
    return x.clone()


def _in_place_on_transposed(x):
    x.t().add_(torch.arange(3.0))
    return x


def _view_made_before_write(x):
    view = x.view(-1)
    x.add_(1)
    return view * 2


def _view_of_view_written(x):
    row = x.view(2, 3, 2).transpose(0, 1)[1]
    row.fill_(7)
    return x.sum(0)


def _sibling_views(x):
    a, b = x[0], x[0:1]
    a.add_(1)
    b.mul_(2)
    return a + x[1], b


def _split_parts(x):
    a, b = x.split(2, 1)
    a.add_(b)
    return x * 1.5


def _unbind_parts(x):
    parts = x.unbind(0)
    parts[1].sub_(parts[0])
    return torch.stack(parts)


def _chunked(x):
    a, b = x.chunk(2, -1)
    b.copy_(a)
    return a, b


def _diagonal(x):
    x.diagonal().zero_()
    return x + 0.5


def _unsqueezed(x):
    x.unsqueeze(0).unsqueeze(-1).add_(1)
    return x.sum()


def _squeezed(x):
    y = x.unsqueeze(1)
    y.squeeze(1).mul_(2)
    return y


def _as_strided(x):
    x.view(-1)[1:].as_strided((2, 2), (4, 1)).add_(10)
    return x * 1


def _reinterpreted(x):
    x.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return x + 0.0


def _set_item(x, y):
    set_item(x, (slice(None), slice(1, 3)), y[:, :2])
    return x


def _set_item_everything(x, y):
    set_item(x, Ellipsis, y)
    return x + y


def _set_item_scalar(x):
    set_item(x, 0, 5.0)
    return x


def _set_item_mask(x):
    set_item(x, x > 0, 0.0)
    return x


def _index_put(x):
    x.index_put_((torch.tensor([0, 2]),), torch.tensor(1.5))
    return x


def _index_put_accumulate(x):
    x.index_put_((torch.tensor([0, 0, 1]),), torch.ones(3, 4), accumulate=True)
    return x * 2


def _scatter(x):
    return x.scatter_(1, torch.tensor([[0], [1], [2]]), 9.0)


def _masked_fill(x):
    return x.masked_fill_(x > 0, -1.0)


def _swap(x, y):
    saved = x.clone()
    x.copy_(y)
    y.copy_(saved)
    return x - y


def _copy_from_other(x, y):
    x.copy_(y)
    return y + 1


def _copy_own_transpose(x):
    square = x[:3, :3]
    square.copy_(square.t().clone())
    return square.sum()


def _copy_casts(x):
    x.copy_(torch.arange(4))
    return x


def _out_argument(x, y):
    torch.add(x, y, out=x)
    return x


def _out_fresh(x, y):
    out = make(x, "empty", 3, 4)
    torch.mul(x, y, out=out)
    return out


def _out_resized(x):
    out = make(x, "empty", 0)
    torch.sin(x, out=out)
    return out + 1


def _write_then_unrelated(x):
    y = x.clone()
    x.zero_()
    return y


def _fresh_written(x):
    y = make(x, "zeros", 3, 4)
    y[1].add_(x[0])
    return y


def _fresh_copy_of_input(x):
    y = torch.empty_like(x)
    y.copy_(x)
    return y


def _transposed_in_place(x):
    x.t_()
    return x + 1


def _transposed_then_written(x):
    x.t_()
    x.add_(1)
    return x


def _unsqueezed_in_place(x):
    x.unsqueeze_(0)
    return x


def _fresh_transposed_in_place(x):
    y = x + 1
    y.t_()
    return y


def _in_place_twice(x):
    x.add_(1).mul_(2)
    x.relu_()
    return x.sum(), x


def _in_place_dtype(x):
    y = (x * 4).to(torch.int32)
    y.add_(2)
    y.div_(2, rounding_mode="floor")
    return y


def _foreach(x, y):
    torch._foreach_add_([x, y], 1.0)
    return x * y


def _constant_written(x):
    c = make(x, "tensor", [1.0, 2.0, 3.0, 4.0])
    c.add_(x[0])
    return c


def _net_nothing(x):
    x.copy_(x)
    return x + 1


MUTATING = [
    (_in_place, 1),
    (_in_place_returned, 1),
    (_in_place_on_view, 1),
    (_in_place_on_column, 1),
    (_in_place_on_transposed, 1),
    (_view_made_before_write, 1),
    (_view_of_view_written, 1),
    (_sibling_views, 1),
    (_split_parts, 1),
    (_unbind_parts, 1),
    (_chunked, 1),
    (_diagonal, 1),
    (_unsqueezed, 1),
    (_squeezed, 1),
    (_as_strided, 1),
    (_set_item, 2),
    (_set_item_everything, 2),
    (_set_item_scalar, 1),
    (_set_item_mask, 1),
    (_index_put, 1),
    (_index_put_accumulate, 1),
    (_scatter, 1),
    (_masked_fill, 1),
    (_swap, 2),
    (_copy_from_other, 2),
    (_copy_own_transpose, 1),
    (_copy_casts, 1),
    (_out_argument, 2),
    (_out_fresh, 2),
    (_out_resized, 1),
    (_write_then_unrelated, 1),
    (_fresh_written, 1),
    (_fresh_copy_of_input, 1),
    (_transposed_in_place, 1),
    (_transposed_then_written, 1),
    (_unsqueezed_in_place, 1),
    (_fresh_transposed_in_place, 1),
    (_in_place_twice, 1),
    (_in_place_dtype, 1),
    (_foreach, 2),
    (_constant_written, 1),
    (_net_nothing, 1),
]


@pytest.fixture(params=[torch.float32, torch.float64], ids=["f32", "f64"])
def dtype(request):
    """Programs run in both precisions; float64 with a tolerance that only rounding explains."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def tolerance_of(dtype):
    return 1e-6 if dtype is torch.float32 else 1e-13


@pytest.mark.parametrize(("program", "count"), MUTATING, ids=[p.__name__[1:] for p, _ in MUTATING])
def test_mutation_is_as_in_eager(program, count, dtype):
    torch.manual_seed(1)
    inputs = [torch.randn(3, 4) for _ in range(count)]
    check_program(program, inputs, tolerance=tolerance_of(dtype))


@pytest.mark.parametrize(
    ("program", "count"),
    [p for p in MUTATING if p[0] is not _as_strided],
    ids=[p.__name__[1:] for p, _ in MUTATING if p is not _as_strided],
)
def test_mutation_of_inputs_that_are_not_contiguous_is_as_in_eager(program, count):
    torch.manual_seed(1)
    inputs = [torch.randn(4, 3).t() for _ in range(count)]
    if program in (_view_made_before_write, _view_of_view_written):
        pytest.skip("view needs contiguous memory")
    check_program(program, inputs, tolerance=1e-6)


@pytest.mark.parametrize(
    "program", [_in_place, _in_place_on_column, _sibling_views, _set_item_mask]
)
def test_mutation_of_a_window_into_larger_memory_leaves_the_rest_alone(program):
    whole = torch.arange(80.0).view(8, 10) - 30
    check_program(program, [whole[2:5, 1:9:2]], tolerance=1e-6)


def test_bits_written_through_another_dtype_are_seen():
    check_program(_reinterpreted, [torch.randn(3, 4)])


def test_rows_copied_within_one_tensor():
    check_program(_in_place_on_strided_slice, [torch.randn(4, 3)])
