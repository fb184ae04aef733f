"""Reading and setting attributes of every kind of value."""

from __future__ import annotations

import collections
import enum
import functools
import types
from typing import Any, NoReturn

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import (
    PythonError,
    complete_attribute_error,
    fails,
    fails_attribute,
)
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.functions import (
    cell_content,
    function_attribute,
    set_cell_content,
    store_function_attribute,
)
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.making.made_classes import made_class_attribute
from plait_bytecode_tracer.objects.class_methods import bind_to_class
from plait_bytecode_tracer.objects.class_writes import written_to_class
from plait_bytecode_tracer.objects.containers import describe, plain_value
from plait_bytecode_tracer.objects.objects import (
    MISSING,
    MODULE_GETATTR,
    bind_attribute,
    class_value,
    fails_to_set,
    generic_attribute,
    guard_class,
    is_python,
    module_variable,
    object_attribute,
    own_attributes,
    special_method,
    static_attribute,
    store_object_attribute,
    super_attribute,
)
from plait_bytecode_tracer.outside.tables import global_table, own_dict
from plait_bytecode_tracer.outside.tensors import guard_requires_grad, input_tensor
from plait_bytecode_tracer.rules.registry import find_builtin
from plait_bytecode_tracer.shapes.attributes import number_attribute, symbolic_attribute
from plait_bytecode_tracer.tensors.gradients import (
    gradient,
    gradient_function,
    is_leaf,
    set_gradient,
)
from plait_bytecode_tracer.tensors.patches import is_own, refuse_modes
from plait_bytecode_tracer.tensors.subclasses import store_subclass_attribute, subclass_attribute
from plait_bytecode_tracer.twins.registry import proxy_of
from plait_bytecode_tracer.values.lookup import is_a, is_defined
from plait_bytecode_tracer.values.plain import STORED_KINDS, is_named_tuple
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
    is_array,
    is_constant,
    is_numpy_constant,
)

_TENSOR_CONSTANTS = frozenset(
    {
        *("shape", "dtype", "device", "ndim", "is_cuda", "is_cpu", "is_meta", "layout"),
        *("is_sparse", "is_quantized", "itemsize", "nbytes", "is_nested", "is_mps", "is_xpu"),
    }
)
_OF_LAYOUT = ("layout", "is_sparse")
_OF_FUNCTIONS = frozenset(
    {
        *("__defaults__", "__kwdefaults__", "__doc__", "__name__", "__qualname__", "__module__"),
        "__annotations__",
    }
)
"""Attributes of functions that are not in their dict, and can be replaced."""
_OF_METHODS = frozenset({"__get__", "__call__", "__eq__", "__ne__"})
"""What is traced of what bound methods have themselves."""
_TENSOR_TENSORS = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


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
        from plait_bytecode_tracer.values.classes import type_of

        kind = type_of(owner).__name__
        fails_attribute(f"{kind!r} object has no attribute {name!r}", owner, name)
    return found


def find_attribute(frame: Frame, owner: Variable, name: str) -> Variable | None:
    """`owner.name`, or None where it does not exist."""
    match owner:
        case TensorVariable():
            return _tensor_attribute(frame, owner, name)
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.methods import array_attribute

            return array_attribute(frame, owner, name)
        case Known(real) if is_array(real):
            from plait_bytecode_tracer.arrays.values import known_array

            return find_attribute(frame, known_array(frame, owner), name)
        case Known():
            return _known_attribute(frame, owner, name)
        case OpaqueVariable():
            return _opaque_attribute(owner, name)
        case SubclassVariable():
            return subclass_attribute(frame, owner, name)
        case ObjectVariable():
            return object_attribute(frame, owner, name)
        case SymbolVariable():
            return number_attribute(frame, owner, name)
        case SuperVariable():
            return super_attribute(frame, owner, name)
        case ViewVariable():
            return _view_attribute(owner, name)
        case SequenceVariable() | DictVariable() | SetVariable():
            return _container_attribute(frame, owner, name)
        case SliceVariable():
            return _slice_attribute(owner, name)
        case GeneratorVariable() | CoroutineVariable() if name != "__class__":
            from plait_bytecode_tracer.frames.generators import generator_attribute

            return generator_attribute(owner, name)
        case CoroutineVariable():
            return constant(types.CoroutineType)
        case IteratorVariable():
            if name == "__class__":
                return constant(owner.kind)
            return _of_class_in_c(owner, owner.kind, name)
        case ContextVariable() if name in ("__enter__", "__exit__"):
            return MethodVariable(owner, name)
        case TracebackVariable():
            from plait_bytecode_tracer.exceptions.tracebacks import traceback_attribute

            return traceback_attribute(frame, owner, name)
        case FrameVariable():
            from plait_bytecode_tracer.exceptions.tracebacks import frame_attribute

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
    from plait_bytecode_tracer.values.classes import defined_as

    return str(getattr(defined_as(method), "__qualname__", method.name))


