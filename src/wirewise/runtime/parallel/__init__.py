"""Training steps split over a mesh of ranks and into stages under a parallel plan."""

from __future__ import annotations

from wirewise.runtime.parallel.checkpoints import checkpointable
from wirewise.runtime.parallel.gradients import GradScaler
from wirewise.runtime.parallel.model import ParallelModel, parallelize
from wirewise.runtime.parallel.verify import verify

__all__ = ["GradScaler", "ParallelModel", "checkpointable", "parallelize", "verify"]
