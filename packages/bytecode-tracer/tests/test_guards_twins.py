"""The native checks, the Python check and the evaluator of guards say the same, always."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
import torch
from guard_changes import CHANGES, MODES, UNNOTICED
from guard_world import World, all_guards, tree_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait_bytecode_tracer.guards import Kind, first_failure
from plait_bytecode_tracer.guards.native import NATIVE, Call, NativeGuards, guarded
from plait_bytecode_tracer.guards.python import python_check
from plait_bytecode_tracer.values.sources import Constants

requires_native = pytest.mark.skipif(NATIVE.wait() is None, reason=f"no native: {NATIVE.failure}")


@functools.cache
def without_reader() -> ModuleType:
    """The native module of a machine that has no compiler of C++."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "no-compiler")
        path.write_text("#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PLAIT_CACHE_DIR", folder)
            patch.setenv("CXX", str(path))
            module = NativeGuards().wait()
    assert module is not None
    return module


class Twins:
    """One tree, checked in all ways."""

    def __init__(self, world: World, keep: list[bool] | None = None) -> None:
        constants = Constants()
        guards = all_guards(world, constants)
        if keep is not None:
            guards = [guard for guard, kept in zip(guards, keep, strict=False) if kept]
        self.world, self.constants = world, constants
        self.tree = tree_of(world, constants, guards)
        count = len(world.arguments)
        self.python = python_check(self.tree, constants, count)
        call = Call(lambda *inputs: inputs, self.tree.outputs, None, (), 0, None)
        self.native = [
            guarded(module, self.tree, constants, count, call)
            for module in (NATIVE.module, without_reader())
        ]

    def failing(self) -> int | None:
        """The guard that fails, on which all agree; native checks go their short way last."""
        arguments = self.world.arguments
        failure = first_failure(self.tree, arguments, self.constants.objects)
        expected = None if failure is None else failure.number
        for check in (self.python, *[native.check for native in self.native for _ in range(5)]):
            found = check(*arguments)
            if isinstance(found, tuple):
                assert expected is None, self.tree.guards[expected]
                outputs = zip(found[:2], self._outputs(), strict=True)
                assert all(one is other for one, other in outputs)
            else:
                assert found == expected, (self._name(found), self._name(expected))
        return expected

    def _outputs(self) -> tuple[object, ...]:
        return self.world.tensor, self.world.block.inner.weight

    def _name(self, number: int | None) -> object:
        if number is None or number >= len(self.tree.guards):
            return number
        return self.tree.guards[number]


@requires_native
def test_every_kind_is_guarded_in_the_world():
    assert {guard.kind for guard in all_guards(World(), Constants())} == set(Kind)


@requires_native
def test_tensors_are_read_where_they_are_with_a_compiler_of_cpp():
    tensor = torch.empty(2)
    assert NATIVE.module.describe(tensor)[-2:] == (6, -1)  # float32, the CPU
    assert NATIVE.module.describe(tensor.to_sparse().to_dense())[-2:] == (6, -1)
    assert without_reader().describe(tensor)[-2:] == (-1, -1)


@requires_native
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.sampled(2)
def test_a_change_is_noticed_and_so_is_its_reverse(name):
    world = World()
    twins = Twins(world)
    assert twins.failing() is None
    CHANGES[name](world)
    failed = twins.failing()
    assert failed is not None or name in UNNOTICED
    CHANGES[name](world)
    if name not in ("order of keys", "order of OrderedDict", "storage", "instance dict"):
        assert twins.failing() is None


@requires_native
@pytest.mark.parametrize("name", MODES)
def test_a_mode_is_noticed(name):
    twins = Twins(World())
    assert twins.failing() is None
    with MODES[name]():
        assert twins.failing() is not None
    assert twins.failing() is None


@requires_native
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keep=st.lists(st.booleans(), min_size=64, max_size=64),
    names=st.lists(st.sampled_from([*CHANGES, *MODES]), max_size=12),
)
def test_twins_agree_through_any_changes(keep, names):
    world = World()
    twins = Twins(world, keep)
    twins.failing()
    modes = contextlib.ExitStack()
    with modes:
        for name in names:
            if name in MODES:
                modes.enter_context(MODES[name]())
            else:
                with contextlib.suppress(RuntimeError, AttributeError, TypeError, LookupError):
                    CHANGES[name](world)  # some changes do not go together
            twins.failing()


@requires_native
@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[(1, 1.0), (1, True), (0.0, -0.0), ((1,), (1.0,)), ((0.0,), (-0.0,)), ("a", b"a")],
        *[(float("nan"), 0.0), (range(0), range(2, 2)), (slice(1), slice(1.0)), ((1, 2), (1,))],
        *[(frozenset({1}), frozenset({1.0})), (1 + 0j, 1.0), (complex(0, -0.0), 0j)],
        *[(torch.device("cpu"), "cpu"), (torch.Size([1]), (1,)), (2**70, 2**70 + 1), ("a", "b")],
    ],
)
def test_constants_are_told_apart(one, other):
    from plait_bytecode_tracer.guards import Guard, guard_tree
    from plait_bytecode_tracer.values.sources import argument

    source = argument(0, "x")
    for expected, given_, holds in ((one, one, True), (one, other, False), (other, one, False)):
        tree = guard_tree([Guard(source, Kind.EQUAL, expected, "x", "line 1")], [source])
        native = guarded(NATIVE.module, tree, Constants(), 1, Call(None, (), None, (), 0, None))
        for found in (native.check(given_), python_check(tree, Constants(), 1)(given_)):
            assert (found == (given_,) or found[0] is given_) if holds else found == 0
        assert (first_failure(tree, (given_,), {}) is None) is holds
