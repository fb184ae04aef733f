"""Programs that run for one row after the other: as if Python called them so."""

import signal
import time

import pytest
import torch

from plait_cpp_codegen import HandedOn, Rows, build, repeat
from plait_scheduler import parse_program

STEP = """\
program step()
  inputs h, x, w
  arena 0
  buffer h: {type}[3, 5] on cpu = input 0
  buffer x: {type}[3, 5] on cpu = input 1
  buffer w: {type}[5] on cpu = input 2
  buffer y: {type}[3, 5] on cpu = output
  buffer z: {type}[3, 5] on cpu = output
  kernel f(p0: read {type}[3, 5], p1: read {type}[3, 5], p2: read {type}[5], \
p3: write {type}[3, 5], p4: write {type}[3, 5])
    for i0: 3, i1: 5
      outer store p3[i0, i1] = add(mul(p0[i0, i1], p2[i1]), p1[i0, i1])
      outer store p4[i0, i1] = sub(mul(p0[i0, i1], p2[i1]), p1[i0, i1])
  steps
    allocate y
    allocate z
    launch f(h, x, w, y, z)
    return y, z
"""
ROW_OF = """\
program step()
  inputs table, at
  arena 0
  buffer table: f32[4, 2] on cpu = input 0
  buffer at: i64[1] on cpu = input 1
  buffer y: f32[1, 2] on cpu = output
  kernel f(p0: read f32[4, 2], p1: read i64[1], p2: write f32[1, 2])
    for i0: 1, i1: 2
      outer store p2[i0, i1] = p0[checked(p1[i0], 4), i1]
  steps
    allocate y
    launch f(table, at, y)
    return y
"""


@pytest.fixture(scope="module")
def step():
    made = build(parse_program(STEP.format(type="f32")))
    assert made.fallback_reason is None
    return made.run


def by_python(run, order, h, rows, w):
    """What it hands on, and by rows what it gives and is handed."""
    given, handed = (torch.empty_like(rows) for _ in range(2))
    for place in order:
        handed[place] = h
        h, given[place] = run(h, rows[place], w)
    return h, given, handed


@pytest.mark.parametrize(
    "order", [range(7), range(6, -1, -1), range(5, 6), range(1, 6, 2)], ids=str
)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_results_are_those_of_single_calls(dtype, order):
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}
    run = build(parse_program(STEP.format(type=dtype))).run
    h, rows, w = (torch.randn(*s).to(kinds[dtype]) for s in ((3, 5), (7, 3, 5), (5,)))
    expected = by_python(run, order, h, rows, w)
    last, given, handed = torch.empty_like(h), torch.empty_like(rows), torch.empty_like(rows)
    every = Rows(given, order.start, order.step), Rows(handed, order.start, order.step)
    inputs = [h, Rows(rows, order.start, order.step), w]
    assert repeat(run, len(order), inputs, [HandedOn(0, last), every[0]], [(0, every[1])])
    assert torch.equal(last, expected[0])
    for place in order:
        assert torch.equal(given[place], expected[1][place])
        assert torch.equal(handed[place], expected[2][place])


def test_rows_may_have_room_between_them_and_results_too(step):
    h, rows, w = torch.randn(3, 5), torch.randn(7, 2, 3, 5)[:, 1], torch.randn(5)
    last, room = torch.zeros(3, 5), torch.zeros(7, 2, 3, 5)
    results = [HandedOn(0, last), Rows(room[:, 1], 0, 1)]
    assert repeat(step, 7, [h, Rows(rows, 0, 1), w], results)
    expected = by_python(step, range(7), h, rows, w)
    assert torch.equal(last, expected[0])
    assert torch.equal(room[:, 1], expected[1])
    assert not room[:, 0].any()


