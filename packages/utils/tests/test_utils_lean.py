"""Fake tensors load neither sympy nor torch.distributed for what is not symbolic."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="an optional dependency of plait-utils")

import torch.nn.functional as F  # noqa: E402  # after the optional torch

from plait_utils.fake import FakeMode  # noqa: E402  # after the optional torch
from plait_utils.fake_cache import forget_results  # noqa: E402  # after the optional torch

WORK = """
import sys, torch, torch.nn.functional as F
from plait_utils.fake import FakeMode
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(2), torch.nn.LayerNorm(9), torch.nn.Linear(9, 8), torch.nn.GELU(),
)
mode = FakeMode()
state = {name: mode.from_tensor(each) for name, each in model.state_dict(keep_vars=True).items()}
x = mode.from_tensor(torch.randn(2, 3, 8, 8))
with mode:
    y = torch.func.functional_call(model, state, (x,))
    heads = y[:, None].expand(2, 3, 4, 8)
    attended = F.scaled_dot_product_attention(heads, heads, heads).mean((1, 2))
    loss = F.cross_entropy(attended, torch.zeros(2, dtype=torch.int64))
    loss.to(torch.float64).backward()
    with torch.no_grad():
        v = torch.cat([y.transpose(0, 1).reshape(-1), torch.zeros_like(y).view(-1)]).double()
        v = v.select_scatter(v[0], 0, 1)
        y.clone().transpose_(0, 1).unsqueeze_(0)
        v = torch.empty(5).copy_(v.sqrt().log_softmax(0)[:5]) + torch.full_like(v, 2)[3]
