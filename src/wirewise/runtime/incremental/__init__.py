"""Learning the tasks of a growing graph one after another, with and without rehearsal of old nodes."""

from wirewise.graph.rehearsal.settings import DEFAULT_METHOD, METHODS, Method, Settings
from wirewise.runtime.incremental.graphs import Block, CurrentGraph
from wirewise.runtime.incremental.learners import Gcn, sample_losses
from wirewise.runtime.incremental.peers import Peers
from wirewise.runtime.incremental.training import learner_of, train

__all__ = [
    "DEFAULT_METHOD",
    "METHODS",
    "Block",
    "CurrentGraph",
    "Gcn",
    "Method",
    "Peers",
    "Settings",
    "learner_of",
    "sample_losses",
    "train",
]
