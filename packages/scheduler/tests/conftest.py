"""Lets the tests of this folder import its graph builder, and take their time."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("scheduler", deadline=None)
settings.load_profile("scheduler")
