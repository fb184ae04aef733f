"""`flex_attention` compiles: one graph, with the score function and the mask in it."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import plait

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's, of calls without its compiler

ALIBI = torch.linspace(-1, 1, 4)
BIAS = torch.randn(4, 40, 40, generator=torch.Generator().manual_seed(0))
DOCUMENT = torch.arange(40) // 13


def inputs(dtype=torch.float32, queries=40, keys=40, heads=4):
    draw = torch.Generator().manual_seed(1)
    shapes = (2, 4, queries, 16), (2, heads, keys, 16), (2, heads, keys, 24)
    return [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


def mask(function, queries=40, keys=40, batches=None, heads=None):
    return create_block_mask(function, batches, heads, queries, keys, device="cpu", BLOCK_SIZE=16)


def causal(b, h, i, j):
    return i >= j


def in_document(b, h, i, j):
    return (i >= j) & (DOCUMENT[i] == DOCUMENT[j])


def late_rows(b, h, i, j):
    return (i > 20) & (i - j < 5)


def relative(s, b, h, i, j):
    return s + (i - j) * 0.1


def alibi(s, b, h, i, j):
    return s + ALIBI[h] * (i - j)


def biased(s, b, h, i, j):
    return s + BIAS[h, i, j]


def biased_in_steps(s, b, h, i, j):
    return s + BIAS[h][i][j] * 2 + BIAS[0, i, j]


def capped(s, b, h, i, j):
    return torch.tanh(s / 5) * 5


PROGRAMS = {
    "plain": {},
    "scaled": {"scale": 0.3},
    **{f.__name__: {"score_mod": f} for f in (relative, alibi, biased, biased_in_steps, capped)},
    **{f.__name__: {"block_mask": mask(f)} for f in (causal, in_document, late_rows)},
    "both": {"score_mod": alibi, "block_mask": mask(in_document, batches=2, heads=4)},
    "lse": {"block_mask": mask(late_rows), "return_lse": True},
}


def close(found, wanted, dtype):
    torch.testing.assert_close(
        found,
        wanted,
        equal_nan=True,
        **({"rtol": 0.02, "atol": 0.01} if dtype.itemsize < 4 else {}),
    )


def eager(function, *args):
    """What it gives in eager, where torch's compiler does not trace what is attended by."""
    module = sys.modules[flex_attention.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        return function(*args)


def is_one_graph(compiled):
    report = plait.report(compiled)
    return len(report.graphs) == 1 and not report.breaks


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in PROGRAMS),
        *((name, dtype) for name in ("both", "lse") for dtype in (torch.float64, torch.bfloat16)),
    ],
)
@pytest.mark.sampled(3)
def test_attention_is_one_graph_and_as_in_eager(name, dtype):
    given = inputs(dtype)
    attend = lambda q, k, v: flex_attention(q, k, v, **PROGRAMS[name])
    compiled = plait.compile(attend)
    found, wanted = compiled(*given), eager(attend, *given)
    close(found, wanted, dtype)
    if isinstance(found, torch.Tensor):
        assert found.stride() == wanted.stride()
    assert is_one_graph(compiled)
    if name != "lse":
        (graph,) = plait.report(compiled).graphs
        assert any(kernel.startswith("attention") for kernel in graph.kernels)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 1, 0, 3), (3, 0, 1, 2)])
def test_results_lie_as_queries_do(order):
    q, k, v = inputs()
    back = [order.index(dim) for dim in range(4)]
    q = q.permute(order).contiguous().permute(back)
    attend = lambda q: flex_attention(q, k, v)
    found, wanted = plait.compile(attend)(q), eager(attend, q)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


def test_heads_share_keys():
    given = inputs(heads=2)

    def attend(q, k, v):
        return flex_attention(q, k, v, enable_gqa=True, **PROGRAMS["causal"])

    torch.testing.assert_close(plait.compile(attend)(*given), eager(attend, *given))


def test_sizes_are_open():
    attend = lambda q, k, v: flex_attention(q, k, v, score_mod=alibi) + 1
    compiled = plait.compile(attend, dynamic=True)
    for queries, keys in ((16, 20), (77, 40), (33, 128), (130, 130)):
        given = inputs(queries=queries, keys=keys)
        torch.testing.assert_close(compiled(*given), eager(attend, *given))
    assert is_one_graph(compiled)


def test_masks_are_arguments():
    attend = lambda q, k, v, m: flex_attention(q, k, v, block_mask=m)
    compiled = plait.compile(attend)
    given = inputs()
    for each in (causal, in_document, late_rows, causal):
        found = compiled(*given, mask(each))
        torch.testing.assert_close(found, eager(attend, *given, mask(each)))


def test_captured_tensors_get_gradients():
    bias = torch.nn.Parameter(torch.randn(4, 80))
    given = inputs()

    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j + 40])

    attend(*given).square().sum().backward()
    wanted, bias.grad = bias.grad, None
    plait.compile(attend)(*given).square().sum().backward()
    torch.testing.assert_close(bias.grad, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda q, k, v: (q.requires_grad_(), k, v),
        lambda q, k, v: (q[0], k, v),
        lambda q, k, v: (q, k[:, :2], v[:, :2]),
        lambda q, k, v: (q, k[..., :8], v),
        lambda q, k, v: (q[:, :, :30], k, v),
    ],
    ids=["gradients", "dimensions", "heads", "depth", "mask"],
)
def test_what_eager_refuses_is_refused(spoil):
    def attend(q, k, v):
        return flex_attention(q, k, v, **PROGRAMS["causal"])

    raised = []
    for function in (attend, plait.compile(attend)):
        with pytest.raises(Exception) as error:  # the next lines compare them
            function(*spoil(*inputs()))
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]


