"""Operators that are torch's own with gradients on: below autograd they tell a backward what these
tell it only so."""

from __future__ import annotations

TORCHS_OWN = {"plait_fx_passes::mkldnn_rnn_layer": "aten::mkldnn_rnn_layer"}
"""By their names those that they call: a host that does so with gradients on needs no Python."""
