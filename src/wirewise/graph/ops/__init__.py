"""Compute kernels of full-graph training, with autograd: one CPU thread per call, torch operations elsewhere.

    Csr                               row-compressed weighted adjacency, or sparse features
    aggregate, aggregate_into,        weighted sums over neighbours
    aggregate_transposed
    sparse_linear, aggregate_features first layer on sparse features
    norm_act_drop                     LayerNorm, ReLU, dropout; the mask depends on global row numbers only
    warm                              compile the CPU kernels ahead

Every operation takes `implementation`: "numba" (compiled, CPU), "torch" (any device), "auto" (numba on CPU).
"""

from wirewise.graph.ops.activation import norm_act_drop
from wirewise.graph.ops.aggregation import aggregate, aggregate_into, aggregate_transposed
from wirewise.graph.ops.counter import keep_mask, uniform16
from wirewise.graph.ops.csr import Csr
from wirewise.graph.ops.features import aggregate_features, sparse_linear
from wirewise.graph.ops.warmup import warm

__all__ = [
    "Csr",
    "aggregate",
    "aggregate_features",
    "aggregate_into",
    "aggregate_transposed",
    "keep_mask",
    "norm_act_drop",
    "sparse_linear",
    "uniform16",
    "warm",
]
