"""Tasks of mini-batch training on hosts whose interfaces their flows share; every figure from here is simulated."""

from wirewise.sim.flows.core import FlowRun
from wirewise.sim.flows.generate import random_tasks
from wirewise.sim.flows.graph import Graph, expand
from wirewise.sim.flows.rates import POLICIES
from wirewise.sim.flows.simulate import Bounds, FlowSimulator, simulate_placement
from wirewise.sim.flows.tasks import ROUTES, Flow, Task, TaskSet, read_tasks, write_tasks

__all__ = [
    "POLICIES",
    "ROUTES",
    "Bounds",
    "Flow",
    "FlowRun",
    "FlowSimulator",
    "Graph",
    "Task",
    "TaskSet",
    "expand",
    "random_tasks",
    "read_tasks",
    "simulate_placement",
    "write_tasks",
]
