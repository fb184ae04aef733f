"""The suite of GPUs itself, on a CPU: `python -m gpu --device cpu`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's database of operators needs it")
pytest.importorskip("numpy", reason="the suite of training needs it")
sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu import __main__ as suite
from gpu import parts  # which makes the suites importable that the others need
from gpu.judge import fault, in_float64
from gpu.pool import Place, judged
from gpu.result import CHECKS, Case, Outcome, Result, is_good, score
from gpu.tables import TABLES, page
from gpu.tests_part import cases, check, read


def test_a_handful_of_cases_is_right_on_a_cpu(tmp_path, capsys):
    results = tmp_path / "results.json"
    assert list(parts.PARTS) == list(CHECKS)
    given = ["training", "operators", "random", "--device", "cpu", "--jobs", "1"]
    names = ["update by SGD, fused", "lerp[float32]", "program 0017"]
    status = suite.main([*given, "--json", str(results), "--only", *names])
    printed = capsys.readouterr().out
    found = {each["case"]: each for each in json.loads(results.read_text())}
    assert status == 0, (printed, found)
    assert {name: each["outcome"] for name, each in found.items()} == {
        "update by SGD, fused": "RIGHT",
        "lerp[float32]": "RIGHT",
        "lerp[float32] with gradients": "RIGHT",
        "program 0017": "RIGHT",
    }
    assert "training: 1 of 1 right" in printed
    assert "(2 loops alone)" in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU does")
def test_without_a_gpu_nothing_is_known(capsys):
    assert suite.main([]) == 2
    assert "there is no device cuda here" in capsys.readouterr().out


def _ended(names, device="cpu", *, jobs=1, until=None):
    """How cases end; none is stuck but "hang", however slow the machine is."""
    place = Place("gpu_cases", lambda case: False, {"OF_THE_SUITE": "as it is set"})
    given = [Case("part", name, device, 5.0 if name == "hang" else 240.0) for name in names]
    ends = time.monotonic() + 600 if until is None else until
    return {each.case.name: each for each in judged(given, place, jobs, ends)}


def test_what_ends_a_process_or_is_stuck_is_told_and_the_others_go_on():
    found = _ended(["one", "crash", "two", "raise", "three", "hang", "four"])
    right = [name for name, each in found.items() if each.outcome is Outcome.RIGHT]
    assert right == ["one", "two", "three", "four"], found
    assert {found[name].detail for name in right} == {"as it is set"}
    assert found["crash"].detail.startswith("died with status -11; Fatal Python error")
    assert found["raise"].detail == "ValueError: no good"
    assert "gpu_cases.py" in found["raise"].text
    assert found["hang"].detail == "stuck: no result after 5 s"
    pids = [found[name].text for name in right]
    assert pids[1] == pids[2]  # an exception ends no process
    assert len({*pids}) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is whole there")
def test_a_process_whose_device_is_broken_is_not_used_again():
    found = _ended(["one", "two"], "cuda")
    assert {each.outcome for each in found.values()} == {Outcome.WRONG}
    # Torch is compiled without CUDA, or finds no driver.
    assert all("CUDA" in each.detail or "NVIDIA" in each.detail for each in found.values()), found


def test_cases_that_time_is_too_short_for_are_counted():
    found = _ended(["one", "two"], until=0.0)
    assert {each.outcome for each in found.values()} == {Outcome.NOT_REACHED}
    assert score("part", found.values()).startswith("part: 0 of 2 right, 2 not reached in time")
    assert not is_good(found.values())


def test_cases_that_do_not_end_in_time_are_counted():
    place = Place("gpu_cases", lambda case: False, {"OF_THE_SUITE": "as it is set"})
    given = [Case("part", name, "cpu", 240.0) for name in ("one", "hang")]
    ended = {}
    begun = time.monotonic()
    for each in judged(given, place, 2, begun + 1, more=6):
        ended[each.case.name] = each
    assert ended["one"].outcome is Outcome.RIGHT
    assert ended["hang"].outcome is Outcome.NOT_REACHED
    assert time.monotonic() - begun < 60


def _noisy(exact, share):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64)
    return (exact + share * noise).float()


def test_what_is_as_near_to_float64_as_eager_is_right():
    exact = torch.randn(1000, dtype=torch.float64) * 100

    def judge(ours, eager, true=exact):
        return fault({"out": [ours]}, {"out": [eager]}, lambda: {"out": [true]}, "call 0")

    assert judge(_noisy(exact, 2e-2), _noisy(exact, -1e-2)) is None
    wrong = judge(_noisy(exact, 5e-2), _noisy(exact, 1e-2))
    assert wrong is not None
    assert wrong.startswith("call 0['out'][0]: off by ")
    assert judge(_noisy(exact, 1e-6), _noisy(exact, 0.0)) is None
    holed = _noisy(exact, 1e-2)
    holed[3] = float("nan")
    assert "infinite or no numbers" in judge(holed, _noisy(exact, 0.0))
    assert judge(holed, holed.clone(), holed.double()) is None
    assert judge(exact.float().to(torch.bfloat16), exact.float()).endswith("torch.float32")
    assert "1 of 3 differ" in judge(torch.tensor([0, 1, 3]), torch.arange(3))
    assert "float64 does not run" in fault(holed, holed + 1, lambda: 1 / 0, "call 0")


def test_floats_alone_are_widened():
    wide = in_float64({"x": torch.ones(2), "n": torch.arange(2), "k": 3})
    assert wide["x"].dtype is torch.float64
    assert wide["n"].dtype is torch.int64
    assert wide["k"] == 3


FAILING = """\
.F                                                                       [100%]
=========================== short test summary info ============================
FAILED packages/a/tests/test_a.py::test_b[c] - AssertionError: d
SKIPPED [1] packages/a/tests/test_a.py:3: e
1 failed, 6 passed, 1 skipped in 0.1s
"""


def test_files_of_tests_that_need_a_gpu_are_found_and_read():
    found = {Path(case.name.split()[0]).name for case in cases("cuda", everything=False)}
    assert {"test_triton_native.py", "test_plait_cuda_graphs.py"} <= found
    assert {"test_plait_gpu_warm_start.py", "test_cpp_device_host.py"} <= found
    assert cases("cpu", everything=False) == []
    case = Case("tests", "packages/a/tests/test_a.py", "cuda", 1.0)
    wrong = read(case, 1, FAILING)
    assert wrong.detail == "test_a.py::test_b[c]: AssertionError: d"
    assert (wrong.outcome, wrong.count) == (Outcome.WRONG, 1)
    assert read(case, 0, "...\n3 passed in 1s\n") == Result(case, Outcome.RIGHT, count=3)
    assert read(case, 5, "no tests ran in 1s").outcome is Outcome.NOT_HERE
    assert "killed" in read(case, -9, "killed").detail


def test_long_files_are_run_in_shares(tmp_path):
    long = [c.name for c in cases("cuda", everything=False) if "test_triton_compile.py" in c.name]
    assert [name.split()[1] for name in long] == [f"{n}/{len(long)}" for n in range(1, 9)]
    file = tmp_path / "test_seven.py"
    file.write_text("import pytest\n@pytest.mark.parametrize('n', range(7))\ndef test_n(n): pass\n")
    shares = [check(Case("tests", f"{file} {n}/3", "cpu", 60.0)) for n in (1, 2, 3)]
    assert [(each.outcome, each.count) for each in shares] == [
        (Outcome.RIGHT, 3),
        (Outcome.RIGHT, 2),
        (Outcome.RIGHT, 2),
    ]


def test_a_page_says_what_measured_it():
    for table in TABLES:
        text = page(table, "NVIDIA X, torch 2, 2026-11-28.\n\n| a |\n")
        first, command, *told = text.split("\n\n")
        assert first == f"# {table.title}"
        assert command.startswith(f"`python -m benchmarks.{table.module}")
        assert told[-2:] == ["NVIDIA X, torch 2, 2026-11-28.", "| a |\n"]
        assert len(told) > 2
