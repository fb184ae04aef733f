"""Arrays of NumPy: one graph, guards on what they are, and what breaks."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import warnings

import pytest
import torch
from tracer_oracle import compiled

from plait_bytecode_tracer.guards import Kind, same_constant
from plait_bytecode_tracer.outside.aliasing import apart

np = pytest.importorskip("numpy")


def a(*shape, dtype="float32"):
    return (np.arange(int(np.prod(shape))) / 4 - 1).reshape(shape).astype(dtype)


def run(function, *argument_sets, graphs=1, breaks=0, **options):
    """Each call gives what NumPy gives; how many graphs and breaks that took."""
    traced = compiled(function, **options)
    for arguments in argument_sets:
        copies = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
        mine, theirs = traced(*arguments), function(*copies)
        assert type(mine) is type(theirs)
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        for x, y in zip(arguments, copies, strict=True):
            np.testing.assert_array_equal(x, y)
    assert len(traced.entries) == graphs
    assert sum(len(member.breaks) for member in traced.family()) == breaks
    return traced


def codes(traced):
    return {each.code for member in traced.family() for each in member.breaks}


def normalized(x):
    y = (x - x.mean(axis=0)) / (x.std(axis=0) + 1)
    return np.concatenate([np.tanh(y), np.where(y > 0, y, 0)], axis=1)[:, ::2]


def test_a_program_of_arrays_is_one_graph():
    traced = run(normalized, (a(4, 3),), (a(4, 3) * 2,))
    (entry,) = traced.entries
    assert [source.text for source in entry.capture.sources] == ["x"]
    kinds = [guard.kind for guard in entry.capture.guards if guard.source is not None]
    assert {Kind.TYPE, Kind.ARRAY, Kind.TENSOR} <= set(kinds)


def test_other_dtypes_and_orders_are_traced_anew():
    traced = run(normalized, (a(4, 3),), (a(4, 3, dtype="float64"),), (a(3, 4).T,), graphs=3)
    assert "x is an array of float32" in str(traced.recompiles[0])
    assert "an array of d" in traced.recompiles[0].found


def test_sizes_that_change_become_symbolic():
    run(normalized, (a(4, 3),), (a(5, 3),), (a(6, 3),), (a(9, 3),), graphs=2)


@pytest.mark.parametrize(
    "value",
    [
        *(a(3).astype(">f4"), np.array(["a", "b"]), np.array([1, None], dtype=object)),
        *(a(3)[::-1], np.zeros(3, dtype="uint64"), np.zeros(3, dtype="datetime64[s]")),
    ],
)
def test_arrays_that_torch_cannot_hold_break(value):
    traced = compiled(lambda x: (x == x, len(x)))
    mine, length = traced(value)
    np.testing.assert_array_equal(mine, value == value)
    assert length == len(value)
    assert codes(traced) <= {"GB0015", "GB0016"}
    assert "GB0016" in codes(traced)


def test_functions_that_are_not_captured_run_between_graphs():
    def function(x):
        counts, edges = np.histogram(np.sin(x), bins=3)
        return counts * edges[0]

    traced = run(function, (a(5),), breaks=1)
    assert codes(traced) == {"GB0015"}


def test_random_numbers_are_numpys_own():
    def function(x):
        return x + np.random.rand(3)

    np.random.seed(3)
    expected = function(a(3))
    np.random.seed(3)
    np.testing.assert_array_equal(compiled(function)(a(3)), expected)


def test_a_write_where_arrays_overlap_runs_as_plain_python():
    def function(x, y):
        x += 1
        return y * 2

    traced = compiled(function)
    traced(a(4), a(4))
    base = a(6)
    expected = base.copy()
    theirs = function(expected[:4], expected[2:])
    np.testing.assert_array_equal(traced(base[:4], base[2:]), theirs)
    np.testing.assert_array_equal(base, expected)
    assert traced.eager_reason.code == "GB0016"


def test_memory_of_arrays_is_compared_by_where_it_lies():
    base = a(6)
    one, other = torch.from_numpy(base[:4]), torch.from_numpy(base[2:])
    assert not apart(one, other)
    assert apart(one, torch.from_numpy(base[4:]))
    assert apart(one, one[2:])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((np.float32(0.0), np.float32(-0.0)), (np.float32(1), np.float64(1))),
        *((np.int64(1), np.int32(1)), (np.datetime64("2020", "Y"), np.datetime64("2020-01", "M"))),
        (np.float64(1), 1.0),
    ],
)
def test_scalars_that_programs_tell_apart_are_not_the_same(one, other):
    assert same_constant(one, type(one)(one) if not isinstance(one, np.datetime64) else one)
    assert not same_constant(one, other)


def test_a_scalar_that_is_not_a_number_is_the_same_each_time():
    assert same_constant(np.float32("nan"), np.float32("nan"))


def test_raised_floating_point_errors_are_raised():
    def function(x):
        return 1 / x

    traced = compiled(function)
    traced(a(3))
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        traced(np.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            traced(np.zeros(3))


def divided_scalars(x):
    return x + float(1 / np.float64(0)), np.int8(127) + np.int8(1)


def a_product_of_scalars(x):
    return x, math.prod([np.int8(100), np.int8(2)])


def a_narrow_scalar(x):
    return x, np.float32(1e300)


@pytest.mark.parametrize("function", [divided_scalars, a_product_of_scalars, a_narrow_scalar])
def test_scalars_that_overflow_warn_and_raise_at_each_call(function):
    traced = compiled(function)
    for _ in range(2):
        with pytest.warns(RuntimeWarning):
            traced(torch.ones(2))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        traced(torch.ones(2))


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int16", "int64"])
def test_tensors_of_scalars_have_their_element_types(make, kind):
    def function(x):
        one = getattr(np, kind)(1)
        made = [make(one), make([one, one]), make([1, one]), make(((one,), (one,)))]
        return x, *made, make(one, dtype=torch.float32)

    found, expected = compiled(function)(torch.ones(2)), function(torch.ones(2))
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    torch.testing.assert_close(found, expected)


def test_a_true_scalar_is_what_each_function_takes_it_for():
    def function(x, yes):
        return x.int() * yes, torch.full((2,), yes), torch.arange(yes), torch.tensor([yes])

    traced = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(
            traced(torch.ones(2), np.bool_(True)), function(torch.ones(2), np.bool_(True))
        )


def test_tensors_that_require_grad_have_no_arrays():
    traced = compiled(lambda x: x.numpy())
    with pytest.raises(RuntimeError, match="requires grad"):
        traced(torch.ones(2, requires_grad=True))
    np.testing.assert_array_equal(traced(torch.ones(2)), np.ones(2))


_SAMPLES = {
    "b": np.array([False, True, True, False]),
    "i": np.array([-3, 0, -1, 127], dtype="int8"),
    "l": np.array([-(2**63), 0, -1, 5]),
    "f": np.array([0.5, -0.0, np.inf, np.nan], dtype="float32"),
    "d": np.array([-2.5, 0.0, 3.0, np.nan]),
}


@pytest.mark.parametrize(
    "name",
    [
        *("add", "subtract", "multiply", "divide", "floor_divide", "remainder", "maximum", "less"),
        *("left_shift", "right_shift", "sign", "rint", "floor", "logical_xor", "fmod", "fmax"),
    ],
)
@pytest.mark.sampled(3)
def test_universal_functions_are_numpys_for_every_type(name):
    ufunc = getattr(np, name)
    traced = compiled(lambda *given: ufunc(*given), recompile_limit=64)
    for given in itertools.product(_SAMPLES.values(), repeat=ufunc.nin):
        for values in (given, [given[0], *(x[::-1].copy() for x in given[1:])]):
            with np.errstate(all="ignore"):
                try:
                    expected = ufunc(*values)
                except TypeError:
                    continue
                mine = traced(*values)
            assert mine.dtype == expected.dtype
            np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_without_numpy_the_tracer_works():
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch\n"
        "from plait_bytecode_tracer import CompiledFunction\n"
        "traced = CompiledFunction(lambda x: x * 2 + x.sum(), lambda m, i, c=None: m)\n"
        "assert traced(torch.ones(2)).tolist() == [4.0, 4.0]\n"
        "assert not [n for n in sys.modules if n.startswith('plait_bytecode_tracer.arrays')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