def _of_bound_method(frame: Frame, owner: BoundVariable, name: str) -> Variable | None:
    """What a bound method has itself, else what its function has."""
    from plait_bytecode_tracer.values.classes import type_of

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
    from plait_bytecode_tracer.values.classes import defined_as, type_of

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


_BOUNDS = ("start", "stop", "step")


def _slice_attribute(owner: SliceVariable, name: str) -> Variable | None:
    if name in _BOUNDS:
        return owner.parts[_BOUNDS.index(name)]
    if name == "__class__":
        return constant(slice)
    if not hasattr(slice, name):
        return None
    if all(isinstance(part, Known) and is_constant(part.value) for part in owner.parts):
        return constant(getattr(plain_value(owner), name))
    raise TraceBreakError("GB0007", f"the attribute {name!r} of a slice")


def _view_attribute(owner: ViewVariable, name: str) -> Variable | None:
    if name == "mapping":
        return proxy_of(owner.holder or owner.owner)
    if name == "__class__":
        return constant(owner.kind)
    return _of_class_in_c(owner, owner.kind, name)


def _container_attribute(
    frame: Frame, owner: SequenceVariable | DictVariable | SetVariable, name: str
) -> Variable | None:
    kind = owner.kind
    if name == "__class__":
        return constant(kind)
    if isinstance(owner, SequenceVariable):
        position = _field_position(kind, name)
        if position is not None:
            return owner.items[position]
        if isinstance(static_attribute(kind, name), types.MemberDescriptorType):
            return _hidden_field(frame, owner, name)
    if isinstance(owner, DictVariable) and name == "default_factory" and is_defined(kind, name):
        return constant(None) if owner.factory is None else owner.factory
    if isinstance(owner, SequenceVariable) and kind.__dictoffset__:
        found = _attribute_of_tuple(frame, owner, name)
        if found is not None:
            return found
    if not is_defined(kind, name) or name == "__dict__":
        if not isinstance(owner, DictVariable):
            return None
        return _attribute_of_ordered(frame, owner, name)
    if isinstance(owner, SequenceVariable) and is_named_tuple(kind):
        static = static_attribute(kind, name)
        if isinstance(static, classmethod):
            return BoundVariable(frame.state.made.given(static.__func__), constant(kind))
        if not hasattr(type(static), "__get__") or is_python(static) or type(static) is property:
            return bind_attribute(frame, owner, kind, name, static)
    return _of_class_in_c(owner, kind, name)


def _of_class_in_c(owner: Variable, kind: type, name: str) -> Variable | None:
    """What a class in C has for its instances: methods, `__doc__`, the `__hash__` that is None."""
    static = static_attribute(kind, name)
    if static is MISSING:
        return None
    if isinstance(static, types.GetSetDescriptorType | types.MemberDescriptorType):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a {kind.__name__}")
    return constant(static) if is_constant(static) else MethodVariable(owner, name)


def _hidden_field(frame: Frame, owner: SequenceVariable, name: str) -> Variable:
    """A field of a tuple of a class of C's that is none of its elements."""
    if owner.source is None or owner.original is None:
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a {owner.kind.__name__}")
    return frame.state.wrap(getattr(owner.original, name), owner.source.attribute(name))


def _attribute_of_tuple(frame: Frame, owner: SequenceVariable, name: str) -> Variable | None:
    """What somebody set on a NamedTuple whose class gives it a dict."""
    if owner.original is None or owner.source is None:
        if name == "__dict__":
            raise TraceBreakError("GB0007", "the __dict__ of a tuple made in the trace")
        return None
    table = own_dict(frame.state, owner.original, owner.source)
    return table if name == "__dict__" else table.items.get(name)


