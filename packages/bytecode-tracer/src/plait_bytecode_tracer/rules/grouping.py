"""`itertools.groupby`: groups share one iterator with what gives them."""

from __future__ import annotations

import itertools

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.iteration import iterate
from plait_bytecode_tracer.objects.operations import _call, element_equal
from plait_bytecode_tracer.rules.itertools_ import tuple_of
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.variables import IteratorVariable, Remake, Variable, is_none


@builtin(itertools.groupby)
def groupby(frame: Frame, iterable: Variable, key: Variable | None = None) -> Variable:
    return _Groups(frame, iterate(frame, iterable), None if is_none(key) else key).groups()


class _Groups:
    """What `groupby` and its groups share: the last element and its key."""

    def __init__(self, frame: Frame, source: IteratorVariable, key: Variable | None) -> None:
        self.frame = frame
        self.source = source
        self.key = key
        self.value: Variable | None = None
        self.found: Variable | None = None
        self.target: Variable | None = None
        self.group: object | None = None
        self.started = False

    def groups(self) -> IteratorVariable:
        return IteratorVariable(self.next_group, itertools.groupby, self.again)

    def again(self) -> Remake:
        if self.started:
            raise TraceBreakError("GB0009", "groups of which some were taken")
        key = constant(None) if self.key is None else self.key
        return Remake(itertools.groupby, [self.source, key])

    def advance(self) -> bool:
        """Read the next element and its key; whether there is one."""
        self.started = True
        value = self.source.next_()
        if value is None:
            return False
        found = value if self.key is None else _call(self.frame, self.key, [value])
        self.value, self.found = value, found
        return True

    def next_group(self) -> Variable | None:
        self.group = None
        while True:
            if self.found is not None and (
                self.target is None or not element_equal(self.frame, self.target, self.found)
            ):
                break
            if not self.advance():
                return None
        assert self.found is not None
        self.target = self.found
        mark = object()
        self.group = mark
        target = self.target
        members = IteratorVariable(lambda: self.next_member(mark, target), _GROUPER)
        return tuple_of([self.found, members])

    def next_member(self, mark: object, target: Variable) -> Variable | None:
        if self.group is not mark:
            return None
        if self.value is None and not self.advance():
            return None
        assert self.found is not None
        if not element_equal(self.frame, target, self.found):
            return None
        item, self.value = self.value, None
        return item


_GROUPER = type(next(itertools.groupby([0]))[1])
