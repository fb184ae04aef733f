"""Programs that AddressSanitizer watches: each temporary lies in a block of its own."""

from __future__ import annotations

import torch
from cpp_graphs import reduction_graph

from plait_cpp_codegen import CppOptions, find_toolchain
from plait_cpp_codegen.building import source_of
from plait_ir_lowering import ReductionKind
from plait_scheduler import ArenaStorage, schedule


def test_temporaries_lie_apart_where_a_sanitizer_watches():
    kinds = [find_toolchain(CppOptions(extra_flags=flags)).checks_memory for flags in ("", "-g")]
    assert kinds == [False, False]
    checked = find_toolchain(CppOptions(extra_flags="-g1 -fsanitize=undefined,address"))
    assert checked.checks_memory
    graph = reduction_graph(torch.ones(1 << 20), [0], [ReductionKind.SUM])
    program = schedule(graph)
    arena = [each for each in program.buffers if isinstance(each.storage, ArenaStorage)]
    assert arena, "partial sums"
    plain = source_of(program, 32).text
    apart = source_of(program, 32, apart=True).text
    assert "arena" in plain
    assert "char* const arena" not in apart
    assert apart.count("(char*)api.allocate(") == len(arena)
    assert apart.count("api.release(data_") == len(arena)
