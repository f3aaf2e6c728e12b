"""Training steps split over a mesh of ranks and into stages, as a parallel plan says."""

from __future__ import annotations

from wirewise.runtime.parallel.model import ParallelModel, parallelize
from wirewise.runtime.parallel.verify import verify

__all__ = ["ParallelModel", "parallelize", "verify"]
