"""Execution of collective programs: own TCP transport, torch backend, DDP hook, and torch's point-to-point messages."""

from wirewise.runtime.collective.backend import ProcessGroup, group_of, register
from wirewise.runtime.collective.chunks import ChunkProbe, TunedChunks, tune_chunk_size
from wirewise.runtime.collective.ddp import ddp_hook
from wirewise.runtime.collective.group import CollectiveGroup, connect
from wirewise.runtime.collective.link import EdgeStatistics
from wirewise.runtime.collective.memory import REDUCTIONS, Blocks
from wirewise.runtime.collective.over_torch import run_over_torch
from wirewise.runtime.collective.watch import LinkMonitor, SlowLink
from wirewise.runtime.collective.work import Work

__all__ = [
    "REDUCTIONS",
    "Blocks",
    "ChunkProbe",
    "CollectiveGroup",
    "EdgeStatistics",
    "LinkMonitor",
    "ProcessGroup",
    "SlowLink",
    "TunedChunks",
    "Work",
    "connect",
    "ddp_hook",
    "group_of",
    "register",
    "run_over_torch",
    "tune_chunk_size",
]

register()
