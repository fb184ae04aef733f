"""From torch.fx graphs to functional ATen graphs, and the passes that improve them."""

from plait_fx_passes._version import __version__

__all__ = ["__version__"]
