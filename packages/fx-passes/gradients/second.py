"""`gradgradcheck`: second derivatives of compiled operators against finite differences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.utils._pytree import tree_leaves

from gradients.operators import REFUSALS_OF_EAGER, Sample
from gradients.score import Outcome, Verdict
from gradients.ways import RefusedError, Way, compiled

OPERATORS = (
    *("add", "mul", "div", "sub", "pow", "exp", "log", "sin", "tanh", "sigmoid", "sqrt", "rsqrt"),
    *("erf", "atan2", "where", "clamp", "maximum", "softmax", "log_softmax", "logsumexp", "sum"),
    *("mean", "var", "std", "prod", "cumsum", "cumprod", "norm", "mm", "bmm", "matmul", "addmm"),
    *("einsum", "index_select", "gather", "scatter_add", "index_put", "cat", "stack", "tril"),
    *("nn.functional.linear", "nn.functional.gelu", "nn.functional.silu", "nn.functional.mish"),
    *("nn.functional.softplus", "nn.functional.layer_norm", "nn.functional.group_norm"),
    *("nn.functional.mse_loss", "nn.functional.cross_entropy", "nn.functional.conv2d"),
    *("nn.functional.avg_pool2d", "nn.functional.embedding", "nn.functional.interpolate"),
    *("linalg.inv", "linalg.solve", "linalg.cholesky", "linalg.det"),
)
"""What models are differentiated twice through: forces, penalties on gradients, meta-learning."""
LARGEST = 64
"""Elements of all inputs together, since each is moved on its own."""
STEP = 1e-6
"""By how much an input is moved."""
TOLERANCE = 1e-5
"""Of a finite difference of numbers near one."""


def check_second(sample: Sample, way: Way) -> Verdict:
    """The second derivatives of a small sample in float64."""
    leaves = sample.inputs()
    if sum(each.numel() for each in leaves) > LARGEST:
        return Verdict(sample.name, Outcome.NOTHING)
    refused = _wrong(sample.program, sample.inputs())
    if refused:
        return Verdict(sample.name, Outcome.EAGER_RAISES, refused)
    try:
        made = compiled(way, sample.program, leaves)
    except RefusedError as error:
        return Verdict(sample.name, Outcome.REFUSED, str(error))
    wrong = _wrong(made.run, leaves)
    if wrong:
        return Verdict(sample.name, Outcome.WRONG, wrong)
    left = made.left()
    return Verdict(sample.name, Outcome.EAGERLY if left else Outcome.EQUAL, left)


def _wrong(run: object, leaves: list[Tensor]) -> str:
    """What eager's own check says of the second derivatives; nothing where they are right."""

    def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        found = tree_leaves(run(*inputs))  # type: ignore[operator]  # a program
        return tuple(each for each in found if isinstance(each, Tensor) and each.requires_grad)

    try:
        tolerance = max(TOLERANCE, _noise(outputs(*leaves), leaves))
        gradgradcheck(outputs, leaves, eps=STEP, atol=tolerance)
    except REFUSALS_OF_EAGER as error:  # the check's own is one of them
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def _noise(outputs: tuple[Tensor, ...], leaves: list[Tensor]) -> float:
    """What rounding alone makes of a difference of first derivatives, over two steps.

    One of 3e5 has an ulp of 6e-11: with another rounding of it the difference is off by 3e-5.
    """
    total = sum((each.abs().sum() for each in outputs), torch.zeros((), dtype=torch.float64))
    if not total.requires_grad:
        return 0.0
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    largest = max(
        (float(each.abs().max()) for each in gradients if each is not None and each.numel()),
        default=0.0,
    )
    return largest * torch.finfo(torch.float64).eps / STEP
