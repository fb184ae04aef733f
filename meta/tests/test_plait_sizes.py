"""One compiled program for many sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import plait

SIZES = [(2, 3), (4, 5), (6, 7), (5, 33), (130, 4)]


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 40), nn.GELU(), nn.Linear(40, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Heads(nn.Module):
    """Layer norm, a softmax over a size that is open, and views that merge open sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length, _ = x.shape
        heads = self.project(self.norm(x)).view(batch, length, 4, 4).transpose(1, 2)
        weights = (heads @ heads.transpose(-1, -2) / 2).softmax(-1)
        merged = (weights @ heads).transpose(1, 2).reshape(batch * length, 16)
        return merged, weights.amax((0, 1))


def last_and_first(x: torch.Tensor) -> list[torch.Tensor]:
    """Slices, pads, joins and positions that depend on sizes."""
    length = x.shape[1]
    return [
        torch.cat([x[:, -1:], x, x[:, :1]], 1),
        nn.functional.pad(x, (0, 1, 2, 0)),
        torch.arange(length, dtype=x.dtype) * x[..., 0],
        x.mean(1) * length + x.shape[0],
        x.tril(),
        x.flip(1)[:, 1:] - x[:, :-1],
        x.var((0, 1)),
    ]


def transforms(x: torch.Tensor) -> list[torch.Tensor]:
    """Fourier transforms over open sizes, of parts that become complex numbers."""
    spectrum = torch.fft.rfft(x, dim=1)
    turned = torch.polar(spectrum.abs(), spectrum.angle() + 0.5)
    return [
        torch.view_as_real(spectrum),
        torch.fft.irfft(turned, n=x.shape[1], dim=1),
        torch.fft.fftn(torch.complex(x, x), dim=(0, 1)).abs(),
        torch.unfold_copy(x, 2, 4, 3),
    ]


def compositions(x: torch.Tensor) -> list[torch.Tensor]:
    """Functions of torch that are made of others, and sizes that are rounded floats."""
    image, length = x[:, None], x.shape[1]
    functional = nn.functional
    table = torch.linspace(-1, 1, 3 * 16 * 8).to(x.dtype).view(3, 16, 8)
    return [
        functional.interpolate(image, scale_factor=2.0),
        functional.interpolate(image, scale_factor=(1.7, 0.6), mode="bilinear"),
        functional.interpolate(image, size=(length + 1, 9), mode="bicubic", align_corners=True),
        functional.interpolate(x, size=length * 2, mode="linear"),
        functional.pad(x, (1, 2), mode="circular"),
        torch.kron(x[0], x[:, 0, :2]),
        torch.stack(torch.gradient(torch.cat([x, x], 1), spacing=0.5, dim=(1, 2))),
        torch.linalg.multi_dot([x[0], table[0], table[1].T]),
        functional.bilinear(x[:, 0], x[:, 1, :8], table),
        functional.pdist(x[0]),
        x[:, : int(length * 0.7) + 1].sum(1),
        torch.masked_scatter(x, x[0] > 0, x * 2),
        torch.take_along_dim(x, x[:1].argmax(2, keepdim=True), 2),
        torch.narrow_copy(x, 1, 1, 2) + torch.expand_copy(x[:1, :1], (x.shape[0], 2, -1)),
    ]


PROGRAMS = {
    "compositions": lambda: compositions,
    "perceptron": Perceptron,
    "heads": Heads,
    "slices": lambda: last_and_first,
    "transforms": lambda: transforms,
}


def assert_right(fast, exact, *inputs):
    """`exact` computes in float64."""
    with torch.no_grad():
        got, wanted = fast(*inputs), exact(*[each.double() for each in inputs])
    torch.testing.assert_close(got, wanted, check_dtype=False, rtol=1e-4, atol=1e-5)


