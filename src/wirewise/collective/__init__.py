"""Collective algorithms as data: programs, their proof, bounds, builders and exporters."""

from wirewise.collective.check import Fault, check, faults
from wirewise.collective.network import Edge, Network, network
from wirewise.collective.program import Message, Program, Transfer, load, loads, save
from wirewise.collective.relations import COLLECTIVES, REDUCING, ROOTED, Collective

__all__ = [
    "COLLECTIVES",
    "REDUCING",
    "ROOTED",
    "Collective",
    "Edge",
    "Fault",
    "Message",
    "Network",
    "Program",
    "Transfer",
    "check",
    "faults",
    "load",
    "loads",
    "network",
    "save",
]
