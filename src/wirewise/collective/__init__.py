"""Collective algorithms as data: programs, correctness proofs, lower bounds, builders and exporters."""

from typing import Any

from wirewise.collective.builders import BUILDERS, PLAIN, algorithms, build
from wirewise.collective.check import Fault, check, faults
from wirewise.collective.named import named_program
from wirewise.collective.network import Edge, Network, network
from wirewise.collective.program import Message, Program, Transfer, load, loads, save
from wirewise.collective.relations import COLLECTIVES, REDUCING, ROOTED, Collective

__all__ = [
    "BUILDERS",
    "COLLECTIVES",
    "PLAIN",
    "REDUCING",
    "ROOTED",
    "Collective",
    "Edge",
    "Fault",
    "Message",
    "Network",
    "Program",
    "Transfer",
    "algorithms",
    "bound",
    "build",
    "check",
    "faults",
    "load",
    "loads",
    "named_program",
    "network",
    "save",
]


def __getattr__(name: str) -> Any:
    # Needs numba, which takes a second to import.
    if name == "bound":
        from wirewise.collective.bounds import bound

        return bound
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
