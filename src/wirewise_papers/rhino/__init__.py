"""Rhino: automatic parallelization of a model over ranks."""