def exact_of(program):
    if not isinstance(program, nn.Module):
        return program
    exact = type(program)().double()
    exact.load_state_dict(program.state_dict())
    return exact.eval()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["plait", "python"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_serves_all_sizes(name, backend):
    torch.manual_seed(0)
    program = PROGRAMS[name]()
    exact = exact_of(program)
    fast = plait.compile(program, dynamic=True, backend=backend)
    for batch, length in SIZES:
        assert_right(fast, exact, torch.randn(batch, length, 16))
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "compiled"
    assert graph.reason is None


def near_the_end(x: torch.Tensor) -> list[torch.Tensor]:
    """What there is for sizes of more than a few alone."""
    return [x[-3:-2], x[:, -4:-1] * x[:, 3:4], *torch.gradient(x, edge_order=2)]


@pytest.mark.parametrize("backend", ["plait", "python"])
def test_elements_near_an_end_are_one_program(backend):
    torch.manual_seed(0)
    fast = plait.compile(near_the_end, dynamic=True, backend=backend)
    for rows, columns in [(4, 5), (5, 7), (9, 6), (30, 33)]:
        assert_right(fast, near_the_end, torch.randn(rows, columns))
    (graph,) = plait.report(fast).graphs
    assert graph.outcome == "compiled"


CUT = {
    "one": lambda x: x.relu(),
    "a sum": lambda x: x.sum(0) * 2 + x[0].exp(),
    "a product": lambda x: (x @ x.mT).softmax(-1),
    "a view": lambda x: (x[1:], x.exp()),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["plait", "python"])
@pytest.mark.parametrize("name", CUT)
def test_rows_with_room_between_them_are_one_program_beside_the_first(name, backend):
    """Of parts of larger tensors the strides are sizes of their own."""
    torch.manual_seed(0)
    program = CUT[name]
    fast = plait.compile(program, dynamic=True, backend=backend)
    for rows, columns, room in [(5, 6, 2), (7, 9, 3), (8, 8, 1), (30, 11, 7), (7, 6, 40)]:
        x = torch.randn(rows, columns + room)[:, room:]
        assert_right(fast, program, x)
        with torch.no_grad():
            pairs = zip(fast(x), program(x), strict=True)
        assert all(got.stride() == wanted.stride() for got, wanted in pairs)
    assert len(plait.report(fast).graphs) <= 2
    assert all(graph.reason is None for graph in plait.report(fast).graphs)


def test_sizes_of_one_and_zero_have_programs_of_their_own():
    torch.manual_seed(0)
    model = Heads()
    fast, exact = plait.compile(model, dynamic=True), exact_of(model)
    for batch, length in [(3, 4), (1, 5), (4, 1), (1, 1), (3, 9), (1, 8), (5, 1)]:
        assert_right(fast, exact, torch.randn(batch, length, 16))
    assert len(plait.report(fast).graphs) == 4


def test_sizes_that_change_are_two_compilations():
    model = Perceptron()
    fast, exact = plait.compile(model), exact_of(model)
    for batch, length in SIZES:
        assert_right(fast, exact, torch.randn(batch, length, 16))
    assert len(plait.report(fast).graphs) == 2


def test_what_depends_on_a_size_is_checked():
    """Where a size decides what is computed, other sizes get other programs."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2).sum(0) if x.numel() % 2 == 0 else x * 2

    fast = plait.compile(program, dynamic=True)
    for rows, columns in [(3, 4), (3, 5), (5, 6), (7, 9), (4, 4)]:
        assert_right(fast, program, torch.randn(rows, columns))
    assert len(plait.report(fast).graphs) == 2


def test_inputs_that_lie_otherwise_in_memory_are_right():
    fast = plait.compile(lambda x: x.softmax(-1) + 1, dynamic=True)
    for x in (
        torch.randn(4, 6),
        torch.randn(9, 5).t(),
        torch.randn(7, 3),
        torch.randn(8, 12)[:, ::2],
        torch.randn(5, 1).expand(5, 6),
        torch.randn(20)[1:].as_strided((5, 6), (2, 1)),
    ):
        assert_right(fast, lambda x: x.softmax(-1) + 1, x)


def test_equal_sizes_by_chance_are_not_taken_for_equal():
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0) @ y.transpose(0, 1) + x.shape[0]

    fast = plait.compile(program, dynamic=True)
    for rows, others in [(4, 4), (4, 6), (16, 4), (5, 16)]:
        assert_right(fast, program, torch.randn(rows, 16), torch.randn(others, 16))
    assert len(plait.report(fast).graphs) == 1


def test_an_index_out_of_range_raises_as_in_eager():
    fast = plait.compile(nn.Embedding(10, 4), dynamic=True)
    with torch.no_grad():
        for count in (3, 5):
            fast(torch.arange(count))
            with pytest.raises(IndexError):
                fast(torch.arange(count) + 8)


def test_inputs_are_written_to():
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x[1:] + x[:-1]

    fast = plait.compile(program, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        expected = x.clone()
        torch.testing.assert_close(fast(x), program(expected))
        torch.testing.assert_close(x, expected)


def test_programs_for_one_set_of_sizes_can_be_asked_for():
    fast = plait.compile(lambda x: x * 2, dynamic=True, options={"open_sizes": False})
    for rows in (3, 4):
        fast(torch.randn(rows))
    assert len(plait.report(fast).graphs) == 2


VIEWS = [
    lambda x: (x.t(), x + 1),
    lambda x: x.reshape(-1),
    lambda x: x[1:],
    lambda x: x[:, -1],
    lambda x: x.diagonal(),
    lambda x: x.unsqueeze(0).expand(3, -1, -1),
    lambda x: (x * 2).view(-1)[x.shape[1] :],
    lambda x: (x.shape[0] * 2, x.numel(), x.transpose(0, 1)),
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views_are_handed_out_by_the_sizes_of_each_call(number):
    program = VIEWS[number]
    fast = plait.compile(program, dynamic=True)
    for size in [(3, 4), (5, 4), (6, 7), (4, 9)]:
        x = torch.randn(size)
        results, expected = (torch.utils._pytree.tree_leaves(f(x)) for f in (fast, program))
        torch.testing.assert_close(results, expected)
        for got, wanted in zip(results, expected, strict=True):
            if isinstance(wanted, torch.Tensor):
                assert got.stride() == wanted.stride()
                assert (got._base is x) == (wanted._base is x)
                assert got._base is not x or got.data_ptr() == wanted.data_ptr()
            else:
                assert type(got) is type(wanted)
    assert len(plait.report(fast).graphs) == 1


def test_views_of_strided_inputs_are_handed_out():
    fast = plait.compile(lambda x: x[1:].t(), dynamic=True)
    for x in (torch.randn(4, 6), torch.randn(8, 12)[:, ::2], torch.randn(9, 5).t()):
        got, wanted = fast(x), x[1:].t()
        torch.testing.assert_close(got, wanted)
        assert (got.stride(), got.data_ptr()) == (wanted.stride(), wanted.data_ptr())


def test_what_all_points_of_a_row_have_in_common_is_scanned():
    """The lanes of a scan share its value."""
    program = torch.linalg.vander
    fast = plait.compile(lambda x: program(x), dynamic=True)
    for count in (3, 5):
        x = torch.randn(count)
        torch.testing.assert_close(fast(x), program(x))
    (graph,) = plait.report(fast).graphs
    assert graph.reason is None


def test_numbers_that_follow_from_counts_of_elements_stay_open():
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quarter = (x.numel() + 3) // 4
        return x.flatten()[:quarter] * 2, torch.arange(x.numel() % 7 + 1)

    compiled = plait.compile(program, dynamic=True)
    for rows in (4, 8, 6, 5):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
    assert len(plait.report(compiled).graphs) == 1


@pytest.mark.parametrize("backend", ["aten", "checking", "printing", "noop", "eager", "dumping"])
@pytest.mark.parametrize("needs", [False, True], ids=["inference", "training"])
def test_simple_backends_run_graphs_with_open_sizes(backend, needs, tmp_path, monkeypatch, capsys):
    def f(x):
        return (x.reshape(-1, 2) * x.shape[0]).sin().sum(0), (x * 2).t()

    monkeypatch.setenv("PLAIT_DUMP_DIR", str(tmp_path))
    made = plait.compile(f, backend=backend, dynamic=True)
    for sizes in ((4, 3), (6, 5), (8, 7), (4, 3)):
        one, other = (torch.ones(sizes).requires_grad_(needs) for _ in range(2))
        got, wanted = made(one), f(other)
        torch.testing.assert_close(got, wanted)
        if needs:
            got[0].sum().backward()
            wanted[0].sum().backward()
            torch.testing.assert_close(one.grad, other.grad)
    assert ("aten.sin" in capsys.readouterr().out) == (backend == "printing")


OPEN_GRADIENTS = {
    "running products": lambda x: torch.cumprod(x, 1) + x.cumprod(0),
    "powers": lambda x: torch.linalg.vander(x[0]),
    "blocks": lambda x: torch.block_diag(x, x[0] * 2, x.t()),
    "what is cut off": lambda x: functional.hardshrink(x, 0.5),
    "padding": lambda x: functional.pad(x[None], (2, 1), mode="reflect"),
}


@pytest.mark.parametrize("name", OPEN_GRADIENTS)
@pytest.mark.sampled(2)
def test_gradients_in_other_sizes_are_those_of_one_program(name):
    f = OPEN_GRADIENTS[name]
    made = plait.compile(f, dynamic=True)
    for n in (5, 6, 7, 4):
        x = torch.randn(n, n + 1, dtype=torch.float64)
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, wanted = made(one), f(other)
        (got.sin().sum()).backward()
        (wanted.sin().sum()).backward()
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(one.grad, other.grad)
    assert len(plait.report(made).graphs) == 2


def test_open_sizes_are_no_numbers_to_fold_constants_by():
    def program(x):
        n = x.shape[0]
        return torch.ones(2) * n, torch.zeros(3) + n, torch.full((2,), 3.0) - n, x + 1

    compiled = plait.compile(program, fullgraph=True, dynamic=True)
    for n in (4, 7):
        torch.testing.assert_close(compiled(torch.ones(n)), program(torch.ones(n)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_sums_over_the_pixels_of_any_batch(layout):
    """They run in two stages, the first of which has as many parts as the batch."""

    def sums(x):
        squares = x.square().mean((0, 2, 3))
        return x.sum((0, 2, 3)), x.sum(), x.amax((0, 2)), squares, x.var((0, 2, 3))

    compiled = plait.compile(sums)
    for batch in (3, 2, 17, 1):
        x = torch.randn(batch, 32, 64, 48, dtype=torch.float64).to(memory_format=layout)
        plait.mark_dynamic(x, 0)
        for found, expected in zip(compiled(x), sums(x), strict=True):
            torch.testing.assert_close(found, expected)
    assert len(plait.report(compiled).graphs) == 2  # a batch of one has a program of its own
