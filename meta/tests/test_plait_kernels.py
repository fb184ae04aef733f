"""Triton kernels that a program launches itself: parts of its graph, whose writes stay."""

import sys

import pytest
import torch

import plait

triton = pytest.importorskip("triton", reason="programs launch kernels of Triton's")
import triton.language as tl  # noqa: E402  # there is one

with triton.knobs.runtime.scope():
    triton.knobs.runtime.interpret = True  # for the kernels that are defined here

    @triton.jit
    def added(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = places < n
        x = tl.load(x_ptr + places, mask=inside)
        y = tl.load(y_ptr + places, mask=inside)
        tl.store(out_ptr + places, x + y, mask=inside)

    @triton.jit
    def scaled(x_ptr, bias_ptr, out_ptr, rate, n, BLOCK: tl.constexpr, SQUARE: tl.constexpr):
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = places < n
        x = tl.load(x_ptr + places, mask=inside) * rate
        if SQUARE:
            x = x * x
        if bias_ptr is not None:
            x = x + tl.load(bias_ptr + places, mask=inside)
        tl.store(out_ptr + places, x, mask=inside)

    @triton.jit
    def rows_scaled(x_ptr, out_ptr, of_rows, of_columns, columns, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        places = tl.arange(0, BLOCK)
        inside = places < columns
        x = tl.load(x_ptr + row * of_rows + places * of_columns, mask=inside)
        tl.store(out_ptr + row * columns + places, x * 2, mask=inside)

    by_size = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})(added)
    tuned = triton.autotune(
        configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})],
        key=["n"],
        do_bench=lambda run, quantiles: (run(), [1.0] * len(quantiles))[1],
    )(added)


def blocks(n, size):
    return (triton.cdiv(n, size),)


