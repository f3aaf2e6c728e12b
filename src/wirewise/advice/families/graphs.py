"""Candidates of full-graph training: modes in which rows of neighbours travel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wirewise.advice.lines import graph_lines
from wirewise.advice.records import Candidate
from wirewise.sim.rewrite import scale_messages
from wirewise.sim.whatif import Change
from wirewise.trace.records import Trace

if TYPE_CHECKING:
    from wirewise.advice.families.replayed import ReplayedJob

__all__ = ["mode_of", "modes"]

_EXACT = 32
_NARROWER = {"bf16": 16, "uniform-8": 8}
"""Modes of fewer bits, whose bytes are known before the first epoch."""
_ROUNDED = "rows of neighbours are rounded, to {}: compare the loss"


def mode_of(trace: Trace) -> str:
    """Mode in which rows of a graph travelled; empty if no graph was trained."""
    return trace.ranks[0].header.environment.get("graph_mode", "")


def modes(job: ReplayedJob) -> list[Candidate] | str:
    """Candidates of `integrations.pyg.Job(mode=...)`, or the reason why there is none."""
    mode = mode_of(job.trace)
    if not mode:
        return "no exchange of rows of a graph was recorded"
    bits = job.trace.ranks[0].header.environment.get("graph_bits", "")
    if "," in mode or "," in bits:
        return f"graphs in several modes were trained ({mode}), of whose messages none is known apart"
    if not bits.isdecimal() or mode in ("pipegcn", "bns", "sancus"):
        return f"rows travel in the mode {mode!r}, which decides bits or rows by itself"
    if int(bits) > _EXACT:
        return f"rows of {bits} bits travel whole in every mode"
    found = [_narrower(job, name, width, int(bits)) for name, width in _NARROWER.items() if width < int(bits)]
    if int(bits) == _EXACT:
        if mode == "fp32":
            note = "own rows are computed while others travel; a replay cannot split the computation"
            found.append(_unpredicted("adaqp-p", note))
        note = "bits of each message follow from measured links and rows"
        found.append(_unpredicted("adaqp", note, _ROUNDED.format("2 to 8 bits each")))
    return found or f"rows travel in {bits} bits already"


def _narrower(job: ReplayedJob, name: str, width: int, now: int) -> Candidate:
    factor = width / now
    change = Change(name, lambda setting: replace(setting, dataflow=scale_messages(setting.dataflow, factor)))
    return job.candidate(
        "graph",
        name,
        [change],
        lines=graph_lines(name),
        risk=_ROUNDED.format(f"{width} bits"),
        note=f"messages of {factor:.2g} times the bytes; time to encode is not counted",
        arguments={"graph_mode": name},
    )


def _unpredicted(name: str, note: str, risk: str = "") -> Candidate:
    return Candidate(
        family="graph",
        planner=name,
        predicted_step_s=None,
        lines=graph_lines(name),
        note=note,
        risk=risk,
        arguments={"graph_mode": name},
    )
