"""Modes of halo exchange, as data.

Each published system is a combination of four choices: the bit width of a message, whether compute overlaps with
communication, the maximum age of received rows, and the fraction of the boundary that is sent at all. Weight gradients
are sent in one format in all modes, so that modes differ in their halo rows alone; its width is an argument of `mode`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from wirewise.errors import InputError

__all__ = ["GRADIENT_BITS", "MODES", "ExchangeMode", "mode"]

GRADIENT_BITS = 32
"""Bit width of weight gradients between the ranks, in all modes."""


@dataclass(frozen=True, kw_only=True)
class ExchangeMode:
    """Mode of halo exchange."""

    name: str
    bits: int | str = 32
    """A width for every message (32 fp32, 16 bf16, 8, 4, 2, 1), "random", or "planned"."""
    planner: str = "auto"
    """Planner of `planners.bitwidth` that decides planned bits."""
    overlap: bool = False
    """Whether to compute on own rows while messages are on the wire."""
    backward: str = "push"
    """"push": partial gradients of halo rows return to their owners. "pull": output gradients are sent and the
    owner sums them over the reversed graph (undirected graphs only)."""
    param_bytes: int = 6
    """Bytes of zero point and step per quantized row: 6 (fp32, bf16) or 4 (bf16, bf16)."""
    gradient_bits: int = GRADIENT_BITS
    """Width of weight gradients between the ranks: 32 as computed, 16 rounded to bfloat16."""
    stale: bool = False
    """Whether to use the rows of the previous epoch (zeros at first), which hides the whole exchange."""
    boundary_rate: float = 1.0
    """Fraction of each boundary list that is sent in an epoch, rescaled by its inverse."""
    skip_drift: float = 0.0
    """Maximum relative change, since it was last sent, of a boundary block that is not sent again."""
    skip_limit: int = 0
    """Maximum age of a skipped block, in epochs."""
    stochastic: bool = True
    """Whether rounding is stochastic; otherwise to nearest."""

    @property
    def traced(self) -> bool:
        """Whether value ranges of messages are recorded for a planner."""
        return self.bits == "planned"

    @property
    def shares_buffers(self) -> bool:
        """Whether the lanes of a layer share one set of buffers: rows of one size, none reused later."""
        return self.bits == 32 and not self.stale and self.skip_limit == 0


MODES: dict[str, ExchangeMode] = {
    "fp32": ExchangeMode(name="fp32"),
    "bf16": ExchangeMode(name="bf16", bits=16),
    "random": ExchangeMode(name="random", bits="random", overlap=True),
    "adaqp": ExchangeMode(name="adaqp", bits="planned", overlap=True),
    "adaqp-q": ExchangeMode(name="adaqp-q", bits="planned"),
    "adaqp-p": ExchangeMode(name="adaqp-p", overlap=True),
    "adaqp-paper": ExchangeMode(
        name="adaqp-paper", bits="planned", planner="paper", overlap=True, backward="pull", param_bytes=4
    ),
    "pipegcn": ExchangeMode(name="pipegcn", stale=True, overlap=True),
    "bns": ExchangeMode(name="bns", boundary_rate=0.1),
    "sancus": ExchangeMode(name="sancus", skip_drift=0.05, skip_limit=4),
}
"""Modes by name; `uniform-B` for B in 1, 2, 4, 8, 16, 32 is understood by `mode` as well."""


def mode(name: str, *, gradient_bits: int = GRADIENT_BITS) -> ExchangeMode:
    """Look a mode up by name.

    Args:
        name: A key of `MODES`, or `uniform-B`.
        gradient_bits: Bit width of weight gradients, 32 or 16.

    Raises:
        InputError: The mode or the width is unknown.
    """
    if gradient_bits not in (16, 32):
        raise InputError(f"gradients of {gradient_bits} bits; expected 32 (float32) or 16 (bfloat16)")
    if match := re.fullmatch(r"uniform-(1|2|4|8|16|32)", name):
        return ExchangeMode(name=name, bits=int(match[1]), overlap=True, gradient_bits=gradient_bits)
    if name not in MODES:
        known = ", ".join([*MODES, "uniform-8", "uniform-4", "uniform-2", "uniform-1"])
        raise InputError(f"unknown mode {name!r}; expected one of: {known}")
    return replace(MODES[name], gradient_bits=gradient_bits)
