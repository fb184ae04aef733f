"""What a trace assumed: guards as data, and what checks them."""

from plait_bytecode_tracer.guards.exact import (
    ABSENT,
    class_attribute,
    exact_key,
    same_constant,
    same_order,
)
from plait_bytecode_tracer.guards.explain import Failure, first_failure
from plait_bytecode_tracer.guards.guard import Guard, GuardSet
from plait_bytecode_tracer.guards.kinds import (
    Distinct,
    Kind,
    Mode,
    Range,
    Relation,
    StoragePattern,
    TensorFacts,
    TensorValue,
    array_format,
    plain_constant,
    storage_pattern,
    tensor_facts,
)
from plait_bytecode_tracer.guards.python import CheckWriter, python_check
from plait_bytecode_tracer.guards.reads import Reads
from plait_bytecode_tracer.guards.tree import GuardTree, Node, guard_tree

__all__ = [
    "ABSENT",
    "CheckWriter",
    "Distinct",
    "Failure",
    "Guard",
    "GuardSet",
    "GuardTree",
    "Kind",
    "Mode",
    "Node",
    "Range",
    "Reads",
    "Relation",
    "StoragePattern",
    "TensorFacts",
    "TensorValue",
    "array_format",
    "class_attribute",
    "exact_key",
    "first_failure",
    "guard_tree",
    "plain_constant",
    "python_check",
    "same_constant",
    "same_order",
    "storage_pattern",
    "tensor_facts",
]
