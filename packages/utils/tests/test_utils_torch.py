"""Fake tensors against torch's own, and comparison; run where torch is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="an optional dependency of plait-utils")

import torch.nn.functional as F  # noqa: E402  # after the optional torch

from plait_utils.fake import FakeMode, is_fake  # noqa: E402  # after the optional torch
from plait_utils.fake_cache import forget_results  # noqa: E402  # after the optional torch
from plait_utils.numerics import compare, ulp_distance  # noqa: E402  # after the optional torch

MODEL = """
import sys, torch, torch.nn.functional as F
from plait_utils.fake import FakeMode
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(2), torch.nn.LayerNorm(36),
    torch.nn.Linear(36, 8), torch.nn.GELU(), torch.nn.Softmax(-1),
)
mode = FakeMode(allow_non_fake_inputs=True)
with mode, torch.no_grad():
    x = mode.from_tensor(torch.randn(2, 3, 8, 8))
    y = model(x)
    z = F.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None]).sum(-1).to("cpu")
    e = F.embedding(torch.zeros(3, dtype=torch.int64), torch.zeros(4, 5))[torch.zeros(2).long()]
    m = torch.vmap(lambda i: i * 0.5)(torch.arange(3))
    v = (y.transpose(0, 1).reshape(-1) + 1).sqrt().view(2, -1).mean(0).double().exp()
