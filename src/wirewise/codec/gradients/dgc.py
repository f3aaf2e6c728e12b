"""Deep gradient compression: elements above a sampled threshold, with momentum kept by the codec."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from wirewise.codec.gradients.codec import Draw, GradientCodec, Memory, check_ratio, get_floats, rows_of
from wirewise.codec.gradients.kernels.pieces import Bounds, SelectedElements
from wirewise.codec.gradients.segments import Segments
from wirewise.codec.gradients.sparse import add_gathered
from wirewise.errors import CodecError, InputError

__all__ = ["DGC"]

_LEAST, _MOST = 0.7, 1.3
"""Fraction of the wanted elements that may be sent."""
_EXACT = 1 << 14
"""Smaller segments are not sampled."""
_LARGE = 1 << 20
_SAMPLED_LARGE, _SAMPLED = 0.001, 0.01
_AIM = 1.1
"""A threshold that is a little low is cheaper to mend than one that is a little high."""


class DGC(GradientCodec):
    """About k = max(1, floor(ratio * size)) elements of largest magnitude, selected by a threshold; 0.7 k to 1.3 k.

    Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training" (ICLR 2018),
    section 3: with a memory, momentum u = momentum * u + gradient and residual w = w + u; the large elements of w are
    sent, and w is 0 there. The optimizer should then have no momentum of its own. With a residual alone there is
    no u, and w = w + gradient; without a memory the elements of the gradient are sent. Segments below 16 Ki elements
    are searched exactly, k elements of each.

    The paper's momentum factor masking (section 3.3) also sets u to 0 where elements are sent. Their remaining
    momentum is lost, so that elements sent often move as at a lower learning rate; with all elements sent, no
    momentum is left. Without masking, the updates add up to those of plain SGD with momentum.

    Args:
        ratio: Fraction of the elements, above 0 and at most 1.
        momentum: Momentum factor from 0 (plain error feedback) to below 1.
        masking: Whether to clear the momentum of sent elements, as in the paper.
        implementation: One of `IMPLEMENTATIONS`.
    """

    memories = ("residual", "momentum")
    looks_first = True

    def __init__(
        self,
        *,
        ratio: float = 0.01,
        momentum: float = 0.9,
        masking: bool = False,
        implementation: str = "auto",
    ) -> None:
        super().__init__(implementation=implementation)
        if not 0.0 <= momentum < 1.0:
            raise InputError(f"momentum is {momentum}; expected at least 0 and below 1, for example 0.9")
        self.ratio, self.momentum, self.masking = check_ratio(ratio), momentum, masking
        # Asked for several times a step; numpy takes as long for them as the search in a small segment.
        self._known: WeakKeyDictionary[Segments, tuple[float, Bounds]] = WeakKeyDictionary()

    def size_bytes(self, segments: Segments) -> int:
        """8 bytes (int32 index, float32 value) for each of floor(1.3 k) elements, padded, and a count per segment."""
        return 8 * int(self._bounds(segments).most.sum()) + 4 * len(segments)

    def _look(self, kernels: ModuleType, gradient: Tensor, memory: Any, segments: Segments) -> int:
        rows = () if memory is None else rows_of(memory)
        return kernels.first_not_finite(gradient, rows[0] if len(rows) == 1 else None, segments)

    def _encode(
        self, gradient: Tensor, memory: Memory | None, segments: Segments, out: Tensor, draw: Draw
    ) -> int:
        kernels = self._kernels(gradient.device)
        rows = None if memory is None else rows_of(memory)
        rest = None if rows is None or len(rows) > 1 else rows[0]
        # Written in place where it is aligned, as in all buffers of the runtime.
        target = out if out.data_ptr() % 4 == out.storage_offset() % 4 == 0 else out.clone()
        words = target.view(torch.int32)
        total = (len(words) - len(segments)) // 2
        into = SelectedElements(
            words[:total], words[total : 2 * total].view(torch.float32), words[2 * total :]
        )
        tables = (segments, self._bounds(segments), draw.own_key, into)
        if rows is not None and rest is None:
            bad = kernels.accumulate_above(gradient, rows, self.momentum, self.masking, *tables)
        else:
            bad = kernels.above(gradient if rest is None else rest.add_(gradient), rows, *tables)
        if target is not out:
            out.copy_(target)
        return bad

    def _decode(self, payloads: Tensor, segments: Segments, out: Tensor, scale: float, draw: Draw) -> None:
        most = torch.from_numpy(self._bounds(segments).most).to(out.device)
        total = int(most.sum())
        counts = get_floats(payloads, 8 * total, len(segments)).view(torch.int32)
        if bool(((counts < 0) | (counts > most)).any()):
            raise CodecError(
                f"a payload counts up to {int(counts.max())} elements in a segment, expected at most "
                f"{int(most.max())}: it is damaged, or comes from another codec"
            )
        # Padding has the value 0 and an index of its segment, so that it is added like the rest.
        add_gathered(self._kernels(out.device), payloads, total, scale, segments, out)

    def _bounds(self, segments: Segments) -> Bounds:
        # The ratio may change in training: the paper's warm-up lowers it.
        ratio, bounds = self._known.get(segments, (None, None))
        if bounds is None or ratio != self.ratio:
            bounds = self._find_bounds(segments)
            self._known[segments] = self.ratio, bounds
        return bounds

    def _find_bounds(self, segments: Segments) -> Bounds:
        sizes, wanted = segments.sizes, segments.counts(self.ratio)
        shares = np.where(sizes < _LARGE, _SAMPLED, _SAMPLED_LARGE)
        samples = np.where(sizes < _EXACT, 0, shares * sizes).astype(np.int64)
        aims = np.clip(_AIM * wanted * samples / sizes, 1, np.maximum(1, samples)).astype(np.int64)
        least = np.ceil(_LEAST * wanted).astype(np.int64)
        most = np.minimum(np.maximum(1, _MOST * wanted), sizes).astype(np.int64)
        return Bounds(wanted, least, most, samples, aims)