def sum_of(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    added[lambda meta: blocks(n, meta["BLOCK"])](x * 2, y, out, n, BLOCK=16)
    return out.relu() + 1


def sum_into(x, y):
    added[(4,)](x, y, x, x.numel(), BLOCK=16)
    return x * 2


def sum_by_size(x, y):
    out = torch.empty_like(x)
    by_size[(1,)](x, y, out, x.numel())
    return out + 1


def sum_tuned(x, y):
    out = torch.empty_like(x)
    tuned[lambda meta: blocks(meta["n"], meta["BLOCK"])](x, y, out, n=x.numel())
    return out + 1


def sum_wrapped(x, y):
    out = torch.empty_like(x)
    torch.library.wrap_triton(added)[(4,)](x, y, out, x.numel(), 16)
    return out + 1


def halves(x, y):
    out = torch.full_like(x, 3.0)
    half = x.numel() // 2
    added[(2,)](x, y, out, half, BLOCK=32)
    added[(2,)](x[half:].clone(), y[half:].clone(), out[half:], half, BLOCK=32)
    return out * 2


def without_a_bias(x, y):
    out = torch.empty_like(x)
    scaled[(4,)](x, None, out, 0.5, x.numel(), BLOCK=16, SQUARE=True)
    scaled[(4,)](out.clone(), y, out, 3, x.numel(), BLOCK=16, SQUARE=False)
    return out


def transposed(x, y):
    moved = (x.view(8, 8) + 1).t()
    out = torch.empty_like(moved, memory_format=torch.contiguous_format)
    rows_scaled[(8,)](moved, out, moved.stride(0), moved.stride(1), 8, BLOCK=8)
    return out - y.view(8, 8)


def views_of_one(x, y):
    both = torch.stack([x, y], dim=1)
    first, second = both[:, 0].contiguous(), both.t().contiguous()
    added[(4,)](first, second[0], second[1], 64, BLOCK=16)
    scaled[(4,)](second[1], None, second[0], 2.0, 64, BLOCK=16, SQUARE=False)
    return both, second * 2


PROGRAMS = [
    views_of_one,
    sum_of,
    sum_into,
    sum_by_size,
    sum_tuned,
    sum_wrapped,
    halves,
    without_a_bias,
]
PROGRAMS += [transposed]


def ran(function, *args):
    """What a function returns, and what its arguments are afterwards."""
    given = [each.clone() if isinstance(each, torch.Tensor) else each for each in args]
    return [function(*given), *given]


def check(function, compiled, *args):
    try:
        wanted = ran(function, *args)
    except Exception as error:  # interpreters of older versions cannot run all of them
        pytest.skip(f"eager: {error}")
    torch.testing.assert_close(ran(compiled, *args), wanted, rtol=0, atol=0)


def graphs(compiled):
    report = plait.report(compiled)
    assert not report.breaks, report.breaks
    return len(report.graphs)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_launch_is_part_of_the_graph(program):
    compiled = plait.compile(program)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(2):
        check(program, compiled, x, y)
    assert graphs(compiled) == 1


def test_what_a_launch_is_to_fill_is_not_filled_before():
    compiled = plait.compile(sum_of)
    check(sum_of, compiled, torch.randn(64), torch.randn(64))
    (graph,) = plait.report(compiled).graphs
    assert graph.launches == 2


@pytest.mark.parametrize("program", [sum_of, sum_tuned], ids=lambda program: program.__name__)
def test_one_program_launches_for_all_sizes(program):
    compiled = plait.compile(program, dynamic=True)
    for size in (48, 64, 33):
        check(program, compiled, torch.randn(size), torch.randn(size))
    assert graphs(compiled) == 1


def test_a_rate_that_changes_is_given_to_each_launch():
    def program(x, rate):
        out = torch.empty_like(x)
        scaled[(4,)](x, None, out, rate, x.numel(), BLOCK=16, SQUARE=False)
        return out + 1

    compiled = plait.compile(program)
    for rate in (0.5, 0.25, 0.75, 0.1):
        check(program, compiled, torch.randn(64), rate)
    assert not plait.report(compiled).breaks


def test_what_needs_gradients_is_read_without_them():
    def program(x, y):
        return sum_by_size(x, y) * x

    results = []
    for function in (program, plait.compile(program)):
        x, y = torch.arange(64.0, requires_grad=True), torch.ones(64, requires_grad=True)
        out = function(x, y)
        out.sum().backward()
        results.append((out.detach(), x.grad, y.grad))
    torch.testing.assert_close(*results, rtol=0, atol=0)


class Product(torch.autograd.Function):
    """Twice a tensor, plus another: by kernels, forward and backward."""

    @staticmethod
    def forward(ctx, x, y):
        out = torch.empty_like(x)
        scaled[(4,)](x, y, out, 2.0, x.numel(), BLOCK=16, SQUARE=False)
        return out

    @staticmethod
    def backward(ctx, grad):
        of_x = torch.empty_like(grad)
        scaled[(4,)](grad.contiguous(), None, of_x, 2.0, grad.numel(), BLOCK=16, SQUARE=False)
        return of_x, grad


class Square(torch.autograd.Function):
    """The square of a tensor times a rate, and what it squares."""

    @staticmethod
    def forward(ctx, x, rate, size):
        out, root = torch.empty_like(x), x * rate
        scaled[(4,)](x, None, out, rate, x.numel(), BLOCK=size, SQUARE=True)
        ctx.save_for_backward(x, root)
        ctx.mark_non_differentiable(root)
        ctx.rate, ctx.n = rate, x.numel()
        return out, root

    @staticmethod
    def backward(ctx, grad, _):
        x, root = ctx.saved_tensors
        of_x = torch.empty_like(x)
        added[(4,)](root * grad, root * grad + WEIGHT * 0, of_x, ctx.n, BLOCK=16)
        return of_x * ctx.rate, None, None


class SquareInBackward(torch.autograd.Function):
    """A square whose backward alone launches a kernel."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        of_x = torch.empty_like(x)
        added[(4,)](x * grad, x * grad, of_x, x.numel(), BLOCK=16)
        return of_x


WEIGHT = torch.ones(64)


def plain(x, y):
    return (Product.apply(x.sin(), y) ** 2).sum()


def twice_the_same(x, y):
    z = x * y
    return Product.apply(z, z).sum()


def two_results(x, y):
    out, root = Square.apply(x + y, 0.5, 16)
    return (out * root).sum()


def unused_gradient(x, y):
    return Product.apply(x, y.detach()).sum() + y.sum()


def in_backward_alone(x, y):
    return (SquareInBackward.apply(x) * y).sum()


def gradients_of(function):
    x, y = torch.linspace(0, 1, 64, requires_grad=True), torch.ones(64, requires_grad=True)
    loss = function(x, y)
    loss.backward()
    return loss.detach(), x.grad, y.grad


@pytest.mark.parametrize(
    "program",
    [plain, twice_the_same, two_results, unused_gradient, in_backward_alone],
    ids=lambda each: each.__name__,
)
def test_a_function_with_a_backward_of_kernels_trains(program):
    compiled = plait.compile(program)
    torch.testing.assert_close(gradients_of(compiled), gradients_of(program))
    assert graphs(compiled) == 2  # forward and backward
    assert not plait.report(compiled).eager_graphs


def test_a_function_of_kernels_trains_in_all_sizes_by_one_program():
    def program(x):
        return (Product.apply(x.sin(), x) * x).sum()

    compiled = plait.compile(program, dynamic=True)
    for rows in (4, 6, 3):
        results = []
        for function in (program, compiled):
            x = torch.linspace(0, 1, rows * 8).view(rows, 8).requires_grad_()
            function(x).backward()
            results.append(x.grad)
        torch.testing.assert_close(*results)
    assert graphs(compiled) == 2


def test_launches_are_compared_with_eager():
    compiled = plait.compile(sum_of, options={"verify": 2})
    for _ in range(2):
        check(sum_of, compiled, torch.randn(64), torch.randn(64))
    assert not plait.report(compiled).eager_graphs


def test_a_write_to_memory_that_another_argument_has_runs_as_it_is():
    def program(x, y):
        added[(2,)](x[1:], y, x[:-1], 32, BLOCK=16)
        return x + 1

    compiled = plait.compile(program)
    check(program, compiled, torch.randn(64), torch.randn(64))
    (found,) = plait.report(compiled).breaks
    assert "shares memory" in str(found)


def test_a_break_in_the_function_of_the_grid_is_one_at_the_launch(capsys):
    def program(x, y):
        out = torch.empty_like(x)

        def grid(meta):
            print(sys.getsizeof(out) > 0)
            return (4,)

        added[grid](x, y, out, x.numel(), BLOCK=16)
        return out + 1

    check(program, plait.compile(program), torch.randn(64), torch.randn(64))
    assert capsys.readouterr().out == "True\nTrue\n"


def test_a_launch_that_fails_raises_what_it_raises():
    def program(x, y):
        out = x * 2
        added[(1, 1, 1, 1)](x, y, out, x.numel(), BLOCK=16)
        return out

    with pytest.raises(AssertionError, match="at most 3 dimensions"):
        plait.compile(program)(torch.randn(64), torch.randn(64))
