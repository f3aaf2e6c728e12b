"""Ranks on hosts: fork them from a preloaded process, detect exits, signal, log, and clean up."""

from wirewise.hosts.folders import OwnedFolder
from wirewise.hosts.fork_server import ForkedProcess, ForkServer
from wirewise.hosts.ownership import ProcessIdentity, owner_is_gone, owner_tag
from wirewise.hosts.ports import free_port, listen
from wirewise.hosts.processes import children_of, die_with_parent, end_session, exit_at_once, is_computing
from wirewise.hosts.table import ProcessTable
from wirewise.hosts.variables import integer_variable, interface_variables, rank_variables

__all__ = [
    "ForkServer",
    "ForkedProcess",
    "OwnedFolder",
    "ProcessIdentity",
    "ProcessTable",
    "children_of",
    "die_with_parent",
    "end_session",
    "exit_at_once",
    "free_port",
    "integer_variable",
    "interface_variables",
    "is_computing",
    "listen",
    "owner_is_gone",
    "owner_tag",
    "rank_variables",
]
