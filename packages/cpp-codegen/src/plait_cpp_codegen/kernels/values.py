"""Value expressions as C++ statements on vectors of L lanes."""

from __future__ import annotations

from dataclasses import field

from plait_cpp_codegen.kernels.index import kernel_index
from plait_cpp_codegen.kernels.narrowing import fits, is_narrow, last_offset
from plait_cpp_codegen.kernels.operations import (
    COMPARISONS,
    DIVISIONS,
    argument_of_erf,
    literal,
    operation,
)
from plait_cpp_codegen.kernels.positions import never_negative, position, recombined
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
    ScatterKind,
    Value,
    Var,
    as_index,
    atoms,
    post_order,
    stride_of,
)
from plait_scheduler import Statement, Store
from plait_utils import dataclass

_ORDER = {"lt": (True, True), "le": (False, True), "gt": (True, False), "ge": (False, False)}
"""Whether a comparison is strict, and whether it holds below the limit."""


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
    guarded: bool = False
    """Whether it writes what is computed only where a condition holds."""
    tables: dict[Value, str] = field(default_factory=dict)
    """C++ pointers to values that stand in a table, at the first lane."""
    positional: dict[Value, bool] = field(default_factory=dict)
    past: frozenset[str] = frozenset()
    """The parameters that are written past the caches."""
    ahead: frozenset[str] = frozenset()
    """Those that are read ahead."""
    shares: frozenset[Value] = frozenset()
    """Quotients of what is at most the divisor."""

    def emit_computed(self, root: Value) -> str:
        """The C++ name of `root`'s value, of the type that it is computed in."""
        for value in self._unguarded(root):
            if value not in self.done:
                self.done[value] = self._define(value)
        return self.done[root]

    def emit(self, root: Value) -> str:
        """The C++ name of `root`'s value; what computes it goes into `lines`."""
        self.emit_computed(root)
        if not is_narrow(root):
            return self.done[root]
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append(f"const vec<int64_t, L> {name} = {self._wide(root)};")
        return name

    def emit_for(self, statement: Statement) -> str:
        """The C++ name of what a statement takes; a store of narrow floats rounds by itself."""
        value = statement.value
        if isinstance(statement, Store) and statement.kind is None:
            match value:
                case Op("to", (computed,)) if computed.dtype is DType.f32:
                    value = computed if value.dtype.is_reduced_precision else value
        return self.emit(value)

    def _wide(self, value: Value) -> str:
        """What is computed, of the type that the value has."""
        name = self.done[value]
        return f"convert<int64_t, int32_t, L>({name})" if is_narrow(value) else name

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
                if isinstance(value, Load):
                    operands = tuple(place for place, _ in self._places(value))
                elif isinstance(value, CheckedIndex) and (index := never_negative(value)):
                    operands = (index,)
                elif (inner := argument_of_erf(value)) is not None:
                    operands = (inner,)
                if isinstance(value, Masked) and _has_load(value.value):
                    operands = (value.mask, value.other)
                elif value in self.tables or self._first_lanes(value) or self._is_hoisted(value):
                    operands = ()
                stack.extend((operand, False) for operand in reversed(operands))
        return order

    def _define(self, value: Value) -> str:
        if isinstance(value, Local):
            return self.locals_[value.name]
        kind = register_of(value)
        if value in self.tables:
            text = f"load<L>({self.tables[value]})"
        elif self._is_hoisted(value):
            text = f"splat<{kind}, L>(({kind})({self._share(value)})[0])"
        else:
            text = self._text(value, kind)
        name = f"{self.prefix}{len(self.lines)}"
        self.lines.append(f"const vec<{kind}, L> {name} = {text};")
        return name

    def _is_hoisted(self, value: Value) -> bool:
        """Whether one lane stands for all of them, computed in front where that can be."""
        if isinstance(value, CheckedIndex):
            return self._is_shared(value)
        known = isinstance(value, Op) and self.hoisted is not None and self._is_positional(value)
        return known and self._is_shared(value)

    def _is_positional(self, value: Value) -> bool:
        """Whether it follows from positions and constants alone, which cannot fail."""
        for part in post_order([value]):
            if part not in self.positional:
                first = isinstance(part, IndexValue)
                kinds = isinstance(part, IndexValue | Const | Op)
                kinds = kinds and not (isinstance(part, Op) and part.name in DIVISIONS)
                inner = [p for p in part.operands if not isinstance(p, Const)]
                below = all(self.positional[p] for p in inner)
                self.positional[part] = first or (kinds and bool(inner) and below)
        return self.positional[value]

    def _is_shared(self, value: Value) -> bool:
        """Whether all lanes have the same, which nothing else in the kernel computes."""
        if self.vector is None or self.is_varying(value):
            return False
        if self.guarded and not self._is_positional(value):
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

    def _text(self, value: Value, kind: str) -> str:
        match value:
            case Const(number, _):
                return f"splat<{kind}, L>({literal(number, _computed(value))})"
            case IndexValue(expr):
                return self._positions(expr, kind)
            case Load():
                return self._load(value)
            case Op() if text := self._first_lanes(value):
                return text
            case Op():
                return self._operation(value)
            case CheckedIndex(inner, size):
                index = never_negative(value)
                check, asked = ("checked", inner) if index is None else ("within", index)
                at = f"{check}<L>({self._wide(asked)}, {kernel_index(size)}, arguments.error)"
                return at if kind == "int64_t" else f"convert<{kind}, int64_t, L>({at})"
            case Masked():
                return self._masked(value)
        raise TypeError(f"there is no C++ for {type(value).__name__}")

    def _operation(self, op: Op) -> str:
        """Narrow operands stay so where the result is narrow, or none of their bits is lost."""
        if (inner := argument_of_erf(op)) is not None:
            return f"erf_plus_one_f32<L>({self.done[inner]})"
        first = op.args[0]
        if (
            op.name == "to"
            and isinstance(first, IndexValue)
            and not (op.dtype.is_reduced_precision or op.dtype is DType.bool_)
            and not self.is_varying(first)
        ):
            kind = register_of(op)
            return f"splat<{kind}, L>(({kind})({kernel_index(first.expr)}))"
        if op in self.shares:
            return f"share_of<L>({', '.join(self.done[arg] for arg in op.args)})"
        stays = is_narrow(op) or op.name == "to"
        stays = stays or (op.name in COMPARISONS and all(is_narrow(arg) for arg in op.args))
        names = [self.done[arg] if stays else self._wide(arg) for arg in op.args]
        source = _computed(first) if stays else first.dtype
        return operation(op.name, names, op.args, source, _computed(op))

    def _positions(self, expr: IndexExpr, kind: str) -> str:
        stride = as_index(0) if self.vector is None else stride_of(expr, self.vector)
        start = f"splat<{kind}, L>(({kind}){kernel_index(expr)})"
        if stride is not None:
            if stride.is_constant and stride.as_int() == 0:
                return start
            return f"{start} + iota<L, {kind}>() * ({kind})({kernel_index(stride)})"
        return f"gather_index<L, {kind}>([&](int64_t l) {{ return {self._at_lane(expr)}; }})"

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
        chosen = [(place, kernel_index(stride)) for place, stride in self._places(load)]
        return self._access(load.buffer, offset, chosen)

    def _places(self, load: Load) -> list[tuple[Value, IndexExpr]]:
        """The coordinates that are computed, and their strides."""
        pairs = zip(load.index, self.layouts[load.buffer].stride, strict=True)
        return recombined([(i, stride) for i, stride in pairs if isinstance(i, Value)])

    def _access(self, name: str, offset: IndexExpr, chosen: list[tuple[Value, str]]) -> str:
        """Elements at `offset` and, further, at values times their strides."""
        moves = [(value, stride) for value, stride in chosen if self.is_varying(value)]
        narrow = fits(self.layouts[name]) and all(is_narrow(value) for value, _ in moves)
        of = "int32_t" if narrow else "int64_t"
        fixed, moving, lanes = "", "", []
        for value, stride in chosen:
            if (value, stride) not in moves:
                place = self.shared.get(value, self.done[value])
                fixed += f" + (int64_t)({place})[0] * ({stride})"
            else:
                place = self.done[value] if narrow else self._wide(value)
                moving += f" + (int64_t)({self.done[value]})[l] * ({stride})"
                lanes.append(place if stride == "1" else f"{place} * ({of})({stride})")
        kind, step = self.stride(offset)
        if not moving and kind == "uniform":
            return f"load_uniform<L>({name} + {kernel_index(offset)}{fixed})"
        if not moving and kind == "unit":
            how = "load_ahead" if name in self.ahead else "load"
            return f"{how}<L>({name} + {kernel_index(offset)}{fixed})"
        if not moving and step == "2":
            return f"load_second<L>({name} + {kernel_index(offset)}{fixed})"
        if moving and kind != "irregular":
            if kind != "uniform":
                lanes.insert(0, f"iota<L, {of}>() * ({of})({step})")
            start, places = f"{kernel_index(offset)}{fixed}", " + ".join(lanes)
            if narrow and all(self._is_positional(value) for value, _ in moves):
                behind = kernel_index(last_offset(self.layouts[name]) + 1)
                return f"gather_near<L>({name}, {start}, {places}, {behind})"
            return f"gather_at<L, {of}>({name} + {start}, {places})"
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
            how = "store_past" if param in self.past else "store"
            self.lines.append(f"{how}<L>({param} + {kernel_index(offset)}, {value});")
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
        own, along = kernel_index(offset), f"l * ({step})"
        if kind == "irregular":
            own, along = "0", self._at_lane(offset)
        fixed = moving = ""
        for at, stride in zip(store.index, layout.stride, strict=True):
            if isinstance(at, Local):
                lane = "l" if at.name in varying else "0"
                text = f" + ({self.locals_[at.name]})[{lane}] * ({kernel_index(stride)})"
                fixed, moving = (fixed, moving + text) if lane == "l" else (fixed + text, moving)
        base = f"{store.param} + {own}{fixed}"
        if kind == "unit" and not moving:
            place = f"{self.prefix}{len(self.lines)}"
            self.lines.append(f"auto* const {place} = {base};")
            result = combined(store, f"load<L>({place})", value, "L")
            self.lines.append(f"store<L>({place}, {result});")
            return
        one = f"single<{register}>({value}[l])"
        result = combined(store, "load<1>(place)", one, "1")
        self.lines.append(
            "for (int64_t l = 0; l < L; ++l) { "
            f"auto* const place = {base} + {along}{moving}; store<1>(place, {result}); }}"
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
        mask, other = self.done[masked.mask], self._wide(masked.other)
        dtype = REGISTER[masked.dtype]
        if not _has_load(masked.value):
            return f"select<{dtype}, L>({mask}, {self._wide(masked.value)}, {other})"
        inner = ValueEmitter(
            self.layouts,
            self.vector,
            self.locals_,
            prefix=f"{self.prefix}{len(self.lines)}g",
            varying_locals=self.varying_locals,
            hoisted=self.hoisted,
            shared={} if self.hoisted is None else self.shared,
            guarded=True,
            tables=self.tables,
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


def _computed(value: Value) -> DType:
    """The type that a value is computed in."""
    return DType.i32 if is_narrow(value) else value.dtype


def register_of(value: Value) -> str:
    """What a lane holds of a value."""
    return REGISTER[_computed(value)]


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
