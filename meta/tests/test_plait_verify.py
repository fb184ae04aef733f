"""`options={"verify": n}`: wrong code is found, named, and not used."""

import logging

import pytest
import torch
import torch.nn.functional as F

import plait
from plait_fx_passes.aten_graph import copy_graph


def wrong_lowering(monkeypatch, name, part=""):
    """Make the lowering of one operator give a wrong number, in graphs whose name has `part`."""
    import plait_ir_lowering

    lower = plait_ir_lowering.lower
    wrong = {"sin": torch.ops.aten.cos.default, "mul": torch.ops.aten.add.Tensor}[name]
    right = {"sin": torch.ops.aten.sin.default, "mul": torch.ops.aten.mul.Tensor}[name]

    def broken(graph, **options):
        if part in options["name"]:
            graph = copy_graph(graph)
            for node in graph.nodes:
                if node.target is right:
                    node.target = wrong
        return lower(graph, **options)

    monkeypatch.setattr(plait_ir_lowering, "lower", broken)


def program(x):
    h = torch.exp(x * 0.5)
    return torch.sin(h) + 1


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING)
    return caplog


def test_right_code_is_as_in_eager(warnings):
    fast = plait.compile(program, options={"verify": 2})
    for _ in range(4):
        x = torch.randn(8)
        torch.testing.assert_close(fast(x), program(x))
    (graph,) = plait.report(fast).graphs
    assert graph.verification == "2 calls as in eager"
    assert "verified: 2 calls as in eager" in str(plait.report(fast))
    assert not warnings.records


def test_a_wrong_forward_is_named_and_not_returned(monkeypatch, warnings):
    wrong_lowering(monkeypatch, "sin")
    x = torch.randn(8)
    assert not torch.allclose(plait.compile(program)(x), program(x))
    fast = plait.compile(program, options={"verify": 1})
    for _ in range(3):
        torch.testing.assert_close(fast(x), program(x))
    (graph,) = plait.report(fast).graphs
    (found,) = graph.differences
    assert found.node.startswith("%sin: f32[8] = aten.sin(%exp)")
    assert "return torch.sin(h) + 1" in found.node
    assert "differs from eager" in warnings.text
    assert "runs eagerly since" in str(plait.report(fast))


def test_a_wrong_backward_is_named_and_not_used(monkeypatch, warnings):
    wrong_lowering(monkeypatch, "mul", ".backward")
    weight = torch.randn(8, requires_grad=True)

    def loss(x):
        return (x * weight).exp().sum(), weight.detach() * 2

    x = torch.randn(8)
    plait.compile(loss)(x)[0].backward()
    broken, weight.grad = weight.grad, None
    loss(x)[0].backward()
    wanted, weight.grad = weight.grad, None
    assert not torch.allclose(broken, wanted)
    fast = plait.compile(loss, options={"verify": 1})
    for _ in range(3):
        fast(x)[0].backward()
        torch.testing.assert_close(weight.grad, wanted)
        weight.grad = None
    differences = [each for graph in plait.report(fast).graphs for each in graph.differences]
    assert any("aten.mul.Tensor" in each.node for each in differences), differences
    assert any("backward" in each.what or "gradient" in each.what for each in differences)


def test_a_wrong_pass_is_named(monkeypatch, warnings):
    import plait_fx_passes
    from plait_fx_passes import DEFAULT_PASSES, RewriteRule, rule_pass

    rule = RewriteRule("tan", lambda x: torch.sin(x), lambda x: torch.tanh(x))
    passes = (*DEFAULT_PASSES, rule_pass("wrong-rule", [rule]))
    monkeypatch.setattr(plait_fx_passes, "DEFAULT_PASSES", passes)
    x = torch.randn(8, requires_grad=True)
    fast = plait.compile(program, options={"verify": 1, "verify_stages": False})
    for _ in range(2):
        got, wanted = fast(x), program(x)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(
            torch.autograd.grad(got.sum(), x), torch.autograd.grad(wanted.sum(), x)
        )
    (found,) = plait.report(fast).graphs[0].differences
    assert "made by 'wrong-rule'" in found.node


def test_effects_are_those_of_one_call():
    def mutates(x, y, noise):
        x.mul_(2)
        kept = F.dropout(y, 0.5) + torch.rand_like(y)
        return x, x[0], kept * noise

    fast = plait.compile(mutates, options={"verify": 2})
    for _ in range(3):
        seen = []
        for run in (mutates, fast):
            torch.manual_seed(3)
            base = torch.arange(12.0)
            x, y, noise = base[:6].view(2, 3), torch.ones(50), torch.ones(50)
            same, row, kept = run(x, y, noise)
            assert same is x
            assert row._base is base or row.data_ptr() == x.data_ptr()
            seen.append((base, x._version, kept, torch.rand(3)))
        torch.testing.assert_close(seen[1], seen[0])
    assert plait.report(fast).graphs[0].verification == "2 calls as in eager"


