"""External calls from the C++ host: every kind of argument and result, errors, leaks, threads."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from cpp_calls import Call, call, extern_graph, flat, native, run, same
from cpp_memory import keeps_blocks
from torch import fx

from plait_cpp_codegen import build
from plait_cpp_codegen.external import shims, writer
from plait_ir_lowering import lower
from plait_scheduler import memory_report, schedule
from plait_utils.draws import draws_before
from plait_utils.fake import FakeMode
from plait_utils.with_gradients import TORCHS_OWN

A = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(7)


def rand(*size: int) -> torch.Tensor:
    return torch.randn(size, generator=GENERATOR)


X = rand(5, 6)
IMAGE = rand(2, 3, 8, 8)
ROWS = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 0, 0, 2, 2, 3]])
INDEX = torch.tensor([3, 0, 0, 4])
MASK = X > 0

# Calls without a C function of their own, or with arguments that few ops take.
CALLS = {
    "scatter": call(A.scatter.src, X, 0, ROWS, rand(2, 6)),
    "scatter value": call(A.scatter.value, X, 0, ROWS, 3.5),
    "scatter_add": call(A.scatter_add.default, X, 0, ROWS, rand(2, 6)),
    "scatter_reduce": call(A.scatter_reduce.two, X, 0, ROWS, rand(2, 6), "amax"),
    "index, some absent": call(
        A.index.Tensor, IMAGE, [None, torch.tensor([2, 0, 1, 1]), None, INDEX]
    ),
    "index_put": call(A.index_put.default, X, [INDEX, INDEX], rand(4), True),
    "index_add": call(A.index_add.default, X, 0, INDEX, rand(4, 6), alpha=2),
    "index_copy": call(A.index_copy.default, X, 0, torch.tensor([1, 0]), rand(2, 6)),
    "nll_loss": call(A.nll_loss_forward.default, X, torch.tensor([0, 5, 2, 1, 1]), None, 1, -100),
    "upsample, by size": call(A.upsample_nearest2d.vec, IMAGE, [4, 5], None),
    "upsample, by scales": call(A.upsample_bilinear2d.vec, IMAGE, None, False, [1.5, 2.0]),
    "oneDNN's product": call(
        *(torch.ops.mkldnn._linear_pointwise.default, X, rand(4, 6), None, "none", [], "")
    ),
    "rand": call(A.rand.default, [3, 4]),
    "rand, with all options": call(
        A.rand.default,
        [3, 4],
        dtype=torch.float64,
        layout=torch.strided,
        device=torch.device("cpu"),
        pin_memory=False,
    ),
    "randn_like": call(A.randn_like.default, IMAGE, memory_format=torch.channels_last),
    "randint": call(A.randint.low, -5, 9, [7], dtype=torch.int32),
    "randperm": call(A.randperm.default, 11),
    "bernoulli": call(A.bernoulli.default, MASK.float(), generator=None),
    "native_dropout": call(A.native_dropout.default, X, 0.5, True),
    "eye": call(A.eye.m, 3, 4, dtype=torch.int16),
    "frac": call(A.frac.default, X),
    "select_scatter": call(A.select_scatter.default, X, rand(6), 0, -1),
    "slice_scatter": call(A.slice_scatter.default, X, rand(2, 6), 0, 1, 2**63 - 1, 2),
    "diagonal_scatter": call(A.diagonal_scatter.default, X, rand(5), 1),
    "roll": call(A.roll.default, X, [1, -2], [0, 1]),
    "quantile's sort": call(A.sort.stable, X, stable=True, dim=0, descending=True),
    "kthvalue": call(A.kthvalue.default, X, 2),
    "cummax": call(A.cummax.default, X, 1),
    "unbind": call(A.unbind_copy.int, X, 0),
    "split": call(A.split_copy.Tensor, X, 4, 1),
    "split_with_sizes": call(A.split_with_sizes_copy.default, X, [1, 0, 5], 1),
    "chunked stack": call(A.stack.default, [X, X, X], 1),
    "meshgrid": call(A.meshgrid.indexing, [rand(2), rand(3)], indexing="xy"),
    "foreach": call(A._foreach_add.List, [X, IMAGE], [X, IMAGE], alpha=2),
    "to_copy": call(A._to_copy.default, IMAGE, dtype=torch.bfloat16, device=torch.device("cpu")),
    "clone": call(A.clone.default, IMAGE, memory_format=torch.channels_last),
    "searchsorted": call(A.searchsorted.Tensor, rand(9).sort().values, X, side="right"),
    "bucketize": call(A.bucketize.Tensor, X, rand(9).sort().values, out_int32=True),
    "histc": call(A.histc.default, X, 4, -1, 1),
    "einsum's bmm": call(A.bmm.default, rand(2, 3, 4), rand(2, 4, 5)),
    "convolution": call(
        A.convolution.default,
        IMAGE,
        rand(4, 3, 3, 3),
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        1,
    ),
    "max_pool": call(A.max_pool2d_with_indices.default, IMAGE, [2, 2]),
    "grid_sampler": call(A.grid_sampler_2d.default, IMAGE, rand(2, 4, 4, 2), 0, 0, False),
    "cdist": call(A._cdist_forward.default, X, X, 2.0, None),
    "embedding_bag": call(A._embedding_bag.default, X, INDEX, torch.tensor([0, 2])),
    "linalg_svd": call(A._linalg_svd.default, X),
    "linalg_solve_triangular": call(
        A.linalg_solve_triangular.default, rand(3, 3), rand(3, 2), upper=True
    ),
    "fft": call(A._fft_r2c.default, X, [1], 0, True),
    "complex product": call(A.mm.default, rand(3, 3).to(torch.complex64), rand(3, 3).cfloat()),
    "integer addmm": call(A.addmm.default, ROWS, torch.eye(2).long(), ROWS, beta=2, alpha=3),
    "pow of integers": call(A.pow.Tensor_Scalar, ROWS, 2),
    "bool": call(A.isin.Tensor_Tensor, ROWS, INDEX, invert=True),
    "no dimension": call(A.median.default, X),
    "empty": call(A.roll.default, rand(0, 3), [1], [0]),
    "empty list": call(A.roll.default, X.flatten(), [2], []),
    "float8": call(A._to_copy.default, X, dtype=torch.float8_e4m3fn),
    "from float8": call(A._to_copy.default, X.to(torch.float8_e5m2), dtype=torch.float32),
    "nan": call(A.nan_to_num.default, X / 0, float("inf"), float("nan"), -1.5),
}


def test_calls_give_what_eager_gives():
    calls = list(CALLS.values())
    torch.manual_seed(3)
    expected = [made() for made in calls]
    executable = native(calls, expected)
    torch.manual_seed(3)
    actual = iter(run(executable, calls))
    for name, results in zip(CALLS, expected, strict=True):
        for result in results:
            try:
                same(next(actual), result)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def aten_graph(made: Call) -> fx.Graph:
    """The FX graph of one call, with fake values."""
    graph, mode = fx.Graph(), FakeMode()
    fakes: list[torch.Tensor] = []

    def placeholder(tensor):
        node = graph.placeholder(f"x{len(fakes)}")
        node.meta["val"] = mode.from_tensor(tensor)
        fakes.append(node.meta["val"])
        return node

    def mapped(leaf, value):
        if isinstance(value, torch.Tensor):
            return leaf(value)
        return [mapped(leaf, item) for item in value] if isinstance(value, list) else value

    args = tuple(mapped(placeholder, arg) for arg in made.args)
    kwargs = {name: mapped(placeholder, arg) for name, arg in made.kwargs.items()}
    node = graph.call_function(made.op, args, kwargs)
    given = iter(fakes)
    with mode:
        value = node.meta["val"] = made.op(
            *[mapped(lambda _: next(given), arg) for arg in made.args],
            **{name: mapped(lambda _: next(given), arg) for name, arg in made.kwargs.items()},
        )
    outputs = [node]
    if not isinstance(value, torch.Tensor):
        outputs = [graph.call_function(operator.getitem, (node, n)) for n in range(len(value))]
        for output, item in zip(outputs, value, strict=True):
            output.meta["val"] = item
    graph.output(tuple(outputs))
    return graph


def test_rows_are_added_to_a_product_in_its_own_memory():
    graph, mode = fx.Graph(), FakeMode()
    given = [rand(512, 64), rand(64, 256), torch.tensor([3, 500, 3]), rand(3, 256)]
    nodes = [graph.placeholder(f"x{n}") for n in range(len(given))]
    for node, tensor in zip(nodes, given, strict=True):
        node.meta["val"] = mode.from_tensor(tensor)
    product = graph.call_function(A.mm.default, tuple(nodes[:2]))
    added = graph.call_function(A.index_add.default, (product, 0, *nodes[2:]))
    with mode:
        for node in (product, added):
            node.meta["val"] = mode.from_tensor(torch.empty(512, 256))
    graph.output((added,))
    program = schedule(lower(graph))
    assert memory_report(program).peak.as_int() == 512 * 256 * 4
    executable = build(program)
    assert executable.fallback_reason is None
    with pytest.raises(IndexError):
        executable(*given[:2], torch.tensor([3, 512, 3]), given[3])
    (found,) = executable(*given)
    torch.testing.assert_close(found, (given[0] @ given[1]).index_add(0, *given[2:]))


LOWERED = [
    *("scatter", "index_put", "nll_loss", "upsample, by size", "upsample, by scales", "rand"),
    *("rand, with all options", "eye", "frac", "select_scatter", "index, some absent", "unbind"),
    *("split", "sort", "cummax", "foreach", "linalg_svd", "roll", "randperm"),
]


@pytest.mark.parametrize("name", [name for name in LOWERED if name in CALLS])
@pytest.mark.sampled(3)
def test_a_graph_of_one_call_runs_through_every_stage(name):
    made = CALLS[name]
    executable = build(schedule(lower(aten_graph(made))))
    assert executable.fallback_reason is None, executable.fallback_reason
    torch.manual_seed(3)
    expected = made()
    torch.manual_seed(3)
    for actual, result in zip(executable(*made.inputs()), expected, strict=True):
        same(actual, result)


OUTS = {
    "mm": (call(A.mm.out, X, X.T), [torch.empty(5, 5)]),
    "addmm": (call(A.addmm.out, rand(5), X, X.T, beta=0.5, alpha=2.0), [torch.empty(5, 5)]),
    "topk": (call(A.topk.values, X, 2), [torch.empty(5, 2), torch.empty(5, 2).long()]),
    "cumsum": (call(A.cumsum.out, X, 0, dtype=torch.float64), [torch.empty(5, 6).double()]),
    "integer baddbmm": (
        call(A.baddbmm.out, ROWS.view(1, 2, 6), ROWS.view(1, 2, 6)[:, :, :2], ROWS.view(1, 2, 6)),
        [torch.empty(1, 2, 6).long()],
    ),
}


def test_out_variants_write_into_the_programs_memory():
    calls = [made for made, _ in OUTS.values()]
    expected = [made(*outs) for made, outs in OUTS.values()]
    actual = run(native(calls, expected), calls)
    for a, e in zip(actual, flat(expected), strict=True):
        same(a, e)


@pytest.mark.parametrize("way", ["dispatcher", "python"])
def test_slower_ways_give_the_same(way, monkeypatch):
    """Without C functions, and without the dispatcher, results are the same."""
    monkeypatch.setattr(writer, "shim_of", lambda *_: None)
    if way == "python":
        monkeypatch.setattr(writer, "encode_call", refuse)
    test_calls_give_what_eager_gives()
    test_out_variants_write_into_the_programs_memory()


def refuse(_):
    raise writer.NotEncodable("told so")


def test_a_c_function_that_this_torch_lacks_is_not_needed(monkeypatch):
    made = CALLS["cdist"]
    absent = shims.Shim("aoti_torch_cpu_no_such_function", ("t", "t", "d", "i?"))
    monkeypatch.setattr(writer, "shim_of", lambda *_: absent)
    executable = native([made])
    assert "no_such_function" in executable.source
    same(run(executable, [made])[0], made()[0])


def test_discarded_and_absent_results():
    weight = rand(4, 3, 3, 3)
    backward = call(
        A.convolution_backward.default,
        *(rand(2, 4, 8, 8), IMAGE, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        [False, True, True],
    )
    # of eager's three results the first is undefined
    made = backward()
    assert made[0] is None
    topk = CALLS["kthvalue"]
    graph = extern_graph([topk], [topk()])
    only_indices = type(graph)(graph.name, graph.inputs, graph.definitions, graph.outputs[1:])
    executable = build(schedule(only_indices))
    assert torch.equal(executable(X)[0], topk()[1])


@pytest.mark.parametrize("way", ["dispatcher", "python"])
def test_results_that_share_an_inputs_memory_are_copied(way, monkeypatch):
    if way == "python":
        monkeypatch.setattr(writer, "encode_call", refuse)
    x = rand(6, 4)
    calls = [
        call(A.t.default, x),
        call(A.slice.Tensor, x, 0, 1, 4),
        call(A.split.Tensor, x, 4),
        call(A.contiguous.default, x),
        call(A.expand.default, x[:1], [3, 4]),
        call(A.meshgrid.indexing, [x[0], x[1]], indexing="xy"),
    ]
    executable = native(calls)
    inputs = [tensor.clone() for made in calls for tensor in made.inputs()]
    actual = executable(*inputs)
    expected = list(flat([made() for made in calls]))
    spans = [(t.data_ptr(), t.data_ptr() + t.numel() * 4) for t in inputs]
    for a, e in zip(actual, expected, strict=True):
        same(a, e)
        assert not any(low <= a.data_ptr() < high for low, high in spans)


BAD_INDEX = torch.tensor([9])
FAILING = {
    "IndexError": call(A.index.Tensor, X, [BAD_INDEX]),
    "RuntimeError": call(A.gather.default, X, 0, torch.full((5, 6), 9)),
    "RuntimeError of a C function": call(A._cdist_forward.default, X, rand(3, 3), 2.0, None),
    "LinAlgError": call(A.linalg_cholesky.default, -torch.eye(3)),
    "NotImplementedError": call(A.linalg_qr.default, X.half()),
    "ValueError or RuntimeError": call(A.multinomial.default, -X.abs(), 2),
}


@pytest.mark.parametrize("way", ["first", "dispatcher", "python"])
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.sampled(2)
def test_failing_calls_raise_what_eager_raises(name, way, monkeypatch):
    made = FAILING[name]
    if way != "first":
        monkeypatch.setattr(writer, "shim_of", lambda *_: None)
    if way == "python":
        monkeypatch.setattr(writer, "encode_call", refuse)
    with pytest.raises(Exception) as eager:
        made()
    executable = native([made], [[torch.empty(1)] * len(made.op._schema.returns)])
    for _ in range(3):
        with pytest.raises(type(eager.value)) as compiled:
            run(executable, [made])
        assert type(compiled.value) is type(eager.value)
        assert str(compiled.value) == str(eager.value)


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.sampled(3)
def test_errors_say_how_many_calls_had_drawn(name, place):
    calls = [call(A.rand.default, [3, 4]), call(A.randn.default, [5])]
    calls.insert(place, FAILING[name])
    results = [[torch.empty(1)] * len(made.op._schema.returns) for made in calls]
    for number, made in enumerate(calls):
        if made is not FAILING[name]:
            results[number] = made()
    executable = native(calls, results)
    torch.manual_seed(3)
    with pytest.raises(Exception) as failure:
        run(executable, calls)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    for made in [each for each in calls if each is not FAILING[name]][
        : draws_before(failure.value)
    ]:
        made()
    assert torch.equal(state, torch.get_rng_state())


def test_a_result_of_another_shape_is_refused():
    made = call(A.nonzero.default, X)
    executable = native([made], [[torch.empty(3, 2).long()]])
    with pytest.raises(RuntimeError, match="another shape or element type than planned"):
        run(executable, [made])


def test_user_operators_run_once_even_when_they_raise():
    ran = []
    library = torch.library.Library("plait_cpp_tests", "DEF")
    library.define("positive(Tensor x, str note) -> Tensor")

    def positive(x, note):
        ran.append(note)
        if x.min() < 0:
            raise KeyError(note)
        return x + 1

    library.impl("positive", positive, "CPU")
    op = torch.ops.plait_cpp_tests.positive.default
    good = call(op, X.abs(), 'a "note"\n')
    executable = native([good])
    ran.clear()
    assert torch.equal(run(executable, [good])[0], X.abs() + 1)
    assert ran == ['a "note"\n']
    with pytest.raises(KeyError, match="note"):
        executable(X)
    assert len(ran) == 2


def test_modes_of_the_caller_neither_matter_nor_change():
    calls = [call(A.mm.default, X, X.T), CALLS["frac"], CALLS["scatter"], CALLS["histc"]]
    expected = list(flat([made() for made in calls]))
    executable = native(calls)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
        for a, e in zip(run(executable, calls), expected, strict=True):
            same(a, e)
            assert not a.requires_grad
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
        assert (X @ X.T).dtype is torch.bfloat16
    with torch.no_grad():
        run(executable, calls)
        assert not torch.is_grad_enabled()


LEAKS = """
import sys; sys.path.insert(0, sys.argv[1])
import resource, torch
import test_cpp_external as t
from cpp_calls import native, run
names = ["scatter", "index, some absent", "split", "rand, with all options", "histc", "foreach",
         "searchsorted", "convolution", "integer addmm", "upsample, by scales"]
