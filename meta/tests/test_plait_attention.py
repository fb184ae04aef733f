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


ON_TRITON_WITH_GRADIENTS = """
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

def drawn(dtype, keys, batches):
    draw = torch.Generator().manual_seed(0)
    shapes = (batches, 4, ROWS, 16), (batches, 2, keys, 16), (batches, 2, keys, 24)
    return [torch.randn(s, generator=draw).to(dtype).requires_grad_() for s in shapes]

def check(
    name, attend, dtype, keys=KEYS, products=2, tensors=(), wanted_of=None, limit=None, batches=1
):
    fast = plait.compile(attend, backend="triton", options=options)
    given = [*drawn(dtype, keys, batches), *tensors]
    made = fast(*given)
    g = torch.randn(made.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = torch.autograd.grad(made, given, g)
    wide = [each.detach().double().requires_grad_() for each in given]
    wanted = torch.autograd.grad((wanted_of or attend)(*wide), wide, g.double())
    limit = limit or (1e-5 if dtype is torch.float32 else 0.02)
    for one, other in zip(found, wanted, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=limit, atol=limit)
    graphs = plait.report(fast).graphs
    assert all(graph.backend == "triton" for graph in graphs), name
    kernels = [kernel for graph in graphs for kernel in graph.kernels]
    assert sum("mixture" in kernel for kernel in kernels) == products, (name, kernels)
    assert any("attention" in kernel for kernel in kernels) == bool(products), (name, kernels)
    return found, [each.left for each in graphs[0].passes if each.name == "attention-gradients"]
"""


TRAINED = """
def flex(**given):
    return lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, **given)

def hidden(low):
    return lambda s, b, h, i, j: torch.where((i > 20) & (j > 60), s, low)

def hidden_by_hand(low, seen):
    # flex attention adds the logarithm of a sum to the number for its own gradients
    def attend(q, k, v):
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        i, j = torch.arange(ROWS)[:, None], torch.arange(KEYS)
        scores = hidden(low)(q @ k.transpose(-2, -1) / 4, 0, 0, i, j)
        if seen is not None:
            scores = scores.masked_fill(~seen(0, 0, i, j), float("-inf"))
        return torch._safe_softmax(scores, -1) @ v
    return attend

def check_hidden(low, dtype, seen):
    attend = flex(score_mod=hidden(low), block_mask=seen and mask(seen))
    (_, _, values), _ = check(
        f"hidden by {low}", attend, dtype, wanted_of=hidden_by_hand(low, seen)
    )
    assert seen or values[:, :, :60].any()  # rows without keys weigh all of them alike
"""

FEW = """
check("both", flex(score_mod=capped, block_mask=mask(in_document)), torch.float32)
(queries, _, _), _ = check("late", flex(block_mask=mask(late)), torch.float16)
assert not queries[:, :, :21].any()
"""

MORE = """
check("plain", flex(), torch.float32)
check("both", flex(score_mod=capped, block_mask=mask(in_document)), torch.bfloat16)

def by_hand(q, k, v):
    k, v = (each.repeat_interleave(2, 1) for each in (k, v))
    seen = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
    scores = (q @ k.transpose(-2, -1) / 4).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v

check("by hand", by_hand, torch.float32, keys=ROWS)
check_hidden(-1e9, torch.float32, None)
"""

ALL_HIDDEN = """
for low in (-1e9, torch.finfo(torch.float32).min):
    for dtype in (torch.float32, torch.bfloat16):
        for seen in (None, late):
            check_hidden(low, dtype, seen)
"""


