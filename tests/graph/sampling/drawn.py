"""Graphs to draw neighbours in."""

import numpy as np

from wirewise.graph.structure import in_edges


def star(leaves):
    """Node 0 aggregates from nodes 1 to `leaves`."""
    edges = np.stack([np.arange(1, leaves + 1), np.zeros(leaves, np.int64)])
    return in_edges(edges, leaves + 1)
