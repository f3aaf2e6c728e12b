"""Convolutions of one tensor of rows that PyG has: over several hops in one call, or over own and halo rows at once."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import nn
from torch_geometric.nn import (
    APPNP,
    ARMAConv,
    ClusterGCNConv,
    EGConv,
    GCN2Conv,
    LGConv,
    PNAConv,
    SGConv,
    SimpleConv,
    SSGConv,
    TAGConv,
    aggr,
)
from torch_geometric.nn.aggr.fused import FusedAggregation

__all__ = ["MORE_ROWS", "run_with", "takes_all_rows", "takes_hops"]

_KINDS = (APPNP, ARMAConv, EGConv, GCN2Conv, LGConv, SGConv, SSGConv, TAGConv)
"""Convolutions whose forward reaches rows of other nodes by `propagate` and edges by `gcn_norm` alone."""
_IN_ANY_ORDER = (
    aggr.DegreeScalerAggregation,
    aggr.MultiAggregation,
    FusedAggregation,
    aggr.SumAggregation,
    aggr.MeanAggregation,
    aggr.MinAggregation,
    aggr.MaxAggregation,
    aggr.VarAggregation,
    aggr.StdAggregation,
)
"""Aggregations that give the same whatever the order of edges."""
MORE_ROWS = ("x_0",)
"""Arguments of these convolutions that have a row for each own node, beside the first one."""


def takes_hops(conv: nn.Module) -> bool:
    """Whether a convolution runs with an exchange before each hop; a subclass with a forward of its own does not."""
    if isinstance(conv, EGConv) and "symnorm" not in conv.aggregators and conv.add_self_loops:
        # It counts nodes by the largest number of an edge, and adds no loops to those behind it.
        return False
    return any(_is(conv, kind) for kind in _KINDS)


def takes_all_rows(conv: nn.Module) -> bool:
    """Whether a convolution takes rows that are sources and targets at once, and may be called on own and halo rows."""
    if isinstance(conv, SimpleConv):
        return bool(conv.combine_root == "self_loop")
    if _is(conv, PNAConv):
        parts = [m for m in conv.aggr_module.modules() if isinstance(m, aggr.Aggregation)]  # type: ignore[union-attr]
        return all(isinstance(part, _IN_ANY_ORDER) for part in parts)
    return _is(conv, ClusterGCNConv)


def _is(conv: nn.Module, kind: type[nn.Module]) -> bool:
    return isinstance(conv, kind) and type(conv).forward is kind.forward


def run_with(
    conv: nn.Module, normalize: Callable[..., Any], propagate: Callable[..., Any]
) -> Callable[..., Any]:
    """Forward of a convolution on own rows, with other functions for degrees and for hops.

    Args:
        conv: Convolution that `takes_hops`, of our copy of the model.
        normalize: Takes the place of `gcn_norm`.
        propagate: Takes the place of the convolution's `propagate`.
    """
    forward = type(conv).forward
    # PyG's modules keep gcn_norm as a global, which other models of the process use too.
    known = {**forward.__globals__, "gcn_norm": normalize}
    own = types.FunctionType(
        forward.__code__, known, forward.__name__, forward.__defaults__, forward.__closure__
    )
    conv.propagate = propagate  # type: ignore[assignment]
    return types.MethodType(own, conv)