CAPTURED = """
buckets = (torch.arange(ROWS + 30).float().log1p() * 3).long()

def far(s, b, h, i, j, table):
    return s + table[h, j - i + ROWS]

def bucket(s, b, h, i, j, table):
    return s + table[buckets[j - i + ROWS], h]

def sloped(s, b, h, i, j, slopes):
    return s + slopes[h] * (j - i) * 0.1

def heated(s, b, h, i, j, number):
    return torch.where(i > j, s * number, s)

def masked(s, b, h, i, j, bias):
    return s + bias[b, i, j]

def biased(s, b, h, i, j, bias):
    return s + bias[b, h, i, j] * 2

def of_keys(s, b, h, i, j, bias):
    return s + bias[h, j]

def twice(s, b, h, i, j, table):
    return s + table[h, j - i + ROWS] * table[0, j]

def many(s, b, h, i, j, table, slopes, fixed):
    return s * slopes[h] + table[h, j - i + ROWS] + fixed[j]

SIZES = {
    far: [(4, ROWS + 30)], bucket: [(16, 4)], sloped: [(4,)], heated: [()],
    masked: [(2, ROWS, 30)], biased: [(2, 4, ROWS, 30)], of_keys: [(4, 30)],
    twice: [(4, ROWS + 30)], many: [(4, ROWS + 30), (4,), (30,)],
}

def behind(b, h, i, j):
    return (i > 9) & (i >= 2 * j)

def check_captured(score, dtype, kind, masks=True, **given):
    seen = behind if masks else None
    block = create_block_mask(behind, None, None, ROWS, 30, device="cpu") if masks else None

    def attend(q, k, v, *tensors):
        changed = lambda s, b, h, i, j: score(s, b, h, i, j, *tensors)
        return flex_attention(q, k, v, score_mod=changed, block_mask=block, enable_gqa=True)

    def by_hand(q, k, v, *tensors):
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        s = q @ k.transpose(-2, -1) / 4
        sizes = [[-1 if m == n else 1 for m in range(4)] for n in range(4)]
        places = [torch.arange(n).view(size) for n, size in zip(s.shape, sizes)]
        s = score(s, *places, *tensors)
        if seen is not None:
            s = s.masked_fill(~seen(*places), float("-inf"))
        return torch._safe_softmax(s, -1) @ v

    draw = torch.Generator().manual_seed(2)
    tensors = [torch.randn(size, generator=draw).to(kind) for size in SIZES[score]]
    last = tensors[2:]  # it gets no gradient
    tensors = [each.requires_grad_() for each in tensors[:2]]
    fixed = lambda made: lambda q, k, v, *rest: made(q, k, v, *rest, *last)
    given = {"keys": 30, "batches": 2, "tensors": tensors, "wanted_of": fixed(by_hand), **given}
    _, left = check(score.__name__, fixed(attend), dtype, **given)
    return left

"""

FEW_CAPTURED = """
for score in (sloped, many):
    assert check_captured(score, torch.float32, torch.float32) == [()]
"""

ALL_CAPTURED = """
for score in SIZES:
    assert check_captured(score, torch.float32, torch.float32) == [()]
check_captured(far, torch.bfloat16, torch.bfloat16)
check_captured(sloped, torch.float16, torch.float32, masks=False)
check_captured(masked, torch.bfloat16, torch.float32)
check_captured(many, torch.float32, torch.bfloat16, limit=0.02)
"""

IN_A_FIXED_ORDER = """
torch.use_deterministic_algorithms(True)
assert check_captured(sloped, torch.float32, torch.float32) == [()]
((reason,),) = check_captured(far, torch.float32, torch.float32, products=0)
print(reason)
"""


WITH_GRADIENTS = {
    "of inputs": TRAINED + FEW,
    "of what is captured": CAPTURED + FEW_CAPTURED + IN_A_FIXED_ORDER,
    "of more inputs": TRAINED + MORE,
    "of rows without keys": TRAINED + ALL_HIDDEN,
    "of all that is captured": CAPTURED + ALL_CAPTURED + IN_A_FIXED_ORDER,
}
LONG = "of what is captured", "of more inputs", "of rows without keys", "of all that is captured"


@pytest.mark.parametrize(
    "of", [pytest.param(each, marks=[pytest.mark.slow] * (each in LONG)) for each in WITH_GRADIENTS]
)
def test_gradients_are_kernels_of_tritons(of):
    pytest.importorskip("plait_triton_codegen", reason="the Triton backend is optional")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ON_TRITON_WITH_GRADIENTS + WITH_GRADIENTS[of]],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert ("in any order" in done.stdout) is ("captured" in of)
