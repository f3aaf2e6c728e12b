"""Linear aggregation over a part: own neighbours during the exchange, halo neighbours as they arrive.

Aggregation is a sum over in-neighbours, so the neighbours that are own rows can be summed before any halo row has
arrived, for central and marginal nodes alike; the rows of each peer are added on arrival. In the backward pass the
gradients of halo rows are sent first, and the gradients of own rows are computed while those are in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor

from wirewise.errors import InputError
from wirewise.graph import SparseRows, edge_weights, edge_weights64, ops
from wirewise.runtime.full_graph.exchange import HaloExchange, Ticket

if TYPE_CHECKING:
    from wirewise.graph import Part

__all__ = ["Neighbourhood"]


class Neighbourhood:
    """Weighted in-edges of one part, split by owner of the source row.

    Args:
        part: Part of this rank.
        kind: "gcn", "mean" or "sum"; see `wirewise.graph.edge_weights`.
        dtype: Floating-point type, float32 or float64.
    """

    def __init__(
        self, part: Part, kind: str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ):
        self.part, self.kind, self.dtype, self.device = part, kind, dtype, device
        whole, self_weight = self._whole()
        self.self_scale = torch.from_numpy(self_weight).to(device) if self_weight.any() else None
        self.own = ops.Csr.from_scipy(whole[:, : part.num_own], device=device)
        halo, bounds = whole[part.num_central :, part.num_own :], part.halo_offsets
        # Kept once, by peer: rows are added peer by peer, and so are their gradients.
        self.halo_of = {
            p: ops.Csr.from_scipy(halo[:, int(bounds[p]) : int(bounds[p + 1])], device=device)
            for p in range(part.num_parts)
            if bounds[p + 1] > bounds[p]
        }
        self._reversed: dict[int, ops.Csr] = {}

    def _whole(self) -> tuple[sp.csr_matrix, np.ndarray]:
        """All in-edges, [own, own + halo], and the weight of the row itself, [own]."""
        part, wide = self.part, self.dtype == torch.float64
        weight, self_weight = (edge_weights64 if wide else edge_weights)(part, self.kind)
        shape = part.num_own, part.num_own + part.num_halo
        return sp.csr_matrix((weight, part.indices, part.indptr), shape=shape, copy=False), self_weight

    def aggregate_inputs(self, x: Any) -> Any:
        """Aggregate the constant input features over all in-neighbours, once.

        The matrix of all edges is built for this call alone: training uses its pieces.

        Args:
            x: Features of own and halo rows, [own + halo, F]: an array or `SparseRows`.

        Returns:
            [own, F]: an array for an array, an `ops.Csr` for sparse rows.
        """
        whole, self_weight = self._whole()
        if isinstance(x, SparseRows):
            scale = None if self.self_scale is None else torch.from_numpy(self_weight)
            return ops.aggregate_features(ops.Csr.from_scipy(whole), x, scale)
        out = whole @ x
        if self.self_scale is not None:
            out += self_weight[:, None] * x[: self.part.num_own]
        return out

    def local(self, x: Float[Tensor, "own d"]) -> Float[Tensor, "own d"]:
        """Sum over own neighbours, for all own nodes."""
        return ops.aggregate(self.own, x, self_weight=self.self_scale)

    def finish(
        self, exchange: HaloExchange, ticket: Ticket, z: Float[Tensor, "marginal d"]
    ) -> Float[Tensor, "marginal d"]:
        """Add the halo rows of `ticket`, peer by peer as they arrive, to the local sums of the marginal nodes."""
        return _AddHalo.apply(ticket.token, z, self, exchange, ticket)

    def message_scores(self, exchange: HaloExchange, *, squared_sum: bool) -> dict[int, np.ndarray]:
        """Weight of the noise of each message of this rank at its receiver, by receiving peer.

        The receiver sums alpha^2 over the edges that use the row (the variance that the row's noise adds to
        the receiver's sums), or takes the square of the sum of alpha as the released AdaQP does; one
        all-to-all brings the sums to the senders.
        """
        sends = {
            p: torch.from_numpy(
                _column_scores(self.halo_of[p], squared_sum) if p in self.halo_of else np.empty(0)
            )
            for p in exchange.transport.peers
        }
        receives = {
            p: torch.empty(len(rows), dtype=torch.float64)
            for p, rows in exchange.forward_route.send_rows.items()
        }
        exchange.transport.exchange("message scores", 3, sends, receives)
        return {p: t.numpy() for p, t in receives.items()}

    def push_gradients(self, grad: Float[Tensor, "marginal d"]) -> Float[Tensor, "halo d"]:
        """Partial gradients of the halo rows, from the gradients of the marginal nodes' sums."""
        out, bounds = grad.new_empty(self.part.num_halo, grad.shape[1]), self.part.halo_offsets
        for peer, csr in self.halo_of.items():
            ops.aggregate_transposed(csr, grad, out[int(bounds[peer]) : int(bounds[peer + 1])])
        return out

    def reversed_of(self, peer: int) -> ops.Csr:
        """Edges from own marginal nodes to nodes of `peer`, as rows of own nodes (undirected graphs only).

        Raises:
            InputError: The graph is directed: the halo does not hold the out-neighbours.
        """
        if self.part.directed:
            raise InputError(
                "backward='pull' sends output gradients along reversed edges and needs an undirected graph; "
                "got a directed one. Use a mode with backward='push'"
            )
        if peer not in self._reversed:
            self._reversed[peer] = self._with_reversed_weights(self.halo_of[peer], peer)
        return self._reversed[peer]

    def _with_reversed_weights(self, block: ops.Csr, peer: int) -> ops.Csr:
        """Block of the same pattern, not copied, with the weight of the edge that runs the other way."""
        if self.kind != "mean":
            return block
        degree = self.part.in_degree[self.part.num_own + int(self.part.halo_offsets[peer]) :]
        inverse = torch.from_numpy(1.0 / np.maximum(degree[: block.num_columns], 1))
        weight = inverse.to(self.device, block.weight.dtype)[block.indices.long()]
        return ops.Csr(block.indptr, block.indices, weight, num_columns=block.num_columns)


class _AddHalo(torch.autograd.Function):
    """Sum z + A_halo rows; backward sends A_halo^T g (push) or g itself (pull) as soon as g is known."""

    @staticmethod
    def forward(
        ctx: Any,
        token: Tensor,
        z: Tensor,
        neighbourhood: Neighbourhood,
        exchange: HaloExchange,
        ticket: Ticket,
    ) -> Tensor:
        ctx.neighbourhood, ctx.exchange, ctx.layer = neighbourhood, exchange, ticket.layer
        exchange.clock.pop()
        out = z.clone(memory_format=torch.contiguous_format)
        lane = exchange.forward_lane(ticket.layer, ticket.width, ticket.dtype)
        for received in lane.collect():
            received.aggregate(neighbourhood.halo_of[received.peer], out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        neighbourhood, exchange = ctx.neighbourhood, ctx.exchange
        grad = grad.contiguous()
        if exchange.mode.backward == "pull":
            exchange.post_gradients(ctx.layer, grad)
        else:
            exchange.post_gradients(ctx.layer, neighbourhood.push_gradients(grad))
        return grad.new_zeros(()), grad, None, None, None


def _column_scores(csr: ops.Csr, squared_sum: bool) -> np.ndarray:
    """Sum of squared weights of each column, or the square of their sum; float64 [columns]."""
    matrix = csr.to_scipy()
    alpha = matrix.data.astype(np.float64)
    summed = np.bincount(matrix.indices, alpha if squared_sum else alpha * alpha, minlength=csr.num_columns)
    return summed * summed if squared_sum else summed
