"""Benchmarks of plait against eager PyTorch and torch.compile: `python -m benchmarks`."""
