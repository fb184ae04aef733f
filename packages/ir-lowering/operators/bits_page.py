"""Writes docs/numerics.md: in which dtypes which operator is loops under `numerics="strict"`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from operators.score import Outcome, Verdict

HEAD = """# Numerics

## By default

Kernels compute functions such as `exp`, `tanh` and `erf` by approximations of their own, let a
product and the sum that takes it round once, and order sums as is fast: results differ from eager's
by rounding. The README of cpp-codegen has a table of the errors. Integers, bools, comparisons,
special values and the promotion of dtypes are eager's.

### Chains of bfloat16 and float16

Operators on bfloat16 and float16 compute in float32, in eager and in plait. Eager rounds after
each. Inside a kernel plait does not: a chain of elementwise operators is computed in float32 from
load to store, and so are the sums that end it. That is faster and nearer to float64; what would
overflow float16 half-way does not. Rounded are

- results, what is written to inputs, what is saved for a backward, what other kernels and torch's
  own operators read: what is in memory has its dtype, and its kernel goes on with the number that
  it stored. So the compensation of `t = p + y; c = (t - p) - y; p.copy_(t)` is what `p` lacks;
- what an operator compares, indexes with, takes the whole part or the root or the logarithm of,
  or raises something to: what is not continuous, or not defined everywhere, is asked of the
  rounded number;
- what the program casts itself, with `.to()` or `.float()`;
- what `maximum`, `clamp` or `amax` takes, if something else reads it too: `x.amax() - x` is never
  negative.

`plait.report` says how many values stay in float32, and `"scheduler.keep_wide": False` among the
options rounds all of them.

## Random numbers

A compiled program draws the numbers that eager draws under the same seed, by eager's own operators.
On a CPU these draw one number after another, which may take most of the time of a dropout.

```python
fast = plait.compile(model, options={"random": "counter"})
```

draws them by a counter-based generator (Philox-2x32-10) instead: each operator draws a key of 64
bits from torch's generator of its device, and loops compute the rest where it is needed. So
`torch.manual_seed` makes a program repeat itself; its numbers are other than eager's, of the same
distributions, and the same on every device, for every number of threads, and in a backward that
computes them again. A dropout of a million numbers took 2.4 ms so on one thread, eager's 15.
Operators with a generator of their own, permutations, and draws from weights stay eager's.

## `numerics="strict"`

```python
fast = plait.compile(model, numerics="strict")
```

Results are eager's to the last bit, for every input, wherever eager's own are the same at each
run with as many threads; a NaN is a NaN, whichever bits it has. Only what loops compute so
becomes loops. All else is called as torch ships it, on tensors with eager's strides:
exponentials, roots and their like, sums of floats, matrix products, convolutions, normalisations,
what eager computes with products and sums that round once (`lerp`, `addcmul`, `add` with an
`alpha`), and the larger or smaller of floats, of which eager's vectors and what is left of them
choose 0.0 and -0.0 differently. Operators are not taken apart and images stay as they lie. So a
strict program has more calls and less fusion than others. Gradients are eager's too, from eager's
own formulas. Exempt are the fused optimizers (`fused=True`), which are arithmetic on each parameter
in plait and a kernel of its own in eager.

## What is loops

By `python -m operators --bits` in `packages/ir-lowering`, which compiles each elementwise operator
of torch's database under `numerics="strict"`, in every dtype, and compares all bits with eager's:
on the database's samples, and, in rows and with strides, on all numbers of 16 bits, and on
thousands of special values and random bit patterns of the others. No bit differed.

"""


def page(verdicts: Sequence[Verdict]) -> str:
    """The text of the page. Raises ValueError where a verdict is no proof."""
    found: dict[str, dict[Outcome, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in verdicts:
        if each.outcome in (Outcome.WRONG, Outcome.UNFINISHED):
            raise ValueError(f"{each.case} is not eager's: {each.detail}")
        found[each.operator][each.outcome].append(each.dtype)
    lines = ["| operator | loops | torch's own kernel | runs as captured |", "|---|---|---|---|"]
    for operator, kinds in sorted(found.items()):
        whole = {dtype for dtypes in kinds.values() for dtype in dtypes}
        columns = (Outcome.LOOPS, Outcome.EXTERNAL, Outcome.EAGERLY)
        cells = [_listed(kinds[kind], whole) for kind in columns]
        lines.append(f"| `{operator}` | {' | '.join(cells)} |")
    return HEAD + "\n".join(lines) + "\n"


_GROUPS = {
    "floats": {"bfloat16", "float16", "float32", "float64"},
    "integers": {"int8", "int16", "int32", "int64", "uint8"},
    "complex": {"complex64", "complex128"},
}


def _listed(dtypes: Sequence[str], whole: set[str]) -> str:
    """The dtypes, by the names of groups that are all among them."""
    left = set(dtypes)
    if left == whole:
        return "all"
    words = []
    for name, group in _GROUPS.items():
        if group <= left:
            words.append(name)
            left -= group
    return ", ".join([*words, *sorted(left)])
