"""Run the cases of `cases.py` in a process of its own, compiled, and tell what happened as JSON."""

import contextlib
import json
import sys
import traceback

import torch

import plait
from plait_bytecode_tracer import compiled_function_of


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for item in value for each in flat(item)]


def run_steps(build):
    """The same for a function that is made twice, of equal states."""
    torch.manual_seed(0)
    function, steps = build()
    expected = steps(function)
    torch.manual_seed(0)
    function, steps = build()
    compiled = plait.compile(function, options={"warm_start": True})
    found = steps(compiled)
    return compiled, found, expected, None


def run(make):
    case = make()
    if hasattr(case, "build"):
        return told(*run_steps(case.build))
    function, arguments = case[:2]
    around = case[2] if len(case) > 2 else contextlib.nullcontext
    compiled = plait.compile(function, options={"warm_start": True})
    raised = None
    with around():
        try:
            expected = flat(function(*arguments))
        except Exception as error:
            expected, raised = [], type(error)
        try:
            found = flat(compiled(*arguments))
        except Exception as error:
            found, raised = [], None if type(error) is raised else type(error)
        else:
            again = flat(compiled(*arguments))
            found, expected = found + again, expected + expected
    return told(compiled, found, expected, raised)


def told(compiled, found, expected, raised):
    """What a case has shown, as JSON."""
    pairs = list(zip(found, expected, strict=False))
    same = len(found) == len(expected) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5)
        for a, b in pairs
    )
    seconds = compiled_function_of(compiled).profile.seconds()
    report = plait.report(compiled)
    assert str(report)
    return {
        "traced": "trace" in seconds,
        "loaded": "plait_bytecode_tracer.tracing" in sys.modules,
        "same": same and raised is None,
        "restored": any("was restored" in text for text in report.notices),
        "notices": list(report.notices),
    }


def main(module, names):
    cases = __import__(module)
    found = {}
    for name in names or [n for n in vars(cases) if n.startswith("case_")]:
        torch.manual_seed(0)
        try:
            found[name] = run(getattr(cases, name))
        except Exception:
            found[name] = {"failed": traceback.format_exc()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
