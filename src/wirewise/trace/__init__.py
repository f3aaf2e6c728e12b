"""Traces of all ranks and the dataflow graph that they give."""

from wirewise.trace.align import align, violations
from wirewise.trace.clocks import ClockQuality, clock_quality
from wirewise.trace.dataflow import Dataflow, build, coarsen
from wirewise.trace.files import RankWriter, rank_file, read, read_rank, write_trace
from wirewise.trace.match import Match, match
from wirewise.trace.records import COLLECTIVES, KINDS, ClockFit, Header, Op, Probe, RankTrace, Trace
from wirewise.trace.sources import load, open_trace
from wirewise.trace.whole import whole

__all__ = [
    "COLLECTIVES",
    "KINDS",
    "ClockFit",
    "ClockQuality",
    "Dataflow",
    "Header",
    "Match",
    "Op",
    "Probe",
    "RankTrace",
    "RankWriter",
    "Trace",
    "align",
    "build",
    "clock_quality",
    "coarsen",
    "load",
    "match",
    "open_trace",
    "rank_file",
    "read",
    "read_rank",
    "violations",
    "whole",
    "write_trace",
]
