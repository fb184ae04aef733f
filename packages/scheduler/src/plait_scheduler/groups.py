"""Fusion groups: definitions that become one kernel, over one loop domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from plait_ir_lowering import Buffer, IndexExpr, Origin, Var, atoms, substitute
from plait_scheduler.domains import (
    Coordinates,
    Substitution,
    extents,
    fill,
    is_bijection,
    move,
    plain,
    points,
    position,
    row_major_mapping,
    same_place,
    solve,
)
from plait_scheduler.first_points import neutral
from plait_scheduler.nodes import AlongRow, Node, SortKind, keeps_order, work_of
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a group, its variables in terms of the group's."""

    node: Node
    values: tuple[IndexExpr, ...]
    """One for each of the node's ranges, then one for each of its reduction ranges."""
    first: int | None = None
    """How many first points of the group's inner domain it is meant at, if not all: what follows
    the least of sorted rows."""

    @property
    def mapping(self) -> Substitution:
        return dict(zip(self.node.ranges + self.node.reduced, self.values, strict=True))

    @property
    def coordinates(self) -> Coordinates:
        """Where in its buffer the node's result goes."""
        outer = self.values[: len(self.node.ranges)]
        if isinstance(self.node.kind, AlongRow):
            place = self.node.kind.axis
            return (*outer[:place], self.values[-1], *outer[place:])
        return outer


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes over one domain. Without inner variables all of them are pointwise."""

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    members: tuple[Member, ...]
    reads: dict[str, tuple[Coordinates | None, ...]]
    """Where each buffer is read, in the group's variables; None: at computed coordinates."""
    writes: dict[str, Coordinates | None]
    """Where each buffer is written; None: at computed coordinates."""
    operations: int
    is_reduction: bool
    """Whether rows are combined, scanned or sorted, so that there are inner variables."""
    is_scatter: bool

    @property
    def places(self) -> tuple[int, ...]:
        return tuple([member.node.place for member in self.members])

    @property
    def origin(self) -> Origin:
        total = Origin()
        for member in self.members:
            total = total + member.node.origin
        return total

    @property
    def label(self) -> str:
        """The buffers that the group computes, for people."""
        names = [member.node.name for member in self.members]
        if len(names) <= 4:
            return "+".join(names)
        return f"{names[0]}+{names[1]}+...+{names[-1]} ({len(names)} definitions)"


def group_of(node: Node) -> Group:
    """A group of one node."""
    reads: dict[str, dict[Coordinates | None, None]] = {}
    for load in node.loads:
        reads.setdefault(load.buffer, {})[plain(load.index)] = None
    values = tuple(var.expr for var in node.ranges + node.reduced)
    member = Member(node, values)
    if node.scatter is not None:
        reads[node.scatter.target] = {None: None}
    return Group(
        node.ranges,
        node.reduced,
        (member,),
        {name: tuple(places) for name, places in reads.items()},
        {node.name: member.coordinates if node.scatter is None else None},
        sum(work_of(root).operations for root in node.roots),
        node.kind is not None,
        node.scatter is not None,
    )


def merge(host: Group, guest: Group, relation: Relation) -> Group:
    """Both groups' nodes over the host's domain; `relation` as `relate` returned it."""
    mapping = relation.mapping
    if any(value is not var.expr for var, value in mapping.items() if isinstance(var, Var)):
        guest = _moved(guest, mapping)
    if relation.first is not None:
        limited = tuple(replace(member, first=relation.first) for member in guest.members)
        guest = replace(guest, members=limited)
    reads = {name: dict.fromkeys(places) for name, places in host.reads.items()}
    for name, places in guest.reads.items():
        reads.setdefault(name, {}).update(dict.fromkeys(places))
    members = sorted((*host.members, *guest.members), key=lambda member: member.node.place)
    return Group(
        host.outer,
        host.inner,
        tuple(members),
        {name: tuple(places) for name, places in reads.items()},
        {**host.writes, **guest.writes},
        host.operations + guest.operations,
        host.is_reduction or guest.is_reduction,
        host.is_scatter or guest.is_scatter,
    )


def _moved(group: Group, mapping: Substitution) -> Group:
    members = tuple(
        replace(member, values=_substituted(member.values, mapping)) for member in group.members
    )
    reads = {
        name: tuple(None if at is None else _substituted(at, mapping) for at in places)
        for name, places in group.reads.items()
    }
    writes = {
        name: None if at is None else _substituted(at, mapping) for name, at in group.writes.items()
    }
    return replace(group, members=members, reads=reads, writes=writes)


