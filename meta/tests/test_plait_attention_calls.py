"""The option `attention_calls`: hand-written attention becomes calls before gradients are taken."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import plait

CALLS = {"attention_calls": True}


class Block(nn.Module):
    """Attention as many write it."""

    def __init__(self, width=32, heads=4, length=16, dropout=0.0):
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.heads = heads
        self.register_buffer("mask", torch.tril(torch.ones(length, length))[None, None])

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(x).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        weights = self.dropout(F.softmax(scores, dim=-1))
        return self.out((weights @ v).transpose(1, 2).contiguous().view(batch, length, width))


def block(**sizes):
    torch.manual_seed(0)
    return Block(**sizes)


def sample(batch=2, length=16, dtype=torch.float32):
    return torch.randn(batch, length, 32, generator=torch.Generator().manual_seed(1), dtype=dtype)


def step(function, module, x):
    """The loss of a step, and the gradients."""
    module.zero_grad(set_to_none=True)
    torch.manual_seed(2)
    loss = function(x).pow(2).mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def assert_steps_alike(compiled, module, x, **tolerance):
    expected = step(module, module, x)
    torch.testing.assert_close(step(compiled, module, x), expected, **tolerance)


def forms(compiled):
    """What was found, and the reasons for what was not."""
    facts = [
        each
        for graph in plait.report(compiled).graphs
        for each in graph.passes
        if each.name == "attention-calls"
    ]
    return [dict(each.matches) for each in facts], [why for each in facts for why in each.left]


def operators(compiled):
    return str(plait.report(compiled))


def test_a_training_step_calls_attention():
    module = block()
    compiled = plait.compile(module, options=CALLS)
    assert_steps_alike(compiled, module, sample())
    assert forms(compiled) == ([{"masked": 1}], [])
    assert "_scaled_dot_product_flash_attention_for_cpu_backward" in operators(compiled)
    assert_steps_alike(compiled, module, sample(batch=3))


def test_inference_calls_attention():
    module = block().eval()
    compiled = plait.compile(module, options=CALLS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(sample()), module(sample()))
    assert forms(compiled) == ([{"masked": 1}], [])


def test_on_a_cpu_it_is_not_done_unless_asked_for():
    module = block()
    compiled = plait.compile(module)
    assert_steps_alike(compiled, module, sample())
    assert forms(compiled) == ([], [])


def test_it_can_be_disabled_by_name():
    module = block()
    compiled = plait.compile(module, options={**CALLS, "disabled_passes": "attention-calls"})
    assert_steps_alike(compiled, module, sample())
    assert forms(compiled) == ([], [])


def test_strict_numerics_contradict_it():
    with pytest.raises(plait.OptionError, match="contradict"):
        plait.compile(block(), options={**CALLS, "numerics": "strict"})


def test_the_environment_switches_it(monkeypatch):
    monkeypatch.setenv("PLAIT_ATTENTION_CALLS", "1")
    module = block()
    compiled = plait.compile(module)
    assert_steps_alike(compiled, module, sample())
    assert forms(compiled) == ([{"masked": 1}], [])


def test_dropout_keeps_eagers_random_numbers():
    module = block(dropout=0.5)
    compiled = plait.compile(module, options=CALLS)
    assert_steps_alike(compiled, module, sample())
    found, (why,) = forms(compiled)
    assert found == [{}]
    assert "other random numbers" in why
    assert "in forward: " in why
    assert why in str(plait.report(compiled))


@pytest.mark.slow
def test_higher_derivatives_are_those_of_the_products():
    module = block().double()
    compiled = plait.compile(module, options=CALLS)
    x = sample(dtype=torch.float64).requires_grad_(True)

    def penalty(function):
        (force,) = torch.autograd.grad(function(x).sum(), [x], create_graph=True)
        (third,) = torch.autograd.grad(force.pow(3).sum(), [x], create_graph=True)
        return [force.detach(), *torch.autograd.grad(third.pow(2).sum(), [x])]

    torch.testing.assert_close(penalty(compiled), penalty(module))
    # What is differentiated again is a program of its own.
    first, *others = forms(compiled)[0]
    assert (first, any(others)) == ({"masked": 1}, False)


def test_a_whole_step_that_is_compiled_calls_attention():
    module = block()

    def train(x):
        loss = module(x).pow(2).mean()
        loss.backward()
        return loss.detach()

    expected = step(module, module, sample())
    module.zero_grad(set_to_none=True)
    compiled = plait.compile(train, options=CALLS)
    loss = compiled(sample())
    torch.testing.assert_close([loss, *(p.grad for p in module.parameters())], expected)
    assert forms(compiled)[0] == [{"masked": 1}]


def test_a_force_that_is_computed_inside_keeps_its_products():
    module = block().double()

    def force(x):
        x = x.detach().requires_grad_(True)
        return torch.autograd.grad(module(x).sum(), [x], create_graph=True)[0].pow(2).sum()

    compiled = plait.compile(force, options=CALLS)
    x = sample(dtype=torch.float64)
    torch.testing.assert_close(compiled(x), force(x))


def test_autocast_takes_the_dtype_of_products():
    module = block()

    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    compiled = plait.compile(program, options=CALLS)
    assert_steps_alike_under(compiled, program, module)
    assert forms(compiled)[0] == [{"masked": 1}]


def assert_steps_alike_under(compiled, program, module):
    expected = step(program, module, sample())
    torch.testing.assert_close(step(compiled, module, sample()), expected, rtol=0.05, atol=2e-3)


def test_checkpointed_layers_call_attention():
    module = block()

    def program(x):
        return x + checkpoint(module, x, use_reentrant=False)

    compiled = plait.compile(program, options=CALLS)
    torch.testing.assert_close(step(compiled, module, sample()), step(program, module, sample()))
    assert forms(compiled)[0] == [{"masked": 1}]


@pytest.mark.slow
def test_lengths_may_be_open():
    module = block()
    compiled = plait.compile(module, dynamic=True, options=CALLS)
    for length in (16, 9, 12, 5):
        assert_steps_alike(compiled, module, sample(length=length))
    assert all(found == {"masked": 1} for found in forms(compiled)[0])


def test_hooks_on_weights_keep_them():
    def program(q, seen):
        weights = torch.softmax(q @ q.mT, -1)
        weights.register_hook(lambda gradient: seen.append(gradient.shape))
        return weights @ q

    compiled = plait.compile(program, options=CALLS)
    q = torch.randn(2, 3, 5, 4, requires_grad=True)
    seen = []
    compiled(q, seen).sum().backward()
    assert seen == [(2, 3, 5, 5)]


def test_rows_without_keys_are_what_they_are_in_eager():
    def program(q, k, v, shown):
        return (q @ k.mT).masked_fill(~shown, float("-inf")).softmax(-1) @ v

    compiled = plait.compile(program, options=CALLS)
    shown = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    shown[0] = False
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 3, 6, 4, generator=draw).requires_grad_(True) for _ in range(3)]
    expected, found = program(*inputs, shown), compiled(*inputs, shown)
    torch.testing.assert_close(found, expected, equal_nan=True)
    one, other = (
        torch.autograd.grad(each, inputs, torch.ones_like(each)) for each in (expected, found)
    )
    torch.testing.assert_close(other, one, equal_nan=True)
    assert forms(compiled) == ([{"masked": 1}], [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_calls_attention_without_being_asked(dtype):
    module = block(width=64, length=128).to("cuda", dtype)
    x = torch.randn(2, 128, 64, device="cuda", dtype=dtype)
    compiled = plait.compile(module)
    exact = step(module.double(), module, x.double())
    module.to(dtype)
    eager, found = step(module, module, x), step(compiled, module, x)
    for one, other, right in zip(found, eager, exact, strict=True):
        error, allowed = ((each.double() - right).abs().max() for each in (one, other))
        assert error <= 2 * allowed + 1e-5
    assert forms(compiled) == ([{"masked": 1}], [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_shares_heads_without_repeating_them():
    def program(q, k, v):
        k = k[:, :, None].expand(2, 2, 4, 128, 64).reshape(2, 8, 128, 64)
        v = v.repeat_interleave(4, dim=1)
        scores = q @ k.transpose(2, 3) / 8
        later = torch.ones(128, 128, dtype=torch.bool, device="cuda").triu(1)
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ v

    draw = torch.Generator("cuda").manual_seed(0)
    sizes = (2, 8, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64)
    inputs = [torch.randn(s, device="cuda", generator=draw).bfloat16() for s in sizes]
    for each in inputs:
        each.requires_grad_(True)
    exact = [each.detach().double().requires_grad_(True) for each in inputs]
    compiled = plait.compile(program)
    found, right = compiled(*inputs), program(*exact)
    torch.testing.assert_close(found.double(), right, rtol=0.03, atol=0.03)
    given = torch.ones_like(found)
    for one, other in zip(
        torch.autograd.grad(found, inputs, given),
        torch.autograd.grad(right, exact, given.double()),
        strict=True,
    ):
        torch.testing.assert_close(one.double(), other, rtol=0.03, atol=0.03)
    assert forms(compiled) == ([{"causal": 1}], [])
    assert all(graph.reason is None for graph in plait.report(compiled).graphs)
