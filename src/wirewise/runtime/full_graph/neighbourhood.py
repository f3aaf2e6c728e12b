"""Linear aggregation over a part: own neighbours while bytes travel, halo neighbours as they arrive.

Aggregation is a sum over in-neighbours, so the neighbours that are own rows can be summed before any halo row
is there, for central and marginal nodes alike; the rows of each peer are added when they land. Backward the
gradients of halo rows leave first and the gradients of own rows are computed while they travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from jaxtyping import Float
from torch import Tensor

from wirewise.errors import InputError
from wirewise.graph import edge_weights, edge_weights64, ops
from wirewise.runtime.full_graph.exchange import HaloExchange, Ticket

if TYPE_CHECKING:
    from wirewise.graph import Part

__all__ = ["Neighbourhood"]


class Neighbourhood:
    """Weighted in-edges of one part, split by where the source row lives.

    Args:
        part: The part.
        kind: "gcn", "mean" or "sum"; see `wirewise.graph.edge_weights`.
        dtype: float32 or float64.
    """

    def __init__(
        self, part: Part, kind: str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ):
        self.part, self.kind = part, kind
        real = np.float64 if dtype == torch.float64 else np.float32
        weight, self_weight = (edge_weights64 if dtype == torch.float64 else edge_weights)(part, kind)
        columns = part.num_own + part.num_halo
        whole = sp.csr_matrix(
            (weight.astype(real), part.indices, part.indptr), shape=(part.num_own, columns), copy=False
        )
        self.whole = whole
        self.self_weight = torch.from_numpy(self_weight.astype(real)).to(device)
        self.self_scale = None if not self_weight.any() else self.self_weight
        self.own = _csr(whole[:, : part.num_own], device)
        self._halo = whole[part.num_central :, part.num_own :].tocsr()
        self.halo = _csr(self._halo, device)
        bounds = part.halo_offsets
        self.halo_of = {
            p: _csr(self._halo[:, int(bounds[p]) : int(bounds[p + 1])], device)
            for p in range(part.num_parts)
            if bounds[p + 1] > bounds[p]
        }
        self._reversed: dict[int, ops.Csr] = {}
        self.device = device

    def aggregate_inputs(self, x: Any) -> Any:
        """Sum the input features of all in-neighbours once; input features never change.

        Args:
            x: Dense float [own + halo, F] or a scipy CSR matrix of that shape.

        Returns:
            The same kind, [own, F].
        """
        out = self.whole @ x
        own = x[: self.part.num_own]
        scale = self.self_weight.cpu().numpy()
        if self.self_scale is None:
            return out
        return out + (sp.diags(scale) @ own if sp.issparse(x) else scale[:, None] * own)

    def local(self, x: Float[Tensor, "own d"]) -> Float[Tensor, "own d"]:
        """The part of the sum that needs own rows only, for all own nodes."""
        return ops.aggregate(self.own, x, self_weight=self.self_scale)

    def finish(
        self, exchange: HaloExchange, ticket: Ticket, z: Float[Tensor, "marginal d"]
    ) -> Float[Tensor, "marginal d"]:
        """Add the halo rows of `ticket`, peer by peer as they land, to the local sums of the marginal nodes."""
        return _AddHalo.apply(ticket.token, z, self, exchange, ticket)

    def message_scores(self, exchange: HaloExchange, *, squared_sum: bool) -> dict[int, np.ndarray]:
        """How strongly the noise of each message of this rank counts at its receiver, by receiving peer.

        The receiver sums alpha^2 over the edges that use the row (the variance that the row's noise adds to
        the receiver's sums), or takes the square of the sum of alpha as the released AdaQP does; one
        all-to-all brings the sums to the senders.
        """
        alpha = self._halo.data.astype(np.float64)
        per_row = np.bincount(
            self._halo.indices, alpha if squared_sum else alpha * alpha, minlength=self.part.num_halo
        )
        per_row = per_row * per_row if squared_sum else per_row
        bounds = self.part.halo_offsets
        sends = {
            p: torch.from_numpy(per_row[int(bounds[p]) : int(bounds[p + 1])].copy())
            for p in exchange.transport.peers
        }
        receives = {
            p: torch.empty(len(rows), dtype=torch.float64)
            for p, rows in exchange.forward_route.send_rows.items()
        }
        exchange.transport.exchange("message scores", 3, sends, receives)
        return {p: t.numpy() for p, t in receives.items()}

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
            low, high = int(self.part.halo_offsets[peer]), int(self.part.halo_offsets[peer + 1])
            block = self._halo[:, low:high].tocsr()
            self._reversed[peer] = _csr(self._with_reversed_weights(block, low), self.device)
        return self._reversed[peer]

    def _with_reversed_weights(self, block: sp.csr_matrix, first: int) -> sp.csr_matrix:
        """The same pattern with the weight of the edge that runs the other way."""
        if self.kind != "mean":
            return block
        degree = self.part.in_degree[self.part.num_own + first :][: block.shape[1]]
        flipped = block.copy()
        flipped.data = (1.0 / np.maximum(degree, 1)[block.indices]).astype(block.dtype)
        return flipped


class _AddHalo(torch.autograd.Function):
    """z + A_halo rows; backward sends A_halo^T g (push) or g itself (pull) as soon as g is known."""

    @staticmethod
    def forward(
        ctx: Any, token: Tensor, z: Tensor, hood: Neighbourhood, exchange: HaloExchange, ticket: Ticket
    ) -> Tensor:
        ctx.hood, ctx.exchange, ctx.layer = hood, exchange, ticket.layer
        exchange.clock.pop()
        out = z.clone(memory_format=torch.contiguous_format)
        lane = exchange.forward_lane(ticket.layer, ticket.width)
        for received in lane.collect():
            received.aggregate(hood.halo_of[received.peer], out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hood, exchange = ctx.hood, ctx.exchange
        grad = grad.contiguous()
        if exchange.mode.backward == "pull":
            exchange.post_gradients(ctx.layer, grad)
        else:
            exchange.post_gradients(ctx.layer, ops.aggregate_transposed(hood.halo, grad))
        return grad.new_zeros(()), grad, None, None, None


def _csr(matrix: sp.csr_matrix, device: torch.device | str) -> ops.Csr:
    matrix = matrix.tocsr()
    matrix.sort_indices()
    return ops.Csr.from_scipy(matrix, device=device)
