"""`python -m operators`: all operators in all dtypes against eager; exits 1 if any differ.

With `--sizes` each in three sizes through one program, with `--trained` that with gradients, with
`--errors` what eager refuses, with `--bits` the elementwise ones under `numerics="strict"`, bit by
bit, and with `--backend triton` by the kernels that a GPU would run, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pebble import ProcessExpired, ProcessFuture, ProcessPool

from operators import bits, bits_page, errors, judge, samples, sizes, trained, triton
from operators.score import Outcome, Verdict, report


def main() -> int:
    chosen = _parser().parse_args()
    started = time.monotonic()
    if chosen.way == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        # Triton reads it when it is imported, and torch's database has done that already.
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "operators", *sys.argv[1:]])
    torch.set_num_threads(1)
    samples.prepare()
    verdicts = []
    for verdict in _judged(chosen, started + chosen.minutes * 60):
        verdicts.append(verdict)
        if verdict.outcome in (Outcome.WRONG, Outcome.UNFINISHED):
            print(f"{verdict.case}: {verdict.detail[:200]}", file=sys.stderr, flush=True)
    right = report(f"operators {chosen.way}".strip(), verdicts, reasons=chosen.reasons)
    if chosen.page:
        chosen.page.write_text(bits_page.page(verdicts))
    if chosen.json:
        rows = sorted((v.operator, v.dtype, v.outcome.name, v.detail) for v in verdicts)
        chosen.json.write_text(json.dumps(rows))
    print(f"{time.monotonic() - started:.0f} s")
    return int(not right)


_AT_ONCE = ("errors", "bits")
"""What takes an operator in all its dtypes as one case."""


def _cases(chosen: argparse.Namespace) -> list[tuple[int, str]]:
    """The operators by their places in the database, each with the names of its dtypes."""
    index, count = (int(each) for each in chosen.part.split("/"))
    found = [
        (place, str(dtype).removeprefix("torch."))
        for place, op in enumerate(samples.operators(chosen.only))
        if chosen.way != "bits" or bits.is_elementwise(op)
        for dtype in ([torch.float32] if chosen.way in _AT_ONCE else samples.dtypes(op))
    ]
    wanted = [case for case in found if not chosen.dtype or case[1] in chosen.dtype]
    return wanted[index::count]


def _judged(chosen: argparse.Namespace, until: float) -> Iterator[Verdict]:
    """Each case in a process of a pool, which a crash or a hang does not end."""
    ops = list(samples.operators(chosen.only))
    context = multiprocessing.get_context("fork")
    with ProcessPool(chosen.jobs, max_tasks=50, context=context) as pool:
        waiting: list[tuple[int, str, ProcessFuture]] = []
        for place, kind in _cases(chosen):
            given = [chosen.only, place, kind, chosen.samples, chosen.way]
            waiting.append((place, kind, pool.schedule(_check, given, timeout=chosen.limit)))
        for place, kind, future in waiting:
            if time.monotonic() > until:
                future.cancel()
                continue
            yield from _results(samples.name_of(ops[place]), kind, future)


def _results(name: str, kind: str, future: ProcessFuture) -> list[Verdict]:
    try:
        found: list[Verdict] = future.result()
    except TimeoutError:
        return [Verdict(name, kind, Outcome.UNFINISHED, "took too long")]
    except ProcessExpired as error:
        return [Verdict(name, kind, Outcome.WRONG, f"died ({error.exitcode})")]
    except Exception as error:  # the session's own fault, but told with the others
        return [Verdict(name, kind, Outcome.WRONG, f"not judged: {type(error).__name__}: {error}")]
    return found


def _check(only: list[str] | None, place: int, kind: str, count: int, way: str) -> list[Verdict]:
    op, dtype = list(samples.operators(only))[place], getattr(torch, kind)
    if way == "errors":
        return errors.check(op)
    if way == "bits":
        return bits.check(op, count)
    return [_ONE_DTYPE[way].check(op, dtype, count)]


_ONE_DTYPE: dict[str, Any] = {"": judge, "sizes": sizes, "trained": trained, "triton": triton}
"""What takes an operator in each of its dtypes as a case of its own."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m operators", description=__doc__)
    parser.add_argument("--samples", type=int, default=5, help="of each operator and dtype")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--sizes",
        dest="way",
        action="store_const",
        const="sizes",
        default="",
        help="each sample in three sizes through one program",
    )
    ways.add_argument(
        "--trained",
        dest="way",
        action="store_const",
        const="trained",
        help="the same with gradients",
    )
    ways.add_argument(
        "--errors", dest="way", action="store_const", const="errors", help="what eager refuses"
    )
    ways.add_argument(
        "--bits", dest="way", action="store_const", const="bits", help="every bit is eager's"
    )
    ways.add_argument(
        "--backend",
        dest="way",
        choices=["triton"],
        help="lowered and scheduled as for a GPU, and run in Triton's interpreter",
    )
    parser.add_argument("--page", type=Path, help="write what --bits proves to this page")
    parser.add_argument("--only", action="append", help="one operator; all if none is named")
    parser.add_argument("--dtype", action="append", help="float32, ...; all if none is named")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one program")
    parser.add_argument("--minutes", type=float, default=1e6, help="for the whole session")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every N-th, from the I-th")
    parser.add_argument("--reasons", type=int, default=12, help="how many reasons to list")
    parser.add_argument("--json", type=Path, help="write all verdicts to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
