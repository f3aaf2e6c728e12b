"""Training on unequal ranks: rows of the batch in uneven shares, gradients that meet in several ways."""

from __future__ import annotations

from wirewise.runtime.deployment.trainer import Around, Deployment

__all__ = ["Around", "Deployment"]
