"""Categories of ATen operators, and their work."""

from __future__ import annotations

from typing import Any

from torch import Tag, Tensor, fx, ops
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

__all__ = ["category_of", "flops_of"]

_REDUCTIONS = (
    "sum mean max min amax amin prod var var_mean std norm argmax argmin cumsum logsumexp _softmax _safe_softmax "
    "_log_softmax "
    "_softmax_backward_data _log_softmax_backward_data native_layer_norm native_layer_norm_backward "
    "native_group_norm native_group_norm_backward _native_batch_norm_legit_functional native_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm_backward nll_loss_forward "
    "nll_loss_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward"
)
_POINTWISE = (
    "full full_like zeros zeros_like ones ones_like empty_like new_zeros new_ones new_full arange scalar_tensor eye "
    "_to_copy cat stack slice_backward select_backward slice_scatter select_scatter constant_pad_nd embedding "
    "index index_select gather triu tril repeat flip mse_loss mse_loss_backward rsub where masked_fill fill copy "
    "gelu silu native_dropout_backward elu_backward leaky_relu_backward hardtanh_backward softplus_backward"
)
_VIEWS = "_unsafe_view _reshape_alias alias"
_MATMULS = (
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward dot mv addmv"
)
_TABLE = {
    name: category
    for category, names in (
        ("reduction", _REDUCTIONS),
        ("pointwise", _POINTWISE),
        ("view", _VIEWS),
        ("matmul", _MATMULS),
    )
    for name in names.split()
}
"""Operators whose tags do not tell, by name."""


def category_of(node: fx.Node) -> str:
    """Category of a node: pointwise, view, reduction, matmul, or opaque (not fusible, such as random operators).

    Scatters are opaque, as compilers lower them to atomic additions in nondeterministic order.
    """
    target = node.target
    if not isinstance(target, OpOverload) or Tag.nondeterministic_seeded in target.tags:
        return "opaque"
    if target.overloadpacket in flop_registry:
        return "matmul"
    if any(
        result.alias_info is not None and not result.alias_info.is_write for result in target._schema.returns
    ):
        return "view"
    if Tag.pointwise in target.tags:
        return "pointwise"
    if Tag.reduction in target.tags:
        return "reduction"
    known = _TABLE.get(target._schema.name.partition("::")[2])
    return known if known is not None and target.namespace == "aten" else "opaque"


def flops_of(node: fx.Node) -> float:
    """Floating-point operations of one call: torch's count for matrix products, one per element otherwise."""
    if (experts := _expert_flops(node)) is not None:
        return experts
    category = category_of(node)
    if category not in ("pointwise", "reduction", "matmul"):
        return 0.0
    read = [_elements(one) for one in node.all_input_nodes]
    if category != "matmul":
        return float(max([*read, _elements(node)]))
    packet = getattr(node.target, "overloadpacket", None)
    args: Any = fx.map_arg(node.args, lambda one: one.meta["val"])
    if packet in flop_registry:
        kwargs: Any = fx.map_arg(node.kwargs, lambda one: one.meta["val"])
        return float(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))
    # Attention on the CPU, which the registry lacks; else a product with a vector.
    attention: dict[Any, tuple[Any, int]] = {
        ops.aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
        ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
    }
    if packet in attention:
        count, tensors = attention[packet]
        return float(count(*(one.shape for one in args[:tensors])))
    return 2.0 * max(read)


def _expert_flops(node: fx.Node) -> float | None:
    """Operations of the products of transformers' experts, [tokens, k] with [experts, k, n]; None for others."""
    name = node.target._schema.name if isinstance(node.target, OpOverload) else ""
    if not name.startswith("transformers::grouped_mm_fallback"):
        return None
    tokens, weight = (one.meta["val"] for one in node.args[:2] if isinstance(one, fx.Node))
    return 2.0 * tokens.numel() * weight.shape[-1] * (2 if name.endswith("_backward") else 1)


def _elements(node: fx.Node) -> int:
    return sum(one.numel() for one in pytree.tree_leaves(node.meta.get("val")) if isinstance(one, Tensor))
