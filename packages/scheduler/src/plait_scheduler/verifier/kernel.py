"""What makes a kernel sound, whatever buffers it is launched with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from plait_ir_lowering import (
    SCORE,
    DType,
    IndexExpr,
    IndexValue,
    Layout,
    Load,
    Local,
    Pack,
    Sym,
    TensorRef,
    Value,
    Var,
    as_index,
    atoms,
    bounds,
    components,
    is_below,
    place_name,
    post_order,
    product,
    product_name,
    scan_problem,
    score_dtype,
    sort_problem,
    substitute,
)
from plait_scheduler.domains import Substitution, are_apart, points, position
from plait_scheduler.errors import ProgramError
from plait_scheduler.program import (
    Access,
    Accumulate,
    AnyKernel,
    Attend,
    ChainedKernel,
    CombinedKernel,
    Domain,
    Kernel,
    Let,
    Mix,
    Param,
    Reduce,
    Sort,
    Statement,
    Store,
)
from plait_scheduler.statements import domain_of, unconditional
from plait_scheduler.text.print import print_kernel, print_statement
from plait_utils import dataclass


def verify_kernel(kernel: AnyKernel) -> None:
    """Check `kernel`. Raises ProgramError with the statement and the whole kernel.

    Parameters and locals are named once; locals are used after they are named, and not
    beyond the domain that they are computed in; loads and stores have the parameter's
    element type and rank, stay within it, and respect its access; a parameter that is
    written is written as a whole; one that is read and written is not read after. The inner domain
    has points, and what is read elements, as far as their numbers are known. Members of a combined
    kernel each have its sizes, and run what has no inner domain. Links of a chain have no open
    sizes.
    """
    if isinstance(kernel, CombinedKernel):
        _verify_members(kernel)
        return
    if isinstance(kernel, ChainedKernel):
        _verify_links(kernel)
        return
    _KernelCheck(kernel).run()


def _verify_members(kernel: CombinedKernel) -> None:
    body = kernel.body
    _require(bool(kernel.members), "a combined kernel has members", kernel)
    _require(not body.name, "what members run has no name", kernel)
    plain = all(
        isinstance(s, Let) or (isinstance(s, Store) and not s.kind) for s in body.statements
    )
    _require(plain and not body.inner, "what members run is pointwise", kernel)
    for sizes in kernel.members:
        _require(len(sizes) == len(body.symbols), "each member has a value for each size", kernel)
    limits = {
        atom.name: atom for expr in _sizes_in(body) for atom in atoms(expr) if isinstance(atom, Sym)
    }
    for sizes in kernel.members:
        for name, size in zip(body.symbols, sizes, strict=True):
            known = {atom.name for atom in atoms(size) if isinstance(atom, Sym)}
            _require(known <= {*kernel.symbols}, f"{size} is of sizes that are passed", kernel)
            _require(_is_within(size, limits.get(name)), f"{size} is a value of {name}", kernel)
    _KernelCheck(body).run()


def _verify_links(kernel: ChainedKernel) -> None:
    used = [*dict.fromkeys(kernel.links)]
    in_order = used == [*range(len(kernel.kernels))]
    _require(in_order, "each kernel of a chain runs, the first first", kernel)
    for each in kernel.kernels:
        _require(not each.symbols, "links have no open sizes", kernel)
        _KernelCheck(each).run()


def _sizes_in(kernel: Kernel) -> Iterator[IndexExpr]:
    """What tells of sizes with their bounds."""
    yield from (var.extent for var in kernel.outer)
    for param in kernel.params:
        yield from (*param.layout.size, *param.layout.stride, param.layout.offset)


def _is_within(size: IndexExpr, limits: Sym | None) -> bool:
    """Whether a size is known to be none that a symbol cannot be."""
    low, high = bounds(size)
    if limits is None or not size.is_constant or low is None or high is None:
        return True
    within = limits.lower <= low and (limits.upper is None or high <= limits.upper)
    return within and low % limits.step == 0


@dataclass(slots=True)
class _KernelCheck:
    kernel: Kernel
    params: dict[str, Param] = field(default_factory=dict)
    locals: dict[str, tuple[DType, Domain]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    current: Statement | None = None

    def run(self) -> None:
        names = [param.name for param in self.kernel.params]
        self._require(len(set(names)) == len(names), "parameters have different names")
        variables = [var.name for var in self.kernel.outer + self.kernel.inner]
        self._require(len(set(variables)) == len(variables), "variables have different names")
        self._require(points(self.kernel.inner) is not as_index(0), "the inner domain has points")
        self.params = {param.name: param for param in self.kernel.params}
        for statement in self.kernel.statements:
            self.current = statement
            self._statement(statement)
        self.current = None
        for param in self.kernel.params:
            written = param.access is not Access.READ
            self._require(
                written == (param.name in self.stored), f"{param.name} is {param.access.value}"
            )

    def _statement(self, statement: Statement) -> None:
        domain = domain_of(statement)
        if domain is Domain.INNER:
            self._require(bool(self.kernel.inner), "inner statements need inner variables")
        guarded = set(_guarded(statement.value))
        if isinstance(statement, Attend):
            self.locals[SCORE] = (statement.value.dtype, Domain.INNER)
        if isinstance(statement, Mix):
            for number in range(len(statement.factors)):
                self.locals[product_name(number)] = (statement.value.dtype, Domain.INNER)
        for value in post_order([statement.value]):
            self._value(value, domain, value in guarded)
        match statement:
            case Attend():
                self._attend(statement)
            case Mix():
                self._mix(statement)
            case Let(name, _, value):
                self._define(name, value.dtype, domain)
            case Reduce(name, kind, value):
                self._define(name, kind.result_dtype(value.dtype), Domain.OUTER)
            case Accumulate(names, value, combine):
                problem = scan_problem(value, combine)
                self._require(problem is None, f"a scan is whole: {problem}")
                self._require(len(names) == len(components(value)), "each component has a name")
                for local in statement.locals:
                    self._define(local.name, local.dtype, Domain.INNER)
            case Sort(names, value, first):
                problem = sort_problem(value)
                self._require(problem is None, f"integers are sorted: {problem}")
                self._require(self._has(first), "no more points are known than there are")
                self._require(len(names) == len(components(value)), "each word has a name")
                for local in statement.locals:
                    self._define(local.name, local.dtype, Domain.INNER)
            case Store():
                self._store(statement)

    def _define(self, name: str, dtype: DType, domain: Domain) -> None:
        self._require(name not in self.locals, f"{name} is named once")
        self._require(name not in self.params, f"{name} is not a parameter")
        self.locals[name] = (dtype, domain)

    def _value(self, value: Value, domain: Domain, guarded: bool) -> None:
        match value:
            case Local(name, dtype):
                self._require(name in self.locals, f"{name} is named before it is used")
                known, reach = self.locals[name]
                self._require(known is dtype, f"{name} has the type {known}")
                inside = domain is Domain.INNER or reach is Domain.OUTER
                self._require(inside, f"{name} is known only in the inner domain")
            case Load(name, index, dtype):
                self._load(name, index, dtype, domain, guarded)
            case IndexValue(expr):
                self._scope([expr], domain)
            case Pack():
                whole = self.current
                carries = isinstance(whole, Accumulate | Sort | Mix) and value is whole.value
                self._require(carries, "only scans, sorts and mixtures have several values")

    def _load(
        self,
        name: str,
        index: Sequence[IndexExpr | Value],
        dtype: DType,
        domain: Domain,
        guarded: bool,
    ) -> None:
        self._require(name in self.params, f"{name} is a parameter")
        param = self.params[name]
        self._require(param.access is not Access.WRITE, f"{name} may be read")
        self._require(param.layout.numel is not as_index(0), f"{name} has elements")
        self._require(param.dtype is dtype, f"{name} has elements of type {param.dtype}")
        self._require(name not in self.stored, f"{name} is not read after it is overwritten")
        plain = [at for at in index if isinstance(at, IndexExpr)]
        self._scope(plain, domain)
        self._require(len(index) == len(param.layout.size), f"{name} has another rank")
        if not guarded:
            self._in_bounds(index, param.layout)

    def _store(self, store: Store) -> None:
        self._require(store.param in self.params, f"{store.param} is a parameter")
        param = self.params[store.param]
        self._require(param.access is not Access.READ, f"{store.param} may be written")
        self._require(store.param not in self.stored, f"{store.param} is stored once")
        self._require(param.dtype is store.value.dtype, f"{store.param} has type {param.dtype}")
        self._require(len(store.index) == len(param.layout.size), f"{store.param} has another rank")
        plain = [at for at in store.index if isinstance(at, IndexExpr)]
        self._scope(plain, store.domain)
        self._in_bounds(self._reached(store), param.layout)
        if store.kind is not None:
            self._require(store.first is None, "what writes at computed places is at all points")
            self._scatter(store, param)
            return
        self._require(len(plain) == len(store.index), f"{store.param} is stored at known places")
        count = points(self.kernel.outer)
        if store.first is not None:
            known = store.domain is Domain.INNER and self._has(store.first)
            self._require(known, "the first points of a row are written by inner statements")
            count = count * store.first
        elif store.domain is Domain.INNER:
            count = points(self.kernel.outer + self.kernel.inner)
        self._require(count is param.layout.numel, f"{store.param} is written as a whole")
        self.stored.add(store.param)

    def _has(self, first: int | None) -> bool:
        """Whether a row has so many points."""
        row = points(self.kernel.inner)
        return first is None or is_below(as_index(first), row + 1)

    def _reached(self, store: Store) -> tuple[IndexExpr | Local, ...]:
        """The coordinates of a store, the row as long as it is written."""
        if store.first is None:
            return store.index
        inner = self.kernel.inner
        number = position([var.expr for var in inner], [var.extent for var in inner])
        written = Var("row", store.first).expr
        change: Substitution = {inner[0]: written} if len(inner) == 1 else {}
        return tuple(
            written if at is number else at if isinstance(at, Local) else substitute(at, change)
            for at in store.index
        )

    def _attend(self, attend: Attend) -> None:
        self._require(len(self.kernel.statements) == 1, "an attention is a kernel of its own")
        self._require(len(self.kernel.inner) == 1, "an attention goes over keys")
        self._require(attend.param in self.params, f"{attend.param} is a parameter")
        made = self.params[attend.param]
        self._require(made.access is Access.WRITE, f"{made.name} may be written")
        sizes: list[tuple[IndexExpr, ...]] = []
        for ref in attend.refs:
            self._require(ref.buffer in self.params, f"{ref.buffer} is a parameter")
            param = self.params[ref.buffer]
            self._require(param.access is Access.READ, f"{ref.buffer} is only read")
            sizes.append((ref.view or param.layout).size)
            shared = len(sizes) == 3 and param.dtype is made.dtype
            same = score_dtype(param.dtype) is attend.value.dtype or shared
            self._require(same, f"{ref.buffer} has the type of the scores, or of {made.name}")
        sizes.append(made.layout.size)
        many = all(len(size) >= 3 for size in sizes)
        self._require(many, "an attention multiplies batches of matrices")
        matrices = tuple((product(size[:-2]), *size[-2:]) for size in sizes)
        (batch, rows, depth), (_, _, columns), (_, _, width), whole = matrices
        wanted = (batch, rows, depth), (batch, depth, columns), (batch, columns, width)
        self._require(matrices[:3] == wanted, "an attention's matrices fit each other")
        self._require(whole == (batch, rows, width), f"{made.name} is a row for each")
        self._require(len(attend.spans) in (0, 3), "rows have a first key, a last one, and a count")
        for value in post_order(attend.spans):
            self._value(value, Domain.OUTER, False)
        run = (points(self.kernel.outer), points(self.kernel.inner))
        self._require(run == (batch * rows, columns), "an attention has a score for each pair")
        self.stored.add(attend.param)
        self._require(len(attend.sums) <= 2, "a row has two numbers beside it at most")
        for name in attend.sums:
            self._require(name in self.params, f"{name} is a parameter")
            sums = self.params[name]
            self._require(sums.access is Access.WRITE, f"{sums.name} may be written")
            dense = sums.layout.is_row_major and sums.layout.numel is product([batch, rows])
            self._require(dense, f"{sums.name} is dense, with one element for each row")
            self._require(sums.dtype is attend.value.dtype, f"{sums.name} has the scores' type")
            self.stored.add(name)

    def _mix(self, mix: Mix) -> None:
        self._require(len(self.kernel.statements) == 1, "a mixture is a kernel of its own")
        self._require(len(self.kernel.inner) in (1, 2), "a mixture goes over a group and an axis")
        weights, places = mix.parts
        known = {ref.buffer for ref in mix.refs} | set(mix.made)
        self._require(known <= self.params.keys(), "what it reads and writes is a parameter")
        same = len(mix.made) == len(mix.values) + len(mix.sums) == len(weights)
        self._require(same, "each buffer has weights, and values or a sum")
        for ref in mix.refs:
            param = self.params[ref.buffer]
            self._require(param.access is Access.READ, f"{ref.buffer} is only read")
            fits = score_dtype(param.dtype) is mix.value.dtype
            self._require(fits, f"{ref.buffer} is multiplied as {mix.value.dtype}")
        run, columns = points(self.kernel.outer), self.kernel.inner[-1].extent
        group = points(self.kernel.inner[:-1])
        for left, right in mix.factors:
            (batch, rows, depth), second = self._matrices(left), self._matrices(right)
            fits = second == (batch, depth, columns) and batch * rows is run * group
            self._require(fits, "there is an element of each product for each pair")
        same = all(weight.dtype is mix.value.dtype for weight in weights)
        self._require(same, "weights have one type")
        for name, ref in zip(mix.made, mix.values, strict=False):
            made = self.params[name]
            self._require(made.access is Access.WRITE, f"{name} may be written")
            (batch, length, width), whole = self._matrices(ref), self._matrices(TensorRef(name))
            self._require(length is columns, f"{ref.buffer} has a row for each place")
            fits = (whole[0] * group, whole[2]) == (batch, width) and whole[0] * whole[1] is run
            self._require(fits, f"{name} is a row for each")
        for name, place in mix.added:
            self._added(name, place, places)
        self._require(len(set(mix.made)) == len(mix.made), "each buffer is written once")
        self.stored.update(mix.made)
        self._require(len(mix.spans) in (0, 3), "rows have a first place, a last one, and a count")
        for value in post_order(mix.spans):
            self._value(value, Domain.OUTER, False)

    def _added(self, name: str, place: Load | None, places: Sequence[Value]) -> None:
        """What gets sums of weights: one for each row, or at the places of pairs."""
        made = self.params[name]
        assert self.current is not None
        same = made.dtype is self.current.value.dtype
        self._require(same, f"{name} has the type of the weights")
        if place is None:
            self._require(made.access is Access.WRITE, f"{name} may be written")
            dense = made.layout.is_row_major and made.layout.numel is points(self.kernel.outer)
            self._require(dense, f"{name} is dense, with one element for each row")
            return
        self._require(made.access is Access.READ_WRITE, f"{name} is combined with what is there")
        self._require(place.buffer == name, f"{name} is what is added to")
        self._require(len(place.index) == len(made.layout.size), f"{name} has another rank")
        known = {Local(place_name(n), each.dtype): each for n, each in enumerate(places)}
        for at in place.index:
            if isinstance(at, IndexExpr):
                self._scope([at], Domain.INNER)
            else:
                named = at in known and at.dtype is DType.i64
                self._require(named, f"{name} has coordinates that are computed")
        self._in_bounds(place.index, made.layout)

    def _matrices(self, ref: TensorRef) -> tuple[IndexExpr, IndexExpr, IndexExpr]:
        """How many matrices a tensor has, and their sizes."""
        size = (ref.view or self.params[ref.buffer].layout).size
        self._require(len(size) >= 3, f"{ref.buffer} is a batch of matrices")
        return product(size[:-2]), size[-2], size[-1]

    def _scatter(self, store: Store, param: Param) -> None:
        """What writes at computed places: outer points must never meet."""
        both = param.access is Access.READ_WRITE
        self._require(both, f"{store.param} is combined with what is there")
        inner = bool(self.kernel.inner) == (store.domain is Domain.INNER)
        self._require(inner, "what writes at computed places runs over the whole domain")
        self._require(
            not any(isinstance(s, Reduce | Accumulate) for s in self.kernel.statements),
            "what writes at computed places reduces nothing",
        )
        for at in store.index:
            if isinstance(at, Local):
                self._require(at.name in self.locals, f"{at.name} is named before it is used")
                known, reach = self.locals[at.name]
                self._require(known is at.dtype is DType.i64, f"{at.name} has the type {known}")
                inside = store.domain is Domain.INNER or reach is Domain.OUTER
                self._require(inside, f"{at.name} is known only in the inner domain")
        free = [
            (at, size)
            for at, size in zip(store.index, param.layout.size, strict=True)
            if isinstance(at, IndexExpr)
        ]
        self._require(are_apart(self.kernel.outer, free), "outer points write to different places")
        self.stored.add(store.param)

    def _scope(self, exprs: Sequence[IndexExpr], domain: Domain) -> None:
        variables = set(self.kernel.outer)
        if domain is Domain.INNER:
            variables.update(self.kernel.inner)
        for expr in exprs:
            for atom in atoms(expr):
                if isinstance(atom, Var):
                    self._require(atom in variables, f"{atom.name} is a variable of the domain")
                elif isinstance(atom, Sym):
                    self._require(atom.name in self.kernel.symbols, f"{atom.name} is a known size")

    def _in_bounds(self, index: Sequence[IndexExpr | Value], layout: Layout) -> None:
        """Coordinates whose bounds are known stay within the layout."""
        if any(size.is_constant and size.as_int() == 0 for size in layout.size):
            return
        for at, size in zip(index, layout.size, strict=True):
            if not isinstance(at, IndexExpr) or _is_empty(at):
                continue
            low, high = bounds(at)
            outside = high is not None and size.is_constant and high >= size.as_int()
            if (low is None or low >= 0) and not outside:
                continue
            # Bounds of the parts are not those of the whole: i + n is below 9 for i < 9 - n.
            if not is_below(at, size):
                self._require(low is None or low >= 0, f"{at} is not negative")
                self._require(not outside, f"{at} is below {size}")

    def _require(self, holds: bool, rule: str) -> None:
        _require(holds, rule, self.kernel, self.current)


def _require(holds: bool, rule: str, kernel: AnyKernel, at: Statement | None = None) -> None:
    if holds:
        return
    statement = "" if at is None else "\n".join(print_statement(at))
    raise ProgramError(
        f"kernel {kernel.name or '(unnamed)'} is not sound: not true that {rule}\n"
        f"{statement}\nin\n{print_kernel(kernel)}",
        hint="this is an error of the scheduler, or of whoever built the kernel",
    )


def _is_empty(expr: IndexExpr) -> bool:
    """Whether a variable without points is in `expr`, so that it is never evaluated."""
    return any(
        isinstance(atom, Var) and atom.extent.is_constant and atom.extent.as_int() == 0
        for atom in atoms(expr)
    )


def _guarded(root: Value) -> Iterator[Value]:
    """Values that are needed only under masks."""
    certain = set(unconditional(root))
    return (value for value in post_order([root]) if value not in certain)