def _substituted(coordinates: Coordinates, mapping: Substitution) -> Coordinates:
    return tuple(move(expr, mapping) for expr in coordinates)


@dataclass(frozen=True, slots=True)
class _Link:
    """Accesses of two groups to one buffer, in host's and guest's variables."""

    buffer: str
    host: Coordinates | None
    guest: Coordinates | None
    required: bool
    """One of the groups computes the buffer, so that both must be at one point."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A mapping of the guest's variables, and the buffers read by both at the same place."""

    mapping: Substitution
    shared: tuple[str, ...]
    first: int | None = None
    """At how many first points of the host's inner domain the guest runs, if not at all."""


def relate(host: Group, guest: Group, buffers: dict[str, Buffer]) -> Relation | str:
    """How `guest` can run over the host's domain, or why it cannot.

    Where only one of the two reduces, it has to be the host.
    """
    found = _relate(host, guest, buffers)
    if isinstance(found, str) and host.is_reduction:
        for first in _firsts(host):
            over_first = _relate_first(host, guest, first, buffers)
            if over_first is not None:
                return over_first
    return found


def _firsts(host: Group) -> list[int]:
    """Of how many elements the least of rows are known that a group sorts."""
    kinds = [member.node.kind for member in host.members]
    found = [kind.first for kind in kinds if isinstance(kind, SortKind)]
    return list(dict.fromkeys(first for first in found if first is not None and first > 1))


def _relate_first(
    host: Group, guest: Group, first: int, buffers: dict[str, Buffer]
) -> Relation | None:
    """How `guest` runs at the first points of the rows that the host sorts.

    Elsewhere what is sorted is not known, so a guest computes with nothing but what is computed in
    the kernel or for a whole row, and reduces only what counts for nothing there.
    """
    if len(host.inner) != 1 or not all(map(_may_be_first, guest.members)):
        return None
    (row,) = host.inner
    short = Var(f"{row.name}.{first}", first)
    over_first = replace(_moved(host, {row: short.expr}), inner=(short,))
    found = _relate(over_first, guest, buffers)
    if isinstance(found, str) or host.writes.keys().isdisjoint(guest.reads):
        return None
    for name, places in guest.reads.items():
        for place in () if name in host.writes else places:
            moved = None if place is None else _substituted(place, found.mapping)
            if moved is None or any(short in atoms(at) for at in moved):
                return None
    back: Substitution = {short: row.expr}
    mapping = {var: substitute(value, back) for var, value in found.mapping.items()}
    return Relation(mapping, found.shared, first)


def _may_be_first(member: Member) -> bool:
    kind = member.node.kind
    if member.node.scatter is not None or isinstance(kind, AlongRow):
        return False
    return kind is None or neutral(kind, member.node.value.dtype) is not None


def _relate(host: Group, guest: Group, buffers: dict[str, Buffer]) -> Relation | str:
    space = _space(host, guest)
    if isinstance(space, str):
        return space
    links = list(_links(host, guest))
    opaque = next((k for k in links if k.required and None in (k.host, k.guest)), None)
    if opaque is not None:
        return f"{opaque.buffer} is read at coordinates that are computed from data"
    failed = ""
    fallback: Relation | None = None
    for mapping in _candidates(host, guest, space, links, buffers):
        if not _keeps_order(mapping, host, guest):
            failed = failed or "the row, whose order counts,"
            continue
        clash = _first_clash(links, mapping, buffers)
        if clash:
            failed = clash
            continue
        found = Relation(mapping, _shared(links, mapping, buffers))
        if found.shared or any(link.required for link in links):
            return found
        fallback = fallback or found  # nothing is at stake yet: another may share reads
    if fallback is not None:
        return fallback
    if failed:
        return f"{failed} is read at other coordinates than it is computed at"
    return "no correspondence of their points is certain"


def _space(host: Group, guest: Group) -> tuple[Var, ...] | str:
    """The host's variables that the guest's points run over."""
    host_points, inner_points = points(host.outer), points(host.inner)
    guest_points = points(guest.outer)
    if guest.is_reduction:
        if guest_points is host_points and points(guest.inner) is inner_points:
            return host.outer + host.inner
        return (
            f"reductions over {guest_points} × {points(guest.inner)} and "
            f"{host_points} × {inner_points} points have different domains"
        )
    if guest_points is host_points * inner_points:
        return host.outer + host.inner
    if guest_points is host_points:
        return host.outer
    return f"{guest_points} points do not correspond to {host_points} × {inner_points}"


