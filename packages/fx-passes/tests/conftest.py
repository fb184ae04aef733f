"""Lets the tests import their shared oracle, under pytest's importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))  # the suites `gradients`, `rewrites`
