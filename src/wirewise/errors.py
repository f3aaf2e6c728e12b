"""Errors that a user can meet, as one tree.

WirewiseError
├── InputError        a file, argument or tensor that cannot be used as given
│   ├── GraphError    a graph, its features, its split or its partition
│   ├── TopologyError hosts, devices and links
│   └── TraceError    a trace, its clocks or its collectives
├── PlanError         a plan that does not fit its topology, group or problem
│   └── ProgramError  a collective algorithm that is malformed or does not do what it should
├── CodecError        a message that cannot be encoded or decoded
├── PeerError         a rank that died, fell silent or disagrees
└── LabError          the network laboratory cannot be built or lost a host

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
    """Base of every error that wirewise raises on purpose."""


class InputError(WirewiseError):
    """A file, argument or tensor cannot be used as given."""


class GraphError(InputError):
    """A graph, its features, its split or its partition is malformed."""


class TopologyError(InputError):
    """A description of hosts, devices and links is malformed."""


class TraceError(InputError):
    """A trace cannot be read, or the traces of the ranks do not fit each other."""


class PlanError(WirewiseError):
    """A plan does not fit its topology, process group or problem."""


class ProgramError(PlanError):
    """A collective algorithm is malformed, wrong, or made for another group."""


class CodecError(WirewiseError):
    """A message cannot be encoded or decoded."""


class PeerError(WirewiseError):
    """A rank died, fell silent or disagrees with the others."""


class LabError(WirewiseError):
    """The network laboratory cannot be built or lost a host."""
