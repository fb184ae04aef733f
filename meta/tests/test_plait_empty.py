"""Programs of empty tensors compile, and give what eager gives, on both back ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plait


@pytest.mark.parametrize("backend", ["plait", pytest.param("triton", marks=pytest.mark.slow)])
def test_empty_tensors(backend: str) -> None:
    """In a process of their own: what reads memory that is not there may end it."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "empty_programs.py"), backend],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stdout, done.stdout


def _raised(function, *inputs):
    try:
        return function(*inputs)
    except Exception as error:
        return type(error)


PLACES, ROWS, NOTHING = torch.tensor([7]), torch.ones(3, 2), torch.ones(3, 0)
CHECKED = {
    "index": (lambda w, i: w[i][:0].sum() + w.sum(), ROWS),
    "columns": (lambda w, i: w[i][:, :0].prod(1), ROWS),
    "scan": (lambda w, i: w[i][:0].cumsum(0), ROWS),
    "product": (lambda w, i: w[i][:, :0] @ torch.ones(0, 3), ROWS),
    "gather": (lambda w, i: w.gather(0, i[:, None])[:0].sum(), ROWS),
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w)[:0].sum(), ROWS),
    "put": (lambda w, i: w.index_put((i,), torch.ones(1, 2))[:0].sum(), ROWS),
    "select": (lambda w, i: w.index_select(0, i) + 1, NOTHING),
}


@pytest.mark.parametrize("name", CHECKED)
def test_what_is_read_of_nothing_is_checked(name: str) -> None:
    function, rows = CHECKED[name]
    run = plait.compile(function)
    assert _raised(run, rows, PLACES) is _raised(function, rows, PLACES)
    torch.testing.assert_close(run(rows, PLACES - 5), function(rows, PLACES - 5))


def test_operators_of_users_run_though_nothing_of_their_results_is_read() -> None:
    calls = []

    @torch.library.custom_op("plait_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x.clone()

    noted.register_fake(torch.empty_like)
    run = plait.compile(lambda x: (noted(x)[:0] * 2).sum() + 1)
    assert run(torch.ones(3)) == 1
    assert len(calls) == 1
