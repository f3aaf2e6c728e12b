"""Compiled kernels of the jobs, loaded at import: ranks that a forkserver forks find them ready."""

from wirewise.recipes import tapfinger_worker
from wirewise.runtime.full_graph import warm

__all__ = ["tapfinger_worker"]

warm()
