"""Which operators are functional collectives."""

import torch

from plait_utils.collectives import is_collective


def test_overloads_and_packets_are_told_apart_from_others():
    ops = torch.ops._c10d_functional
    for packet in (ops.all_reduce, ops.wait_tensor, ops.all_gather_into_tensor, ops.broadcast):
        assert is_collective(packet)
        assert is_collective(packet.default)
    for other in (torch.add, torch.ops.aten.add, torch.ops.aten.add.Tensor, "sin", len, None):
        assert not is_collective(other)
