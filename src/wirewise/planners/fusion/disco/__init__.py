"""DisCo (TPDS 2022): fusion of operators and of all-reduces, searched together."""

from __future__ import annotations

from wirewise.planners.fusion.disco.graph import CATEGORIES, Operator, OperatorGraph, read_operator_graph

__all__ = ["CATEGORIES", "Operator", "OperatorGraph", "read_operator_graph"]
