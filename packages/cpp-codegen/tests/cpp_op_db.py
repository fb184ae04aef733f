"""Calls of functional ATen ops, as the samples of torch's operator database make them.

As a script it runs many of them from the C++ host against eager, and prints the score:
`python cpp_op_db.py [calls of each op] [samples of each operator]`.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Sequence

import torch
from cpp_calls import Call, Recorder, flat, native, run, same
from torch._ops import OpOverload

from plait_ir_lowering import from_torch_dtype

DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.complex64)
# Whose results, or parts of them, are memory that nothing was written to; or which have none.
UNDEFINED = {
    *("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted"),
    *("_ctc_loss", "_linalg_check_errors"),
}


def op_db_calls(per_op: int = 1, samples: int = 3) -> list[Call]:
    """Up to `per_op` calls of each overload, from the first samples of each operator."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

    common_utils.set_rng_seed = lambda *_: None  # before each sample, it takes longer than that
    found: dict[OpOverload, list[Call]] = {}
    warnings.simplefilter("ignore")
    for op in op_db:
        for dtype in DTYPES:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for number, sample in enumerate(op.sample_inputs("cpu", dtype)):
                if number == samples:
                    break
                with Recorder() as recorder, contextlib.suppress(Exception):
                    op(sample.input, *sample.args, **sample.kwargs)
                for made in recorder.calls:
                    if len(found.setdefault(made.op, [])) < per_op and _is_expressible(made):
                        found[made.op].append(made)
    return [made for calls in found.values() for made in calls]


def _is_expressible(made: Call) -> bool:
    """Whether the loop IR has the types, and the call gives defined results."""
    if made.op._schema.name.split("::")[1] in UNDEFINED:
        return False
    values = [*flat((made.args, made.kwargs)), *made()]
    try:
        for value in values:
            if isinstance(value, torch.Tensor):
                from_torch_dtype(value.dtype)
            elif isinstance(value, torch.dtype):
                from_torch_dtype(value)
    except KeyError:
        return False
    return True


def mismatches(calls: Sequence[Call], at_once: int = 40) -> list[str]:
    """What differs from eager, where `at_once` calls are one program."""
    wrong = []
    for start in range(0, len(calls), at_once):
        chunk = calls[start : start + at_once]
        torch.manual_seed(0)
        expected = [made() for made in chunk]
        executable = native(chunk, expected)
        torch.manual_seed(0)
        actual = iter(run(executable, chunk))
        for made, results in zip(chunk, expected, strict=True):
            for result in results:
                try:
                    if result is not None:
                        same(next(actual), result)
                except AssertionError as error:
                    wrong.append(f"{made.op}: {error}")
    return wrong


if __name__ == "__main__":
    many = op_db_calls(*map(int, sys.argv[1:3]))
    differing = mismatches(many)
    print("\n".join(differing))
    overloads = len({made.op for made in many})
    print(f"{len(many)} calls of {overloads} overloads, {len(differing)} results differ from eager")
    sys.exit(bool(differing))
