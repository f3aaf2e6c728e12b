"""Planners that choose the buckets of gradients, and what else changes a step of data-parallel training."""

from __future__ import annotations

from wirewise.planners.fusion.faces import PLANNERS, step_model
from wirewise.planners.fusion.memory import peak_bytes
from wirewise.planners.fusion.moves import PASSES
from wirewise.planners.fusion.problem import FusionProblem, from_flows, from_trace, read_gradients
from wirewise.planners.fusion.score import Scorer
from wirewise.sim.modules import Decision
from wirewise.sim.recorded import MemorySizes, with_memory
from wirewise.trace.modules import BucketSpan, Module

__all__ = [
    "PASSES",
    "PLANNERS",
    "BucketSpan",
    "Decision",
    "FusionProblem",
    "MemorySizes",
    "Module",
    "Scorer",
    "cupcake",
    "ddp",
    "disco",
    "dpro",
    "exhaustive",
    "from_flows",
    "from_trace",
    "mcmc",
    "peak_bytes",
    "read_gradients",
    "rules",
    "step_model",
    "with_memory",
]

# The functions stand before the modules of the same names, which keep what else there is of each.
dpro, mcmc, exhaustive = PLANNERS["dpro"], PLANNERS["mcmc"], PLANNERS["exhaustive"]
rules, ddp = PLANNERS["rules"], PLANNERS["ddp"]
cupcake, disco = PLANNERS["cupcake"], PLANNERS["disco"]
