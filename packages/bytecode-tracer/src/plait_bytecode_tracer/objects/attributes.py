"""Reading and setting attributes of every kind of value."""

from __future__ import annotations

import collections
import functools
import types
from typing import Any, NoReturn

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import (
    PythonError,
    complete_attribute_error,
    fails,
    fails_attribute,
)
from plait_bytecode_tracer.exceptions.tracebacks import frame_attribute, traceback_attribute
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.functions import (
    cell_content,
    function_attribute,
    set_cell_content,
    store_function_attribute,
)
from plait_bytecode_tracer.objects.container_attributes import (
    attribute_of_class_in_c,
    container_attribute,
    slice_attribute,
    view_attribute,
)
from plait_bytecode_tracer.objects.containers import describe
from plait_bytecode_tracer.objects.known_attributes import known_attribute
from plait_bytecode_tracer.objects.objects import object_attribute, special_method, super_attribute
from plait_bytecode_tracer.objects.statics import is_python, static_attribute
from plait_bytecode_tracer.objects.stores import store_object_attribute
from plait_bytecode_tracer.objects.tensor_attributes import (
    opaque_attribute,
    store_on_tensor,
    tensor_attribute,
)
from plait_bytecode_tracer.objects.tensor_methods import require_grad
from plait_bytecode_tracer.objects.writes import fails_to_set
from plait_bytecode_tracer.shapes.attributes import number_attribute
from plait_bytecode_tracer.tensors.gradients import set_gradient
from plait_bytecode_tracer.tensors.patches import refuse_modes
from plait_bytecode_tracer.tensors.repointing import set_data
from plait_bytecode_tracer.tensors.subclasses import store_subclass_attribute, subclass_attribute
from plait_bytecode_tracer.values.classes import defined_as, name_in_errors, type_of
from plait_bytecode_tracer.values.lookup import is_a, is_defined
from plait_bytecode_tracer.values.numpy_objects import is_array
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    BoundVariable,
    CellVariable,
    ContextVariable,
    CoroutineVariable,
    DictVariable,
    FrameVariable,
    FunctionVariable,
    GeneratorVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    OpaqueVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SubclassVariable,
    SuperVariable,
    SymbolVariable,
    TensorVariable,
    TracebackVariable,
    Variable,
    ViewVariable,
)

_OF_METHODS = frozenset({"__get__", "__call__", "__eq__", "__ne__"})
"""What is traced of what bound methods have themselves."""


def load_attribute(frame: Frame, owner: Variable, name: str) -> Variable:
    """`owner.name`. Raises PythonError (AttributeError) where Python does."""
    try:
        found = find_attribute(frame, owner, name)
    except PythonError as error:
        complete_attribute_error(error, owner, name)
        raise
    if found is None:
        if isinstance(owner, Known) and is_a(owner.value, type):
            text = f"type object {owner.value.__name__!r} has no attribute {name!r}"
            fails_attribute(text, owner, name)
        if isinstance(owner, Known) and is_a(owner.value, types.ModuleType):
            module = owner.value.__name__
            fails_attribute(f"module {module!r} has no attribute {name!r}", owner, name)
        kind = name_in_errors(type_of(owner))
        fails_attribute(f"{kind!r} object has no attribute {name!r}", owner, name)
    return found


def find_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """`owner.name`, or None where it does not exist."""
    match owner:
        case TensorVariable():
            return tensor_attribute(frame, owner, name)
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.methods import array_attribute

            return array_attribute(frame, owner, name)
        case Known(real) if is_array(real):
            from plait_bytecode_tracer.arrays.values import known_array

            return find_attribute(frame, known_array(frame, owner), name)
        case Known():
            return known_attribute(frame, owner, name)
        case OpaqueVariable():
            return opaque_attribute(owner, name)
        case SubclassVariable():
            return subclass_attribute(frame, owner, name)
        case ObjectVariable():
            return object_attribute(frame, owner, name)
        case SymbolVariable():
            return number_attribute(frame, owner, name)
        case SuperVariable():
            return super_attribute(frame, owner, name)
        case ViewVariable():
            return view_attribute(owner, name)
        case SequenceVariable() | DictVariable() | SetVariable():
            return container_attribute(frame, owner, name)
        case SliceVariable():
            return slice_attribute(owner, name)
        case GeneratorVariable() | CoroutineVariable() if name != "__class__":
            from plait_bytecode_tracer.frames.generators import generator_attribute

            return generator_attribute(owner, name)
        case CoroutineVariable():
            return constant(types.CoroutineType)
        case IteratorVariable():
            if name == "__class__":
                return constant(owner.kind)
            return attribute_of_class_in_c(owner, owner.kind, name)
        case ContextVariable() if name in ("__enter__", "__exit__"):
            return MethodVariable(owner, name)
        case TracebackVariable():
            return traceback_attribute(frame, owner, name)
        case FrameVariable():
            return frame_attribute(owner, name)
        case FunctionVariable():
            return function_attribute(frame, owner, name)
        case PartialVariable():
            return _partial_attribute(owner, name)
        case MethodVariable() if name == "__name__":
            return constant(owner.name)
        case MethodVariable() if name == "__qualname__":
            return constant(_qualified_name(owner))
        case MethodVariable() if name == "__self__":
            return owner.owner
        case MethodVariable() if name in ("__doc__", "__text_signature__", "__objclass__"):
            return _of_method_in_c(owner, name)
        case BoundVariable() if name == "__self__":
            return owner.self
        case BoundVariable() if name == "__func__" and isinstance(owner.function, Variable):
            return owner.function
        case CellVariable() if name == "cell_contents":
            return cell_content(frame, owner)
        case BoundVariable():
            return _of_bound_method(frame, owner, name)
    raise TraceBreakError("GB0007", f"the attribute {name!r} of a {describe(owner)}")


