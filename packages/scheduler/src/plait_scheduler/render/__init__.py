"""Programs as readable Python over torch, and running that."""

from plait_scheduler.render.host import KernelRenderer, load_python, render_python
from plait_scheduler.render.torch_kernel import RenderedKernel, torch_kernel

__all__ = ["KernelRenderer", "RenderedKernel", "load_python", "render_python", "torch_kernel"]
