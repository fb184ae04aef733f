"""One forward and one backward for many sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import plait


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Images(nn.Module):
    """Convolutions, a batch norm, whose variance is scaled by n / (n - 1), and a max pool."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 6, 3), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.last(self.second(x).relu().mean((2, 3))).log_softmax(-1).mean()


class Block(nn.Module):
    """Of a language model: embeddings, layer norms, causal attention, dropout, a loss."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(64, 32)
        self.norm, self.mix, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.drop, self.head = nn.Dropout(drop), nn.Linear(32, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        x = self.tokens(tokens) + self.places(torch.arange(length))
        parts = self.mix(self.norm(x)).chunk(3, -1)
        heads = [each.view(batch, length, 4, 8).transpose(1, 2) for each in parts]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, 32)))
        logits = self.head(functional.gelu(x, approximate="tanh"))[:, :-1]
        return functional.cross_entropy(logits.reshape(-1, 50), tokens[:, 1:].reshape(-1))


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(50, (batch, length))


PROGRAMS = {
    "perceptron": (Perceptron, [(4, 16), (5, 16), (9, 16), (32, 16)], torch.randn, 1),
    "images": (Images, [(2, 3, 12, 12), (3, 3, 16, 14), (5, 3, 13, 15)], torch.randn, 2),
    "block": (lambda: Block(0.0), [(2, 8), (3, 8), (3, 12), (5, 7)], tokens, 1),
    "dropout": (lambda: Block(0.2), [(2, 8), (3, 8), (5, 12)], tokens, 1),
}
"""Models, sizes of their inputs, what makes these, and how many programs serve all."""


def forwards(fast) -> int:
    return sum(".backward" not in graph.name for graph in plait.report(fast).graphs)


def assert_compiled(fast):
    for graph in plait.report(fast).graphs:
        assert graph.outcome == "compiled", graph.reason


def assert_trains(model, fast, *inputs):
    """Loss, gradients and buffers are eager's; random numbers are those of eager."""
    eager = copy.deepcopy(model)
    for each in (model, eager):
        each.zero_grad()
    torch.manual_seed(1)
    loss = fast(*inputs)
    loss.backward()
    torch.manual_seed(1)
    wanted = eager(*inputs)
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    for name, parameter in eager.named_parameters():
        torch.testing.assert_close(
            model.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=name
        )
    return eager


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.sampled(2)
def test_one_program_trains_at_all_sizes(name):
    make, sizes, inputs, programs = PROGRAMS[name]
    torch.manual_seed(0)
    model = make()
    fast = plait.compile(model, dynamic=True)
    for size in sizes:
        x = inputs(*size)
        eager = copy.deepcopy(model)
        eager.zero_grad()
        assert_trains(model, fast, x)
        eager(x)
        if name == "images":
            torch.testing.assert_close(dict(model.named_buffers()), dict(eager.named_buffers()))
    assert_compiled(fast)
    assert forwards(fast) == programs


def test_sizes_that_change_are_two_compilations():
    model = Perceptron()
    fast = plait.compile(model)
    for batch in (3, 5, 8, 13):
        assert_trains(model, fast, torch.randn(batch, 16))
    assert forwards(fast) == 2


def test_sizes_of_one_and_zero_and_equal_ones():
    torch.manual_seed(0)

    def program(x, y):
        return x.unsqueeze(1) * y + (x.sum() * x.shape[0])

    fast = plait.compile(program, dynamic=True)
    for rows, others in [(4, 4), (4, 6), (1, 5), (5, 1), (1, 1), (0, 3), (3, 0), (7, 7), (6, 2)]:
        inputs = [torch.randn(rows, requires_grad=True), torch.randn(others, requires_grad=True)]
        got, wanted = (function(*inputs) for function in (fast, program))
        torch.testing.assert_close(got, wanted)
        tangent = torch.randn(got.shape)
        torch.testing.assert_close(
            torch.autograd.grad(got, inputs, tangent), torch.autograd.grad(wanted, inputs, tangent)
        )
    assert_compiled(fast)


def both_gradients(fast, program, make, tangents):
    inputs = make()
    results = [function(*inputs) for function in (fast, program)]
    return [tangents(each, inputs) for each in results]


