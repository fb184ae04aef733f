"""Writes docs/operators.md from the packages' own tables: every operator, and how it compiles.

python docs/operators.py          # write the page
python docs/operators.py --check  # fail if it is not what it would be

Listed are the functional overloads of torch's core operators and of all operators in its database
of tests. Overloads that write to an argument are recorded as the functional ones.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._ops import OpOverload
from torch.testing._internal.common_methods_invocations import op_db

from plait_fx_passes import default_decompositions
from plait_fx_passes.record.rules import composite_rules
from plait_ir_lowering import coverage

PAGE = Path(__file__).parent / "operators.md"
HEAD = """# Operators

How each ATen operator compiles, by the packages' own tables. Rules may decline a call, for its
element types or arguments: it then is an external call, which `plait.report` names. What no table
knows is called as torch ships it.

`python -m operators` in `packages/ir-lowering` runs all operators of torch's database in every
element type.

Loops compute with floats, integers and bools, with bfloat16 and float16 in float32, and, on a CPU,
with complex64 and complex128 by real and imaginary parts. They read, convert and write
float8_e4m3fn and float8_e5m2. A graph with complex32 or another float of 8 bits runs as captured,
which the report says.

"""
SECTIONS = {
    "loops": "Lowered to loops by a rule.",
    "view": "The same memory at other coordinates; no work.",
    "decomposition": "Taken apart into other operators by plait, each of which compiles by itself.",
    "composite": "Taken apart by torch itself, before anything is recorded.",
    "copied view": "Views without a rule: the operator that copies what they show is called.",
    "external call": "Called as torch ships it, in the program's memory where it takes results.",
    "depends on data": "How large the result is depends on data: called as torch ships it, between "
    "compiled parts of the graph. Where the result is a Python number, the graph breaks there.",
    "refused": "Results that are no dense tensors, or memory that is not known: as plain PyTorch.",
}

REGISTERED = frozenset(
    name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")
)


def names() -> set[str]:
    """The operators that are listed, without overloads."""
    core = {
        name.removeprefix("aten::").partition(".")[0]
        for name in REGISTERED
        if torch.Tag.core in found(name.removeprefix("aten::")).tags
    }
    return core | {op.aten_name for op in op_db if hasattr(torch.ops.aten, op.aten_name)}


def found(name: str) -> OpOverload:
    """The overload of a name such as `add.Tensor`."""
    packet, _, overload = name.partition(".")
    made = getattr(getattr(torch.ops.aten, packet), overload or "default")
    assert isinstance(made, OpOverload)
    return made


def overloads() -> Iterator[OpOverload]:
    """All that are listed, by name."""
    for name in sorted(names()):
        packet = getattr(torch.ops.aten, name)
        for overload in sorted(packet.overloads()):
            op = getattr(packet, overload)
            parts = [*op._schema.arguments, *op._schema.returns]
            is_of_tensors = any("Tensor" in str(each.type) for each in parts)
            is_listed = op.name() in REGISTERED and "Dimname" not in str(op._schema)
            if is_listed and is_of_tensors and not op._schema.is_mutable:
                yield op


def kinds() -> dict[OpOverload, str]:
    """How each overload compiles."""
    own = [each for each in coverage() if each[0].startswith("aten.")]
    rules = {found(name.removeprefix("aten.")): kind for name, kind in own}
    apart = {**composite_rules(), **default_decompositions()}
    return {op: kind(op, rules.get(op), op in apart) for op in overloads()}


def kind(op: OpOverload, rule: str | None, is_apart: bool) -> str:
    """How one overload compiles: the name of a section, with a remark after a colon."""
    if is_apart:
        return "decomposition"
    if rule is not None:
        return rule if rule in SECTIONS else f"external call: {rule}"
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return "composite"
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    returns = [str(each.type) for each in op._schema.returns]
    if tags & set(op.tags) or any(each in ("int", "float", "bool", "number") for each in returns):
        return "depends on data"
    if any("Tensor" not in each for each in returns) or not returns:
        return "refused"
    if any(argument.alias_info is not None for argument in op._schema.arguments):
        copying = getattr(torch.ops.aten, f"{op._schema.name.removeprefix('aten::')}_copy", None)
        has = copying is not None and op._overloadname in copying.overloads()
        return "copied view" if has else "refused"
    return "external call"


def page() -> str:
    """The text of the page."""
    sections: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    remarks: dict[str, str] = {}
    for op, how in kinds().items():
        section, _, remark = how.partition(": ")
        packet = op._schema.name.removeprefix("aten::")
        sections[section][packet].append(op._overloadname)
        if remark:
            remarks[packet] = remark.removeprefix("external call").lstrip(", ")
    count = {name: sum(map(len, sections[name].values())) for name in SECTIONS}
    rows = "\n".join(
        f"| [{name}](#{name.replace(' ', '-')}) | {count[name]} | {text} |"
        for name, text in SECTIONS.items()
        if count[name]
    )
    parts = [f"{HEAD}| how | overloads | |\n|---|---|---|\n{rows}\n"]
    for name in (name for name in SECTIONS if count[name]):
        parts.append(f"## {name}\n\n{_listed(sections[name], remarks)}\n")
    return "\n".join(parts)


def _listed(packets: dict[str, list[str]], remarks: dict[str, str]) -> str:
    lines = []
    for packet, names in packets.items():
        told = ", ".join(f"`.{each}`" for each in names if each != "default")
        remark = remarks.get(packet)
        lines.append(
            f"- `{packet}`" + (f" ({told})" if told else "") + (f": {remark}" if remark else "")
        )
    return "\n".join(lines)


def main() -> int:
    """Write or check the page; an exit status."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text() != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