@pytest.mark.slow
def test_torchs_compiler_is_not_imported():
    code = """if True:
        import sys, torch, plait
        from torch.nn.attention.flex_attention import flex_attention
        q = torch.randn(1, 2, 16, 8)
        plait.compile(lambda q: flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s * 2))(q)
        assert "torch._dynamo" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


ON_TRITON = """
import sys
import plait, torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

documents = torch.arange(300) // 70
slopes = torch.linspace(0.1, 0.4, 4)

def seen(b, h, i, j):
    return (15 * i >= j) & (documents[15 * i] == documents[j])

def score(s, b, h, i, j):
    return 20 * torch.tanh(s / 20) + slopes[h] * (j - i)

mask = create_block_mask(seen, None, None, 20, 300, device="cpu")

def attend(q, k, v):
    return flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True)

q = torch.randn(1, 20, 4, 16).bfloat16().transpose(1, 2)
k, v = torch.randn(2, 1, 2, 300, 16).bfloat16()
settings = {"attention_operands": True, "attention_spans": True, "max_head_size": 256}
options = {f"scheduler.{name}": value for name, value in settings.items()}
fast = plait.compile(attend, backend="triton", options=options)
found = fast(q, k, v)
sys.modules[flex_attention.__module__]._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
torch.testing.assert_close(found, attend(q, k, v), rtol=0.02, atol=0.02)
assert found.stride() == q.stride()
(graph,) = plait.report(fast).graphs
print(graph.backend, graph.record.code.source.count("device.dot("))
"""


TRAINED_ON_TRITON = """
import sys
import plait, torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

module = sys.modules[flex_attention.__module__]
module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
module._validate_device = lambda *tensors: None  # there are no gradients on CPUs
ROWS, KEYS = 70, 300
documents = torch.arange(KEYS) // 70
slopes = torch.linspace(0.1, 0.4, 4)

def in_document(b, h, i, j):
    return (4 * i >= j) & (documents[4 * i] == documents[j])

def late(b, h, i, j):
    return (i > 20) & (i >= j) & (i - j < 9)

def capped(s, b, h, i, j):
    return 5 * torch.tanh(s / 5) + slopes[h] * (j - i)

def mask(function):
    return create_block_mask(function, None, None, ROWS, KEYS, device="cpu")

settings = {"attention_operands": True, "attention_spans": True, "max_head_size": 256}
settings |= {"attention_sums": True, "fuse_mixtures": True}
options = {f"scheduler.{name}": value for name, value in settings.items()}
options["attention_gradients"] = True

def drawn(dtype, keys):
    draw = torch.Generator().manual_seed(0)
    shapes = (1, 4, ROWS, 16), (1, 2, keys, 16), (1, 2, keys, 24)
    return [torch.randn(s, generator=draw).to(dtype).requires_grad_() for s in shapes]

def check(name, attend, dtype, keys=KEYS, products=2, tensors=(), wanted_of=None):
    fast = plait.compile(attend, backend="triton", options=options)
    given = [*drawn(dtype, keys), *tensors]
    made = fast(*given)
    g = torch.randn(made.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = torch.autograd.grad(made, given, g)
    wide = [each.detach().double().requires_grad_() for each in given]
    wanted = torch.autograd.grad((wanted_of or attend)(*wide), wide, g.double())
    limit = 1e-5 if dtype is torch.float32 else 0.02
    for one, other in zip(found, wanted, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=limit, atol=limit)
    graphs = plait.report(fast).graphs
    assert all(graph.backend == "triton" for graph in graphs), name
    kernels = [kernel for graph in graphs for kernel in graph.kernels]
    assert sum("mixture" in kernel for kernel in kernels) == products, (name, kernels)
    assert any("attention" in kernel for kernel in kernels) == bool(products), (name, kernels)
    return found, [each.left for each in graphs[0].passes if each.name == "attention-gradients"]

def flex(**given):
    return lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, **given)

check("plain", flex(), torch.float32)
check("both", flex(score_mod=capped, block_mask=mask(in_document)), torch.float32)
check("both", flex(score_mod=capped, block_mask=mask(in_document)), torch.bfloat16)
(queries, _, _), _ = check("late", flex(block_mask=mask(late)), torch.float16)
assert not queries[:, :, :21].any()

def by_hand(q, k, v):
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    seen = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
    scores = (q @ k.transpose(-2, -1) / 4).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v

check("by hand", by_hand, torch.float32, keys=ROWS)

def learned(q, k, v, bias):
    score = lambda s, b, h, i, j: s + bias[h, i, j]
    return flex_attention(q, k, v, score_mod=score, enable_gqa=True)

def learned_by_hand(q, k, v, bias):
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    return (q @ k.transpose(-2, -1) / 4 + bias).softmax(-1) @ v

bias = torch.randn(4, ROWS, 24, generator=torch.Generator().manual_seed(2)).requires_grad_()
given = {"products": 0, "keys": 24, "tensors": (bias,), "wanted_of": learned_by_hand}
_, ((reason,),) = check("learned", learned, torch.float32, **given)
print(reason)
"""


def test_gradients_are_kernels_of_tritons():
    pytest.importorskip("plait_triton_codegen", reason="the Triton backend is optional")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAINED_ON_TRITON],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "reads gradients of each score" in done.stdout


def test_it_is_one_kernel_of_tritons():
    pytest.importorskip("plait_triton_codegen", reason="the Triton backend is optional")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_TRITON],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["triton", "4"]  # two products in each of two loops
