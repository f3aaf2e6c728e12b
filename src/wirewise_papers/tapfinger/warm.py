"""Preloading of the jobs' compiled kernels at import, for ranks forked by a forkserver."""

from wirewise.runtime.full_graph import warm
from wirewise_papers.tapfinger import worker as tapfinger_worker

__all__ = ["tapfinger_worker"]

warm()
