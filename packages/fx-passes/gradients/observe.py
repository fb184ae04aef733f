"""What a caller can see of a call and of the gradients of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Gradients = tuple[Tensor | None, ...]
Kind = tuple[bool, bool, tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Seen:
    """One call: what each tensor is, its values, gradients and gradients of these."""

    kinds: tuple[Kind, ...]
    values: tuple[Tensor, ...]
    first: Gradients
    second: Gradients


def weighted(tensors: Sequence[Tensor]) -> Tensor:
    """A number that depends on each element of each tensor in its own way."""
    total = torch.zeros((), dtype=tensors[0].dtype.to_real() if tensors else torch.float64)
    for tensor in tensors:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        weights = torch.arange(1, real.numel() + 1, dtype=real.dtype).view(real.shape) / 8
        total = total + (real * weights * real + real.sin()).sum()
    return total


def observe(
    run: Callable[..., object], leaves: Sequence[Tensor], inputs: Sequence[Tensor], *, twice: bool
) -> Seen:
    """Call, differentiate what is returned or was changed, and once more if `twice`."""
    wanted = [each for each in leaves if each.requires_grad]
    torch.manual_seed(1)
    outputs = [each for each in tree_leaves(run(*inputs)) if isinstance(each, Tensor)]
    tensors = (*inputs, *outputs)
    kinds = tuple((t.requires_grad, t.is_leaf, tuple(t.shape), _steps(t)) for t in tensors)
    values = tuple(each.detach().clone() for each in tensors)
    differentiable = [t for t in (*outputs, *inputs) if t.requires_grad and not t.is_leaf]
    torch.manual_seed(2)
    first = _gradients(differentiable, wanted, create_graph=twice)
    again = [each for each in first if each is not None and each.requires_grad] if twice else []
    return Seen(kinds, values, first, _gradients(again, wanted))


def observe_backwards(
    run: Callable[..., object], leaves: Sequence[Tensor], inputs: Sequence[Tensor], kind: str
) -> Seen:
    """Call, and go backward several times, as `kind` says (`wider.BACKWARDS`).

    The second gradients are those of the later backwards; one that raises gives none, and its
    words are among the kinds.
    """
    wanted = [each for each in leaves if each.requires_grad]
    torch.manual_seed(1)
    outputs = [each for each in tree_leaves(run(*inputs)) if isinstance(each, Tensor)]
    tensors = (*inputs, *outputs)
    kinds = tuple((t.requires_grad, t.is_leaf, tuple(t.shape), _steps(t)) for t in tensors)
    values = tuple(each.detach().clone() for each in tensors)
    ends = [t for t in (*outputs, *inputs) if t.requires_grad and not t.is_leaf]
    if not ends or not wanted:
        return Seen(kinds, values, (), ())
    if kind == "changed between":
        with torch.no_grad():
            inputs[0].mul_(0.5)
    if kind == "accumulated":
        torch.autograd.backward(weighted(ends), inputs=wanted, retain_graph=True)
        torch.autograd.backward([weighted(ends[:1])], inputs=wanted[:1])
        return Seen(kinds, values, tuple(each.grad for each in wanted), ())
    if kind == "by results":  # which others may be computed from
        loss = weighted(ends[-1:])
        between = _grad(loss, list(dict.fromkeys(ends[:-1])) or wanted, retain_graph=True)
        return Seen(kinds, values, between, _grad(loss, [*ends[:-1], *wanted]))
    if kind == "hooked":
        came: list[Tensor] = []
        for end in ends[:2]:
            end.register_hook(lambda given: came.append(given.clone()) or given * 2)
        first = _grad(weighted(ends), wanted)
        return Seen(kinds, values, first, tuple(sorted(came, key=_rank)))
    if kind == "one by one":
        parts = [
            _gradients([end], wanted, retain_graph=number + 1 < len(ends))
            for number, end in enumerate(ends)
        ]
        return Seen(kinds, values, parts[0], tuple(g for part in parts[1:] for g in part))
    loss = weighted(ends)
    first = _grad(loss, wanted, retain_graph=kind == "retained")
    try:
        again = _grad(loss, wanted[:1])
    except RuntimeError as error:
        if "a second time" not in str(error):
            raise
        return Seen((*kinds, (False, False, (), (-1,))), values, first, ())
    return Seen(kinds, values, first, again)


def _rank(tensor: Tensor) -> tuple[tuple[int, ...], float]:
    """Orders tensors by what they are, also where they hold NaN."""
    return tuple(tensor.shape), tensor.nan_to_num().sum().item()


def _grad(loss: Tensor, wanted: Sequence[Tensor], **options: bool) -> Gradients:
    return tuple(torch.autograd.grad(loss, wanted, allow_unused=True, **options))


def _steps(tensor: Tensor) -> tuple[int, ...]:
    """The strides; where a size of one would have its next element is nobody's concern."""
    if not tensor.numel():
        return ()
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(step if size > 1 else 0 for size, step in sizes)


def _gradients(tensors: Sequence[Tensor], wanted: list[Tensor], **options: bool) -> Gradients:
    if not wanted or not tensors:
        return ()
    return torch.autograd.grad(weighted(tensors), wanted, allow_unused=True, **options)


def difference(got: Seen, wanted: Seen, tolerance: float) -> str | None:
    """What differs first, in words; a second gradient of zeros may be given for none."""
    if got.kinds != wanted.kinds:
        return f"kinds of tensors {got.kinds}, in eager {wanted.kinds}"
    for name in ("values", "first", "second"):
        theirs, ours = getattr(wanted, name), getattr(got, name)
        if name == "second":
            theirs, ours = _filled(theirs, ours), _filled(ours, theirs)
        try:
            torch.testing.assert_close(
                ours, theirs,
                rtol=tolerance, atol=tolerance, equal_nan=True,
            )  # fmt: skip
        except (AssertionError, ValueError) as error:
            return f"{name}: {' '.join(str(error).split())[:300]}"
    return None


def _filled(some: Gradients, others: Gradients) -> Gradients:
    """Zeros where only the others have a gradient."""
    if not some:
        return tuple(None if each is None else torch.zeros_like(each) for each in others)
    return tuple(
        torch.zeros_like(other) if each is None and other is not None else each
        for each, other in zip(some, others, strict=True)
    )