calls = [t.CALLS[name] for name in names] + [t.call(t.A.t.default, t.X)]
good = native(calls)
bad = [native([made], [[torch.empty(1)] * len(made.op._schema.returns)])
       for made in (t.FAILING["IndexError"], t.FAILING["RuntimeError of a C function"])]
def once():
    run(good, calls)
def fail():
    for executable, name in zip(bad, ("IndexError", "RuntimeError of a C function")):
        try: run(executable, [t.FAILING[name]])
        except Exception: pass
        else: raise AssertionError(name)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
references = sys.getrefcount(t.X)
for _ in range(200): once()
before = resident()
for _ in range(1000): once()
after = resident()
for _ in range(10): fail()
failed = resident()
for _ in range(30): fail()
print((after - before) / 1000, (resident() - failed) / 30, sys.getrefcount(t.X) - references)
"""


@keeps_blocks  # and sanitizers what was freed
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_calls_leak_nothing():
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", LEAKS, here], check=True, capture_output=True, text=True
    )
    a_run, a_failure, references = done.stdout.split()[-3:]
    assert float(a_run) < 64, "bytes"  # a run makes 13 calls; a tensor that is lost has hundreds
    assert float(a_failure) < 4096, "bytes"
    assert int(references) == 0


IMPORTS = """
import sys; sys.path.insert(0, sys.argv[1])
from cpp_calls import call, native, run
import torch
x = torch.randn(3, 4)
calls = [call(torch.ops.aten.frac.default, x), call(torch.ops.aten.histc.default, x, 3)]
run(native(calls), calls)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""