assert loss.shape == () and v.shape == (5,)
"""


def run(*lines: str) -> None:
    subprocess.run([sys.executable, "-c", WORK + "\n".join(lines)], check=True, timeout=300)


def test_plain_work_loads_nothing_of_symbols():
    run(
        "assert 'sympy' not in sys.modules",
        "assert 'torch.distributed.tensor' not in sys.modules",
        "assert 'torch._dynamo' not in sys.modules",
    )


def test_operators_of_users_load_nothing_of_symbols():
    run(
        "library = torch.library.Library('mine', 'DEF')",
        "library.define('twice(Tensor x) -> Tensor[]')",
        "library._register_fake('twice', lambda x: [x.new_empty(2 * x.shape[0])] * 2)",
        "with mode:",
        "    one, other = torch.ops.mine.twice(torch.empty(3))",
        "assert one.shape == other.shape == (6,)",
        "assert 'sympy' not in sys.modules",
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("transpose_", (0, 1)), ("squeeze_", (1,)), ("unsqueeze_", (1,)), ("detach_", ())),
        *(("as_strided_", ((2,), (1,), 1)), ("resize_", ((2, 2),)), ("swapaxes_", (0, 2))),
    ],
)
def test_fakes_that_become_views_of_themselves_do_as_real_ones(name, arguments):
    real = torch.randn(2, 1, 3)
    fake = FakeMode().from_tensor(real)
    version = fake._version
    with fake.fake_mode:
        assert getattr(fake, name)(*arguments) is fake
    getattr(real, name)(*arguments)
    assert (fake.shape, fake.stride()) == (real.shape, real.stride())
    assert fake.storage_offset() == real.storage_offset()
    assert fake._version - version == real._version


def test_symbols_are_there_when_they_are_asked_for():
    run(
        "name = 'torch.fx.experimental.symbolic_shapes'",
        "from torch.fx.experimental.symbolic_shapes import guard_or_false, ShapeEnv",
        "import torch.fx.experimental.symbolic_shapes as symbols",
        "assert 'sympy' in sys.modules",
        "assert symbols.ShapeEnv is ShapeEnv and sys.modules[name] is symbols",
        "assert torch.fx.experimental.symbolic_shapes is symbols",
        "mode = FakeMode(ShapeEnv())",
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "theirs = FakeTensorMode(shape_env=ShapeEnv())",
        "x = theirs.from_tensor(torch.randn(3, 4))",
        "assert type(x.shape[0] + 1).__name__ == 'SymInt'",
        "assert guard_or_false(x.shape[0] == 3) is True",
        "with theirs:",
        "    assert str(torch.cat([x, x]).exp().shape[0])",
    )


def test_torchs_compiler_loads_after_it():
    run(
        "stand_in = sys.modules['torch.fx.experimental.symbolic_shapes']",
        "import torch._dynamo",
        "real = sys.modules['torch.fx.experimental.symbolic_shapes']",
        "assert real is not stand_in and stand_in.ShapeEnv is real.ShapeEnv",
        "f = torch.compile(lambda a: (a @ a.T).gelu() if 0 else torch.softmax(a, -1),",
        "                  backend='eager', dynamic=True)",
        "for n in (3, 4, 5):",
        "    a = torch.randn(n, 4)",
        "    assert torch.equal(f(a), torch.softmax(a, -1))",
    )


def test_threads_get_the_same_symbols():
    run(
        "import threading",
        "stand_in = sys.modules['torch.fx.experimental.symbolic_shapes']",
        "found = []",
        "def look(): found.append(stand_in.ShapeEnv)",
        "threads = [threading.Thread(target=look) for _ in range(8)]",
        "for thread in threads: thread.start()",
        "for thread in threads: thread.join()",
        "assert len(found) == 8 and len(set(found)) == 1",
    )


VALUES = [
    *(True, False, 0, 1, -3, 2.5, None, "x"),
    (1, 2),
    [1, 2],
    (1, (2, 3)),
    [],
    torch.Size([1]),
    torch.ones(2, 3),
    torch.ones(2, 2).to_sparse(),
]


@pytest.mark.filterwarnings("ignore:guard_size_oblivious")  # of torch's own function
def test_the_stand_in_answers_as_the_module_does():
    """For plain values it gives the same; for all else it leaves the answer to the module."""
    import torch.fx.experimental.symbolic_shapes as real

    from plait_utils.lazy_symbols import _ANSWERS, _UnfitError

    answered = 0
    for name, answer in _ANSWERS.items():
        function = getattr(real, name, None)
        for arguments in [(v,) for v in VALUES] + [(v, w) for v in VALUES for w in VALUES]:
            try:
                found = answer(*arguments)
            except (_UnfitError, TypeError):
                continue
            if function is not None:
                expected = function(*arguments)
                assert (type(found), found) == (type(expected), expected), (name, arguments)
                answered += 1
    assert answered > 50


def test_the_stand_in_leaves_symbols_of_tensors_to_the_module():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from plait_utils.lazy_symbols import _ANSWERS, _UnfitError

    mode = FakeMode(ShapeEnv())
    open_size = mode.from_tensor(torch.ones(5), static_shapes=False)
    assert type(open_size.shape[0]) is torch.SymInt
    for value in (open_size, [open_size], open_size.shape[0]):
        with pytest.raises(_UnfitError):
            _ANSWERS["free_unbacked_symbols"](value)


@pytest.mark.parametrize("kind", ["DEFAULT", "INT_TO_FLOAT", "ALWAYS_BOOL", "NO_OPMATH"])
def test_types_are_promoted_alike_without_sympy(kind):
    program = (
        "import sys, itertools, torch",
        "import torch._prims_common as common",
        "from plait_utils.promotion import promote_without_sympy",
        "own = common.elementwise_dtypes",
        "assert promote_without_sympy() > 0 and common.elementwise_dtypes is not own",
        f"kind = common.ELEMENTWISE_TYPE_PROMOTION_KIND.{kind}",
        "values = [torch.ones(2), torch.ones(2).half(), torch.ones((), dtype=torch.int32),",
        "          torch.ones(1, dtype=torch.bool), 1, 2.5, True, 1j, None]",
        "def ask(function, pair):",
        "    try:",
        "        return function(*pair, type_promotion_kind=kind)",
        "    except (RuntimeError, ValueError, AssertionError) as error:",
        "        return type(error), str(error)",
        "pairs = list(itertools.product(values, values)) + [('text',), (1, object)]",
        "lean = [ask(common.elementwise_dtypes, pair) for pair in pairs]",
        "assert 'sympy' not in sys.modules",
        "assert lean == [ask(own, pair) for pair in pairs]",
        "import sympy",
        "assert ask(common.elementwise_dtypes, (sympy.Integer(3), 1)) == ask(own, (3, 1))",
    )
    subprocess.run([sys.executable, "-c", "\n".join(program)], check=True, timeout=300)


DEVICE_DEPENDENT = [
    lambda x: torch.linalg.svd(x, full_matrices=False),
    lambda x: torch.fft.rfft(x),
    lambda x: torch.median(x, 1),
    lambda x: torch.mode(x, 1),
    lambda x: F.conv2d(x[None, None], x[:3, :3][None, None]),
    lambda x: F.pixel_shuffle(x.reshape(1, 4, 3, 2), 2),
    lambda x: F.pad(x[None, None], (1, 1, 1, 1), mode="reflect"),
    lambda x: torch.linalg.eig(x[:4, :4]).eigenvalues.abs(),
    lambda x: x[1:3].select(1, 2).expand(3, 2).reshape(6, 1).squeeze(1),
]


@pytest.mark.parametrize("operation", DEVICE_DEPENDENT, ids=range(len(DEVICE_DEPENDENT)))
def test_results_that_depend_on_the_device_are_those_of_torchs_own_fake_tensors(operation):
    from torch._subclasses.fake_tensor import FakeTensorMode

    forget_results()
    described = []
    for mode in (FakeTensorMode(), FakeMode(), FakeMode()):
        x = mode.from_tensor(torch.randn(4, 6))
        with mode, torch.no_grad():
            found = operation(x)
        tensors = [found] if isinstance(found, torch.Tensor) else found
        described.append([(t.shape, t.stride(), t.dtype, t.device) for t in tensors])
    assert described[0] == described[1] == described[2]
