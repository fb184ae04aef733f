"""Passes over collectives: what they do to graphs, and what two and four processes then compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from collective_programs import (
    WIDTH,
    DataParallel,
    Random,
    Sharded,
    TensorParallel,
    gathered,
    graph_of,
    ops,
    reduced,
    scattered,
)

from plait_fx_passes import DEFAULT_PASSES, RewriteRule, print_aten, rule_pass, run_passes, verify
from plait_fx_passes.passes.collectives import (
    LATE_WAITS,
    bucket_collectives,
    chunk_products,
    collective_passes,
    early_starts,
)

WORKER = Path(__file__).parent / "collective_worker.py"
REDUCE, GATHER, SCATTER = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"


def square(size=8, dtype=torch.float32):
    return torch.ones(size, size, dtype=dtype)


def names_of(graph):
    """The operators of a graph, in order."""
    calls = (node for node in graph.graph.nodes if node.op == "call_function")
    return [str(getattr(node.target, "__name__", node.target)).split(".")[0] for node in calls]


def better(program, *inputs, passes=None):
    graph = graph_of(program, inputs)
    chosen = collective_passes() if passes is None else passes
    return run_passes(graph, (*DEFAULT_PASSES, *chosen), verify_each=True)


def joined(program, *inputs, **settings):
    """How many all-reduces there are behind passes, of one tensor and of several."""
    names = names_of(better(program, *inputs, passes=collective_passes(**settings)))
    return names.count(REDUCE), names.count(f"{REDUCE}_coalesced")


# Real processes.


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.sampled(2)
def test_processes_compute_what_they_did_and_what_one_would(processes, tmp_path):
    if not torch.distributed.is_gloo_available():
        pytest.skip("torch has no gloo")
    done = subprocess.run(
        [sys.executable, str(WORKER), str(processes), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=WORKER.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    exact = processes == 2  # over more, the order of a sum is that of where an element lies
    for rank in range(processes):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        for name in ("data", "sharded", "tensor"):
            case = told.pop(name)
            assert case.pop("alone") < 1e-12
            plain = case.pop("plain")
            for setting in case.values():
                assert setting["alone"] < 1e-12
                assert setting["difference"] <= (0 if exact else 1e-14)
            _check_counts(name, plain, case)
        assert told
        for name, settings in told.items():
            assert max(settings.values()) <= (0 if exact else 1e-13), name


def _check_counts(name, plain, case):
    calls = {setting: found["calls"] for setting, found in case.items()}
    if name == "data":
        assert plain == {REDUCE: 6, "wait_tensor": 6}
        assert calls["default"] == {f"{REDUCE}_coalesced": 1, "wait_tensor": 6}
        assert calls["small"] == {f"{REDUCE}_coalesced": 3, "wait_tensor": 6}
    elif name == "sharded":
        assert (plain[GATHER], plain[SCATTER]) == (9, 6)
        assert calls["default"][f"{GATHER}_coalesced"] == calls["default"][GATHER] == 3
        assert (calls["default"][SCATTER], calls["small"][SCATTER]) == (1, 3)
    else:
        assert calls["default"] == plain == {GATHER: 2, SCATTER: 2, "wait_tensor": 4}
        assert calls["chunks"] == {GATHER: 4, SCATTER: 4, "wait_tensor": 8}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(3)
def test_random_graphs_stay_valid_under_any_limits(seed):
    case = Random(2, 100 + seed)
    graph = graph_of(case.program, case.inputs(0))
    for in_flight in (0, 300, 700, 2000):
        for in_order in (False, True):
            passes = collective_passes(
                bucket_bytes=600, in_flight_bytes=in_flight, in_order=in_order
            )
            left = run_passes(graph, passes)
            verify(left, repropagate=False)
    verify(left)


@pytest.mark.parametrize("seed", range(12))
def test_each_process_keeps_its_order_where_others_may_have_another_graph(seed):
    case = Random(2, 200 + seed)
    graph = graph_of(case.program, case.inputs(0))
    for in_flight in (0, 700, 4000):
        left = run_passes(graph, collective_passes(in_flight_bytes=in_flight, in_order=True))
        assert _starts(left) == _starts(graph)


def _starts(graph):
    """The collectives in order, with what they are given."""
    targets = (REDUCE, GATHER, SCATTER)
    calls = (n for n in graph.graph.nodes if str(n.target).split(".")[1:2] and n.op != "output")
    return [(n.name, n.args[1:]) for n in calls if str(n.target).split(".")[1] in targets]


def test_neighbours_of_one_process_are_not_joined_for_another():
    def of_two_groups(x, y, z):
        return reduced(x), reduced(z, group="1"), reduced(y)

    def of_one(x, y, z):
        return reduced(x), z, reduced(y)

    for program in (of_two_groups, of_one):
        graph = graph_of(program, [square()] * 3)
        left = run_passes(graph, (*DEFAULT_PASSES, *collective_passes(in_order=True)))
        names = names_of(left)
        assert not any("coalesced" in name for name in names)
        assert [each for each in _starts(left) if each[1][-1] == "0"] == [
            each for each in _starts(graph) if each[1][-1] == "0"
        ]


# What stays.


def test_no_pass_drops_or_merges_a_collective():
    def program(x):
        ops.wait_tensor(ops.all_reduce(x, "sum", "0"))
        ops.all_reduce(x, "max", "0")
        return reduced(x) + reduced(x)

    names = names_of(run_passes(graph_of(program, [square()]), verify_each=True))
    assert names.count(REDUCE) == 4
    assert names.count("wait_tensor") == 3


def test_a_rule_leaves_collectives_to_those_who_name_them():
    rule = RewriteRule("twice", lambda x: x + x, lambda x: x * 2)
    graph = graph_of(lambda x: reduced(x + x) + reduced(x + x), [square()])
    assert names_of(run_passes(graph, (rule_pass("mine", [rule]),))).count(REDUCE) == 2


@pytest.mark.parametrize("kind", [DataParallel, Sharded, TensorParallel, Random])
def test_any_amount_of_fuel_leaves_a_valid_graph(kind):
    case = kind(2, 3) if kind is Random else kind(2)
    graph = run_passes(graph_of(case.program, case.inputs(0)))
    passes = (chunk_products(2, enough=1), *collective_passes(bucket_bytes=600))
    used = []
    run_passes(graph, passes, observer=lambda record: used.append(record.rewrites))
    assert sum(used) > 0
    sent = print_aten(graph)
    for fuel in range(sum(used) + 1):
        left = run_passes(graph, passes, fuel=fuel)
        verify(left)
        assert (print_aten(left) == sent) == (fuel == 0)


def test_a_second_time_nothing_moves():
    case = DataParallel(2)
    graph = better(case.program, *case.inputs(0))
    again = []
    run_passes(graph, collective_passes(), observer=lambda record: again.append(record.rewrites))
    assert not any(again)


def test_decisions_do_not_depend_on_the_rank():
    texts = {
        print_aten(better(case.program, *case.inputs(rank)))
        for case in [Random(2, 5)]
        for rank in range(2)
    }
    assert len(texts) == 1


def test_sizes_of_the_call_are_left_alone():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    open_rows = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.ones(5, 4), symbolic_context=open_rows)
    graph = graph_of(lambda x: (reduced(x) + 1, reduced(x * 2) + 1), [x])
    names = names_of(run_passes(graph, collective_passes()))
    assert names.count(REDUCE) == 2


# Buckets.


def two(first, second):
    return lambda x, y: (first(x), second(y))


def test_neighbours_are_joined():
    assert joined(two(reduced, reduced), square(), square(3)) == (0, 1)


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (two(reduced, lambda y: reduced(y, group="1")), (square(), square())),
        (two(reduced, lambda y: reduced(y, "max")), (square(), square())),
        (two(reduced, reduced), (square(), square(dtype=torch.float64))),
        (two(reduced, reduced), (square(), torch.ones(0, 4))),
        (two(reduced, reduced), (square(), square().to(torch.complex64))),
        (lambda x, y: (reduced(x), reduced(y.t())), (square(), square())),  # it lies otherwise
        (lambda x, y: reduced(reduced(x) @ y), (square(), square())),
        (lambda x, y: (reduced(x) @ y, reduced(torch.tanh(y @ y) @ x)), (square(), square())),
        (lambda x, y: (ops.all_reduce(x, "sum", "0"), reduced(y)), (square(), square())),
    ],
)
def test_others_are_not_joined(program, inputs):
    passes = (LATE_WAITS, bucket_collectives(2**20))
    assert names_of(better(program, *inputs, passes=passes)).count(REDUCE) == 2


def test_nothing_is_joined_across_a_use():
    def program(x, y):
        return reduced(reduced(x) @ y) + reduced(y)

    passes = (LATE_WAITS, bucket_collectives(2**20))
    names = names_of(better(program, square(), square(), passes=passes))
    assert names.count(REDUCE) == 1
    assert names.count(f"{REDUCE}_coalesced") == 1
    assert names.index(REDUCE) < names.index("mm") < names.index(f"{REDUCE}_coalesced")


def test_buckets_have_a_size():
    def program(*tensors):
        return tuple(reduced(each) for each in tensors)

    tensors = [square() for _ in range(6)]  # of 256 bytes each
    assert joined(program, *tensors, bucket_bytes=512) == (0, 3)
    assert joined(program, *tensors, bucket_bytes=1024) == (0, 2)
    assert joined(program, *tensors, bucket_bytes=511) == (6, 0)
    assert joined(program, *tensors, bucket_bytes=10**9) == (0, 1)


def test_operators_that_are_not_torchs_are_not_passed():
    with torch.library._scoped_library("collectives_test", "DEF") as library:
        library.define("met(Tensor x) -> Tensor")
        library.impl("met", lambda x: x.clone(), "CompositeExplicitAutograd")
        torch.library.register_fake("collectives_test::met", torch.empty_like, lib=library)
        met = torch.ops.collectives_test.met

        def program(x, y, z):
            first = reduced(x)
            y = met(y)
            return first, reduced(z), y

        names = names_of(better(program, *[square()] * 3))
        assert names.index(REDUCE) < names.index("met")
        assert names.count(REDUCE) == 2


def test_gathers_and_scatters_are_joined_by_their_own():
    def program(x, y, z):
        a, b = gathered(x, 2), gathered(y, 2)
        c, d = scattered(x, 2), scattered(z, 2)
        return a, b, c, d, gathered(z, 4, "1")

    names = names_of(better(program, square(), square(), square(4)))
    assert names.count(f"{GATHER}_coalesced") == 1
    assert names.count(GATHER) == 1
    assert names.count(SCATTER) == 1
    assert names.count("cat") == 1


# Order.


def test_waits_come_right_before_uses_and_means_last():
    def program(x, y):
        mean = reduced(x) / 2
        part = gathered(y, 2)[:8]
        y = torch.tanh(y)
        y = y @ part
        return mean, y @ y

    names = names_of(better(program, square(), square(), passes=(LATE_WAITS,)))
    assert names == [
        *(REDUCE, GATHER, "tanh", "wait_tensor", "slice", "mm", "mm"),
        *("wait_tensor", "mul"),
    ]


def test_a_tensor_that_is_read_behind_its_wait_keeps_the_wait_there():
    def program(x, y):
        started = ops.all_reduce(x, "sum", "0")
        done = ops.wait_tensor(started)
        return y @ y + started, done * 2

    names = names_of(better(program, square(), square()))
    assert names == [REDUCE, "wait_tensor", "mm", "add", "mul"]


def test_reductions_start_when_their_operand_is_there():
    def program(x):
        one = x @ x
        two = one @ one
        return reduced(two * 1.5) / 2, reduced(one * 1.5) / 2

    passes = (LATE_WAITS, early_starts(0))
    names = names_of(better(program, square(), passes=passes))
    assert names[:6] == ["mm", "mul", REDUCE, "mm", "mul", REDUCE]
    names = names_of(better(program, square(), passes=(LATE_WAITS, early_starts(0, in_order=True))))
    assert names[:6] == ["mm", "mm", "mul", REDUCE, "mul", REDUCE]


def layers(x, *shards):
    for shard in shards:
        x = torch.tanh(x @ gathered(shard.to(torch.float64), 2))
    return x


@pytest.mark.parametrize(("ahead", "limit"), [(1, 0), (1, 1023), (2, 1024), (3, 1536), (4, 4096)])
def test_gathers_start_ahead_as_far_as_memory_allows(ahead, limit):
    shards = [torch.ones(4, WIDTH) for _ in range(4)]  # of 512 bytes gathered
    inputs = [square(dtype=torch.float64), *shards]
    graph = better(layers, *inputs, passes=(LATE_WAITS, early_starts(limit)))
    in_flight, most = 0, 0
    for name in names_of(graph):
        in_flight += (name == GATHER) - (name == "wait_tensor")
        most = max(most, in_flight)
    assert most == ahead
    assert names_of(graph)[:2] == ["_to_copy", GATHER]


def test_a_view_that_is_used_before_stays_there():
    def program(x, y):
        rows = y[:4]
        x = gathered(torch.tanh(rows @ x), 2)  # 256 bytes are on their way until they are used
        x = torch.tanh(x @ x)
        return x @ gathered(rows, 2)

    for limit in (0, 300, 4096):
        graph = better(program, square(), square(), passes=(LATE_WAITS, early_starts(limit)))
        names = names_of(graph)
        assert names[0] == "slice"
        second = len(names) - names[::-1].index(GATHER) - 1
        assert (names[second - 1] == "wait_tensor") == (limit == 300)
        assert (names[1] == GATHER) == (limit == 4096)


# Chunks.


def pair(x, a, b):
    return scattered(torch.relu(gathered(x, 2) @ a) @ b, 2)


def test_products_are_cut_where_that_divides_and_is_worth_it():
    inputs = [square(), square(), square()]

    def chunked(program, chunks, enough, given=inputs):
        passes = (chunk_products(chunks, enough=enough),)
        return names_of(better(program, *given, passes=passes)).count("mm")

    assert chunked(pair, 2, 1) == 4
    assert chunked(pair, 4, 1) == 8
    assert chunked(pair, 3, 1) == 2  # 8 rows a process do not divide
    assert chunked(pair, 2, 16 * 8 * 8 // 2) == 4
    assert chunked(pair, 2, 16 * 8 * 8 // 2 + 1) == 2
    twice = chunked(lambda x, a, b: pair(x, a, b) + gathered(x, 2)[:8] @ a, 2, 1)
    assert twice == 5

    def used(x, a, b):
        rows = gathered(x, 2)
        return (rows @ a)[:8] + rows[:8]  # it is needed whole

    assert chunked(used, 2, 1) == 1
    assert chunked(lambda x, a, b: a @ gathered(x, 2).t(), 2, 1) == 1  # it is the other factor


def test_a_bias_is_added_to_each_chunk():
    def program(x, weight, bias):
        return torch.addmm(bias, gathered(x, 2), weight)

    passes = (chunk_products(2, enough=1),)
    names = names_of(better(program, square(), square(), torch.ones(8), passes=passes))
    assert names.count("addmm") == 2
    rows = torch.ones(16, 8)  # of the whole result: it is cut with it
    names = names_of(better(program, square(), square(), rows, passes=passes))
    assert names.count("addmm") == 1


def test_chunks_overlap():
    names = names_of(better(pair, *[square()] * 3, passes=(chunk_products(2, enough=1),)))
    assert [name for name in names if name in (GATHER, SCATTER, "mm", "wait_tensor")] == [
        *(GATHER, GATHER, "wait_tensor", "mm", "wait_tensor", "mm"),
        *("mm", SCATTER, "mm", SCATTER, "wait_tensor", "wait_tensor"),
    ]
