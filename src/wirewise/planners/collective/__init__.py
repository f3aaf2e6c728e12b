"""Planners that make programs for collectives on a topology."""

from __future__ import annotations

from wirewise.planners.collective.problem import CollectiveProblem

__all__ = ["CollectiveProblem"]
