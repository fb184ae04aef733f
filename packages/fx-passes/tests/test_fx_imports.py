"""Public names can be asked for in any order: what one loads needs none of the others."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, sys
import torch, sympy
import plait_utils.fake
import plait_fx_passes

wrong = []
for name in plait_fx_passes.__all__:
    child = os.fork()
    if not child:
        try:
            getattr(plait_fx_passes, name)
        except BaseException as error:
            print(name, error, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        wrong.append(name)
sys.exit(bool(wrong))
"""


def test_each_public_name_can_be_the_first():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
