"""Kernels of the gradient codecs: `reference` (torch, any device) defines them, `cpu` (numba) is fast."""
