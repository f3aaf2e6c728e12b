"""Full-graph training over parts: halo exchange under any convolution, quantized, overlapped, checkpointed."""

from wirewise.memory import (
    ALL_KEPT,
    KEPT_BYTES,
    available_bytes,
    keep_freed_memory,
    peak_resident_bytes,
    resident_bytes,
)
from wirewise.runtime.full_graph import checkpoint
from wirewise.runtime.full_graph.bits import BitController
from wirewise.runtime.full_graph.clock import PHASES, PhaseClock
from wirewise.runtime.full_graph.exchange import HaloExchange, Ticket
from wirewise.runtime.full_graph.lane import Lane, check_tables
from wirewise.runtime.full_graph.layers import CONVOLUTIONS, FullGraphNet, GraphConvolution
from wirewise.runtime.full_graph.local import LocalGraph, PartTensors
from wirewise.runtime.full_graph.memory_model import MemoryTerms, memory_terms
from wirewise.runtime.full_graph.modes import GRADIENT_BITS, MODES, ExchangeMode, mode
from wirewise.runtime.full_graph.neighbourhood import Neighbourhood
from wirewise.runtime.full_graph.trainer import Trainer, TrainerOptions, gradient_reducer
from wirewise.runtime.full_graph.turns import ModeRun, train_interleaved
from wirewise.runtime.full_graph.warm import warm
from wirewise.runtime.transport import Transport

__all__ = [
    "ALL_KEPT",
    "CONVOLUTIONS",
    "GRADIENT_BITS",
    "KEPT_BYTES",
    "MODES",
    "PHASES",
    "BitController",
    "ExchangeMode",
    "FullGraphNet",
    "GraphConvolution",
    "HaloExchange",
    "Lane",
    "LocalGraph",
    "MemoryTerms",
    "ModeRun",
    "Neighbourhood",
    "PartTensors",
    "PhaseClock",
    "Ticket",
    "Trainer",
    "TrainerOptions",
    "Transport",
    "available_bytes",
    "check_tables",
    "checkpoint",
    "gradient_reducer",
    "keep_freed_memory",
    "memory_terms",
    "mode",
    "peak_resident_bytes",
    "resident_bytes",
    "train_interleaved",
    "warm",
]