def test_external_calls_import_no_other_compiler():
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, here], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["[]"]


def test_threads_make_calls_at_once():
    calls = [CALLS["histc"], CALLS["scatter"], CALLS["split"], CALLS["integer addmm"]]
    expected = list(flat([made() for made in calls]))
    executable = native(calls)
    wrong = []

    def work():
        for _ in range(100):
            if not all(map(torch.equal, run(executable, calls), expected)):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


HEADER = "torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h"
SINGLE = {
    "AtenTensorHandle": "t",
    "AtenTensorHandle*": "t?",
    "int64_t": "i",
    "int64_t*": "i?",
    "int32_t": "b",
    "int32_t*": "b?",
    "double": "d",
    "double*": "d?",
    "const char*": "s",
}
LISTS = {
    "const AtenTensorHandle*": "t[]",
    "const AtenTensorHandle**": "t?[]",
    "const int64_t*": "i[]",
    "const int64_t**": "i[]?",
    "const int32_t*": "b[]",
}


def test_listed_c_functions_are_as_torch_declares_them():
    header = Path(torch.__file__).parent / "include" / HEADER
    if not header.exists():
        pytest.skip("this torch came without its headers")
    declared = dict(re.findall(r"aoti_torch_cpu_(\w+)\(([^)]*)\)", header.read_text()))
    for name, (kinds, results) in shims.known_shims().items():
        if name not in declared:
            continue  # of another version; the dispatcher is called instead
        parameters = [p.strip().rsplit(" ", 1) for p in declared[name].split(",")]
        lengths = {label for _, label in parameters}
        found = [
            (LISTS if f"{label}_len_" in lengths else SINGLE).get(type_)
            for type_, label in parameters
            if not re.fullmatch(r"ret\d+|\w+_len_", label)
        ]
        assert tuple(found) == kinds, name
        assert sum(bool(re.fullmatch(r"ret\d+", label)) for label in lengths) == results, name


