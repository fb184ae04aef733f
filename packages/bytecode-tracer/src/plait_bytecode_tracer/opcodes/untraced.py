"""Opcodes without a handler: the trace breaks at them, or no traced code has them."""

_MODULE = "it is of module code, which is not traced"
_ASYNC = "it is of asynchronous generators, which are not traced"
_INTERPRETER = "it is the interpreter's own, and in no function"

UNTRACED: dict[str, str] = {
    "IMPORT_STAR": _MODULE,
    "PRINT_EXPR": _MODULE,
    "ASYNC_GEN_WRAP": _ASYNC,
    "CACHE": _INTERPRETER,
    "ENTER_EXECUTOR": _INTERPRETER,
    "EXIT_INIT_CHECK": _INTERPRETER,
    "INTERPRETER_EXIT": _INTERPRETER,
    "RESERVED": _INTERPRETER,
}
"""Why, for each such opcode of a supported Python."""

UNTRACED_INTRINSICS: dict[str, str] = {
    "INTRINSIC_1_INVALID": _INTERPRETER,
    "INTRINSIC_2_INVALID": _INTERPRETER,
    "INTRINSIC_PRINT": _MODULE,
    "INTRINSIC_IMPORT_STAR": _MODULE,
    "INTRINSIC_ASYNC_GEN_WRAP": _ASYNC,
}
"""The same for the intrinsics of 3.12 and newer."""
