"""The option `freeze`: parameters as constants of calls without gradients, while they stay."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import plait


class Net(nn.Module):
    """Convolutions with batch norms and a residual, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.second_norm = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        y = torch.relu(self.first_norm(self.first(x)))
        y = torch.relu(self.second_norm(self.second(y)) + y)
        return self.last(y.mean((2, 3)))


def net():
    torch.manual_seed(0)
    module = Net()
    with torch.no_grad():
        for each in (module.first_norm, module.second_norm):
            each.running_mean.normal_()
            each.running_var.uniform_(0.5, 2)
            each.weight.normal_()
            each.bias.normal_()
    return module.eval()


def image(size=32, count=2):
    return torch.randn(count, 3, size, size)


def frozen(module, **more):
    options = {"freeze": True, "strict": True, "verify_stages": True, **more}
    return plait.compile(module, options=options)


def check(fast, module, x):
    with torch.no_grad():
        wanted = copy.deepcopy(module).double()(x.double())
        got = fast(x)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def rewrites(fast):
    """By pass, how many rewrites it made."""
    return {
        each.name: each.rewrites for graph in plait.report(fast).graphs for each in graph.passes
    }


def test_norms_are_folded_and_weights_packed_without_gradients():
    module = net()
    fast = frozen(module)
    for _ in range(3):
        check(fast, module, image(64))
    assert rewrites(fast)["fold-batch-norms"] == 4
    assert rewrites(fast)["pack-weights"] == 2
    assert module.first.weight.shape == (16, 3, 3, 3)


def swapped(module):
    module.first.weight.data = module.first.weight.data * 2


def in_place(module):
    with torch.no_grad():
        module.second.bias.add_(1)


def through_data(module):
    module.first_norm.weight.data.mul_(-1)


def loaded(module):
    module.load_state_dict({name: each * 2 for name, each in module.state_dict().items()})


def replaced(module):
    module.first.weight = nn.Parameter(torch.randn(16, 3, 3, 3))


def converted(module):
    module.double().float()


def trained(module):
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    module.train()
    module(image()).sum().backward()
    optimizer.step()
    module.eval()


@pytest.mark.parametrize(
    "change", [swapped, in_place, through_data, loaded, replaced, converted, trained]
)
@pytest.mark.sampled(2)
def test_a_changed_parameter_is_seen_without_compiling_anew(change):
    module = net()
    fast = frozen(module)
    x = image()
    check(fast, module, x)
    graphs = len(plait.report(fast).graphs)
    for _ in range(2):
        change(module)
        check(fast, module, x)
        check(fast, module, x)
    assert len(plait.report(fast).graphs) == graphs


def test_calls_with_gradients_are_not_frozen():
    module = net()
    fast = frozen(module)
    x = image()
    check(fast, module, x)
    fast(x).sum().backward()
    other = net()
    other(x).sum().backward()
    for mine, right in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, right.grad, rtol=1e-3, atol=1e-3)
    last = plait.report(fast).graphs[-1]
    assert not any(each.rewrites for each in last.passes if each.name == "fold-batch-norms")
    check(fast, module, x)


def test_statistics_that_a_call_updates_are_not_frozen():
    module, other = net().train(), net().train()
    fast = frozen(module)
    x = image()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), other(x), rtol=1e-4, atol=1e-4)
    for mine, right in zip(module.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, right)


def test_one_program_serves_all_sizes():
    module = net()
    fast = plait.compile(module, dynamic=True, options={"freeze": True, "strict": True})
    for size, count in ((32, 2), (40, 3), (48, 5), (24, 2)):
        check(fast, module, image(size, count))
    assert len(plait.report(fast).graphs) == 1
    with torch.no_grad():
        module.first.weight.mul_(2)
    check(fast, module, image(36, 4))


def test_packed_products_serve_all_sizes(recwarn):
    module = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    fast = plait.compile(module, dynamic=True, options={"freeze": True, "strict": True})
    for rows in (64, 100, 2, 300):
        check(fast, module, torch.randn(rows, 256))
    assert rewrites(fast)["pack-weights"] == 2
    assert not [each for each in recwarn if "SymInt" in str(each.message)]


