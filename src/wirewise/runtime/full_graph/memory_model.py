"""Memory model of a rank in full-graph training, computed from counts before it starts.

docs/concepts/memory.md derives the terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from wirewise import codec
from wirewise.graph import Part, SparseRows, part_memory_bytes
from wirewise.runtime.full_graph.layers import CONVOLUTIONS, FullGraphNet
from wirewise.runtime.full_graph.modes import ExchangeMode

__all__ = ["MemoryTerms", "memory_terms"]

_VALUE, _ID, _COLUMN = 4, 8, 4
"""Bytes of a float32 value, of an int64 row number or offset, of an int32 column."""
_BLOCK_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class MemoryTerms:
    """Bytes of one rank, by use."""

    part: int
    """Arrays of the part."""
    inputs: int
    """Row indices by split, and input features if training cannot read them from the part's own arrays."""
    matrices: int
    """Weighted in-edges from own rows and from each peer's rows, and their transposes."""
    messages: int
    """Send and receive buffers and tables of all lanes of all modes."""
    parameters: int
    """Weights, gradients, the two moments of Adam, and gradients rounded to bfloat16, of all modes."""
    activations: int
    """Memory that one epoch keeps and works on; interleaved modes use it one after the other."""

    @property
    def total(self) -> int:
        """Sum of the terms."""
        return sum(astuple(self))


def memory_terms(
    part: Part, modes: Sequence[ExchangeMode], *, hidden: int, layers: int, convolution: str
) -> MemoryTerms:
    """Peak memory of training `FullGraphNet` on one part, on the CPU in float32 with Adam, in bytes.

    The formula uses counts only, so it can be evaluated before training. Messages whose width is planned or sampled
    during training count with 8 bits: the width of the first epochs, and the largest that a plan gives them unless
    float32 would cost no time.

    Args:
        part: The part of the rank.
        modes: Modes trained alternately in one process: part, inputs and matrices exist once, buffers and parameters
            per mode, activations of one mode at a time.
        hidden: Width of the hidden rows.
        layers: Number of convolutions.
        convolution: "gcn" or "sage".
    """
    widths = FullGraphNet.kept_widths(hidden, part.num_classes, layers, convolution)
    return MemoryTerms(
        part=part.nbytes,
        inputs=_inputs(part, convolution),
        matrices=_matrices(part, modes, convolution, layers),
        messages=sum(_messages(part, mode, hidden, layers) for mode in modes),
        parameters=sum(_parameters(part, mode, hidden, layers, convolution) for mode in modes),
        activations=part_memory_bytes(part, widths) - part.nbytes,
    )


def _inputs(part: Part, convolution: str) -> int:
    """Aggregated features; own features share the part's arrays, except that values of one are written out."""
    split_rows = _ID * int(np.count_nonzero(part.split <= 2))
    if not isinstance(part.x, SparseRows):
        return split_rows + _VALUE * part.num_own * part.num_features
    own = int(part.x.indptr[part.num_own])
    aggregated = _aggregated_entries(part, self_loops=convolution == "gcn")
    size = split_rows + _csr(part.num_own, aggregated)
    transposed = part.num_features > part.num_own
    if transposed:
        size += _csr(part.num_features, aggregated)
    if convolution == "sage":
        size += _VALUE * own if part.x.data is None else 0
        size += _csr(part.num_features, own) if transposed else 0
    return size


def _aggregated_entries(part: Part, *, self_loops: bool) -> int:
    """Non-zero values of the sparse features summed over in-neighbours, block by block of rows."""
    assert isinstance(part.x, SparseRows)
    shape = part.num_own, part.num_own + part.num_halo
    edges = sp.csr_matrix((np.ones(part.num_edges, np.float32), part.indices, part.indptr), shape=shape)
    if self_loops:
        edges = edges + sp.eye(*shape, dtype=np.float32, format="csr")
    features = sp.csr_matrix(
        (np.ones(len(part.x.indices), np.float32), part.x.indices, part.x.indptr), shape=part.x.shape
    )
    return sum((edges[r : r + _BLOCK_ROWS] @ features).nnz for r in range(0, part.num_own, _BLOCK_ROWS))


def _csr(rows: int, entries: int) -> int:
    return _ID * (rows + 1) + (_COLUMN + _VALUE) * entries


def _matrices(part: Part, modes: Sequence[ExchangeMode], convolution: str, layers: int) -> int:
    """In-edges by where they come from; transposes carry gradients back."""
    own = int(np.count_nonzero(part.indices < part.num_own))
    halo, marginal = part.num_edges - own, part.num_own - part.num_central
    peers = int(np.count_nonzero(np.diff(part.halo_offsets)))
    by_peer = peers * _ID * (marginal + 1) + (_COLUMN + _VALUE) * halo
    size = _csr(part.num_own, own) + by_peer
    kind = CONVOLUTIONS[convolution]
    if kind == "gcn":
        size += _VALUE * part.num_own
    if layers > 1:
        size += _csr(part.num_own, own)
        ways = {mode.backward for mode in modes}
        if "push" in ways:
            size += _ID * (part.num_halo + peers) + (_COLUMN + _VALUE) * halo
        if "pull" in ways and kind == "mean":
            size += _VALUE * halo
    return size


def _messages(part: Part, mode: ExchangeMode, hidden: int, layers: int) -> int:
    """Each layer after the first has a lane forward, one backward and one for evaluation, perhaps on one memory."""
    sent, received = part.num_send, part.num_halo
    pull = mode.backward == "pull"
    size = 2 * _ID * sent + _ID * (sent if pull else received)
    bits = mode.bits if isinstance(mode.bits, int) else 8
    slots, beside = 2 if mode.stale else 1, 0 if mode.shares_buffers else 1
    # The float32 buffers of a training's last evaluation are made when its activations are gone, and take less.
    evaluated = 32 if mode.bits in (16, 32) else 8
    for width in [hidden] * (layers - 2) + [min(hidden, part.num_classes)] * (layers > 1):
        there = sent, received
        back = there if pull else (received, sent)
        size += _lane(*there, width, bits, mode.param_bytes, slots=slots, summed=True)
        size += _lane(*back, width, bits, mode.param_bytes, slots=slots * beside, summed=pull)
        size += _lane(*there, width, evaluated, 6, slots=beside, summed=True)
        if mode.skip_limit:
            size += _VALUE * width * sent * (1 if not pull else 2)
    return size


def _lane(
    sent: int, received: int, width: int, bits: int, param_bytes: int, *, slots: int, summed: bool
) -> int:
    """Buffers, and for each message its bits and spread and, where quantized, its place in the buffer.

    Rows that are `summed` over edges as they are decoded also have a table of their places by row.
    """
    rows = sent + received
    size = slots * rows * codec.row_bytes(width, bits, param_bytes) + 8 * sent + rows
    if bits < 32:
        size += (1 + _ID) * rows + (2 * _ID * received if summed else 0)
    return size


def _parameters(part: Part, mode: ExchangeMode, hidden: int, layers: int, convolution: str) -> int:
    widths = [part.num_features, *[hidden] * (layers - 1), part.num_classes]
    weights = sum(i * o for i, o in pairwise(widths))
    # Besides its bias, a layer that is not the last has the gain and the shift of its norm.
    vectors = sum(widths[1:]) + 2 * hidden * (layers - 1)
    values = weights * (2 if convolution == "sage" else 1) + vectors
    rounded = 2 if mode.gradient_bits == 16 and part.num_parts > 1 else 0
    return values * (4 * _VALUE + rounded)
