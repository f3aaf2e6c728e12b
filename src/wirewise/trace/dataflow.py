"""The global dataflow graph of one step."""

from __future__ import annotations

from wirewise.trace.arrays import Dataflow
from wirewise.trace.records import COLLECTIVES, KINDS

__all__ = ["COLLECTIVES", "KINDS", "Dataflow"]
