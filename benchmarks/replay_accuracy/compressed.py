"""Sums of compressed gradients: every rank encodes, all get the codes of all, every rank decodes."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from wirewise.codec.gradients import Segments, make
from wirewise.runtime.data_parallel import Observer
from wirewise.runtime.transport import Transport


class CodecSum:
    """Sums a flat float32 tensor over the ranks in place, by payloads of a codec without error feedback.

    Args:
        transport: Connections of the ranks.
        codec: Name of a gradient codec.
        observer: Is told the times of "encode", "all_gather" and "decode".
        options: Options of the codec.
    """

    def __init__(
        self,
        transport: Transport,
        codec: str,
        *,
        observer: Observer | None = None,
        **options: Any,
    ) -> None:
        self.transport, self.observer = transport, observer
        self.codec = make(codec, **options)

    def __call__(self, flat: Tensor) -> None:
        """Sum, [elements]."""
        segments = Segments([flat.numel()])
        times = [time.perf_counter()]
        code = torch.empty(self.codec.size_bytes(segments), dtype=torch.uint8, device=flat.device)
        self.codec.encode(flat, None, segments, code, rank=self.transport.rank)
        self._settle(flat, times)
        codes = self.transport.all_gather(code, "the all-gather of compressed gradients")
        self._settle(flat, times)
        self.codec.decode_sum(torch.stack(codes), segments, flat, scale=1.0)
        self._settle(flat, times)
        if self.observer is not None:
            rank, sent = self.transport.rank, (flat.nbytes, code.nbytes, flat.nbytes)
            for number, kind in enumerate(("encode", "all_gather", "decode")):
                self.observer(kind, rank, rank, sent[number], times[number], times[number + 1])

    def _settle(self, flat: Tensor, times: list[float]) -> None:
        """Note the time at which a device is done."""
        if flat.is_cuda:
            torch.cuda.current_stream(flat.device).synchronize()
        times.append(time.perf_counter())
