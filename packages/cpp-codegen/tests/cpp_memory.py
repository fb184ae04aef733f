"""What tests know of the memory that programs take."""

import os

import pytest

keeps_blocks = pytest.mark.skipif(
    "-fsanitize" in os.environ.get("PLAIT_CXXFLAGS", ""),
    reason="watched by sanitizers, programs keep no block for the next call",
)
