"""What a compiled function did: graphs, breaks, guards, recompiles, kernels, seconds."""

from plait.reporting.model import CompileReport, GraphReport, report

__all__ = ["CompileReport", "GraphReport", "report"]