def _links(host: Group, guest: Group) -> Iterator[_Link]:
    for name, at in host.writes.items():
        for place in guest.reads.get(name, ()):
            yield _Link(name, at, place, True)
    for name, at in guest.writes.items():
        for place in host.reads.get(name, ()):
            yield _Link(name, place, at, True)
    for name, places in host.reads.items():
        if name in guest.reads and name not in guest.writes:
            for theirs in places:
                for ours in guest.reads[name]:
                    if theirs is not None and ours is not None:
                        yield _Link(name, theirs, ours, False)


def _candidates(
    host: Group,
    guest: Group,
    space: tuple[Var, ...],
    links: Sequence[_Link],
    buffers: dict[str, Buffer],
) -> Iterator[Substitution]:
    """Bijections from the space to the guest's points, the likeliest first."""
    yield _row_major(host, guest, space)
    for link in links:
        if link.host is None or link.guest is None:
            continue
        size = buffers[link.buffer].layout.size
        partial = solve(link.guest, guest.outer + guest.inner, link.host, size)
        mapping = None if partial is None else _completed(partial, host, guest, space)
        if mapping is not None and _is_valid(mapping, host, guest, space):
            yield mapping


def _row_major(host: Group, guest: Group, space: tuple[Var, ...]) -> Substitution:
    if not guest.is_reduction:
        if extents(guest.outer) == extents(space):
            return _by_order(guest.outer, space)
        return row_major_mapping(guest.outer, space)
    mapping: Substitution = {}
    for theirs, ours in ((guest.outer, host.outer), (guest.inner, host.inner)):
        same = extents(theirs) == extents(ours)
        mapping |= _by_order(theirs, ours) if same else row_major_mapping(theirs, ours)
    return mapping


def _keeps_order(mapping: Substitution, host: Group, guest: Group) -> bool:
    """Whether what depends on the order of the guest's rows is the same in the host's."""
    if not any(keeps_order(member.node.kind) for member in guest.members):
        return True
    theirs = position([mapping[var] for var in guest.inner], [v.extent for v in guest.inner])
    return theirs is position([v.expr for v in host.inner], [v.extent for v in host.inner])


def _by_order(guest: Sequence[Var], host: Sequence[Var]) -> Substitution:
    values = iter([var.expr for var in host if var.expr.terms])
    return {var: next(values) if var.expr.terms else var.expr for var in guest}


def _completed(
    partial: Substitution, host: Group, guest: Group, space: tuple[Var, ...]
) -> Substitution | None:
    if not guest.is_reduction:
        return fill(partial, guest.outer, space)
    outer: Substitution = {var: partial[var] for var in guest.outer if var in partial}
    inner: Substitution = {var: partial[var] for var in guest.inner if var in partial}
    rows = fill(outer, guest.outer, host.outer)
    columns = fill(inner, guest.inner, host.inner)
    return None if rows is None or columns is None else rows | columns


def _is_valid(mapping: Substitution, host: Group, guest: Group, space: tuple[Var, ...]) -> bool:
    if not guest.is_reduction:
        return _covers(mapping, guest.outer, space)
    return _covers(mapping, guest.outer, host.outer) and _covers(mapping, guest.inner, host.inner)


def _covers(mapping: Substitution, guest: Sequence[Var], space: Sequence[Var]) -> bool:
    number = position([mapping[var] for var in guest], [var.extent for var in guest])
    return is_bijection(number, space)


def _first_clash(links: Sequence[_Link], mapping: Substitution, buffers: dict[str, Buffer]) -> str:
    for link in links:
        if link.required and not _meets(link, mapping, buffers):
            return link.buffer
    return ""


def _shared(
    links: Sequence[_Link], mapping: Substitution, buffers: dict[str, Buffer]
) -> tuple[str, ...]:
    met = [k.buffer for k in links if not k.required and _meets(k, mapping, buffers)]
    return tuple(dict.fromkeys(met))


def _meets(link: _Link, mapping: Substitution, buffers: dict[str, Buffer]) -> bool:
    if link.host is None or link.guest is None:
        return False
    moved = _substituted(link.guest, mapping)
    return same_place(moved, link.host, buffers[link.buffer].layout.size)