def test_what_lies_otherwise_is_refused(step):
    h, rows, w = torch.randn(3, 5), torch.randn(7, 3, 5), torch.randn(5)
    last, given = torch.empty(3, 5), torch.empty(7, 3, 5)
    inputs = [h, Rows(rows, 0, 1), w]
    results = [HandedOn(0, last), Rows(given, 0, 1)]
    for other in (torch.randn(7, 5, 3).transpose(1, 2), torch.randn(7, 3, 4), rows.double()):
        assert not repeat(step, 7, [h, Rows(other, 0, 1), w], results)
        assert not repeat(step, 7, inputs, [HandedOn(0, last), Rows(other, 0, 1)])
    assert not repeat(step, 7, [h, Rows(rows, 0, 1), torch.randn(10)[::2]], results)
    assert not repeat(step, 7, inputs, [HandedOn(0, torch.empty(5, 3).t()), Rows(given, 0, 1)])
    assert not repeat(step, 7, inputs, [HandedOn(2, last), Rows(given, 0, 1)])
    assert not repeat(step, 7, inputs, results, [(2, Rows(given, 0, 1))])
    assert not repeat(step, 7, inputs, results, [(3, Rows(given, 0, 1))])
    assert not repeat(step, 7, [h, Rows(rows, 0, 1), 1.0], results)
    assert not repeat(len, 7, inputs, results)
    assert not repeat(lambda *given: step(*given), 7, inputs, results)
    with pytest.raises(ValueError, match="as many tensors"):
        repeat(step, 7, inputs[:2], results)
    with pytest.raises(ValueError, match="at least once"):
        repeat(step, 0, inputs, results)
    assert repeat(step, 7, inputs, results)


def test_programs_of_open_sizes_are_refused():
    text = STEP.format(type="f32").replace("[3, 5]", "[s, 5]").replace("i0: 3", "i0: s")
    text = text.replace("write f32[s, 5])\n", "write f32[s, 5]) sizes(s in 1..9)\n")
    text = text.replace("launch f(h, x, w, y, z)", "launch f(h, x, w, y, z) sizes(s)")
    run = build(parse_program(text.replace("step()", "step(s in 1..9)"))).run
    h, rows, w = torch.randn(3, 5), torch.randn(7, 3, 5), torch.randn(5)
    run(h, rows[0], w)
    results = [HandedOn(0, torch.empty(3, 5)), Rows(torch.empty(7, 3, 5), 0, 1)]
    assert not repeat(run, 7, [h, Rows(rows, 0, 1), w], results)


def test_a_run_that_fails_is_told():
    run = build(parse_program(ROW_OF)).run
    table, given = torch.randn(4, 2), torch.empty(5, 1, 2)
    places = torch.tensor([[0], [3], [-1], [2], [1]])
    assert repeat(run, 5, [table, Rows(places, 0, 1)], [Rows(given, 0, 1)])
    assert torch.equal(given[:, 0], table[places[:, 0]])
    places[3] = 4
    assert not repeat(run, 5, [table, Rows(places, 0, 1)], [Rows(given, 0, 1)])
    with pytest.raises(IndexError):
        run(table, places[3])


def test_signals_are_seen_meanwhile(step):
    class Alarm(Exception):
        pass

    def rings(*_):
        raise Alarm

    h, row, w = torch.randn(3, 5), torch.randn(1, 3, 5).expand(2**40, 3, 5), torch.rand(5)
    results = [HandedOn(0, torch.empty(3, 5)), Rows(torch.empty(1, 3, 5).expand(2**40, 3, 5), 0, 1)]
    before = signal.signal(signal.SIGALRM, rings)
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Alarm):
            repeat(step, 2**40, [h, Rows(row, 0, 1), w], results)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun < 30


def test_what_is_handed_on_comes_through_any_number_of_looks_at_signals(step, monkeypatch):
    from plait_cpp_codegen import repeating

    class Slow:
        """A runtime that looks at signals behind every second run."""

        def __init__(self, runtime):
            self.runtime = runtime

        def repeat(self, program, plan, *tensors):
            runs = int.from_bytes(plan[:8], "little")
            return self.runtime.repeat(
                program, min(runs, 2).to_bytes(8, "little") + plan[8:], *tensors
            )

    runtimes = repeating.loaded_runtimes()
    monkeypatch.setattr(repeating, "loaded_runtimes", lambda: (Slow(runtimes[0]),))
    h, rows, w = torch.randn(3, 5), torch.randn(7, 3, 5), torch.randn(5)
    last, given, handed = torch.empty(3, 5), torch.empty(7, 3, 5), torch.empty(7, 3, 5)
    results = [HandedOn(0, last), Rows(given, 6, -1)]
    assert repeat(step, 7, [h, Rows(rows, 6, -1), w], results, [(0, Rows(handed, 6, -1))])
    expected = by_python(step, range(6, -1, -1), h, rows, w)
    assert all(map(torch.equal, (last, given, handed), expected))