def test_wrong_code_that_changes_inputs_changes_them_as_eager(monkeypatch, warnings):
    wrong_lowering(monkeypatch, "sin")

    def mutates(x, w):
        x.add_(torch.sin(w))
        return x * w

    fast = plait.compile(mutates, options={"verify": 1})
    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    h = x.clone()
    for _ in range(2):
        got, wanted = fast(x, w.detach()), mutates(h, w.detach())
        torch.testing.assert_close((got, x), (wanted, h))


def test_gradients_are_those_of_one_call():
    weight = torch.randn(4, 4, requires_grad=True)
    calls = []
    weight.register_hook(lambda grad: calls.append(1))
    fast = plait.compile(lambda x: torch.tanh(x @ weight), options={"verify": 3})
    x = torch.randn(2, 4)
    for n in range(1, 5):
        weight.grad = None
        fast(x).sum().backward()
        assert len(calls) == n
        got, weight.grad = weight.grad, None
        (wanted,) = torch.autograd.grad(torch.tanh(x @ weight).sum(), weight)
        calls.pop()
        torch.testing.assert_close(got, wanted)


def test_operators_with_effects_are_not_run_twice():
    seen = []

    @torch.library.custom_op("plait_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x * 2

    counted.register_fake(torch.empty_like)
    fast = plait.compile(lambda x: counted(x.sin()) + 1, options={"verify": 2})
    for number in range(4):
        x = torch.randn(3)
        torch.testing.assert_close(fast(x), x.sin() * 2 + 1)
        assert len(seen) == number + 1
    assert plait.report(fast).graphs[0].verification == "2 calls as in eager"


@pytest.mark.parametrize("before", [True, False])
def test_wrong_code_around_an_operator_is_found(monkeypatch, warnings, before):
    seen = []

    @torch.library.custom_op(f"plait_tests::around_{before}".lower(), mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        return x * 2

    operator.register_fake(torch.empty_like)
    wrong_lowering(monkeypatch, "sin")

    def program(x):
        return operator(x.sin()) if before else operator(x).sin()

    x = torch.randn(5)
    fast = plait.compile(program, options={"verify": 1})
    for number in range(2):
        wanted = x.sin() * 2 if before else (x * 2).sin()
        torch.testing.assert_close(fast(x), wanted)
        assert len(seen) == number + 1
    assert "differs from eager" in warnings.text


def test_operators_with_gradients_are_compared_and_called_once(warnings):
    seen = []

    @torch.library.custom_op("plait_tests::cubed", mutates_args=())
    def cubed(x: torch.Tensor) -> torch.Tensor:
        seen.append("forward")
        return x**3

    @torch.library.custom_op("plait_tests::slope", mutates_args=())
    def slope(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        seen.append("backward")
        return 3 * x**2 * grad

    cubed.register_fake(torch.empty_like)
    slope.register_fake(lambda x, grad: torch.empty_like(x))
    cubed.register_autograd(
        lambda ctx, grad: slope(*ctx.saved_tensors, grad),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    fast = plait.compile(lambda x: cubed(x * 2).sum(), options={"verify": 2})
    for number in range(3):
        (gradient,) = torch.autograd.grad(fast(x), x)
        torch.testing.assert_close(gradient, 48 * x.detach() ** 2 / 2)
        assert seen == ["forward", "backward"] * (number + 1)
    assert not warnings.records
    told = [graph.verification for graph in plait.report(fast).graphs]
    assert "2 calls as in eager" in told[0] or "compared" in told[0]


def test_operators_that_write_are_called_once():
    seen = []

    @torch.library.custom_op("plait_tests::bump", mutates_args={"x"})
    def bump(x: torch.Tensor) -> None:
        seen.append(1)
        x.add_(1)

    def program(x):
        y = x * 2
        bump(y)
        bump(x)
        return y + x

    fast = plait.compile(program, options={"verify": 2})
    for number in range(3):
        x = torch.randn(3)
        other = x.clone()
        result = fast(x)
        assert len(seen) == 2 * (number + 1)
        torch.testing.assert_close(result, program(other))
        torch.testing.assert_close(x, other)
        del seen[-2:]
