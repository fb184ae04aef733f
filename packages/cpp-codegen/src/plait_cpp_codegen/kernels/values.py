"""Value expressions as C++ statements on vectors of L lanes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field

from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.plan import is_number
from plait_cpp_codegen.kernels.positions import position
from plait_cpp_codegen.kernels.types import REGISTER
from plait_ir_lowering import (
    CheckedIndex,
    Const,
    DType,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Local,
    Masked,
    Op,
    Scalar,
    ScatterKind,
    Value,
    Var,
    as_index,
    atoms,
    post_order,
    stride_of,
)
from plait_scheduler import Store
from plait_utils import dataclass

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_LOGICAL = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ORDER = {"lt": (True, True), "le": (False, True), "gt": (True, False), "ge": (False, False)}
"""Whether a comparison is strict, and whether it holds below the limit."""
_VECTOR_CALLS = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan"),
        *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid"),
        *("erf", "erfc", "lgamma", "floor", "ceil", "trunc", "round"),
        *("atan2", "copysign", "hypot"),
    }
)


@dataclass(slots=True)
class ValueEmitter:
    """Writes statements that compute values at one vector of points.

    Within its text `L` is the number of lanes and the vector variable holds the first
    lane's position. `locals_` maps named values to C++ expressions of L lanes.
    """

    layouts: dict[str, Layout]
    vector: Var | None
    locals_: dict[str, str]
    lines: list[str] = field(default_factory=list)
    prefix: str = "v"
    done: dict[Value, str] = field(default_factory=dict)
    varying: dict[Value, bool] = field(default_factory=dict)
    varying_locals: frozenset[str] = frozenset()
    hoisted: list[str] | None = None
    shared: dict[Value, str] = field(default_factory=dict)

    def emit(self, root: Value) -> str:
        """The C++ name of `root`'s value; what computes it goes into `lines`."""
        for value in self._unguarded(root):
            if value not in self.done:
                self.done[value] = self._define(value)
        return self.done[root]

    def _unguarded(self, root: Value) -> list[Value]:
        """The values that `root` needs, without those that guarded or shared parts alone need."""
        order: list[Value] = []
        seen: set[Value] = set()
        stack: list[tuple[Value, bool]] = [(root, False)]
        while stack:
            value, expanded = stack.pop()
            if expanded:
                order.append(value)
            elif value not in seen:
                seen.add(value)
                stack.append((value, True))
                operands = value.operands
                if isinstance(value, Masked) and _has_load(value.value):
                    operands = (value.mask, value.other)
                elif self._first_lanes(value) or (
                    isinstance(value, CheckedIndex) and self._is_shared(value)
                ):
                    operands = ()
                stack.extend((operand, False) for operand in reversed(operands))
        return order

    def _define(self, value: Value) -> str:
        if isinstance(value, Local):
            return self.locals_[value.name]
        if isinstance(value, CheckedIndex) and self._is_shared(value):
            return f"spread<L, int64_t>({self._share(value)})"
        text = self._text(value)
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append(f"const vec<{REGISTER[value.dtype]}, L> {name} = {text};")
        return name

    def _is_shared(self, value: Value) -> bool:
        """Whether all lanes have the same, which nothing else in the kernel computes."""
        if self.vector is None or self.is_varying(value):
            return False
        return not any(isinstance(part, Local) for part in post_order([value]))

    def _share(self, value: Value) -> str:
        """The name of one lane that holds what all lanes share."""
        if value not in self.shared:
            name = f"{self.prefix if self.hoisted is None else ''}shared{len(self.shared)}"
            inner = ValueEmitter(self.layouts, None, {}, prefix=f"{name}_")
            result = inner.emit(value)
            body = " ".join(["constexpr int L = 1; (void)L;", *inner.lines, f"return {result};"])
            line = f"const vec<{REGISTER[value.dtype]}, 1> {name} = [&] {{ {body} }}();"
            (self.lines if self.hoisted is None else self.hoisted).append(line)
            self.shared[value] = name
        return self.shared[value]

    def _text(self, value: Value) -> str:
        match value:
            case Const(number, dtype):
                return f"splat<{REGISTER[dtype]}, L>({literal(number, dtype)})"
            case IndexValue(expr):
                return self._positions(expr)
            case Load():
                return self._load(value)
            case Op() if text := self._first_lanes(value):
                return text
            case Op(name, args, dtype):
                return self._operation(name, [self.done[a] for a in args], args, dtype)
            case CheckedIndex(inner, size):
                return f"checked<L>({self.done[inner]}, {kernel_index(size)}, arguments.error)"
            case Masked():
                return self._masked(value)
        raise TypeError(f"there is no C++ for {type(value).__name__}")

    def _positions(self, expr: IndexExpr) -> str:
        stride = as_index(0) if self.vector is None else stride_of(expr, self.vector)
        start = f"splat<int64_t, L>({kernel_index(expr)})"
        if stride is not None:
            if stride.is_constant and stride.as_int() == 0:
                return start
            return f"{start} + iota<L>() * ({kernel_index(stride)})"
        return f"gather_index<L>([&](int64_t l) {{ return {self._at_lane(expr)}; }})"

    def _first_lanes(self, value: Value) -> str:
        """C++ of a comparison that holds in the first lanes alone, or in all but these; else empty.

        Positions are compared as one number: how many lanes there are up to the limit.
        """
        if self.vector is None or not (isinstance(value, Op) and value.name in _ORDER):
            return ""
        left, right = (position(arg) for arg in value.args)
        if left is None or right is None:
            return ""
        distance = left - right
        stride = stride_of(distance, self.vector)
        if stride is None or not stride.is_constant or abs(stride.as_int()) != 1:
            return ""
        strict, below = _ORDER[value.name]
        if stride.as_int() == 1:  # l < -distance, where the comparison is "lt"
            text = (
                f"first_lanes<L>({kernel_index(as_index(0 if strict == below else 1) - distance)})"
            )
            return text if below else f"~{text}"
        text = f"first_lanes<L>({kernel_index(distance + (1 if strict == below else 0))})"
        return f"~{text}" if below else text

    def _at_lane(self, expr: IndexExpr) -> str:
        """`expr` at lane l, by shadowing the vector variable."""
        name = "" if self.vector is None else self.vector.name
        return f"[&](int64_t {name}) {{ return {kernel_index(expr)}; }}({name} + l)"

    def _load(self, load: Load) -> str:
        layout = self.layouts[load.buffer]
        plain = [as_index(0) if isinstance(i, Value) else i for i in load.index]
        offset = layout.linear(plain)
        pairs = zip(load.index, layout.stride, strict=True)
        chosen = [(i, kernel_index(stride)) for i, stride in pairs if isinstance(i, Value)]
        return self._access(load.buffer, offset, chosen)

    def _access(self, name: str, offset: IndexExpr, chosen: list[tuple[Value, str]]) -> str:
        """Elements at `offset` and, further, at values times their strides."""
        fixed, moving, lanes = "", "", ""
        for value, stride in chosen:
            if not self.is_varying(value):
                place = self.shared.get(value, self.done[value])
                fixed += f" + {place}[0] * ({stride})"
            else:
                moving += f" + {self.done[value]}[l] * ({stride})"
                lanes += f" + {self.done[value]} * ({stride})"
        kind, step = self.stride(offset)
        if not moving and kind == "uniform":
            return f"load_uniform<L>({name} + {kernel_index(offset)}{fixed})"
        if not moving and kind == "unit":
            return f"load<L>({name} + {kernel_index(offset)}{fixed})"
        if moving and kind != "irregular":
            places = (
                f"iota<L>() * ({step}){lanes}" if kind != "uniform" else lanes.removeprefix(" + ")
            )
            return f"gather_at<L>({name} + {kernel_index(offset)}{fixed}, {places})"
        place = f"l * ({step})" if kind in ("strided", "unit", "uniform") else self._at_lane(offset)
        base = f"{kernel_index(offset)}{fixed}" if kind != "irregular" else f"0{fixed}"
        return f"gather<L>({name} + {base}, [&](int64_t l) {{ return {place}{moving}; }})"

    def stride(self, offset: IndexExpr) -> tuple[str, str]:
        """How an offset moves along the vector variable, and by how much a lane."""
        if self.vector is None or self.vector not in atoms(offset):
            return "uniform", "0"
        stride = stride_of(offset, self.vector)
        if stride is None:
            return "irregular", ""
        if stride.is_constant and stride.as_int() == 1:
            return "unit", "1"
        return "strided", kernel_index(stride)

    def store(self, param: str, index: tuple[IndexExpr, ...], value: str) -> None:
        """Write a vector of values to a parameter."""
        offset = self.layouts[param].linear(index)
        kind, step = self.stride(offset)
        if kind == "unit":
            self.lines.append(f"store<L>({param} + {kernel_index(offset)}, {value});")
            return
        if kind == "irregular":
            place, base = self._at_lane(offset), "0"
        else:
            place, base = f"l * ({step})", kernel_index(offset)
        self.lines.append(
            f"scatter<L>({param} + {base}, [&](int64_t l) {{ return {place}; }}, {value});"
        )

    def scatter(self, store: Store, value: str, varying: frozenset[str]) -> None:
        """Combine a vector of values with what is at computed places, one lane after another.

        Lanes that write next to each other do so at once. `varying` are the coordinates, by
        name, that differ between lanes.
        """
        layout, register = self.layouts[store.param], REGISTER[store.value.dtype]
        offset = layout.linear(store.plain_index)
        kind, step = self.stride(offset)
        assert kind != "irregular", "loops are merged only where accesses stay affine"
        fixed = moving = ""
        for at, stride in zip(store.index, layout.stride, strict=True):
            if isinstance(at, Local):
                lane = "l" if at.name in varying else "0"
                text = f" + ({self.locals_[at.name]})[{lane}] * ({kernel_index(stride)})"
                fixed, moving = (fixed, moving + text) if lane == "l" else (fixed + text, moving)
        base = f"{store.param} + {kernel_index(offset)}{fixed}"
        if kind == "unit" and not moving:
            place = f"{self.prefix}{len(self.lines)}"
            self.lines.append(f"auto* const {place} = {base};")
            result = combined(store, f"load<L>({place})", value, "L")
            self.lines.append(f"store<L>({place}, {result});")
            return
        one = f"vec<{register}, 1>{{{value}[l]}}"
        result = combined(store, "load<1>(place)", one, "1")
        self.lines.append(
            "for (int64_t l = 0; l < L; ++l) { "
            f"auto* const place = {base} + l * ({step}){moving}; store<1>(place, {result}); }}"
        )

    def is_varying(self, value: Value) -> bool:
        """Whether a value differs between lanes."""
        for part in post_order([value]):
            if part not in self.varying:
                self.varying[part] = self._varies(part)
        return self.varying[value]

    def _varies(self, value: Value) -> bool:
        if isinstance(value, Local):
            return value.name in self.varying_locals
        indices: list[IndexExpr] = []
        if isinstance(value, Load):
            indices = [i for i in value.index if isinstance(i, IndexExpr)]
        elif isinstance(value, IndexValue):
            indices = [value.expr]
        moves = any(self.vector in atoms(i) for i in indices)
        return moves or any(self.varying[operand] for operand in value.operands)

    def _masked(self, masked: Masked) -> str:
        mask, other = self.done[masked.mask], self.done[masked.other]
        dtype = REGISTER[masked.dtype]
        if not _has_load(masked.value):
            return f"select<{dtype}, L>({mask}, {self.done[masked.value]}, {other})"
        inner = ValueEmitter(
            self.layouts,
            self.vector,
            self.locals_,
            prefix=f"{self.prefix}{len(self.lines)}g",
            varying_locals=self.varying_locals,
        )
        condition = self._share(masked.mask) if self._is_shared(masked.mask) else mask
        result = inner.emit(masked.value)
        body = " ".join(inner.lines)
        shift = ""
        if self.vector is not None:
            name = self.vector.name
            shift = f"const int64_t {name} = {name}_first + lane; "
            outer = f"[&, {name}_first = {name}]"
        else:
            outer = "[&]"
        return (
            f"guarded<L, {dtype}>({condition}, {outer}(auto lanes, int64_t lane) {{ "
            f"constexpr int L = decltype(lanes)::value; {shift}(void)lane; {body} "
            f"return {result}; }}, {other})"
        )

    def _operation(
        self, name: str, args: list[str], values: tuple[Value, ...], dtype: DType
    ) -> str:
        source = values[0].dtype
        register = REGISTER[dtype]
        match name:
            case "to" if (
                isinstance(values[0], IndexValue)
                and not (dtype.is_reduced_precision or dtype is DType.bool_)
                and (not self.is_varying(values[0]))
            ):
                return f"splat<{register}, L>(({register})({kernel_index(values[0].expr)}))"
            case "to" if is_number(values[0]) and source is DType.f64 and dtype is DType.f32:
                return f"splat<float, L>((float)({args[0]})[0])"
            case "to":
                return convert(args[0], source, dtype)
            case "bitcast":
                return f"bitcast<{register}, L>({args[0]})"
            case "where":
                return f"select<{register}, L>({args[0]}, {args[1]}, {args[2]})"
            case "add" | "mul" if source is DType.bool_:
                return f"{args[0]} {'|' if name == 'add' else '&'} {args[1]}"
            case "logical_not":
                return f"~{args[0]}"
            case "bitwise_not":
                return f"~{args[0]}"
            case "maximum" | "minimum" if source is DType.bool_:
                return f"{args[0]} {'|' if name == 'maximum' else '&'} {args[1]}"
            case "maximum" | "minimum":
                limit = values[1]
                if isinstance(limit, Const) and limit.value == limit.value:
                    name = "at_least" if name == "maximum" else "at_most"
                return f"{name}<L, {register}>({args[0]}, {args[1]})"
        if name in _COMPARE and source is DType.bool_:
            return f"as_mask<L>({args[1]} {_COMPARE[name]} {args[0]})"  # true is -1
        if name in _COMPARE:
            return f"as_mask<L>({args[0]} {_COMPARE[name]} {args[1]})"
        infix = _INFIX.get(name) or _BITS.get(name) or _LOGICAL.get(name)
        if infix is not None:
            return f"{args[0]} {infix} {args[1]}"
        return _function(name, args, REGISTER[source], source)


