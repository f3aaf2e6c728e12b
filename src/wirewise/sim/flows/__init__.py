"""Tasks of mini-batch training on hosts with shared interfaces; every figure from here is simulated."""

from wirewise.sim.flows.core import FlowRun
from wirewise.sim.flows.graph import Graph, expand
from wirewise.sim.flows.rates import POLICIES
from wirewise.sim.flows.simulate import FlowSimulator, PlacementBounds

__all__ = [
    "POLICIES",
    "FlowRun",
    "FlowSimulator",
    "Graph",
    "PlacementBounds",
    "expand",
]
