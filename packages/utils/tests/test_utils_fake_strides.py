"""Fake results have the strides and types of real ones, where torch's own fakes differ."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from plait_utils.fake import FakeMode

WIDE = [((1, 3, 3), (6, 1, 3)), ((3, 3), (1, 3)), ((4, 3, 3), (1, 12, 4)), ((2, 1, 3), (3, 1, 2))]
NARROW = [((3,), (1,)), ((3, 3), (3, 1)), ((1, 3), (3, 1)), ((3, 1), (1, 3)), ((3, 3), (0, 1))]
OPERATORS = {
    "copysign": torch.copysign,
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "heaviside": torch.heaviside,
    "floor_divide": torch.floor_divide,
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "pow of a number": lambda a, b: 2**a,
    "log_sigmoid": lambda a, b: torch.nn.functional.logsigmoid(a),
}
IMAGES = {
    "mirrored": lambda x, w: torch.ops.aten.reflection_pad2d_backward(
        x.new_ones(x.shape[0], x.shape[1], x.shape[2] + 1, x.shape[3] + 1), x, [1, 0, 0, 1]
    ),
    "repeated": lambda x, w: torch.ops.aten.replication_pad2d_backward(
        x.new_ones(x.shape[0], x.shape[1], x.shape[2] + 1, x.shape[3] + 1), x, [1, 0, 0, 1]
    ),
    "channel_shuffle": lambda x, w: torch.nn.functional.channel_shuffle(x, 2),
    "batch norm": lambda x, w: torch.ops.aten._native_batch_norm_legit_no_training(
        x, w, w, w, w, 0.1, 1e-5
    )[0],
    "batch norm in training": lambda x, w: torch.ops.aten._native_batch_norm_legit.no_stats(
        x, w, w, True, 0.1, 1e-5
    )[0],
    "batch norm with statistics": lambda x, w: torch.ops.aten._native_batch_norm_legit_functional(
        x, w, w, w, w, True, 0.1, 1e-5
    )[0],
}


def steps(tensor):
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [step for size, step in pairs if size > 1]


@pytest.mark.parametrize("name", OPERATORS)
def test_strides_are_those_of_the_real_result(name):
    mode, memory = FakeMode(), torch.rand(100)
    for one, other in itertools.product(WIDE, NARROW):
        for pair in ((one, other), (other, one)):
            a, b = (torch.as_strided(memory, *geometry) for geometry in pair)
            real = OPERATORS[name](a, b)
            with mode:
                fake = OPERATORS[name](mode.from_tensor(a), mode.from_tensor(b))
            assert (fake.dtype, fake.shape, steps(fake)) == (real.dtype, real.shape, steps(real))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("pair", [(9.0, 4.0), (0.0, 0.0), (-7.0, 2.0), (-1.5, -0.5)], ids=str)
def test_known_values_are_those_of_the_real_result(name, pair):
    real = OPERATORS[name](*map(torch.tensor, pair))
    with FakeMode():
        fake = OPERATORS[name](*map(torch.tensor, pair))
    assert fake.constant is not None
    torch.testing.assert_close(fake.constant, real, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_the_value_of_a_quotient_of_numbers_is_known(mode):
    with FakeMode():
        assert torch.div(-9, 4, rounding_mode=mode).item() == {"floor": -3, "trunc": -2}[mode]


@pytest.mark.parametrize("count", [2, 200])
def test_what_is_among_others_is_told_row_by_row(count):
    mode, among = FakeMode(), torch.rand(count)
    for elements in (torch.rand(4, 3, 5).transpose(1, 2), torch.rand(3, 4).t(), torch.rand(6)[::2]):
        for others in (among, 0.5):
            real = torch.isin(elements, others)
            with mode:
                given = mode.from_tensor(others) if others is among else others
                fake = torch.isin(mode.from_tensor(elements), given)
            assert (fake.dtype, fake.shape, steps(fake)) == (real.dtype, real.shape, steps(real))


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 3, 2), (3, 2, 1, 0)])
def test_images_keep_channels_last_and_no_other_order(name, order):
    mode, weight = FakeMode(), torch.rand(4)
    sizes = (2, 4, 3, 5)
    inverse = [order.index(axis) for axis in range(4)]
    image = torch.rand([sizes[axis] for axis in order]).permute(inverse)
    for given in (image, image[:, :, ::2], image[:1]):
        real = IMAGES[name](given, weight)
        with mode:
            fake = IMAGES[name](mode.from_tensor(given), mode.from_tensor(weight))
        assert (fake.dtype, fake.shape, steps(fake)) == (real.dtype, real.shape, steps(real))


def test_types_are_those_of_the_real_result():
    mode = FakeMode()
    kinds = (torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.float32)
    for name, (one, other) in itertools.product(OPERATORS, itertools.product(kinds, kinds)):
        a, b = torch.ones(3, dtype=one), torch.ones(2, 1, dtype=other)
        try:
            real = OPERATORS[name](a, b)
        except RuntimeError:  # no kernel for these types
            continue
        with mode:
            fake = OPERATORS[name](mode.from_tensor(a), mode.from_tensor(b))
        assert fake.dtype is real.dtype, (name, one, other)


def test_wrong_arguments_are_refused_as_by_the_real_operator():
    mode = FakeMode()
    with mode:
        with pytest.raises(RuntimeError, match="rounding_mode"):
            torch.div(torch.ones(3), torch.ones(3), rounding_mode="up")
        with pytest.raises(RuntimeError, match="different dtypes"):
            torch.heaviside(torch.ones(3), torch.ones(3).long())
        with pytest.raises(RuntimeError, match="complex"):
            torch.floor_divide(torch.ones(3, dtype=torch.complex64), torch.ones(3))


@pytest.mark.parametrize(("sizes", "groups"), [((2, 4), 2), ((2, 4, 3), 0), ((2, 4, 3), 3)])
def test_a_shuffle_that_is_impossible_is_refused_as_by_the_real_operator(sizes, groups):
    mode, x = FakeMode(), torch.ones(sizes)
    with pytest.raises(RuntimeError) as real:
        torch.nn.functional.channel_shuffle(x, groups)
    with mode, pytest.raises(RuntimeError) as fake:
        torch.nn.functional.channel_shuffle(mode.from_tensor(x), groups)
    assert str(fake.value) == str(real.value)


def test_filling_by_index_gives_a_copy():
    mode, base = FakeMode(), torch.zeros(5, 3).t()
    places = torch.tensor([1])
    for given in (base, base.expand(2, 3, 5), base[::2], torch.tensor(1.0)):
        for value in (1, torch.tensor(2)):
            real = given.index_fill(-1, places * 0, value)
            with mode:
                fake = mode.from_tensor(given).index_fill(-1, mode.from_tensor(places), value)
            assert (fake.dtype, fake.shape, steps(fake)) == (real.dtype, real.shape, steps(real))
    wrong = [(3, places, 1), (0, places.int(), 1), (0, places[None], 1), (0, places, torch.ones(2))]
    for arguments in wrong:
        with pytest.raises((IndexError, RuntimeError)) as real_error:
            base.index_fill(*arguments)
        with mode, pytest.raises(real_error.type):
            mode.from_tensor(base).index_fill(*arguments)


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("parameters", ["weight", "bias", "both", "none"])
def test_statistics_of_norms_have_the_types_of_the_real_ones(kept, parameters):
    """bfloat16 may have parameters in float32, whose type the statistics take."""
    aten = torch.ops.aten

    def program():
        x, given = torch.rand(2, 6, 5, dtype=torch.bfloat16), torch.rand(6, dtype=kept)
        w = given if parameters in ("weight", "both") else None
        b = given if parameters in ("bias", "both") else None
        grouped = aten.native_group_norm(x, w, b, 2, 6, 5, 3, 1e-5)
        made = [
            *aten._native_batch_norm_legit_no_training(x, w, b, given, given, 0.1, 1e-5),
            *aten._native_batch_norm_legit_functional(x, w, b, given, given, True, 0.1, 1e-5),
            *aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5),
            *grouped,
        ]
        if w is not None:
            made += aten.native_group_norm_backward(x, x, *grouped[1:], w, 2, 6, 5, 3, [True] * 3)
        return made

    real = program()
    with FakeMode():
        fake = program()
    assert [(x.dtype, x.shape) for x in fake] == [(x.dtype, x.shape) for x in real]


def _laid_out(dtype):
    """A tensor whose dimensions are permuted, and some of them maybe expanded."""
    rank = random.randint(1, 4)
    x = torch.randn([random.randint(1, 5) for _ in range(rank)]).to(dtype)
    x = x.permute(random.sample(range(rank), rank))
    spread = random.sample(range(rank), random.randint(0, rank)) if random.random() < 0.4 else []
    for axis in spread:
        x = x.narrow(axis, 0, 1)
    return x.expand([random.randint(2, 3) if axis in spread else -1 for axis in range(rank)])


def _transform(kind, x):
    axes = random.sample(range(x.dim()), random.randint(1, x.dim()))
    if kind == "to real":
        size = max(1, 2 * (x.shape[axes[-1]] - 1) + random.randint(0, 1))
        return lambda x: torch.ops.aten._fft_c2r(x, axes, 0, size)
    chosen = random.random() < 0.5
    operator = torch.ops.aten._fft_c2c if kind == "complex" else torch.ops.aten._fft_r2c
    return lambda x: operator(x, axes, 0, chosen)


@pytest.mark.parametrize("kind", ["complex", "of real", "to real"])
def test_fourier_transforms_lie_as_the_real_ones(kind):
    random.seed(0)
    mode = FakeMode()
    for _ in range(300):
        x = _laid_out(torch.float32 if kind == "of real" else torch.complex64)
        transform = _transform(kind, x)
        real = transform(x)
        with mode:
            fake = transform(mode.from_tensor(x))
        assert (fake.dtype, fake.shape) == (real.dtype, real.shape)
        assert steps(fake) == steps(real), (x.shape, x.stride())


def test_fourier_transforms_of_wrong_types_are_refused():
    mode = FakeMode()
    for operator, dtype, rest in (
        (torch.ops.aten._fft_c2c, torch.float32, True),
        (torch.ops.aten._fft_r2c, torch.complex64, True),
        (torch.ops.aten._fft_c2r, torch.float32, 4),
    ):
        with mode, pytest.raises(RuntimeError):
            operator(torch.empty(3, dtype=dtype), [0], 0, rest)


EMPTY = [
    ((1, 3, 0, 5), (0, 1, 15, 3)),
    ((2, 0, 5), (5, 5, 1)),
    ((0,), (6,)),
    ((3, 0), (1, 3)),
    ((5, 0, 0, 3), (1, 15, 15, 5)),
    ((0, 3), (5, 1)),
    ((1, 0), (1, 1)),
]
OF_EMPTY = {
    "x + 1": lambda x: x + 1,
    "-x": torch.neg,
    "a product of ones": lambda x: torch.ones(0, 1) * x[:0, :1] if x.dim() == 2 else x * x,
    "flipped": lambda x: x.flip(0),
    "transposed": lambda x: x.transpose(0, -1) * 2,
    "zeros_like": torch.zeros_like,
    "clone": torch.clone,
    "sorted": lambda x: x.sort(-1),
    "a sum": lambda x: x.sum(0, keepdim=True),
    "a slice": lambda x: x[..., :0] + 1,
    "parts": lambda x: [part + 1 for part in x.split(1, -1)],
    "as doubles": lambda x: x.double(),
    "chosen": lambda x: x[torch.tensor([], dtype=torch.int64)],
    "where": lambda x: torch.where(x > 0, x, 0.0),
}


def geometry(found):
    found = found if isinstance(found, (tuple, list)) else [found]
    return [(each.shape, each.stride(), each.dtype) for each in found]


@pytest.mark.parametrize("name", OF_EMPTY)
def test_results_without_elements_have_the_strides_of_real_ones(name):
    for shape, strides in EMPTY:
        x = torch.empty_strided(shape, strides)
        before = torch.get_rng_state()
        with FakeMode() as mode:
            found = OF_EMPTY[name](mode.from_tensor(x))
        assert geometry(found) == geometry(OF_EMPTY[name](x)), (shape, strides)
        assert torch.equal(torch.get_rng_state(), before)


def test_norms_along_dimensions_of_size_one_drop_them():
    values = torch.randn(1, 1, 1, 7)
    for dims in (-3, (-1, -2), (0, -1), 1, None):
        with FakeMode():
            fake = torch.linalg.vector_norm(torch.empty(1, 1, 1, 7), 3, dims)
        assert fake.shape == torch.linalg.vector_norm(values, 3, dims).shape
    with FakeMode(), pytest.raises(IndexError):
        torch.linalg.vector_norm(torch.empty(1, 7), 2, -5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_attention_has_the_types_and_strides_of_the_real_one(dtype):
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    memory = torch.randn(2, 5, 3, 8, dtype=dtype)
    given = [memory, memory.transpose(1, 2), memory.transpose(1, 2).contiguous()]
    for query in given:
        with FakeMode() as mode:
            found = attention(*[mode.from_tensor(query)] * 3)
        assert list(map(geometry, found)) == list(map(geometry, attention(query, query, query)))
        assert [each.dtype for each in found] == [each.dtype for each in attention(*[query] * 3)]


def test_the_gradient_of_an_unfolded_number_is_one():
    with FakeMode():
        gradient = torch.ops.aten.unfold_backward(torch.empty(0), [], 0, 0, 1)
    assert gradient.shape == ()


def _scattered(chosen, shape, dtype):
    """A tensor of zeros whose dimensions lie in any order, some of them expanded."""
    order, strides, step = chosen.sample(range(len(shape)), len(shape)), [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    for dim, size in enumerate(shape):
        if chosen.random() < (0.5 if size == 1 else 0.1):
            strides[dim] = chosen.choice([1, 3, step]) if size == 1 else 0
    return torch.zeros(step + 100, dtype=dtype).as_strided(shape, strides)


@pytest.mark.parametrize("seed", range(4))
def test_strides_of_what_indices_choose(seed):
    """Every stride, of dimensions of size 1 too."""
    chosen = random.Random(seed)
    for _ in range(150):
        x = _scattered(chosen, chosen.choices([1, 2, 3, 5], k=chosen.randint(1, 4)), torch.float32)
        whole = chosen.choices([1, 2, 3, 4], k=chosen.randint(1, 3))
        indices = [
            _scattered(
                chosen,
                [1 if chosen.random() < 0.3 else n for n in whole][chosen.randrange(len(whole)) :],
                torch.int64,
            )
            if chosen.random() < 0.6
            else None
            for _ in x.shape
        ]
        if not any(each is not None for each in indices):
            continue
        real, mode = torch.ops.aten.index(x, indices), FakeMode()
        with mode:
            faked = [None if each is None else mode.from_tensor(each) for each in indices]
            fake = torch.ops.aten.index(mode.from_tensor(x), faked)
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize(
    "indices",
    [
        [torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)],
        [torch.zeros(1, dtype=torch.int64)] * 3,
        [torch.zeros(2)],
    ],
    ids=["sizes", "too many", "floats"],
)
def test_indices_that_fit_nothing_are_errors(indices):
    with FakeMode() as mode, pytest.raises((IndexError, RuntimeError)):
        torch.ops.aten.index(mode.from_tensor(torch.ones(4, 5)), [*map(mode.from_tensor, indices)])


ITERATED = {
    **{
        name: getattr(torch, name) for name in ("add", "mul", "div", "atan2", "eq", "lt", "maximum")
    },
    **{name: getattr(torch, name) for name in ("hypot", "logical_or", "floor_divide", "rsub")},
    "backward of tanh": torch.ops.aten.tanh_backward,
    "backward of a threshold": lambda a, b: torch.ops.aten.threshold_backward(a, b.to(a.dtype), 0),
    "where": lambda a, b: torch.where(a > b, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, b, a),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
}
KINDS = (torch.float32, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@pytest.mark.parametrize("name", ITERATED)
def test_strides_of_elementwise_results(name):
    """Of operands that are broadcast, transposed, spread out and of different types."""
    chosen, compared = random.Random(name), 0
    for _ in range(250):
        whole = chosen.choices([1, 2, 3, 5], k=chosen.randint(1, 4))
        operands = [
            _scattered(
                chosen,
                [1 if chosen.random() < 0.25 else n for n in whole][chosen.choice([0, 0, 0, 1]) :],
                chosen.choice(KINDS if chosen.random() < 0.5 else KINDS[:2]),
            )
            for _ in range(2)
        ]
        try:
            real = ITERATED[name](*operands)
        except RuntimeError:  # of types that it does not take
            continue
        with FakeMode() as mode:
            fake = ITERATED[name](*map(mode.from_tensor, operands))
        assert (fake.dtype, fake.shape, steps(fake)) == (real.dtype, real.shape, steps(real))
        compared += 1
    assert compared > 60


ONE_OPERAND = {
    "add a number": lambda x: x + 1,
    "subtract from a number": lambda x: 1.5 - x,
    "compare": lambda x: x <= 0.5,
    "divide": lambda x: x / 3,
    "divide and floor": lambda x: x // 3,
    "divide and truncate": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "remainder": lambda x: x % 3,
    "power": lambda x: x**2,
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp by itself": lambda x: torch.clamp(x, max=x),
    "exp": torch.exp,
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "hardswish": torch.nn.functional.hardswish,
    "gelu": torch.nn.functional.gelu,
    "sign": torch.sign,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "nan_to_num": torch.nan_to_num,
    "cast": lambda x: x.to(torch.float64),
    "zeros_like": torch.zeros_like,
    "clone": torch.clone,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, -1),
    "roll by whole turns": lambda x: x.roll(4 * x.shape[0], 0),
    "roll twice": lambda x: x.roll((1, -2), (1, 0)),
    "roll what is flat": lambda x: x.roll(1),
    "sort": lambda x: x.sort(-1),
    "tril": lambda x: x[None].tril(),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0),
    "where": lambda x: torch.where(x > 1, x, 0),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([0]), x[:1]),
    "index_add": lambda x: x.index_add(0, torch.tensor([0]), x[:1]),
    "index_put": lambda x: x.index_put((torch.tensor([0]),), x[0]),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:1], 0, 0, 1),
    "select_scatter": lambda x: torch.select_scatter(x, x[0], 0, 0),
    "norm": lambda x: x.norm(dim=0, keepdim=True),
    "log_softmax": lambda x: x.log_softmax(0),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "instance_norm": torch.nn.functional.instance_norm,
    "group_norm": lambda x: torch.nn.functional.group_norm(x, 1),
}


def _laid_anyhow(seed: int) -> torch.Tensor:
    """A small tensor in any order of dimensions, with gaps, repeats, and odd strides of one."""
    chosen = random.Random(seed)
    shape = [chosen.choice([1, 2, 3, 5]) for _ in range(chosen.randint(1, 4))]
    strides, step = [0] * len(shape), 1
    for dim in chosen.sample(range(len(shape)), len(shape)):
        strides[dim] = step
        step *= shape[dim]
        if chosen.random() < 0.15:
            step += chosen.choice([1, 2, step])
    for dim, size in enumerate(shape):
        if size == 1 and chosen.random() < 0.5:
            strides[dim] = chosen.choice([1, 3, step])
        elif size > 1 and chosen.random() < 0.1:
            strides[dim] = 0
    kind = chosen.choice([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
    return (torch.rand(step + 60) + 0.5).to(kind).as_strided(shape, strides)


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_one_operand_that_lies_anyhow(name):
    compared = 0
    for seed in range(120):
        given = _laid_anyhow(seed)
        try:
            real = ONE_OPERAND[name](given)
        except (RuntimeError, NotImplementedError, ValueError, IndexError):
            continue  # of this type, or of so few dimensions
        with FakeMode() as mode:
            fake = ONE_OPERAND[name](mode.from_tensor(given))
        pairs = zip(fake, real, strict=True) if isinstance(real, tuple) else [(fake, real)]
        for found, wanted in pairs:
            told = (given.shape, given.stride(), given.dtype)
            assert (found.shape, found.stride()) == (wanted.shape, wanted.stride()), told
        compared += 1
    assert compared > 20