def _function(name: str, args: list[str], register: str, source: DType) -> str:
    first = args[0]
    zero, one = f"splat<{register}, L>(0)", f"splat<{register}, L>(1)"
    table: dict[str, Callable[[], str]] = {
        "neg": lambda: f"-{first}",
        "abs": lambda: _absolute(first, register, source),
        "square": lambda: f"{first} * {first}",
        "fma": lambda: f"{first} * {args[1]} + {args[2]}",
        "reciprocal": lambda: f"{one} / {first}",
        "rsqrt": lambda: f"{one} / v_sqrt<L, {register}>({first})",
        "sign": lambda: (
            f"select<{register}, L>(as_mask<L>({first} > {zero}), {one}, "
            f"select<{register}, L>(as_mask<L>({first} < {zero}), {zero} - {one}, {zero}))"
        ),
        "isnan": lambda: f"as_mask<L>({first} != {first})",
        "isinf": lambda: f"as_mask<L>(({first} == {first}) & (({first} - {first}) != {zero}))",
        "signbit": lambda: f"as_mask<L>(v_copysign<L, {register}>({one}, {first}) < {zero})",
        "floordiv": lambda: f"v_floordiv<L, {register}>({first}, {args[1]}, arguments.error)",
        "rem": lambda: f"v_rem<L, {register}>({first}, {args[1]}, arguments.error)",
        "truncdiv": lambda: (
            f"v_trunc<L, {register}>({first} / {args[1]})"
            if source.is_float
            else f"v_truncdiv<L, {register}>({first}, {args[1]}, arguments.error)"
        ),
        "fmod": lambda: (
            f"v_fmod<L, {register}>({first}, {args[1]})"
            if source.is_float
            else f"v_modulus<L, {register}>({first}, {args[1]}, arguments.error)"
        ),
        "pow": lambda: (
            f"v_pow<L, {register}>({first}, {args[1]})"
            if source.is_float
            else f"v_power<L, {register}>({first}, {args[1]})"
        ),
        "lshift": lambda: f"{first} << {args[1]}",
        "rshift": lambda: f"{first} >> {args[1]}",
    }
    if name in table:
        return table[name]()
    if name in _VECTOR_CALLS:
        return f"v_{name}<L, {register}>({', '.join(args)})"
    raise TypeError(f"there is no C++ for operation {name!r}")


