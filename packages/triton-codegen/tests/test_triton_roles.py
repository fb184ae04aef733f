"""Products whose warps have roles, in Gluon for GPUs of capability 90: which are offered so, what
they compile to, and that no role waits for ever."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from test_triton_products import exact, given
from triton_checks import DEVICE, run
from triton_products import (
    grouped,
    grouped_terms,
    product,
    scaled,
    swiglu,
    weight_of_bytes,
    with_bias_and_gelu,
)
from triton_protocol import Wrong, multiplied
from triton_roles_compiled import H200, KERNELS, RESIDUAL, SIZES, tiles

from plait_scheduler import Kernel, parse_kernel, print_kernel
from plait_triton_codegen import (
    Tile,
    TritonCodegenError,
    TritonOptions,
    UnsupportedKernelError,
    render_kernel,
    versions,
)
from plait_triton_codegen.jobs import KernelJob, compiled
from plait_triton_codegen.kernels import roles, tile_choices
from plait_triton_codegen.machine_code import kernel_job
from plait_triton_codegen.tuning import shown

HERE = Path(__file__).parent
LARGE = product(4096, 4096, 512, turned="right")


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Triton compiles kernels: rendering needs no more."""
    monkeypatch.setattr(roles, "is_interpreted", lambda: False)


def by_compiler(which: str, folder: Path, number: int = 0) -> dict:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton")}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(HERE / "triton_roles_compiled.py"), which, str(number)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@cache
def offered(
    kernel: Kernel, capability: int = 90, aligned: Collection[int] | None = None
) -> tuple[Tile, ...]:
    chip = replace(H200, capability=capability)
    choices = tile_choices(kernel, TritonOptions(), chip=chip, aligned=aligned)
    return tuple(tile for tile in choices if tile.roles)


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    offered.cache_clear()


def test_large_products_are_offered_all_roles_on_the_gpus_that_have_them(compiles) -> None:
    found = offered(LARGE)
    assert [(tile.roles, tile.xblock, tile.rblock) for tile in found] == [
        ("in turn", 64, 256),
        ("in turn", 128, 128),
        ("together", 128, 256),
    ]
    assert all(t.programs == 132 and t.described and t.described_result for t in found)
    assert shown(found[0]).endswith("with roles, in turn, shared out among 132 programs")
    for kernel in KERNELS.values():
        assert offered(kernel), print_kernel(kernel)
    for capability in (80, 89, 100, 120):
        assert not offered(LARGE, capability)


def test_by_rule_no_warps_have_roles(compiles) -> None:
    assert not next(iter(tile_choices(LARGE, TritonOptions(), chip=H200))).roles


def test_not_offered_by_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "is_interpreted", lambda: True)
    assert not offered(LARGE)
    with pytest.raises(UnsupportedKernelError, match="interpreter"):
        render_kernel(LARGE, tile=tiles()[0])


