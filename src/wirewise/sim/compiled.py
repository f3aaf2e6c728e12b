"""Compilation settings of the simulator's inner functions."""

from __future__ import annotations

from wirewise.jit import njit

__all__ = ["inner", "outer"]

outer = njit()
"""Decorator of functions that allocate arrays or are called from Python."""

inner = njit(_nrt=False)
"""Decorator of functions that only use arrays of their caller.

They count no references: their arguments are bundles of some thirty arrays, and counting each of them at each
call took 3 to 7 times as long as the simulation.
"""
