"""Lets the tests of this folder import its graph builder, whatever else is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