def _attribute_of_ordered(frame: Frame, owner: DictVariable, name: str) -> Variable | None:
    """What somebody set on an OrderedDict, the one builtin dict that has attributes."""
    if owner.kind is not collections.OrderedDict:
        return None
    if owner.original is None or owner.source is None:
        return DictVariable(owner.attributes) if name == "__dict__" else owner.attributes.get(name)
    if name == "__dict__":
        return own_dict(frame.state, owner.original, owner.source)
    if name in owner.original.__dict__:
        return frame.state.wrap(owner.original.__dict__[name], owner.source.attribute(name))
    text = f"{owner.source.text} has no attribute {name}"
    frame.state.require(owner.source, Kind.NO_ATTRIBUTE, name, text)
    return None


def _opaque_attribute(owner: OpaqueVariable, name: str) -> Variable | None:
    """What tells what a function or handle of the graph is."""
    if name in ("__dict__", "__annotations__") and callable(owner.fake):
        return DictVariable({})
    value = getattr(owner.fake, name, MISSING)
    if value is MISSING:
        return None
    if name.startswith("__") and is_constant(value):
        return constant(value)
    raise TraceBreakError("GB0007", f"the attribute {name!r} of a {type(owner.fake).__name__}")


def _field_position(kind: Any, name: str) -> int | None:
    """The position of a named field of a NamedTuple or torch.return_types class."""
    if name in getattr(kind, "_fields", ()):
        return int(kind._fields.index(name))
    if name in getattr(kind, "__match_args__", ()):
        return int(kind.__match_args__.index(name))
    is_field = isinstance(static_attribute(kind, name), types.MemberDescriptorType)
    if hasattr(kind, "n_sequence_fields") and is_field:
        place = getattr(kind(range(kind.n_fields)), name)
        return place if isinstance(place, int) and place < kind.n_sequence_fields else None
    return None


def _tensor_attribute(frame: Frame, owner: TensorVariable, name: str) -> Variable | None:
    if owner.attributes is not None and name in owner.attributes:
        return owner.attributes[name]
    if frame.state.ambient.modes and name != "__class__":
        intercepted = _intercepted_attribute(frame, owner, name)
        if intercepted is not None:
            return intercepted
    if name != "__class__":
        guard_class(frame, owner.cls, name)
    if not is_own(static := static_attribute(owner.cls, name)):
        if is_python(static):
            return BoundVariable(constant(static), owner)
        raise TraceBreakError("GB0007", f"{owner.cls.__name__}.{name}, which is not torch's own")
    if name in _TENSOR_CONSTANTS:
        if owner.fake._has_symbolic_sizes_strides and name in ("shape", "nbytes"):
            return symbolic_attribute(frame, owner, name)
        if name in _OF_LAYOUT and frame.state.ambient.is_undecided:
            raise TraceBreakError("GB0007", f"the attribute {name!r} of a gradient of any layout")
        return constant(getattr(owner.fake, name))
    if name in _TENSOR_TENSORS:
        node, result = frame.state.emit("call_function", getattr, [owner, constant(name)], {})
        return frame.state.tensor_result(node, result)
    if name == "requires_grad":
        guard_requires_grad(frame.state)
        return constant(owner.fake.requires_grad)
    if name == "is_leaf":
        return constant(is_leaf(frame.state, owner))
    if name == "grad":
        return gradient(frame, owner)
    if name == "grad_fn":
        return gradient_function(frame, owner)
    if name == "__class__":
        from plait_bytecode_tracer.values.classes import type_of

        return constant(type_of(owner))
    if name in ("_base", "__dict__"):
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a tensor")
    if is_defined(torch.Tensor, name):
        if callable(getattr(torch.Tensor, name)):
            return MethodVariable(owner, name)
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a tensor")
    if owner.source is not None:
        real = input_tensor(frame.state, owner)
        if name in real.__dict__:
            return frame.state.wrap(real.__dict__[name], owner.source.attribute(name))
        if hasattr(real, name):
            raise TraceBreakError("GB0007", f"the attribute {name!r} set on a tensor")
        text = f"no attribute {name}"
        frame.state.require(owner.source, Kind.NO_ATTRIBUTE, name, text)
    return None


def _intercepted_attribute(frame: Frame, owner: TensorVariable, name: str) -> Variable | None:
    """What a torch function mode makes of reading an attribute that C computes."""
    from plait_bytecode_tracer.tensors.function_modes import through_mode

    if not isinstance(static_attribute(owner.cls, name), types.GetSetDescriptorType):
        return None
    return through_mode(frame, lambda tensor: getattr(tensor, name), [owner], {})