assert y.shape == (2, 4, 8)
assert (m.shape, m.dtype) == ((3,), torch.float32)
"""


def test_torch_compiler_is_not_loaded():
    check = "assert 'torch._dynamo' not in sys.modules\nassert 'torch._inductor' not in sys.modules"
    subprocess.run([sys.executable, "-c", MODEL + check], check=True)


def test_mode_has_every_attribute_of_torchs():
    program = (
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "from plait_utils.fake import FakeMode\n"
        "theirs, ours = vars(FakeTensorMode()), vars(FakeMode())\n"
        "assert set(theirs) <= set(ours), set(theirs) - set(ours)\n"
        "plain = (bool, int, str, type(None))\n"
        "for name, value in theirs.items():\n"
        "    if isinstance(value, plain):\n"
        "        assert ours[name] == value, name\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


A, B = torch.randn(4, 6), torch.randn(6)
OPERATIONS = [
    lambda x: x + 1,
    lambda x: x.T * 2,
    lambda x: x.T.contiguous() @ x,
    lambda x: x.sum(0, keepdim=True),
    lambda x: x.mean((0, 1)),
    lambda x: x.softmax(-1),
    lambda x: F.layer_norm(x, (6,)),
    lambda x: x.view(2, 12)[:, ::3],
    lambda x: x.unsqueeze(0).expand(3, 4, 6).permute(2, 0, 1),
    lambda x: torch.cat([x, x], 1),
    lambda x: x.max(1),
    lambda x: x.sort(0),
    lambda x: x.topk(2),
    lambda x: x.to(torch.bfloat16),
    lambda x: x.to("cpu", torch.float64),
    lambda x: x.bool(),
    lambda x: x.split(2, 1),
    lambda x: F.conv1d(x[None], torch.zeros(2, 4, 3)),
    lambda x: F.max_pool2d(x[None], 2),
    lambda x: torch.where(x > 0, x, 0.0),
    lambda x: x.cumsum(0),
    lambda x: x[torch.tensor([1, 0])],
    lambda x: torch.arange(5) + x[0, 0].long(),
    lambda x: x.clone().add_(1),
    lambda x: F.gelu(x) + F.silu(x),
    lambda x: torch.einsum("ij,kj->ik", x, x),
    lambda x: _grouped_mm(x.new_zeros(8, 32), x.new_zeros(4, 17, 32).mT, x),
    lambda x: _grouped_mm(x.new_zeros(8, 8).T, x.new_zeros(8, 24), x),
    lambda x: _grouped_mm(x.new_zeros(4, 5, 32), x.new_zeros(8, 32).T, x),
    lambda x: torch._grouped_mm(x.new_zeros(4, 5, 32).half(), x.new_zeros(4, 32, 24).half()),
]


def _grouped_mm(a, b, x):
    ends = torch.arange(1, 5, dtype=torch.int32, device=x.device) * 2
    return torch._grouped_mm(a, b, ends)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f"{f.__code__.co_firstlineno}")
def test_results_are_shaped_as_eager_shapes_them(operation):
    mode = FakeMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        fakes = operation(mode.from_tensor(A))
    reals = operation(A)
    if isinstance(reals, torch.Tensor):
        fakes, reals = [fakes], [reals]
    for fake, real in zip(fakes, reals, strict=True):
        assert is_fake(fake)
        assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
        assert fake.stride() == real.stride()
        assert fake.device == real.device


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f"{f.__code__.co_firstlineno}")
@pytest.mark.parametrize("grad", [False, True])
def test_remembered_results_are_the_same(operation, grad):
    forget_results()
    mode = FakeMode(allow_non_fake_inputs=True)
    given = A.clone().requires_grad_(grad)
    described = []
    for _ in range(3):
        x = mode.from_tensor(given)
        with mode, torch.set_grad_enabled(grad):
            found = operation(x)
        tensors = [found] if isinstance(found, torch.Tensor) else found
        storages = [x.untyped_storage()._cdata] + [t.untyped_storage()._cdata for t in tensors]
        described.append(
            [
                (
                    *(t.shape, t.stride(), t.storage_offset(), t.dtype, t.device),
                    *(t.requires_grad, t._is_view(), t._version, t.is_leaf),
                    *(storages.index(t.untyped_storage()._cdata), t.untyped_storage().nbytes()),
                    type(t.grad_fn).__name__,
                )
                for t in tensors
            ]
        )
    assert described[0] == described[1] == described[2]


SEVERAL = [
    lambda x: torch.native_layer_norm(x, [4], None, None, 1e-5),
    lambda x: torch.ops.aten.native_layer_norm_backward(
        x, x, [4], x.sum(-1, keepdim=True), x.sum(-1, keepdim=True), None, None, [True, False, True]
    ),
    lambda x: torch.var_mean(x, 0),
    lambda x: torch.max(x, 0),
    lambda x: torch.sort(x),
    lambda x: torch.frexp(x),
    lambda x: torch.unbind(x),
    lambda x: torch.aminmax(x),
    lambda x: torch.linalg.slogdet(x[:, :3]),
]


@pytest.mark.parametrize("operation", SEVERAL, ids=lambda f: f"{f.__code__.co_firstlineno}")
def test_several_remembered_results_are_those_of_torchs_own_fake_tensors(operation):
    from torch._subclasses.fake_tensor import FakeTensorMode

    forget_results()
    given = torch.randn(3, 4).t().contiguous().t()
    described = []
    for mode in (FakeTensorMode(), FakeMode(), FakeMode(), FakeMode()):
        x = mode.from_tensor(given)
        with mode, torch.no_grad():
            found = operation(x)
        storages = [each.untyped_storage()._cdata for each in (x, *found) if each is not None]
        described.append(
            [
                each
                if each is None
                else (
                    *(each.shape, each.stride(), each.storage_offset(), each.dtype, each.device),
                    storages.index(each.untyped_storage()._cdata),
                )
                for each in found
            ]
        )
    assert described[0] == described[1] == described[2] == described[3]


def test_remembered_results_follow_the_default_dtype():
    mode = FakeMode()
    x = mode.from_tensor(torch.arange(3))
    for dtype in (torch.float64, torch.float32, torch.float64):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with mode:
                assert (x / 2).dtype == (x * 1.5).dtype == torch.ones(2).dtype == dtype
        finally:
            torch.set_default_dtype(before)


def test_remembered_views_follow_changes():
    mode = FakeMode()
    for _ in range(2):
        x = mode.from_tensor(torch.zeros(4, 6))
        with mode, torch.no_grad():
            view = x[1:].t()
            view.add_(1)
        assert view._version == x._version > 0


def test_same_tensor_gives_same_fake_and_views_share_storage():
    mode = FakeMode()
    assert mode.from_tensor(A) is mode.from_tensor(A)
    whole, part = mode.from_tensor(A), mode.from_tensor(A[1:, 2])
    assert part.untyped_storage()._cdata == whole.untyped_storage()._cdata
    assert part.storage_offset() == 8
    weight = torch.nn.Parameter(A)
    assert mode.from_tensor(weight).requires_grad


def test_compare():
    same = compare(A, A.clone())
    assert same.within(atol=0)
    assert same.first_mismatch is None
    other = A.clone()
    other[2, 3] += 0.5
    found = compare(other, A)
    assert found.first_mismatch == (2, 3)
    assert found.max_abs == pytest.approx(0.5, rel=1e-6)
    assert not found.within(atol=0.1)
    other[1, 1] = float("nan")
    assert compare(other, A).special_mismatches == 1
    assert "NaN" in str(compare(other, A))
    assert "expected" in str(compare(A, A.double()))
    assert compare(torch.empty(0), torch.empty(0)).within(atol=0)


def test_ulp_distance():
    one = torch.ones(3)
    step = torch.nextafter(one, torch.full_like(one, 2))
    assert torch.equal(ulp_distance(step, one.double()), torch.ones(3, dtype=torch.float64))
    nan, inf = torch.tensor([float("nan")]), torch.tensor([float("inf")])
    assert ulp_distance(nan, nan).item() == 0
    assert ulp_distance(inf, inf).item() == 0
    assert ulp_distance(nan, inf).item() == float("inf")


def test_higher_order_operators_have_their_rules_for_fakes():
    from torch._higher_order_ops.utils import register_fake
    from torch._ops import HigherOrderOperator

    class Applied(HigherOrderOperator):
        def __init__(self):
            super().__init__("plait_utils_tests_applied")

        def __call__(self, *args):
            return super().__call__(*args)

    applied = Applied()
    applied.fallthrough(torch._C.DispatchKey.AutogradCPU)
    mode = FakeMode()
    with mode:
        x = torch.empty(2, 3)
        with pytest.raises(NotImplementedError):
            applied(x)
        register_fake(applied)(lambda tensor: tensor.new_empty(5))
        assert applied(x).shape == (5,)
