"""Hand-written attention in torch-level graphs, before gradients are recorded."""

from plait_fx_passes.attention.fusing import FusedAttention, fuse_attention

__all__ = ["FusedAttention", "fuse_attention"]