def _known_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    real = owner.value
    stands_for = frame.state.made.variables.get(id(real))
    if stands_for is not None and not isinstance(stands_for, Known):
        return find_attribute(frame, stands_for, name)
    if is_a(real, enum.Enum):
        return _member_attribute(frame, owner, name)
    if is_constant(real) or is_a(real, types.BuiltinFunctionType | types.CodeType):
        value = getattr(real, name, MISSING)
        if value is MISSING:
            return None
        if is_numpy_constant(real) and not (is_constant(value) or callable(value)):
            # It is made anew each time, as an iterator over its one element.
            raise TraceBreakError("GB0015", f"the attribute {name!r} of a scalar")
        return owner if value is real else constant(value)
    own_way = is_python(static_attribute(type(real), "__getattribute__"))
    if is_a(real, types.ModuleType) and not own_way:
        return module_variable(frame, owner, name)
    if is_a(real, type):
        return _type_attribute(frame, owner, name)
    if is_a(real, torch.nn.Module):
        return _module_attribute(frame, owner, name)
    if is_a(real, types.MethodType | types.FunctionType):
        return _real_function_attribute(frame, owner, name)
    return object_attribute(frame, owner, name)


def _member_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    """An attribute of an enum's member; what the user's Python gives is traced."""
    static = static_attribute(type(owner.value), name)
    function = static.fget if isinstance(static, property) else static
    if is_python(function) and function.__module__ != "enum":
        return bind_attribute(frame, owner, type(owner.value), name, static)
    value = getattr(owner.value, name, MISSING)
    return None if value is MISSING else frame.state.made.part(owner.value, value, f"{{}}.{name}")


def _real_function_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    real = owner.value
    if is_a(real, types.MethodType) and name == "__self__" and owner.source is not None:
        return frame.state.wrap(real.__self__, owner.source.attribute("__self__"))
    written = frame.state.attributes.get(id(real), {}).get(name)
    if written is not None:
        return written
    value = getattr(real, name, MISSING)
    if value is MISSING:
        if owner.source is not None:
            frame.state.require(owner.source, Kind.NO_ATTRIBUTE, name, f"no attribute {name}")
        return None
    if name == "__dict__" and is_a(real, types.FunctionType) and owner.source is not None:
        return own_attributes(frame, owner)
    if name == "__globals__":
        return global_table(frame.state, real.__globals__)
    if name == "__builtins__":
        return global_table(frame.state, real.__builtins__)
    own = getattr(real, "__dict__", {})
    if name in _OF_FUNCTIONS and is_a(real, types.FunctionType):
        source = owner.source or frame.state.constants.source(real, real.__qualname__)
        return frame.state.wrap(value, source.attribute(name))
    if name == "__code__" and is_a(real, types.FunctionType):
        source = owner.source or frame.state.constants.source(real, real.__qualname__)
        frame.state.guard_identity(source.attribute(name), value)
        return constant(value)
    if name in own and owner.source is not None and is_a(real, types.FunctionType):
        return frame.state.wrap(value, owner.source.attribute(name))
    is_own = is_a(real, types.FunctionType) and not frame.state.made.depends(real)
    if is_own and type(value) in STORED_KINDS:
        source = frame.state.constants.source(real, real.__qualname__)
        return frame.state.wrap(value, source.attribute(name))
    return frame.state.made.part(real, value, f"{{}}.{name}")


def _type_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    """`cls.name`, with the metaclass's data descriptors first."""
    cls: type = owner.value
    if frame.state.made.is_made(cls):
        return made_class_attribute(frame, owner, name)
    written = written_to_class(frame.state, cls, name)
    if written is not None:
        return written
    if name == "__mro__":
        return constant(cls.__mro__)
    meta_static = static_attribute(type(cls), name)
    if is_python(static_attribute(type(cls), "__getattribute__")):
        return made_class_attribute(frame, owner, name)
    if name == "__dict__":
        table = frame.state.constants.source(cls, cls.__qualname__).attribute(name)
        return frame.state.wrap(cls.__dict__, table)
    static = static_attribute(cls, name)
    if isinstance(static, types.ClassMethodDescriptorType):  # bound anew at each look
        guard_class(frame, cls, name)
        return constant(getattr(cls, name))
    if isinstance(meta_static, property) and meta_static.fget is not None:
        from plait_bytecode_tracer.frames.calls import call

        return call(frame, constant(meta_static.fget), [owner], {})
    if static is MISSING:
        if is_python(meta_static):
            return BoundVariable(constant(meta_static), owner)
        if isinstance(meta_static, types.MethodDescriptorType) and find_builtin(meta_static):
            return BoundVariable(constant(meta_static), owner)
        value = getattr(cls, name, MISSING)
        return None if value is MISSING else constant(value)
    if isinstance(static, classmethod):
        return bind_to_class(frame, static, owner)
    if isinstance(static, staticmethod):
        return class_value(frame, cls, name, static.__func__)
    if isinstance(static, property):
        return constant(static)
    getter = static_attribute(type(static), "__get__")
    if is_python(getter):
        from plait_bytecode_tracer.frames.calls import call

        return call(frame, constant(getter), [constant(static), constant(None), owner], {})
    try:
        value = getattr(cls, name)
    except AttributeError:  # of a slot of the class itself
        return None
    return class_value(frame, cls, name, value)


