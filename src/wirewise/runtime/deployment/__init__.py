"""Training on unequal ranks: batch rows in uneven shards, gradients exchanged by several schemes."""

from __future__ import annotations

from wirewise.runtime.deployment.trainer import Around, Deployment

__all__ = ["Around", "Deployment"]
