"""What would happen at the death of objects, of which a trace lets go.

Destructors, the callbacks of weak references and the `finally` blocks of generators run when
the last reference goes. A trace does not see when that is: where it may have let go of such
an object, the whole call runs as plain Python.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.closing import acts_when_closed, is_of_another_kind
from plait_bytecode_tracer.outside.liveness import lost
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.variables import CoroutineVariable, GeneratorVariable

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder
    from plait_bytecode_tracer.state import TraceState

_MOST = 500
"""How many objects inside of what was dropped are looked at."""
_LASTING = (type, types.ModuleType, types.FunctionType, types.CodeType, torch.Tensor)
"""What does not die, or does nothing when it does; torch itself refers to tensors weakly."""


def refuse_deaths(state: TraceState, rebuilder: Rebuilder) -> None:
    """Break where something happens at the death of what the trace has let go of."""
    _refuse_waiting(state, rebuilder)
    for real in lost(state):
        if _tells(state, real):
            text = f"a {type(real).__name__} is dropped, of which a destructor or callback tells"
            raise TraceBreakError("GB0014", text)


def _refuse_waiting(state: TraceState, rebuilder: Rebuilder) -> None:
    waiting = {key for key, frame in state.frames.waiting.items() if frame.result is None}
    for variable in rebuilder.named if waiting else ():
        if isinstance(variable, GeneratorVariable | CoroutineVariable):
            waiting.discard(id(variable.frame))
    if waiting:
        text = "a generator that waits inside a try or with statement is dropped"
        raise TraceBreakError("GB0014", text)


def _tells(state: TraceState, real: object) -> bool:
    """Whether something happens when an object dies, or another that only it holds."""
    waiting, seen = [real], {id(real)}
    for _ in range(_MOST):
        if not waiting:
            return False
        value = waiting.pop()
        if is_a(value, _LASTING):
            continue
        if _tells_itself(value):
            return True
        held = _held_by(value)
        for inner in held:
            alone = sys.getrefcount(inner) <= _ALONE or id(inner) in state.world.wrapped
            if alone and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
    return False


_ALONE = 4
"""The references to an object that another holds alone, in the loop above."""


def _held_by(value: object) -> list[Any]:
    """What an object holds; of a frame, as an exception has, what its variables hold."""
    if is_a(value, types.FrameType):
        return list(value.f_locals.values())
    return gc.get_referents(value)


def _tells_itself(value: Any) -> bool:
    if is_a(value, types.GeneratorType):
        frame = value.gi_frame
        if frame is None or inspect.getgeneratorstate(value) != inspect.GEN_SUSPENDED:
            return False

        def is_missed_by(name: str) -> bool:
            return is_of_another_kind(frame.f_globals.get(name, frame.f_builtins.get(name)))

        if acts_when_closed(value.gi_code, frame.f_lasti, is_missed_by):
            return True
        inner = value.gi_yieldfrom
        return not is_a(inner, types.GeneratorType) and hasattr(type(inner), "close")
    if any("__del__" in base.__dict__ for base in type(value).__mro__):
        return True
    references = weakref.getweakrefs(value) if type(value).__weakrefoffset__ else ()
    return any(_is_heard(_callback(value, ref)) for ref in itertools.islice(references, _MOST))


def _callback(value: Any, reference: Any) -> object:
    """What a weak reference to an object calls.

    A proxy does not tell: it passes on what it is asked. Python keeps one without a callback for
    each object; of another one its class stands for what it calls.
    """
    if is_a(reference, weakref.ref):
        return reference.__callback__
    return None if reference is weakref.proxy(value) else type(reference)


def _is_heard(callback: object) -> bool:
    """Whether somebody may learn from a weak reference's callback that its object is gone.

    Once torch's compiler has run, as `torch.cond` makes it, it keeps a table of all new modules.
    """
    if callback is None or getattr(callback, "__module__", None) == _TABLES:
        return False
    states = sys.modules.get(_STATES)
    if states is None or not isinstance(callback, types.FunctionType):
        return True
    of_table = (each() for each in callback.__defaults__ or () if type(each) is weakref.ref)
    return not any(each is states._module_state_mapping for each in of_table)


_TABLES = "torch._dynamo.utils"
"""Where torch's compiler defines its weak tables."""
_STATES = "torch.distributed._composable_state"
"""Where `fully_shard` has a table of the modules that it was given, of which nobody else knows."""
