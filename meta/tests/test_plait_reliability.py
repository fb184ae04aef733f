"""Processes that share a cache and are killed, and full disks; all of it is in `reliability`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
from reliability import disks
from reliability.kills import run_kills

QUICK = {"PLAIT_NATIVE_GUARDS": "0", "PLAIT_CXX_OPTIMIZATION": "-O0"}


def test_processes_that_are_killed_harm_none_that_share_their_cache(tmp_path):
    told: list[int] = []
    outcome = run_kills(
        *(tmp_path, 5, 2, 7),
        life=3,
        settings=QUICK,
        tell=lambda so_far: told.append(so_far.killed),
    )
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.killed == 5
    assert told == [1, 2, 3, 4, 5]
    assert outcome.finished >= 2


@pytest.mark.skipif(not disks.can_mount(), reason="file systems cannot be mounted here")
@pytest.mark.parametrize("case", ["a cache of 200 KiB", "room nowhere"])
def test_disks_without_room_cost_at_most_speed(tmp_path, case):
    wrong = disks.run_disk(tmp_path, case, seed=1, processes=1, settings=QUICK)
    assert not wrong, "\n".join(wrong)
