"""Programs that eager refuses are refused, for eager's reason; what eager takes is taken."""

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import check_program, trace
from torch import fx

from plait_fx_passes import AtenTraceError, ProgramRaisesError, run_passes, to_aten, to_joint

BOOL = torch.ones(4, dtype=torch.bool)
LONG = torch.ones(4, dtype=torch.int64)
BYTE = torch.ones(4, dtype=torch.uint8)
WORD = torch.ones(4, dtype=torch.uint16)
COMPLEX = torch.ones(4, dtype=torch.complex64)
SQUARE = torch.ones(4, 4)
HALF = torch.ones(4, 4, dtype=torch.bfloat16)

RAISING = {
    "mul_ of integers by a fraction": (lambda x: x.mul_(2.5), LONG),
    "mul_ of bytes by a fraction": (lambda x: x.mul_(2.5), BYTE),
    "mul_ of booleans by a fraction": (lambda x: x.mul_(2.5), BOOL),
    "mul_ of a view": (lambda x: x[1:].mul_(2.5), LONG),
    "add_ of booleans and a number": (lambda x: x.add_(2), BOOL),
    "div_ of integers": (lambda x: x.div_(2), LONG),
    "sub_ of a float tensor": (lambda x: x.sub_(x.float()), LONG),
    "select_scatter of too little": (lambda x: x.select_scatter(x[0, :1], 1, 0), SQUARE),
    "slice_scatter of one row for all": (lambda x: x.slice_scatter(x[:1]), SQUARE),
    "diagonal_scatter of too much": (lambda x: x.diagonal_scatter(x[0], 1), SQUARE),
    "as_strided_scatter beyond the end": (
        lambda x: (x + 1).as_strided_scatter(x, (4, 4), (4, 1), 1),
        SQUARE,
    ),
    "likelihoods of images of another size": (
        lambda x: F.nll_loss(x[None, :, None], torch.zeros(1, 1, 3, dtype=torch.int64)),
        SQUARE,
    ),
    "index_put of too many rows": (
        lambda x: x.index_put((torch.tensor([1]),), x[:2], accumulate=True),
        SQUARE,
    ),
    "index_put_ of other columns": (
        lambda x: x.index_put_((torch.tensor([1, 2]),), x[:2, :3]),
        SQUARE,
    ),
    "index_put between two places": (
        lambda x: torch.ops.aten.index_put(
            x, [torch.tensor([1]), None, torch.tensor([0])], x, True
        ),
        torch.ones(2, 3, 2),
    ),
    "a transposed convolution without a result": (
        lambda x: F.conv_transpose2d(x[None, None], x[:1, :1][None, None], padding=2),
        SQUARE,
    ),
    "index_reduce of longer rows": (
        lambda x: x[:, :3].index_reduce(0, torch.tensor([0, 1, 1, 3]), x, "amax"),
        SQUARE,
    ),
    "buckets in two dimensions": (lambda x: torch.bucketize(x, x), SQUARE),
    "relu of booleans": (F.relu, BOOL),
    "relu_ of booleans": (lambda x: x.relu_(), BOOL),
    "abs of booleans": (torch.abs, BOOL),
    "floor of booleans": (torch.floor, BOOL),
    "negated words": (torch.neg, WORD),
    "cumsum_ of booleans": (lambda x: x.cumsum_(0), BOOL),
    "cumsum_ of words": (lambda x: x.cumsum_(0), WORD),
    "gelu of integers": (F.gelu, LONG),
    "softmax of integers": (lambda x: x.softmax(0), LONG),
    "elu of integers": (F.elu, LONG),
    "silu of booleans": (F.silu, BOOL),
    "squared error of integers": (lambda x: F.mse_loss(x, x), LONG),
    "squared error of complex numbers": (lambda x: F.mse_loss(x, x), COMPLEX),
    "mean of integers": (torch.mean, LONG),
    "negative power of integers": (lambda x: x**-1, LONG),
    "softmax over a dimension that is not there": (lambda x: x.softmax(2), SQUARE),
    "log_softmax over a dimension that is not there": (lambda x: x.log_softmax(-3), SQUARE),
    "glu over a dimension that is not there": (lambda x: F.glu(x, 2), SQUARE),
    "product of two dtypes": (lambda x: torch.mm(x, x.float()), HALF),
    "linear of two dtypes": (lambda x: F.linear(x, x.float()), HALF),
    "linear with a bias of another dtype": (lambda x: F.linear(x, x, x[0].float()), HALF),
    "batched product of two dtypes": (lambda x: torch.bmm(x[None], x[None].float()), HALF),
    "division by zero": (lambda x: x // 0, LONG),
    "numbers drawn into floats": (
        lambda x: torch.multinomial(x, 2, out=torch.empty(4, 2)),
        SQUARE,
    ),
    "out= of a narrower kind": (lambda x: torch.add(x, 0.5, out=x), LONG),
    "a negative byte": (lambda x: torch.full_like(x, -1.5), BYTE),
    "batch_norm of two dtypes": (
        lambda x: F.batch_norm(x.double(), torch.zeros(4), torch.ones(4)),
        SQUARE,
    ),
    "group_norm of two dtypes": (
        lambda x: F.group_norm(x.double(), 2, torch.ones(4), torch.ones(4)),
        SQUARE,
    ),
    "layer_norm of integers": (lambda x: F.layer_norm(x, [4]), LONG),
}


@pytest.mark.parametrize("name", RAISING)
def test_what_eager_raises_is_the_cause(name):
    program, tensor = RAISING[name]
    gm = trace(lambda x: program(x))
    with pytest.raises(Exception) as eager:  # whatever eager raises
        program(tensor.clone())
    with pytest.raises(ProgramRaisesError) as refused:
        to_aten(gm, [tensor])
    cause = refused.value.__cause__
    assert type(cause) is eager.type
    assert str(cause) == str(eager.value)
    assert str(eager.value) in str(refused.value)


TAKEN = {
    "mul_ of integers": (lambda x: x.mul_(3), LONG),
    "mul_ of bytes wraps": (lambda x: x.mul_(300), BYTE),
    "eq_ of floats": (lambda x: x.eq_(1), SQUARE),
    "logical_not_ of integers": (lambda x: x.logical_not_(), LONG),
    "add_ of bytes and integers": (lambda x: x.add_(x.long()), BYTE),
    "copy_ from floats": (lambda x: x.copy_(x + 0.75), LONG),
    "cumsum_ of integers": (lambda x: x.cumsum_(0), LONG),
    "floor of integers": (torch.floor, LONG),
    "sum of booleans": (lambda x: x.sum(), BOOL),
    "softmax of integers as floats": (lambda x: x.softmax(0, dtype=torch.float32), LONG),
    "layer_norm of half precision": (lambda x: F.layer_norm(x, [4]), HALF),
    "gather by no index": (lambda x: x.gather(0, x[:0].byte()), LONG),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_taken(name):
    program, tensor = TAKEN[name]
    to_aten(trace(lambda x: program(x)), [tensor])


def test_asking_a_kernel_draws_no_random_numbers():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    to_aten(trace(lambda x: F.dropout(x) + torch.rand_like(x) + x.bernoulli_()), [SQUARE])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.zero_(),
        lambda x: x[1:].fill_(3),
        lambda x: x.data.fill_(2),
        lambda x: x.masked_fill_(x > 0, 0.0),
        lambda x: x[:, 1].fill_(3),
        lambda x: x.add_(1),
    ],
)
def test_a_write_to_an_input_whose_elements_share_memory_is_left_to_eager(program):
    """Each write reaches several elements there, which no functional operator does."""
    with pytest.raises(AtenTraceError, match="share memory"):
        to_aten(trace(program), [torch.ones(4, 1).expand(4, 5)])