def test_what_no_tensor_says_of_sizes_is_handed_to_the_backward():
    """The gradient of a sum is as large as its operand, of which nothing else is saved."""

    def program(x, y):
        return (x * 2).sum() + (y + 1).sum(0).sin().sum()

    fast = plait.compile(program, dynamic=True)
    for rows, columns in [(3, 4), (5, 2), (7, 9)]:
        got, wanted = both_gradients(
            fast,
            program,
            lambda r=rows, c=columns: [torch.randn(r, c, requires_grad=True) for _ in range(2)],
            lambda result, inputs: torch.autograd.grad(result, inputs),
        )
        torch.testing.assert_close(got, wanted)
    assert forwards(fast) == 1


def test_gradients_of_some_results_and_in_batches_and_in_other_orders():
    def program(x, y):
        return (x @ y).tanh(), (x * 3).sum(0), y.t().exp()

    fast = plait.compile(program, dynamic=True)

    def some(results, inputs):
        return torch.autograd.grad(results[1].sin().sum() + results[0].sum(), inputs)

    def transposed(results, inputs):
        given = torch.ones_like(results[2].t()).t() * 2
        return torch.autograd.grad(results[2], inputs[1:], given)

    def batched(results, inputs):
        given = torch.eye(results[1].shape[0])
        return torch.autograd.grad(results[1], inputs[0], given, is_grads_batched=True)

    for tangents in (some, transposed, batched):
        for rows, columns in [(3, 4), (5, 2), (4, 4)]:

            def make(r=rows, c=columns):
                return [torch.randn(*s, requires_grad=True) for s in ((r, c), (c, r + 1))]

            got, wanted = both_gradients(fast, program, make, tangents)
            torch.testing.assert_close(got, wanted)
    assert forwards(fast) == 1


def test_gradients_of_gradients_at_all_sizes():
    def program(x, y):
        return (x.sin() @ y).square().sum() + x.shape[0] * (y * 2).sum()

    fast = plait.compile(program, dynamic=True)

    def second(result, inputs):
        first = torch.autograd.grad(result, inputs, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), inputs)

    for rows, columns in [(3, 4), (5, 2), (6, 6)]:

        def make(r=rows, c=columns):
            return [torch.randn(*s, requires_grad=True) for s in ((r, c), (c, 3))]

        got, wanted = both_gradients(fast, program, make, second)
        torch.testing.assert_close(got, wanted)


def test_what_the_backward_asks_of_sizes_is_checked_when_it_runs():
    """A backward is compiled for the sizes of the first call, and not for these alone."""

    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * (x.cos() if x.shape[0] % 2 else x.cos() * 1.0)

    def program(x):
        return Odd.apply(x).sum()

    fast = plait.compile(program, dynamic=True)
    for rows in (3, 4, 5, 8):
        got, wanted = both_gradients(
            fast,
            program,
            lambda r=rows: [torch.randn(r, requires_grad=True)],
            lambda result, inputs: torch.autograd.grad(result, inputs),
        )
        torch.testing.assert_close(got, wanted)


RESULTS = {
    "averages": lambda x: functional.avg_pool2d(x, 2),
    "mirrored": lambda x: functional.pad(x, (1, 1, 2, 1), "reflect"),
    "groups": lambda x: functional.group_norm(x, 3),
    "larger": lambda x: functional.interpolate(x, scale_factor=2.0),
    "larger, channels last": lambda x: functional.interpolate(
        x.contiguous(memory_format=torch.channels_last), scale_factor=2.0, mode="bilinear"
    ),
    "products": lambda x: torch.kron(x[0, 0], x[0, 1]),
    "transposed": lambda x: functional.avg_pool2d(x, 2).exp().mT,
    "cut": lambda x: x[:, :, : int(x.shape[2] * 0.5)].exp(),
    "every second": lambda x: x.exp()[..., ::2],
    "largest": lambda x: functional.max_pool2d(x, 2),
    "half": lambda x: functional.glu(x, 3) + functional.channel_shuffle(x, 2)[..., :1],
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.sampled(3)
def test_results_may_have_sizes_that_no_input_has(name):
    """Gradients of results lie in memory as these, whose strides follow from their own sizes."""
    program = RESULTS[name]
    fast = plait.compile(program, dynamic=True)
    torch.manual_seed(0)
    for more in range(4):
        x = torch.randn(2, 6, 5 + more, 6 + 2 * more, requires_grad=True)
        wanted = program(x)
        seed = torch.randn_like(wanted)
        got = fast(x)
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            torch.autograd.grad(got, x, seed),
            torch.autograd.grad(wanted, x, seed),
            rtol=1e-5,
            atol=1e-5,
        )
    assert_compiled(fast)
