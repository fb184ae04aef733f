"""Without a GPU the tests run kernels in Triton's interpreter, chosen before triton is imported."""

import os
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and not sys.modules["triton"].knobs.runtime.interpret:
        raise pytest.UsageError(
            "triton was imported before these tests could choose its interpreter; "
            "run them in a process of their own, or set TRITON_INTERPRET=1"
        )
    os.environ["TRITON_INTERPRET"] = "1"

sys.path.insert(0, str(Path(__file__).parent))