def test_an_offset_into_the_storage_of_an_input_is_not_baked_in():
    """The same graph serves inputs that lie elsewhere in their storage."""
    with pytest.raises(AtenTraceError, match="lies in a storage"):
        to_aten(trace(lambda x: x.as_strided((2,), (1,), 1)), [SQUARE])
    for program in (
        lambda x: x.as_strided((2,), (1,)),
        lambda x: (x * 2).as_strided((2,), (1,), 1),
        lambda x: x.clone().as_strided((2,), (1,), 1),
    ):
        to_aten(trace(program), [SQUARE])


def test_overlapping_windows_are_not_written_to():
    with pytest.raises(AtenTraceError, match="share memory"):
        to_aten(trace(lambda x: x.zero_()), [torch.ones(8).unfold(0, 3, 1)])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.slice_scatter(x[:1] + 9, 0, 3, 4),
        lambda x: x.select_scatter(x[0] + 9, 0, 3),
        lambda x: x.diagonal_scatter(x.diagonal() + 9),
    ],
)
def test_scatters_into_overlapping_windows_are_left_to_eager(program):
    """Eager writes to a copy whose elements share memory as well; of what is expanded, to rows."""
    with pytest.raises(AtenTraceError, match="share memory"):
        to_aten(trace(program), [torch.ones(8).unfold(0, 2, 1)])
    to_aten(trace(program), [torch.ones(1, 2).expand(7, 2)])