def _module_attribute(frame: Frame, owner: Known, name: str) -> Variable | None:
    module, source = owner.value, owner.source
    if source is None:
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a module made in the trace")
    getter = static_attribute(type(module), "__getattribute__")
    fallback = static_attribute(type(module), "__getattr__")
    guard_class(frame, type(module), "__getattribute__")
    guard_class(frame, type(module), "__getattr__")
    if is_python(getter):
        return object_attribute(frame, owner, name)
    found = generic_attribute(frame, owner, name)
    if found is not None:
        return found
    if fallback is MODULE_GETATTR:
        return module_entry(frame, owner, name)
    return bind_and_call_fallback(frame, owner, fallback, name)


def bind_and_call_fallback(frame: Frame, owner: Known, fallback: Any, name: str) -> Variable | None:
    """The attribute that a module's own `__getattr__` finds."""
    from plait_bytecode_tracer.frames.calls import call

    bound = bind_attribute(frame, owner, type(owner.value), "__getattr__", fallback)
    if bound is None:
        return None
    return call(frame, bound, [constant(name)], {})


def module_entry(frame: Frame, owner: Known, name: str) -> Variable | None:
    """A parameter, buffer or submodule by name, as `nn.Module.__getattr__` finds it."""
    module, source = owner.value, owner.source
    for kind in ("_parameters", "_buffers", "_modules"):
        table = module.__dict__.get(kind, {})
        written = _written_entry(frame, owner, kind)
        if written is not None:
            if name in written.items:
                return written.items[name]
        elif name in table and source is not None:
            return frame.state.wrap(table[name], source.parameter(kind, name))
        elif source is not None and kind in module.__dict__:
            text = f"{source.text} has no {name} among its {kind}"
            frame.state.require(source.entry(kind), Kind.LACKS, name, text)
    return None


def _written_entry(frame: Frame, owner: Known, kind: str) -> DictVariable | None:
    """A dict of the module that the trace itself has changed."""
    table = frame.state.wrapped.get(id(owner.value.__dict__.get(kind)))
    if isinstance(table, DictVariable) and id(table) in frame.state.changed:
        return table
    return None


def call_method(frame: Frame, owner: Variable, name: str, args: list[Variable]) -> Variable:
    """`type(owner).name(owner, *args)`, as operators call it."""
    from plait_bytecode_tracer.frames.calls import call

    if isinstance(owner, Known | ObjectVariable):
        method = special_method(frame, owner, name)
        if method is not None:
            return call(frame, method, args, {})
    return call(frame, load_attribute(frame, owner, name), args, {})


def _store_on_tensor(frame: Frame, owner: TensorVariable, name: str, value: Variable) -> None:
    """`tensor.name = value`, for a name that tensors do not define."""
    if is_defined(owner.cls, name) or not name.isidentifier():
        raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of a tensor")
    if owner.attributes is None:
        owner.attributes = {}
        frame.state.marked_tensors.append(owner)
    owner.attributes[name] = value


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
        from plait_bytecode_tracer.objects.tensor_methods import require_grad

        require_grad(frame, owner, [value], {})
    elif owner is value and isinstance(owner, TensorVariable) and name == "data":
        pass  # its data stays where it is, as in `module.to()` of what it is already
    elif isinstance(owner, TensorVariable) and name == "grad":
        refuse_modes(frame.state, "a gradient that is set")
        set_gradient(frame, owner, value)
    elif isinstance(owner, TensorVariable):
        _store_on_tensor(frame, owner, name, value)
    elif isinstance(owner, DictVariable) and owner.kind is collections.OrderedDict:
        if owner.original is not None:
            raise TraceBreakError("GB0007", f"a write to the attribute {name!r} of an OrderedDict")
        owner.attributes[name] = value
    else:
        _refuse_to_store(owner, name)
