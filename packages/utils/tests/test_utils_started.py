"""When a process was started, and which files changed since."""

import os
import subprocess
import sys
import time

from plait_utils.started import changed_since_start, process_started

TOLD = """
import time
first = time.time()
from plait_utils.started import process_started
print(process_started(), first)
"""


def test_a_process_was_started_between_its_making_and_its_first_line(tmp_path):
    before = time.time()
    told = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    started, first = map(float, told.stdout.split())
    assert before - 0.02 <= started <= first + 0.01


def test_files_that_are_written_or_moved_are_new(tmp_path):
    assert not changed_since_start(os.stat(sys.executable))
    file = tmp_path / "file"
    file.write_text("")
    assert changed_since_start(file.stat())
    os.utime(file, (1, 1))  # a time that is set does not hide it
    assert changed_since_start(file.stat())
    assert process_started() < time.time()