def test_not_offered_by_tritons_whose_gluon_is_not_known(
    compiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("3.5.1", "3.10.0", "4.0.0"):
        monkeypatch.setattr(versions, "triton_version", lambda version=version: version)
        assert not offered(LARGE)
        offered.cache_clear()

    def missing() -> str:
        raise versions.TritonVersionError("Triton is not installed")

    monkeypatch.setattr(versions, "triton_version", missing)
    assert not offered(LARGE)


def test_without_gluon_compiling_fails(compiles, monkeypatch: pytest.MonkeyPatch) -> None:
    job = kernel_job(render_kernel(LARGE, tile=tiles()[0]), "cuda:90", ())
    monkeypatch.setitem(sys.modules, "triton.experimental.gluon", None)
    with pytest.raises(ImportError):
        compiled(job)


def test_other_gpus_refuse_it(compiles) -> None:
    source = render_kernel(LARGE, tile=tiles()[0])
    for target in ("cuda:80", "cuda:100"):
        with pytest.raises(TritonCodegenError, match="roles"):
            kernel_job(source, target, ())


def _changed(kernel: Kernel, was: str, other: str) -> Kernel:
    text = print_kernel(kernel)
    assert was in text
    return parse_kernel(text.replace(was, other))


REFUSED = {
    "f32 factors": product(4096, 4096, 512, "f32"),
    "integers": product(4096, 4096, 512, "i8", turned="right"),
    "floats of 8 bits": scaled(4096, 4096, 4096),
    "batches": product(4096, 4096, 512, batches=4),
    "groups": grouped(8192, 4096, 2048, 8),
    "groups of terms": grouped_terms(4096, 4096, 8192, 8),
    "two sums": swiglu(4096, 4096, 512),
    "a computed factor": weight_of_bytes(4096, 4096, 512),
    "rows of 1000 bytes": product(4096, 500, 512),
    "terms that begin anywhere": product(4096, 4096, 511, turned="right"),
    "few blocks": product(512, 512, 8192, turned="right"),
    "few terms": product(8192, 8192, 32, turned="right"),
    "a result that lies turned": _changed(
        LARGE, "p2: write bf16[4096, 4096]", "p2: write bf16[4096, 4096] stride [1, 4096] offset 0"
    ),
    "a result of rows": product(
        4096, 4096, 512, turned="right", finish="to(p3[i0, 0], f32)", added="[4096, 1]"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_products_keep_their_forms(name: str, compiles) -> None:
    assert not offered(REFUSED[name])
    assert len(tile_choices(REFUSED[name], TritonOptions(), chip=H200)) > 1


@pytest.mark.parametrize(
    "facts", [{"stages": 1}, {"num_warps": 8}, {"xblock": 96}, {"xblock": 32}, {"programs": 0}]
)
def test_tiles_in_which_roles_would_wait_are_refused(facts: dict[str, int], compiles) -> None:
    for tile in tiles():
        with pytest.raises(UnsupportedKernelError, match="no roles"):
            render_kernel(LARGE, tile=replace(tile, **facts))


def test_not_offered_where_a_matrix_begins_anywhere(compiles) -> None:
    for aligned in (frozenset({0, 1}), frozenset({1, 2}), frozenset({0, 2})):
        assert not offered(LARGE, 90, aligned)
    assert offered(LARGE, 90, frozenset({0, 1, 2}))


def test_what_gluon_does_not_know_is_refused(compiles) -> None:
    text = print_kernel(product(4096, 4096, 512, turned="right", finish="exp(%t0)"))
    assert offered(parse_kernel(text))
    for name, known in (("sigmoid", True), ("approximate_exp", False)):
        assert bool(offered(parse_kernel(text.replace("exp(", f"{name}(", 1)))) == known


def test_a_job_tells_its_language(compiles) -> None:
    source = render_kernel(LARGE, tile=tiles()[0])
    job = kernel_job(source, "cuda:90", (0, 1, 2))
    assert job.language == "gluon"
    assert KernelJob.from_json(job.to_json()) == job
    assert "@gluon.jit" in source.text
    assert "num_warps=4" in source.launcher  # which Gluon adds those of other roles to
    plain = render_kernel(LARGE)
    assert kernel_job(plain, "cuda:90", ()).language == plain.language == "triton"
    assert not any("gluon" in line for line in plain.imports)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", range(len(KERNELS)), ids=list(KERNELS))
def test_compiled_for_two_warpgroups_and_one_warp_that_reads(tmp_path: Path, number: int) -> None:
    found = by_compiler("costs", tmp_path, number)
    assert len(found) == len(tiles())
    for name, each in found.items():
        assert each["spills"] == 0, name
        assert each["warps"] == 12, name
        assert each["registers"] * each["warps"] * 32 <= 65536, name
        assert each["handed registers"] >= 2, name
        assert each["shared"] <= H200.shared_bytes, name
        assert each["tensor cores"], name
        assert each["copies by descriptors"] > each["stores by descriptors"] > 0, name
        assert each["stores by threads"] <= 3, name  # those that make descriptors


def test_a_worker_compiles_it_and_tells_how_many_threads_to_launch(tmp_path: Path) -> None:
    name, threads, shared, scratch = by_compiler("worker", tmp_path)["head"]
    assert name == "linear_gelu"
    assert threads == 12 * 32
    assert 200 * 1024 < shared <= H200.shared_bytes
    assert scratch == 3 * 128  # a descriptor for each matrix


@pytest.fixture(scope="module")
def protocols(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Those of the first of the small products."""
    return by_compiler("protocol", tmp_path_factory.mktemp("protocol"))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_role_waits_for_ever_and_each_product_is_added_once(
    protocols, tmp_path: Path, sizes: tuple[int, int, int]
) -> None:
    number = SIZES.index(sizes)
    found = by_compiler("protocol", tmp_path, number) if number else protocols
    assert len(found) == len(tiles()) * 2
    for name, text in found.items():
        sides = re.search(r" (\d+)x(\d+) ", name)
        assert sides is not None
        height = 64 if "together" in name else int(sides[1])
        rows = -(-sizes[0] // int(sides[1])) * int(sides[1])
        steps = (rows, height), (sizes[1], int(sides[2])), (sizes[2], 64)
        whole = [range(0, size, step) for size, step in steps]
        expected = [(i, j, k) for i in whole[0] for j in whole[1] for k in whole[2]]
        for programs in (1, 3):
            assert sorted(multiplied(text, programs, seeds=2)) == expected, (name, programs)


@pytest.mark.parametrize(
    ("was", "other", "told"),
    [
        (r"(ttng\.init_barrier %\S+), 2", r"\1, 3", "wait for each other"),
        (r"(ttng\.init_barrier %\S+), 2", r"\1, 1", "more arrive|overwritten|wait for each other"),
        (r"(ttng\.barrier_expect %\S+), \d+", r"\1, 8192", "more bytes|multiplies"),
        (r"(ttng\.barrier_expect %\S+), \d+", r"\1, 65536", "wait for each other"),
        (r"pendings = 1", r"pendings = 2", "overwritten"),
    ],
)
def test_the_model_finds_broken_protocols(protocols, was: str, other: str, told: str) -> None:
    text, count = re.subn(was, other, protocols["together 128x256 4"])
    assert count
    with pytest.raises(Wrong, match=told):
        multiplied(text, 1, seeds=8)


def test_values_where_a_gpu_takes_it_else_it_is_refused() -> None:
    kernel = with_bias_and_gelu(1000, 520, 392)
    residual = product(1000, 520, 392, turned="right", finish=RESIDUAL, added="[1000, 520]")
    capability = torch.cuda.get_device_capability() if DEVICE == "cuda" else (0, 0)
    for tile in tiles():
        if capability != (9, 0):
            with pytest.raises(TritonCodegenError):
                kernel_job(render_kernel(kernel, tile=tile), f"cuda:{capability[0]}0", ())
            continue
        left, right, bias = given("bf16", 1000, 392), given("bf16", 520, 392), given("bf16", 520)
        (got,) = run(kernel, left, right, bias, tile=tile)
        linear = torch.nn.functional.linear(left.double(), right.double(), bias.double())
        expected = torch.nn.functional.gelu(linear)
        torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=0.2)
        added = given("bf16", 1000, 520, seed=2)
        (got,) = run(residual, left, right.t(), added, tile=tile)
        expected = exact(left, right.t()) + added.double()
        torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=0.2)