def test_functional_operators_of_torchs_database():
    pytest.importorskip("expecttest", reason="torch's operator database needs expecttest")
    script = Path(__file__).parent / "cpp_op_db.py"
    done = subprocess.run([sys.executable, script, "1", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) > 300


def refused(*arguments: object) -> None:
    raise AssertionError("Python was called")


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="a kernel of oneDNN's")
def test_gradients_are_on_where_an_operator_is_torchs_own_so(monkeypatch):
    layer, name = A.mkldnn_rnn_layer.default, "plait_graded::mkldnn_rnn_layer"
    monkeypatch.setitem(TORCHS_OWN, name, "aten::mkldnn_rnn_layer")
    library = torch.library.Library("plait_graded", "FRAGMENT")
    library.define(str(layer._schema).removeprefix("aten::"))
    library.impl("mkldnn_rnn_layer", refused, "CPU")
    weights = rand(16, 3), rand(16, 4), rand(16), rand(16)
    states = rand(2, 4), rand(2, 4)
    flags = (False, [], 2, 4, 1, True, False, False, True)
    given = (rand(5, 2, 3), *weights, *states, *flags)
    expected = [*layer(*given)]
    with torch.no_grad():
        assert layer(*given)[3] is None
    assert expected[3].numel() > 0
    calls = [call(torch.ops.plait_graded.mkldnn_rnn_layer.default, *given)]
    executable = native(calls, [expected])
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            found = run(executable, calls)
            assert torch.is_grad_enabled() is enabled
        for one, other in zip(found[:3], expected[:3], strict=True):
            same(one, other)
        assert found[3].shape == expected[3].shape
        assert not any(each.requires_grad for each in found)
