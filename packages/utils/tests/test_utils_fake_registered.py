"""Fake results of operators of a user's."""

import subprocess
import sys

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from plait_utils.fake import FakeMode

PROGRAM = """
import sys
import torch
from plait_utils.fake import FakeMode

with torch.library._scoped_library("fakes_in_a_process", "DEF") as library:
    library.define("doubled(Tensor x) -> Tensor")
    torch.library.register_fake("fakes_in_a_process::doubled", torch.empty_like, lib=library)
    mode = FakeMode()
    with mode:
        x = torch.empty(2, 3)
        print(list(torch.ops.fakes_in_a_process.doubled(x).shape))
print(sorted(name for name in sys.modules if name.startswith("torch._dynamo")))
"""


def test_the_compiler_of_torch_is_not_imported_for_them():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.splitlines() == ["[2, 3]", "[]"], ran.stderr


def test_a_size_that_depends_on_data_is_a_new_symbol():
    with torch.library._scoped_library("fakes_with_sizes", "DEF") as library:
        library.define("chosen(Tensor x) -> Tensor")

        def chosen(x):
            return x.new_empty([torch.library.get_ctx().new_dynamic_size()])

        torch.library.register_fake("fakes_with_sizes::chosen", chosen, lib=library)
        with FakeMode(ShapeEnv()):
            (size,) = torch.ops.fakes_with_sizes.chosen(torch.empty(4)).shape
    assert isinstance(size, torch.SymInt)


def test_a_composition_of_operators_is_run():
    with torch.library._scoped_library("fakes_composed", "DEF") as library:
        library.define("joined(Tensor x) -> Tensor")
        library.impl("joined", lambda x: torch.cat([x, x]), "CompositeImplicitAutograd")
        with FakeMode():
            assert torch.ops.fakes_composed.joined(torch.empty(4)).shape == (8,)
