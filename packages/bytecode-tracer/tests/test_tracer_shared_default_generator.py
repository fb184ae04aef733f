"""Torch's default generator, from which several threads draw, and where graphs fail.

No number comes twice; where nobody else draws, the numbers are those of plain Python.
"""

from __future__ import annotations

import copy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from plait_bytecode_tracer import compile
from plait_bytecode_tracer.guards.native import wait_for_native_guards

Backend = Callable[[torch.fx.GraphModule, Any], Callable[..., Any]]
DTYPE = torch.float64


def as_captured(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return module.forward


def elsewhere(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that does not tell how far its graph came."""
    return copy.deepcopy(module).forward


def telling(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that tells how many operators had drawn."""
    other = copy.deepcopy(module)

    def run(*given: Any) -> Any:
        try:
            return other.forward(*given)
        except IndexError as error:
            error.plait_draws = 2  # type: ignore[attr-defined]  # as backends set it
            raise RuntimeError("it failed") from error

    return run


@pytest.fixture(autouse=True)
def native() -> None:
    """Compare and set are one only with the native extensions."""
    wait_for_native_guards()


@pytest.fixture
def company() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Another thread, which is there all the time; calls a function in it."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        yield lambda function: executor.submit(function).result()


def draw() -> list[float]:
    return torch.rand(3, dtype=DTYPE).tolist()


def noisy(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    first = torch.rand(3, dtype=DTYPE)
    second = torch.rand(3, dtype=DTYPE)
    y = x[place]
    third = torch.rand(3, dtype=DTYPE)
    return torch.cat([first, second, third + y.sum() * 0])


def called(function: Callable[..., Any], place: int) -> list[float]:
    """What a call draws, none where it raises."""
    try:
        found: list[float] = function(torch.zeros(4, dtype=DTYPE), torch.tensor([place])).tolist()
    except IndexError:
        return []
    return found


PLACES = (0, 9, 1, 9, 9, 2)


@pytest.mark.parametrize("backend", [as_captured, elsewhere, telling])
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_others_draw_meanwhile_stays_theirs(backend: Backend, when: str, company: Any) -> None:
    def with_others(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        run = backend(module, inputs)

        def around(*given: Any) -> Any:
            if when == "before":
                found.extend(company(draw))
            try:
                return run(*given)
            finally:
                if when == "after":
                    found.extend(company(draw))

        return around

    compiled = compile(noisy, with_others, fullgraph=True)
    torch.manual_seed(5)
    found: list[float] = []
    for place in PLACES:
        found += called(compiled, place)
        found += draw()
    assert len(set(found)) == len(found) == 3 * 3 * 3 + 2 * 3 * len(PLACES)


@pytest.mark.parametrize("backend", [as_captured, telling])
@pytest.mark.usefixtures("company")
def test_idle_threads_change_nothing(backend: Backend) -> None:
    compiled = compile(noisy, backend, fullgraph=True)
    found = []
    for function in (noisy, compiled):
        torch.manual_seed(5)
        found.append([number for place in PLACES for number in (*called(function, place), *draw())])
    assert found[0] == found[1]


@pytest.mark.usefixtures("company")
def test_a_graph_that_fails_before_it_draws_leaves_the_generator() -> None:
    def function(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return x[place] + torch.rand(1, dtype=DTYPE)

    compiled = compile(function, elsewhere, fullgraph=True)
    found = []
    for each in (function, compiled):
        torch.manual_seed(5)
        found.append([number for place in PLACES for number in (*called(each, place), *draw())])
    assert found[0] == found[1]


HALVES = torch.full((20,), 0.5, dtype=DTYPE)
LSTM = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.5).double()


def _in_place(name: str, *args: Any) -> Callable[[], torch.Tensor]:
    return lambda: getattr(torch.empty(19, dtype=DTYPE), name)(*args)


def _seeded() -> torch.Tensor:
    torch.manual_seed(8)
    return torch.rand(2)


def _set() -> torch.Tensor:
    state = torch.get_rng_state()
    first = torch.rand(2)
    torch.set_rng_state(state)
    return first + torch.rand(3).sum()


def _differentiated() -> torch.Tensor:
    x = HALVES.clone().requires_grad_()
    y = F.dropout(x, 0.3).sum()
    return torch.autograd.grad(y, x)[0] + torch.rand(20)


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return F.dropout(HALVES, 0.3)


DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(5),
    "rand of doubles": lambda: torch.rand(5, dtype=DTYPE),
    "rand like": lambda: torch.rand_like(HALVES),
    "few normal": lambda: torch.randn(5),
    "many normal": lambda: torch.randn(3, 7),
    "normal like": lambda: torch.randn_like(HALVES),
    "one normal": lambda: torch.randn(1, dtype=DTYPE),
    "normal around": lambda: torch.normal(HALVES, 2.0),
    "normal of both": lambda: torch.normal(HALVES, HALVES),
    "integers": lambda: torch.randint(3, 10, (7,)),
    "integers like": lambda: torch.randint_like(HALVES, 10),
    "large integers": lambda: torch.randint(1 << 40, (7,)),
    "order": lambda: torch.randperm(9),
    "dropout": lambda: F.dropout(HALVES, 0.3),
    "dropout of channels": lambda: F.dropout1d(HALVES.reshape(2, 5, 2), 0.3),
    "alpha dropout": lambda: F.alpha_dropout(HALVES, 0.3),
    "bernoulli": lambda: torch.bernoulli(HALVES),
    "bernoulli of one": lambda: torch.bernoulli(HALVES, 0.2),
    "bernoulli in place": _in_place("bernoulli_", HALVES[:19]),
    "multinomial": lambda: torch.multinomial(HALVES, 4),
    "multinomial, replaced": lambda: torch.multinomial(HALVES, 4, replacement=True),
    "poisson": lambda: torch.poisson(HALVES * 40),
    "binomial": lambda: torch.binomial(HALVES * 40, HALVES),
    "gamma": lambda: torch._standard_gamma(HALVES),
    "dirichlet": lambda: torch._sample_dirichlet(HALVES),
    "uniform in place": _in_place("uniform_", 1, 2),
    "normal in place": _in_place("normal_"),
    "exponential in place": _in_place("exponential_"),
    "geometric in place": _in_place("geometric_", 0.4),
    "cauchy in place": _in_place("cauchy_"),
    "log normal in place": _in_place("log_normal_"),
    "random in place": _in_place("random_", 3, 9),
    "rrelu": lambda: F.rrelu(HALVES - 1, training=True),
    "gumbel": lambda: F.gumbel_softmax(HALVES),
    "attention": lambda: F.scaled_dot_product_attention(
        *[HALVES.reshape(1, 1, 5, 4)] * 3, dropout_p=0.2
    ),
    "attention to all": lambda: F.scaled_dot_product_attention(*[HALVES.reshape(1, 1, 5, 4)] * 3),
    "recurrent": lambda: LSTM(HALVES.reshape(5, 4))[0],
    "low rank": lambda: torch.svd_lowrank(HALVES.reshape(5, 4), 2)[1],
    "pooling": lambda: F.fractional_max_pool2d(HALVES.reshape(1, 5, 4), 2, (2, 2)),
    "seeded": _seeded,
    "set": _set,
    "differentiated": _differentiated,
    "inference": _inference,
}


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize("name", DRAWS)
def test_all_draws_are_known(name: str) -> None:
    """The generator goes back over what each operator draws, though another thread is there."""
    noise = DRAWS[name]

    def function(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        first = noise()
        y = x[place]
        return torch.cat([first.double().flatten(), y, torch.rand(1, dtype=DTYPE)])

    compiled = compile(function, as_captured, orders_draws=True)
    found = []
    for each in (function, compiled):
        torch.manual_seed(5)
        found.append([number for place in PLACES for number in (*called(each, place), *draw())])
    assert found[0] == found[1]


@pytest.mark.parametrize("draws_before", [False, True])
def test_a_signal_takes_nothing_back_that_others_have_drawn(
    draws_before: bool, company: Any
) -> None:

    def function(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        y = torch.rand(3, dtype=DTYPE) if draws_before else x
        y = y * 2
        return torch.cat([x[place], torch.rand(3, dtype=DTYPE) + y.sum() * 0])

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            result = module.forward(*given)
            if is_late:
                found.extend(company(draw))
                signal.raise_signal(signal.SIGINT)
            return result

        return run

    compiled = compile(function, backend, fullgraph=True)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    found: list[float] = []
    try:
        for is_late in (False, True, False, True):
            try:
                found += called(compiled, 0)
            except KeyboardInterrupt:
                found += draw()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(set(found)) == len(found) - 1  # and the zeros of `x`


@pytest.mark.parametrize("backend", [as_captured, elsewhere, telling])
def test_threads_that_fail_get_different_numbers(backend: Backend) -> None:
    compiled = compile(noisy, backend, fullgraph=True)
    called(compiled, 0)
    found: list[float] = []
    count, calls = 4, 150

    def many(number: int) -> None:
        mine: list[float] = []
        for place in range(calls):
            if number == 3:
                mine += draw()
            else:
                mine += called(compiled, 9 if (place + number) % 3 else 0)
        found.extend(mine)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=many, args=(n,)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(set(found)) == len(found) > calls * 3


def _in_inference_mode(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        first = torch.rand(3, dtype=DTYPE)
        y = x[place]
    return torch.cat([first, y]).clone()


def _without_gradients(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        first = torch.rand(3, dtype=DTYPE)
        y = x[place]
    return torch.cat([first, y])


def _under_autocast(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        first = torch.rand(3, dtype=DTYPE)
        y = x[place]
    return torch.cat([first, y])


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize("function", [_in_inference_mode, _without_gradients, _under_autocast])
def test_what_finds_draws_leaves_no_mode_switched(function: Callable[..., Any]) -> None:
    compiled = compile(function, as_captured, orders_draws=True)
    found = []
    for each in (function, compiled):
        torch.manual_seed(5)
        numbers = []
        for place in PLACES:
            numbers += [*called(each, place), *draw()]
            x = torch.ones(2, requires_grad=True)
            assert (x * 2).requires_grad
            assert not torch.is_inference_mode_enabled()
            assert not torch.is_autocast_enabled("cpu")
        found.append(numbers)
    assert found[0] == found[1]