@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (5, 1, 2)])
def test_strides_of_single_elements_do_not_overlap(shape):
    x = torch.ones(shape)
    strides = [0 if n == 1 else s for n, s in zip(shape, x.stride(), strict=True)]
    single = x.as_strided(shape, strides)
    to_aten(trace(lambda x: x.zero_()), [single])


@pytest.mark.parametrize(
    "program",
    [
        lambda x, h: F.huber_loss(h, x),
        lambda x, h: F.soft_margin_loss(h, x),
        lambda x, h: torch.addr(x[0, 0].double(), x[0], x[1]),
        lambda x, h: torch.native_layer_norm(h, [4], x[0], x[1], 1e-5),
        lambda x, h: torch.native_batch_norm(h, h[0], h[1], h[2] * 1, h[3] + 2, True, 0.1, 1e-5),
    ],
)
def test_results_have_the_dtypes_that_kernels_compute(program):
    """torch's fake kernels say others for these."""
    check_program(program, [torch.rand(4, 4) + 0.5, torch.rand(4, 4).bfloat16()], tolerance=1e-2)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: torch.addcmul(x, y, y, value=0.3),
        lambda x, y: torch.addcdiv(x, y, y + 2, value=0.3),
        lambda x, y: torch.lerp(x, y, 0.3),
        lambda x, y: torch.linalg.vector_norm(x, dim=1),
        lambda x, y: x.std(0),
        lambda x, y: torch.std_mean(y, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(program, dtype):
    inputs = [torch.rand(16, 33).to(dtype), torch.rand(16, 33).to(dtype)]
    check_program(program, inputs, tolerance=0)


def test_integers_are_multiplied_by_a_fraction_as_in_eager():
    x = torch.arange(1, 5)
    check_program(lambda x: torch.addcmul(x, x, x, value=2.9), [x], tolerance=0)


CHECKED = {
    "linalg_inv": (torch.linalg.inv, torch.zeros(2, 2), torch.eye(2)),
    "linalg_cholesky": (torch.linalg.cholesky, -torch.eye(2), torch.eye(2)),
    "linalg_solve": (lambda x: torch.linalg.solve(x, x), torch.zeros(2, 2), torch.eye(2)),
    "one_hot": (lambda x: F.one_hot(x, 3), torch.tensor([5]), torch.tensor([2])),
}


@pytest.mark.parametrize("name", CHECKED)
def test_operators_that_check_values_stay_whole(name):
    """Among their parts are calls that compute nothing, or that fake tensors never reach."""
    program, refused, taken = CHECKED[name]
    graph = run_passes(to_aten(trace(lambda x: program(x)), [refused]), verify_each=True)
    run = graph.module()
    with pytest.raises(RuntimeError) as eager:
        program(refused)
    with pytest.raises(eager.type) as compiled:
        run(refused)
    assert str(compiled.value) == str(eager.value)
    torch.testing.assert_close(run(taken)[0], program(taken))


def test_a_call_that_only_checks_values_is_left_to_eager():
    with pytest.raises(AtenTraceError, match="only checks values"):
        to_aten(trace(lambda x: (torch._assert_async(x.sum()), x)[1]), [SQUARE])


def test_a_view_taken_without_gradients_of_what_is_written_to_is_left_to_eager():
    """Autograd does not even say what it comes from."""

    def program(x):
        y = x.sin()
        with torch.no_grad():
            view = y[0]
        y.clamp_(-1, 1)
        return view, x.cos()

    graph = fx.Graph()
    graph.output(graph.call_function(program, (graph.placeholder("x"),)))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    with pytest.raises(AtenTraceError, match="created in no_grad mode"):
        to_joint(gm, [torch.ones(3, 3, requires_grad=True)])
