"""Operators captured as several simpler ones, which can be sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd.descriptors import ForwardTokenAOTInput, ForwardTokenAOTOutput
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["DECOMPOSITIONS", "SimplerFunctions", "remove_checks"]

_ATEN = torch.ops.aten


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = left @ right
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {_ATEN.addmm.default: _addmm}
"""Decompositions that replace operators while a step is traced."""


def remove_checks(graph: fx.Graph) -> None:
    """Remove checks of factorizations, like other checks of values: a singular matrix then gives infinities.

    torch keeps the checks in order by tokens, which are the first inputs and outputs of the graph.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        if node.args[1] is _ATEN._linalg_check_errors.default:
            for token in list(node.users):
                token.replace_all_uses_with(node.args[0])
                graph.erase_node(token)
            graph.erase_node(node)
    (end,) = graph.find_nodes(op="output")
    ends = list(zip(end.args[0], end.meta["desc"], strict=True))
    kept = [(node, what) for node, what in ends if not isinstance(what, ForwardTokenAOTOutput)]
    end.args, end.meta["desc"] = (tuple(node for node, _ in kept),), [what for _, what in kept]
    for node in graph.find_nodes(op="placeholder"):
        if isinstance(node.meta["desc"], ForwardTokenAOTInput) and not node.users:
            graph.erase_node(node)


class SimplerFunctions(TorchFunctionMode):
    """Mode that replaces functions with unshardable operators by shardable ones.

    Embedding bags of equal length, given as rows, become look-ups and their sum or mean, as bag offsets differ in a
    shard of the rows. Pooling to one value becomes a mean, as torch's function sets channels-last strides, which
    differ in a shard.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function, or what stands for it."""
        known: dict[Any, Callable[..., Tensor | None]] = {
            functional.embedding_bag: _bags,
            functional.adaptive_avg_pool2d: _pooled,
        }
        simpler = known.get(func)
        found = simpler(*args, **kwargs or {}) if simpler is not None else None
        return func(*args, **kwargs or {}) if found is None else found


def _pooled(input: Tensor, output_size: int | Sequence[int | None]) -> Tensor | None:
    """The mean over the last two dimensions; None if more is left of them."""
    sizes = [output_size] * 2 if isinstance(output_size, int) else list(output_size)
    return input.mean((-2, -1), keepdim=True) if sizes == [1, 1] else None


def _bags(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """Sums or means of bags [rows, entries]; None if they are given otherwise, or have entries that do not count."""
    plain = max_norm is None and not scale_grad_by_freq and not sparse and padding_idx is None
    if input.dim() != 2 or not plain or mode not in ("sum", "mean"):
        return None
    found = functional.embedding(input, weight)
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(-1)
    return found.sum(1) if mode == "sum" else found.mean(1)
