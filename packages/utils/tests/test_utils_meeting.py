"""Whether tensors over one storage have elements in common."""

import itertools

import torch

from plait_utils.meeting import may_meet


def test_whether_views_meet_is_decided_exactly():
    memory = torch.arange(60)
    views = [
        memory.as_strided(size, stride, offset)
        for size in ((), (3,), (2, 3), (3, 2))
        for stride in itertools.product((0, 1, 2, 5, 6), repeat=len(size))
        for offset in (0, 1, 4, 7)
    ]
    places = [set(view.flatten().tolist()) for view in views]
    for one, other in itertools.product(range(0, len(views), 3), range(0, len(views), 5)):
        expected = not places[one].isdisjoint(places[other])
        assert may_meet(views[one], views[other]) is expected, (views[one], views[other])
    long = torch.empty(1 << 12, 1 << 13, device="meta")
    assert not may_meet(long[:, ::2], long[:, 1::2])
    assert not may_meet(long[:, : 1 << 12], long[:, 1 << 12 :])
    assert may_meet(long, long.t())
