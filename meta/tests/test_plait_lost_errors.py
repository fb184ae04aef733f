"""Programs that do not use all of what may raise for its data raise as eager does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional

import plait


def filled(x, n):
    made = x.clone()
    made[n] = 2.0
    return made


def rows(n):
    return n.flatten()[:, None]


SOURCES = {
    "index": lambda x, n: x[n],
    "index a column": lambda x, n: x[:, n],
    "index twice": lambda x, n: x[n, n],
    "index_select": lambda x, n: x.index_select(0, n.flatten()),
    "take": torch.take,
    "embedding": lambda x, n: functional.embedding(n, x),
    "gather": lambda x, n: x.gather(0, rows(n)[:, : x.shape[1]]),
    "scatter": lambda x, n: x.scatter(0, rows(n)[:, : x.shape[1]], 1.0),
    "index_add": lambda x, n: x.index_add(0, n.flatten(), torch.ones(n.numel(), x.shape[1])),
    "index_copy": lambda x, n: x.index_copy(1, n.flatten(), torch.ones(x.shape[0], n.numel())),
    "index_fill": lambda x, n: x.index_fill(0, n.flatten(), 2.0),
    "index_put": lambda x, n: x.index_put((n,), torch.tensor(3.0)),
    "put": lambda x, n: x.put(n, torch.ones(n.shape)),
    "an assignment": filled,
    "a division": lambda x, n: 7 // n + x.sum().long(),
    "a remainder": lambda x, n: 7 % n + x.sum().long(),
    "one_hot": lambda x, n: functional.one_hot(n.flatten(), 3) + x.sum().long(),
}
USES = {
    "nothing": lambda y, x: x + 1,
    "all": lambda y, x: y + 1,
    "its first part": lambda y, x: y[:1] + 1,
    "its last part": lambda y, x: y[-1:] * 2,
    "no part": lambda y, x: y[:0] + 1,
    "its shape": lambda y, x: x + y.shape[0],
    "zeros like it": lambda y, x: torch.zeros_like(y),
    "what is written over": lambda y, x: (y + 1).zero_(),
    "a sum": lambda y, x: y.sum(),
    "what a mask leaves": lambda y, x: torch.where(torch.zeros(1, dtype=torch.bool), y, y * 0),
    "what is beside it": lambda y, x: torch.cat([y.flatten(), x.flatten()])[y.numel() :] + 1,
    "what it is put to": lambda y, x: torch.cat([x.flatten(), y.flatten()]) * 2,
    "every other one": lambda y, x: y.flatten()[::2] * 2,
    "the first of running sums": lambda y, x: y.float().cumsum(0)[:1],
    "the least": lambda y, x: y.flatten().sort()[0][:1],
}


def outcome(function, *values):
    try:
        return function(*[value.clone() for value in values])
    except Exception as error:
        return type(error), str(error).splitlines()[0]


def assert_alike(found, expected):
    if isinstance(found, tuple) or isinstance(expected, tuple):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    source=st.sampled_from(sorted(SOURCES)),
    use=st.sampled_from(sorted(USES)),
    shape=st.sampled_from([(3, 2), (1, 2), (2, 1), (3, 0), (0, 3), (0, 0), (4, 4)]),
    places=st.sampled_from([(1,), (2,), (3,), (2, 2), (0,), (1, 3)]),
    data=st.data(),
)
def test_errors_are_raised_whatever_of_a_result_is_used(source, use, shape, places, data):
    count = torch.zeros(places).numel()
    size = max(shape)
    numbers = st.lists(st.integers(-size - 1, size + 1), min_size=count, max_size=count)
    n = torch.tensor(data.draw(numbers), dtype=torch.int64).reshape(places)
    x = torch.arange(float(shape[0] * shape[1])).reshape(shape)

    def program(x, n):
        return USES[use](SOURCES[source](x, n), x)

    fast = plait.compile(program)
    assert_alike(outcome(fast, x, n), outcome(program, x, n))
    good = n.clamp(0, 0) if 0 not in shape else n  # perhaps: it is right for most
    assert_alike(outcome(fast, x, good), outcome(program, x, good))
    assert all(graph.outcome == "compiled" for graph in plait.report(fast).graphs)


def test_an_index_into_nothing_raises_where_nothing_would_be_read():
    def program(x, n):
        return x[n]

    fast = plait.compile(program)
    for x in (torch.ones(0, 0), torch.ones(0, 3)):
        for n in (torch.tensor([0]), torch.tensor([], dtype=torch.int64)):
            assert_alike(outcome(fast, x, n), outcome(program, x, n))


RARE = {
    "lengths": (
        lambda x, n: torch.segment_reduce(x, "sum", lengths=n),
        (torch.ones(4), torch.tensor([2, 3])),
    ),
    "weights": (lambda x, n: torch.multinomial(x, 1), (-torch.ones(4), torch.zeros(1))),
    "pivots": (
        lambda x, n: torch.lu_unpack(x, n),
        (torch.ones(3, 3), torch.tensor([7, 2, 9], dtype=torch.int32)),
    ),
    "places": (
        lambda x, n: torch.searchsorted(x, x, sorter=n),
        (torch.ones(2), torch.tensor([0, 7])),
    ),
    "an index of data": (lambda x, n: x[int(n)], (torch.ones(3), torch.tensor([7]))),
    "a size of data": (lambda x, n: torch.ones(5 - n.item()), (torch.ones(3), torch.tensor([7]))),
    "parts of data": (
        lambda x, n: x.split([n.item(), 4 - n.item()]),
        (torch.ones(4), torch.tensor([7])),
    ),
    "a view of data": (lambda x, n: x.view(n.item(), 2), (torch.ones(4), torch.tensor([7]))),
    **{
        name: (
            lambda x, n, name=name: getattr(torch.linalg, name)(x),
            (-torch.ones(3, 3), torch.zeros(1)),
        )
        for name in ("cholesky", "inv", "lu_factor")
    },
    "solve": (lambda x, n: torch.linalg.solve(x, x), (torch.ones(3, 3), torch.zeros(1))),
    "what is asked to check": (
        lambda x, n: torch.linalg.cholesky_ex(x, check_errors=True),
        (-torch.ones(3, 3), torch.zeros(1)),
    ),
}


@pytest.mark.parametrize("name", RARE)
def test_rarer_operators_raise_for_results_that_nothing_uses(name):
    operator, given = RARE[name]

    def program(x, n):
        operator(x, n)
        return x + 1

    def handled(x, n):
        try:
            operator(x, n)
        except Exception:
            return x - 1
        return x + 1

    for each in (program, handled):
        expected = outcome(each, *given)
        assert isinstance(expected, tuple) is (each is program)
        assert_alike(outcome(plait.compile(each), *given), expected)


def test_what_only_might_fail_is_not_computed():
    def program(x):
        torch.linalg.cholesky_ex(x)
        return x + 1

    compiled = plait.compile(program)
    compiled(torch.ones(3, 3))
    (graph,) = plait.report(compiled).graphs
    assert not graph.external_calls


def unused(x, n):
    x[n]
    return (x * 2).sum()


def unused_loss(x, n):
    functional.cross_entropy(x[:2], n)
    return x.exp().sum()


def sliced(x, n):
    return x.exp()[n].sin()[:1].sum()


def unrecorded(x, n):
    with torch.no_grad():
        found = x[n]
    return (x * found.shape[0]).sum()


@pytest.mark.parametrize("program", [unused, unused_loss, sliced, unrecorded])
def test_forwards_of_trainings_raise_what_nothing_uses(program):
    fast = plait.compile(program)
    for n in (torch.tensor([0, 1]), torch.tensor([0, 5])):
        ran = []
        for function in (program, fast):
            x = torch.arange(6.0).reshape(3, 2).requires_grad_()
            try:
                function(x, n).backward()
                ran.append(x.grad)
            except Exception as error:
                ran.append((type(error), str(error)))
        assert_alike(*ran)


CALLED = []


@torch.library.custom_op("lost_errors::limited", mutates_args=())
def limited(x: torch.Tensor) -> torch.Tensor:
    CALLED.append(float(x.max()))
    if x.max() > 2:
        raise ValueError("it is too large")
    return x.clone()


@limited.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def index_first(x, n):
    y = x[n]
    return y + 1, limited(x)


def operator_first(x, n):
    z = limited(x)
    return x[n] + 1, z


def index_between(x, n):
    first = limited(x * 0)
    y = x[n] + 1
    return first, y, limited(x)


def index_of_what_it_gave(x, n):
    first = limited(x * 0)
    y = (x + 1)[n]
    return y + limited(first + 5)[:1]


def unused_operator(x, n):
    limited(x)
    y = x[n]
    return x + y.shape[0]


def unused_index(x, n):
    y = x[n]
    limited(x)
    return x + y.shape[0]


@pytest.mark.parametrize("combine", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        index_first,
        operator_first,
        index_between,
        index_of_what_it_gave,
        unused_operator,
        unused_index,
    ],
)
def test_of_several_errors_the_first_is_raised_beside_operators_of_the_users(program, combine):
    fast = plait.compile(program, options={"scheduler": {"combine_launches": combine}})
    for top in (1.0, 3.0):
        for n in (torch.tensor([0, 1]), torch.tensor([0, 5])):
            ran = []
            for function in (program, fast):
                CALLED.clear()
                found = outcome(function, torch.full((3, 3), top), n)
                kind = found[0] if isinstance(found[0], type) else None
                ran.append((kind, list(CALLED)))
            assert ran[0] == ran[1]