def _qualified_name(method: MethodVariable) -> str:
    """`__qualname__` of a method in C, which names the class that defines it."""
    return str(getattr(defined_as(method), "__qualname__", method.name))


def _of_bound_method(frame: Frame, owner: BoundVariable, name: str) -> Variable | None:
    """What a bound method has itself, else what its function has."""
    kind = type_of(owner)
    if name == "__class__":
        return constant(kind)
    if not isinstance(owner.function, Variable):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a method")
    if kind is types.MethodType and name != "__doc__" and is_defined(kind, name):
        if name not in _OF_METHODS:
            raise TraceBreakError("GB0007", f"the attribute {name!r} of a method")
        return BoundVariable(constant(static_attribute(kind, name)), owner)
    return find_attribute(frame, owner.function, name)


def _of_method_in_c(owner: MethodVariable, name: str) -> Variable | None:
    """What a bound method tells of the method of its class."""
    if not isinstance(defined_as(owner), types.MethodDescriptorType | types.WrapperDescriptorType):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a method")
    return constant(getattr(defined_as(owner), name)) if hasattr(type_of(owner), name) else None


def _partial_attribute(owner: PartialVariable, name: str) -> Variable | None:
    parts = {"func": owner.function, "args": owner.args, "keywords": owner.kwargs}
    found = parts.get(name, owner.attributes.get(name))
    if found is not None or not is_defined(functools.partial, name):
        return found
    if name == "__class__":
        return constant(functools.partial)
    if name == "__doc__":
        return constant(functools.partial.__doc__)
    if name == "__dict__":
        return DictVariable(owner.attributes)
    raise TraceBreakError("GB0007", f"the attribute {name!r} of a partial")


def call_method(frame: Frame, owner: Variable, name: str, args: list[Variable]) -> Variable:
    """`type(owner).name(owner, *args)`, as operators call it."""
    if isinstance(owner, Known | ObjectVariable):
        method = special_method(frame, owner, name)
        if method is not None:
            return frame.call(method, args, {})
    return frame.call(load_attribute(frame, owner, name), args, {})


def _refuse_to_store(owner: Variable, name: str) -> NoReturn:
    """Raise what Python does where an attribute of an object of C's is set."""
    kind: Any = getattr(owner, "kind", None)  # of a container
    if not isinstance(kind, type):
        fails_to_set(describe(owner), name)
    if kind.__dictoffset__ or is_python(static_attribute(kind, "__setattr__")):
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of a {kind.__name__}")
    if isinstance(owner, SequenceVariable | DictVariable | SetVariable):
        count = getattr(kind, "n_sequence_fields", 0)
        like = kind(range(count)) if count else kind.__new__(kind, *getattr(kind, "_fields", ()))
        try:
            setattr(like, name, None)
        except AttributeError as error:
            fails(AttributeError, str(error))
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of a {kind.__name__}")
    fails_to_set(kind.__name__, name)


def store_attribute(frame: Frame, owner: Variable, name: str, value: Variable) -> None:
    """`owner.name = value`."""
    if isinstance(owner, ArrayVariable):
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of an array")
    if isinstance(owner, FunctionVariable):
        store_function_attribute(owner, name, value)
    elif isinstance(owner, PartialVariable) and name not in ("func", "args", "keywords"):
        if is_defined(functools.partial, name):
            raise TraceBreakError("GB0007", f"a write to {name} of a partial")
        owner.attributes[name] = value
    elif isinstance(owner, CellVariable) and name == "cell_contents":
        set_cell_content(frame, owner, value)
    elif isinstance(owner, ObjectVariable | Known):
        store_object_attribute(frame, owner, name, value)
    elif isinstance(owner, SubclassVariable):
        store_subclass_attribute(frame, owner, name, value)
    elif isinstance(owner, TensorVariable) and name == "requires_grad":
        require_grad(frame, owner, [value], {})
    elif isinstance(owner, TensorVariable) and name == "data":
        set_data(frame, owner, value)
    elif isinstance(owner, TensorVariable) and name == "grad":
        refuse_modes(frame.state, "a gradient that is set")
        set_gradient(frame, owner, value)
    elif isinstance(owner, TensorVariable):
        store_on_tensor(frame, owner, name, value)
    elif isinstance(owner, DictVariable) and owner.kind is collections.OrderedDict:
        if owner.original is not None:
            raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of an OrderedDict")
        owner.attributes[name] = value
    else:
        _refuse_to_store(owner, name)
