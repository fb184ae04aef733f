"""Whether tensors over one storage have elements in common."""

import itertools

import torch

from plait_utils.meeting import are_separate_boxes, may_meet


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


def test_boxes_that_are_separate_do_not_meet():
    memory = torch.arange(4 * 5 * 6)
    whole = memory.view(4, 5, 6)
    cuts = [slice(None), slice(0, 2), slice(1, 3), slice(2, None)]
    views = [whole[a, b, c] for a, b, c in itertools.product(cuts, repeat=3)]
    views += [memory.as_strided((3, 3), (5, 2), offset) for offset in (0, 1, 4, 7)]
    views += [memory.as_strided((3, 3), (0, 1), offset) for offset in (0, 3)]
    for one, other in itertools.product(views, repeat=2):
        assert not (may_meet(one, other) and are_separate_boxes(one, other)), (one, other)


def test_parts_along_one_dimension_are_separate_boxes():
    whole = torch.empty(4, 5, 6, device="meta")
    for axis, size in enumerate(whole.shape):
        for middle in range(1, size):
            before, behind = whole.tensor_split([middle], axis)
            assert are_separate_boxes(before, behind)
            assert are_separate_boxes(behind, before)
            assert not are_separate_boxes(behind, whole)