def _absolute(first: str, register: str, source: DType) -> str:
    if register == "float":
        return f"magnitude<L>({first})"
    if not source.is_signed:
        return first
    zero = f"splat<{register}, L>(0)"
    negated = f"{zero} - {first}"
    if source.is_float:
        return f"v_copysign<L, {register}>({first}, splat<{register}, L>(1))"
    return f"select<{register}, L>(as_mask<L>({first} < {zero}), {negated}, {first})"


def convert(text: str, source: DType, target: DType) -> str:
    """C++ that casts lanes as ATen's copy does."""
    start, end = REGISTER[source], REGISTER[target]
    if source is DType.bool_:
        bits = f"({text} & 1)"
        return (
            bits
            if end == "int32_t" and target is not DType.bool_
            else (text if target is DType.bool_ else f"convert<{end}, int32_t, L>{bits}")
        )
    if target is DType.bool_:
        return f"as_mask<L>({text} != splat<{start}, L>(0))"
    converted = text if start == end else f"convert<{end}, {start}, L>({text})"
    if target is DType.bf16:
        return f"round_bf16<L>({converted})"
    if target is DType.f16:
        return f"round_f16<L>({converted})"
    return converted


def literal(number: Scalar, dtype: DType) -> str:
    """A constant as a C++ literal of its register type."""
    if dtype is DType.bool_:
        return "-1" if number else "0"
    if not dtype.is_float:
        return f"({REGISTER[dtype]}){_integer(int(number), dtype)}"
    suffix = "" if dtype is DType.f64 else "f"
    value = float(number)
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    if suffix and abs(value) > 3.4028235677973366e38:
        return f"{'-' if value < 0 else ''}__builtin_inff()"
    return f"{value!r}{suffix}"


def _integer(number: int, dtype: DType) -> str:
    if number == -(2**63):
        return "(-9223372036854775807LL - 1)"
    return f"{number}{'ULL' if dtype is DType.u64 else 'LL'}"


def combined(store: Store, old: str, new: str, lanes: str) -> str:
    """What a scatter leaves at a place, of what is there and what comes."""
    register, is_bool = REGISTER[store.value.dtype], store.value.dtype is DType.bool_
    match store.kind:
        case ScatterKind.ADD:
            return f"{old} {'|' if is_bool else '+'} {new}"
        case ScatterKind.MUL:
            return f"{old} {'&' if is_bool else '*'} {new}"
        case ScatterKind.MAX:
            return f"{old} | {new}" if is_bool else f"maximum<{lanes}, {register}>({old}, {new})"
        case ScatterKind.MIN:
            return f"{old} & {new}" if is_bool else f"minimum<{lanes}, {register}>({old}, {new})"
    return new


def _has_load(value: Value) -> bool:
    return any(isinstance(part, Load | CheckedIndex) for part in post_order([value]))
