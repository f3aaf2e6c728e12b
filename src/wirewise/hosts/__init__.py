"""Ranks on hosts: fork them from a preloaded process, notice their end, signal, log, leave nothing of them."""

from wirewise.hosts.folders import OwnedFolder
from wirewise.hosts.fork_server import ForkedProcess, ForkServer
from wirewise.hosts.ownership import OwnedName, owner_is_gone, owner_tag
from wirewise.hosts.ports import free_port, listen
from wirewise.hosts.processes import children_of, die_with_parent, end_session, is_computing
from wirewise.hosts.variables import integer_variable, rank_variables

__all__ = [
    "ForkServer",
    "ForkedProcess",
    "OwnedFolder",
    "OwnedName",
    "children_of",
    "die_with_parent",
    "end_session",
    "free_port",
    "integer_variable",
    "is_computing",
    "listen",
    "owner_is_gone",
    "owner_tag",
    "rank_variables",
]