def test_one_function_for_several_modules_holds_values_for_each():
    modules = [nn.Linear(256, 256).eval() for _ in range(3)]
    fast = plait.compile(lambda module, x: module(x), options={"freeze": True, "strict": True})
    x = torch.randn(64, 256)
    with torch.no_grad():
        for _ in range(3):
            for each in modules:
                torch.testing.assert_close(fast(each, x), each(x), rtol=1e-4, atol=1e-4)


def test_strict_numerics_hold_values_and_fold_none():
    module = net()
    fast = plait.compile(module, numerics="strict", options={"freeze": True, "strict": True})
    x = image()
    with torch.no_grad():
        assert torch.equal(fast(x), module(x))
        module.first.weight.mul_(2)
        assert torch.equal(fast(x), module(x))
    assert "fold-batch-norms" not in rewrites(fast)


def test_modules_of_inference_mode():
    with torch.inference_mode():
        module = net()
        fast = frozen(module)
        x = image()
        for _ in range(2):
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
            module.first.weight.mul_(2)


def test_calls_in_inference_mode_of_a_module_made_outside():
    module = net()
    fast = frozen(module)
    x = image()
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
    check(fast, module, x)


def test_autocast_casts_weights_once():
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    fast = frozen(module)
    x = torch.randn(8, 64)
    for _ in range(2):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(fast(x), module(x), rtol=0.05, atol=0.05)
        with torch.no_grad():  # autocast itself keeps what it has cast
            module[0].weight.mul_(2)


def test_what_is_returned_may_be_written_to():
    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.w.exp(), self.w * 2, self.w

    module = Returning()
    fast = frozen(module)
    with torch.no_grad():
        for _ in range(2):
            _, twice, own = fast(torch.ones(4))
            assert own is module.w
            assert torch.equal(twice, torch.full((4,), 2.0))
            twice.zero_()


def test_passes_can_be_left_out_and_calls_verified():
    module = net()
    fast = frozen(module, disabled_passes="fold-batch-norms, pack-weights", verify=2)
    check(fast, module, image())
    assert {"fold-batch-norms", "pack-weights"}.isdisjoint(rewrites(fast))
    other = frozen(module, verify=2)
    for _ in range(3):
        check(other, module, image())
    assert plait.report(other).graphs[0].verification == "2 calls as in eager"


class Scaled(torch.Tensor):
    """Integers and a scale; operators see what they stand for."""

    @staticmethod
    def __new__(cls, q, s):
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=s.dtype, strides=q.stride())

    def __init__(self, q, s):
        self.q, self.s = q, s

    def __tensor_flatten__(self):
        return ["q", "s"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["q"], inner["s"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            args[0].q.copy_(args[1].q)
            args[0].s.copy_(args[1].s)
            return args[0]
        if func is torch.ops.aten.detach.default:
            return cls(args[0].q, args[0].s)
        plain = [each.q * each.s if isinstance(each, Scaled) else each for each in args]
        return func(*plain, **(kwargs or {}))


class Anew(Scaled):
    """One that makes what it holds for whoever looks."""

    @property
    def q(self):
        return self.held + 0

    @q.setter
    def q(self, value):
        self.held = value


class Wrapped(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(2)
        made = kind(torch.randint(-9, 9, (64, 64)).float(), torch.rand(64, 1))
        self.weight = nn.Parameter(made, requires_grad=False)

    def forward(self, x):
        return x @ self.weight


def check_wrapped(kind, **more):
    """The frozen inputs of the one graph, where values follow all that becomes of a wrapper."""
    module, x = Wrapped(kind).eval(), torch.randn(8, 64)
    fast = frozen(module, **more)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
        (graph,) = plait.report(fast).graphs
        other = Wrapped(kind)
        other.weight.s.mul_(3)
        module.weight.copy_(other.weight)  # counted on the wrapper alone
        torch.testing.assert_close(fast(x), other(x), rtol=1e-4, atol=1e-4)
        module.weight.s.mul_(2)
        torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
        module.weight = nn.Parameter(other.weight, requires_grad=False)
        torch.testing.assert_close(fast(x), other(x), rtol=1e-4, atol=1e-4)
    return graph


def test_what_wrappers_hold_is_frozen():
    assert len(check_wrapped(Scaled).record.aten.frozen) == 2


@pytest.mark.filterwarnings("ignore:.*runs as captured")
def test_programs_of_wrappers_that_make_what_they_hold_anew_stay_as_they_are():
    assert check_wrapped(Anew, strict=False).outcome != "compiled"
