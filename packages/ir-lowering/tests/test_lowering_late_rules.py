"""Modules of rules that are imported when one of their operators is lowered."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from plait_ir_lowering import registry
from plait_ir_lowering.rules.late import LATE

REGISTERED = """
import importlib, sys
from plait_ir_lowering import registry
import plait_ir_lowering.rules
module = "plait_ir_lowering.rules." + sys.argv[1]
assert module not in sys.modules, "another module imports it"
before = set(registry._rules)
importlib.import_module(module)
print(*sorted(str(op) for op in set(registry._rules) - before))
"""


@pytest.mark.parametrize("module", ["arranging", "scans", "packed_products", "shifts"])
def test_they_register_what_the_table_says(module: str) -> None:
    command = [sys.executable, "-c", REGISTERED, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == sorted(
        str(registry.find_overload(name)) for name in LATE[module]
    )


def test_all_of_them_do() -> None:
    """And none has rules that the table does not know: those would never be found."""
    registry.coverage()
    listed = {str(registry.find_overload(name)) for names in LATE.values() for name in names}
    late = {f"plait_ir_lowering.rules.{module}" for module in LATE}
    found = {str(op) for op, rule in registry._rules.items() if rule.__module__ in late}
    assert found <= listed <= {name for name, _ in registry.coverage()}


def test_an_operator_finds_its_module() -> None:
    code = """
import sys
from plait_ir_lowering import registry
import plait_ir_lowering.rules, torch
assert "plait_ir_lowering.rules.shifts" not in sys.modules
assert registry.kind_of(torch.ops.aten.bitwise_left_shift.Tensor) == "loops"
assert "plait_ir_lowering.rules.shifts" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert registry.rule_of(torch.ops.aten.svd.default) is None
