"""What autograd does with the gradient of a leaf, as functions that a graph calls.

`backward()` makes a gradient the leaf's `grad`, or adds it to the one that is there. The graph
computes the gradients with `torch.autograd.grad`; these functions keep the layout that autograd
would give them: that of the leaf, where the leaf has no gaps.
"""

from __future__ import annotations

import torch


def first_gradient(gradient: torch.Tensor, leaf: torch.Tensor, is_shared: bool) -> torch.Tensor:
    """What becomes the `grad` of a leaf that has none.

    Args:
        gradient: of the leaf, with its shape, dtype and device; dense.
        leaf: the tensor whose `grad` it becomes.
        is_shared: whether others hold this gradient, so that it is copied.

    Returns:
        The gradient itself where nobody else holds it and it lies in memory as the leaf does;
        else a copy that does.
    """
    is_dense = _has_no_gaps(leaf)
    if not is_shared and _lies_right(gradient, leaf, is_dense):
        # A view of what was passed to the backward, taken without gradients, would refuse writes.
        return gradient.detach() if gradient._is_view() else gradient
    if not is_dense:
        return gradient.clone(memory_format=torch.contiguous_format)
    made = gradient.new_empty_strided(leaf.size(), leaf.stride())
    return made.copy_(gradient)


def warn_of_cycle() -> None:
    """Let autograd warn, if it has not, that a gradient with a graph and its leaf hold each other:
    by a pass of its own, over nothing."""
    leaf = torch.zeros(0, requires_grad=True)
    with torch.enable_grad():
        torch.autograd.backward([leaf * 2], [torch.zeros(0)], create_graph=True)


def _lies_right(gradient: torch.Tensor, leaf: torch.Tensor, is_dense: bool) -> bool:
    if not is_dense:
        return gradient.is_contiguous()
    steps = zip(gradient.shape, gradient.stride(), leaf.stride(), strict=True)
    return all(size == 1 or step == wanted for size, step, wanted in steps)


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory, each once: ATen's non-overlapping and dense."""
    if tensor.is_contiguous():
        return True
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    expected = 1
    for step, size in sorted(pair for pair in pairs if pair[1] != 1):
        if step != expected:
            return False
        expected = step * size
    return True
