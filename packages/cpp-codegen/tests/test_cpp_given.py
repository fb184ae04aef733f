"""What is copied to a GPU of the host's memory, when, and to where."""

from __future__ import annotations

import pytest

from plait_cpp_codegen import UnsupportedProgramError
from plait_cpp_codegen.given import Given, given_by_host
from plait_scheduler import parse_program

READING = """\
program reading()
  inputs x, first, second
  arena 0
  buffer x: f32[8] on cuda:0 = input 0
  buffer first: f32[2] on cpu = input 1
  buffer second: f32[2] on cpu = input 2
  buffer more: f32[2] on cpu = arena 0
  buffer part: f32[1] on cpu = part of more at 1
  buffer last: f32[2] on cpu = arena 64
  buffer counted: f32[2] on cpu = shared second
  kernel scaled(p0: readwrite f32[8], p1: read f32[2])
    for i0: 8
      outer store p0[i0] = mul(p0[i0], p1[1])
  kernel added(p0: read f32[2], p1: write f32[2])
    for i0: 2
      outer store p1[i0] = add(p0[i0], f32(1.0))
  kernel grow(p0: readwrite f32[1])
    for i0: 1
      outer store p0[i0] = add(p0[i0], f32(1.0))
  kernel count(p0: readwrite f32[2])
    for i0: 2
      outer store p0[i0] = add(p0[i0], f32(1.0))
  steps
{steps}\
    return
"""


def given(*steps: str) -> Given:
    text = READING.replace("{steps}", "".join(f"    {step}\n" for step in steps))
    return given_by_host(parse_program(text), {"scaled"})


def copied(found: Given) -> dict[int, list[list[str]]]:
    return {at: [[*each.buffers] for each in copies] for at, copies in found.copies.items()}


def test_inputs_are_copied_at_the_start_and_once() -> None:
    found = given(
        "launch scaled(x, first)",
        "launch scaled(x, second)",
        "allocate counted",
        "launch count(counted)",
        "launch scaled(x, first)",
    )
    assert copied(found) == {-1: [["first", "second"]]}
    assert found.places == {(0, "first"): 0, (1, "second"): 16, (4, "first"): 0}
    assert found.nbytes == 32


def test_what_is_computed_is_copied_with_all_that_is_there() -> None:
    found = given(
        "allocate more",
        "allocate last",
        "launch added(first, more)",
        "launch added(more, last)",
        "allocate counted",
        "launch count(counted)",
        "launch scaled(x, last)",
        "launch scaled(x, counted)",
        "launch scaled(x, more)",
    )
    assert copied(found) == {6: [["last", "counted", "more"]]}
    assert [*found.places.values()] == [0, 16, 32]


def test_what_is_written_again_is_copied_again() -> None:
    found = given(
        "allocate more",
        "launch added(first, more)",
        "launch scaled(x, more)",
        "allocate part",
        "launch grow(part)",
        "launch scaled(x, more)",
        "launch count(first)",
        "launch scaled(x, first)",
    )
    assert copied(found) == {2: [["more"]], 5: [["more"]], 7: [["first"]]}
    assert found.places == {(2, "more"): 0, (5, "more"): 16, (7, "first"): 32}


def test_what_puts_inputs_back_reads_what_there_was() -> None:
    found = given(
        "allocate more",
        "launch added(first, more)",
        "on-error scaled(x, more)",
        "launch count(first)",
    )
    assert copied(found) == {2: [["more"]]}
    assert found.places == {(2, "more"): 0}


def test_many_numbers_are_several_copies() -> None:
    count = 5000
    names = [f"n{number}" for number in range(count)]
    buffers = "".join(
        f"  buffer {name}: f64[] on cpu = input {at}\n" for at, name in enumerate(names, 1)
    )
    launches = "".join(f"    launch scaled(x, {name})\n" for name in names)
    program = parse_program(
        f"program many()\n  inputs x, {', '.join(names)}\n  arena 0\n"
        f"  buffer x: f32[8] on cuda:0 = input 0\n{buffers}"
        "  kernel scaled(p0: readwrite f32[8], p1: read f64[])\n    for i0: 8\n"
        "      outer store p0[i0] = mul(p0[i0], to(p1[()], f32))\n"
        f"  steps\n{launches}    return\n"
    )
    found = given_by_host(program, {"scaled"})
    (parts,) = found.copies.values()
    assert [each.nbytes for each in parts] == [32 << 10, 32 << 10, 16 * count - (64 << 10)]
    assert [each.offset for each in parts] == [0, 32 << 10, 64 << 10]
    assert [*found.places.values()] == [16 * at for at in range(count)]


def test_kernels_do_not_write_there() -> None:
    with pytest.raises(UnsupportedProgramError, match="writes to the CPU's memory"):
        given_by_host(
            parse_program(READING.replace("{steps}", "    launch count(first)\n")), {"count"}
        )
