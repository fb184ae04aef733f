"""Short-time Fourier transforms of signals whose lengths may be symbolic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """`torch.stft`: the transform of each window of a signal, a column each."""
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    one_side = not input.is_complex() if onesided is None else onesided
    is_complex = input.is_complex() or (window is not None and window.is_complex())
    numbers = (n_fft, hop, length)
    if not all(isinstance(each, int) for each in numbers) or input.dim() not in (1, 2):
        return NotImplemented
    if not (n_fft > 0 and hop > 0 and 0 < length <= n_fft) or align_to_window:
        return NotImplemented
    if window is not None and (window.dim() != 1 or window.shape[0] != length):
        return NotImplemented
    if (is_complex and one_side) or (return_complex is None and not is_complex):
        return NotImplemented
    if not (input.is_floating_point() or input.is_complex()):
        return NotImplemented
    signal = input.unsqueeze(0) if input.dim() == 1 else input
    pad = [n_fft // 2 if center else 0] * 2
    if not signal.shape[1] + 2 * pad[0] >= n_fft:
        return NotImplemented
    _warn(input, window, return_complex)
    if center:
        signal = torch.nn.functional.pad(signal.unsqueeze(0), pad, pad_mode).squeeze(0)
    frames = signal.unfold(1, n_fft, hop)
    weights = _weights(input, window, n_fft, length)
    if weights is not None:
        frames = frames.mul(weights)
    norm = 1 if normalized else 0
    if frames.is_complex():
        found = aten._fft_c2c(frames, [2], norm, True)
    else:
        found = aten._fft_r2c(frames, [2], norm, one_side)
    found = found.transpose(1, 2)
    found = found.squeeze(0) if input.dim() == 1 else found
    return torch.view_as_real(found) if return_complex is False else found


def _warn(x: Tensor, window: Tensor | None, return_complex: bool | None) -> None:
    """Let torch say of one window what it says once of the first call without one, or of parts."""
    if window is None or return_complex is False:
        one = None if window is None else window.new_ones([1])
        signal = x.new_ones([1])
        torch.stft(signal, 1, 1, window=one, center=False, return_complex=return_complex)


def _weights(x: Tensor, window: Tensor | None, count: int, length: int) -> Tensor | None:
    """The window in the middle of as many zeros as a transform has more elements."""
    if length == count:
        return window
    given = x.new_ones(length) if window is None else window
    left = (count - length) // 2
    return torch.nn.functional.pad(given, [left, count - length - left])
