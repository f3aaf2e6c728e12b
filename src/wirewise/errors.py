"""Errors raised for users, as one class hierarchy.

WirewiseError
├── InputError        a file, argument or tensor that is invalid
│   ├── GraphError    a graph, its features, its split or its partition
│   ├── TopologyError hosts, devices and links
│   └── TraceError    a trace, its clocks or its collectives
├── PlanError         a plan that does not fit its topology, group or problem
│   └── ProgramError  a collective algorithm that is malformed or incorrect
├── CodecError        a message that cannot be encoded or decoded
├── PeerError         a rank that is dead, hung or inconsistent
└── LabError          a lab that cannot be built, or lost a host

Every message says what was got, what was expected and what to do.
"""

from __future__ import annotations

__all__ = [
    "CodecError",
    "GraphError",
    "InputError",
    "LabError",
    "PeerError",
    "PlanError",
    "ProgramError",
    "TopologyError",
    "TraceError",
    "WirewiseError",
]


class WirewiseError(Exception):
    """Base class of all errors that wirewise raises on purpose."""


class InputError(WirewiseError):
    """Invalid file, argument or tensor."""


class GraphError(InputError):
    """Malformed graph, features, split or partition."""


class TopologyError(InputError):
    """Malformed description of hosts, devices and links."""


class TraceError(InputError):
    """Unreadable trace, or traces of ranks that do not fit each other."""


class PlanError(WirewiseError):
    """Plan that does not fit its topology, process group or problem."""


class ProgramError(PlanError):
    """Collective algorithm that is malformed, incorrect, or made for another group."""


class CodecError(WirewiseError):
    """Message that cannot be encoded or decoded."""


class PeerError(WirewiseError):
    """Rank that is dead, hung or inconsistent with the others."""


class LabError(WirewiseError):
    """Lab that cannot be built, or lost a host."""
