"""Communication of gradient groups by codec, scheme and plan, overlapped with back-propagation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from wirewise.errors import InputError, PeerError
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.data_parallel.exchanges import Exchanges
from wirewise.runtime.data_parallel.pools import Pools
from wirewise.runtime.data_parallel.schemes import SCHEMES, Scheme, TensorGroup
from wirewise.runtime.transport import Transport

__all__ = ["GroupSender", "InFlightGroup"]

_NAMES = {scheme for _, scheme in SCHEMES}
Span = tuple[float, float]
"""Start and end, on the clock of `time.perf_counter`."""


class GroupSender:
    """Encoder on the calling thread, with a separate thread that sends and decodes groups in sequence.

    All ranks must start the same groups in the same order. Until all have completed, nothing else may use the process
    group.

    Args:
        transport: Transport between the ranks.
        pools: State of error feedback.
        compression: Options of the codecs' use; the same on all ranks.
        sum_up: Function that sums a flat tensor over the ranks in place, replacing the group's all-reduce for groups
            without a codec.
    """

    def __init__(
        self,
        transport: Transport,
        pools: Pools,
        compression: Compression,
        *,
        sum_up: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.transport, self.pools, self.compression, self._sum_up = transport, pools, compression, sum_up
        pools.world_size = transport.world_size
        self._schemes: dict[Any, Scheme] = {}
        self._thread = ThreadPoolExecutor(1, "wirewise-carry")
        self._decoding = ThreadPoolExecutor(1, "wirewise-decode")
        self._lost: PeerError | None = None

    @torch.no_grad()
    def begin(
        self,
        names: tuple[str, ...],
        flat: Tensor,
        *,
        codec: str,
        scheme: str,
        decode: str = "inline",
        step: int | None = None,
        chunks: int = 1,
        checked: bool = False,
        done: Callable[[], None] | None = None,
    ) -> InFlightGroup:
        """Encode a group and start its exchange; `flat` must not be touched until it has completed.

        Args:
            names: Parameters of the group.
            flat: Gradients of the group, 1-D; other dtypes than float32 are encoded from a float32 copy.
            codec: Name of a gradient codec, or "none".
            scheme: One of `plans.fusion.SCHEMES`.
            decode: One of `plans.fusion.DECODES`.
            step: Training step. Defaults to that of the pools.
            chunks: Number of collectives for a group without a codec.
            checked: Whether the gradients are known to be finite (`GradientCodec.encode`).
            done: Called once the group has completed or failed, on the thread that detects it.

        Raises:
            InputError: The codec does not support the scheme.
            PeerError: A peer is gone.
        """
        if step is not None:
            self.pools.step = step
        way = self._way(names, codec, scheme, chunks)
        if self.compression.nonfinite == "skip":
            self.pools.save(names)
        start_s = time.perf_counter()
        values = flat if codec == "none" or flat.dtype == torch.float32 else flat.float()
        way.encode(values, checked)
        _synchronize(flat)
        travelling = InFlightGroup(way, flat, values, codec, scheme, decode, done)
        travelling.spans["encode"] = start_s, time.perf_counter()
        travelling.future = self._thread.submit(self._carry, travelling)
        return travelling

    def run(self, act: Callable[[], None]) -> Future[None]:
        """Run another action on the process group, in order with the groups."""
        return self._thread.submit(self._guarded, act)

    def finish(self, travelling: Sequence[InFlightGroup]) -> None:
        """Wait for the groups of a step, and end the step.

        Raises:
            InputError: A gradient is not finite, and the policy is to raise.
            PeerError: A peer is gone.
        """
        errors: list[Exception] = []
        for one in travelling:
            try:
                one.wait()
            except Exception as error:
                errors.append(error)
        bad = any(one.faults for one in travelling)
        self.pools.end_step(failed=bad and self.compression.nonfinite == "skip")
        if errors:
            raise next((error for error in errors if isinstance(error, PeerError)), errors[0])
        if bad:
            for one in travelling:
                one.flat.fill_(torch.nan)

    def close(self) -> None:
        """End the threads once groups in flight have completed."""
        self._thread.shutdown()
        self._decoding.shutdown()

    def _way(self, names: tuple[str, ...], codec: str, scheme: str, chunks: int) -> Scheme:
        key = (names, codec, scheme, chunks)
        if key not in self._schemes:
            kind = SCHEMES.get((codec != "none", scheme))
            made = None if codec == "none" else self.compression.codec(codec)
            if kind is None or (scheme == "all_reduce" and made is not None and not made.linear):
                raise InputError(
                    f"codec {codec!r} cannot travel by {scheme!r}; expected one of {', '.join(sorted(_NAMES))}, and "
                    "for all_reduce none or a codec whose payloads can be added up"
                )
            rank, ranks = self.transport.rank, self.transport.world_size
            self._schemes[key] = kind(TensorGroup(names, self.pools, made, rank, ranks, chunks, self._sum_up))
        return self._schemes[key]

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            act()
        except PeerError as error:
            # What follows would wait for the same peer, each for its own timeout.
            self._lost = error
            raise

    @torch.no_grad()
    def _carry(self, travelling: InFlightGroup) -> None:
        exchanges = Exchanges(self.transport, f"the gradients from {travelling.way.group.names[0]!r} on")
        start_s = time.perf_counter()
        try:
            self._guarded(lambda: travelling.way.travel(travelling.values, exchanges))
        except BaseException:
            travelling.notify()
            raise
        travelling.spans["communicate"] = start_s, time.perf_counter()
        travelling.sent_bytes = exchanges.sent_bytes
        travelling.faults = travelling.way.faults
        if travelling.place == "inline":
            travelling.decode()
        elif travelling.place == "queue":
            travelling.decoded = self._decoding.submit(travelling.decode)


class InFlightGroup:
    """Group in flight.

    Attributes:
        flat: Mean over the ranks, after `wait`.
        spans: Start and end of "encode", "communicate" and "decode", by `time.perf_counter`, in seconds.
        sent_bytes: Bytes sent by this rank.
        faults: Non-finite gradients, the same on all ranks.
    """

    def __init__(
        self,
        way: Scheme,
        flat: Tensor,
        values: Tensor,
        codec: str,
        scheme: str,
        place: str,
        done: Callable[[], None] | None,
    ) -> None:
        self.way, self.flat, self.values = way, flat, values
        self.codec, self.scheme, self.place = codec, scheme, place
        self._done = done
        self.spans: dict[str, Span] = {}
        self.sent_bytes = 0
        self.faults: list[Any] = []
        self.future: Future[None]
        self.decoded: Future[None] | None = None

    def wait(self) -> None:
        """Wait until the mean is available.

        Raises:
            InputError: A gradient is not finite, and the policy is to raise; raised on all ranks.
            PeerError: A peer is gone.
        """
        self.future.result()
        if self.decoded is not None:
            self.decoded.result()
        elif "decode" not in self.spans:
            self.decode()
        if self.faults and self.way.pools.compression.nonfinite == "raise":
            raise InputError(self._told())

    @torch.no_grad()
    def decode(self) -> None:
        """Write the mean to `flat`; NaN if a gradient was not finite."""
        start_s = time.perf_counter()
        if self.faults:
            self.flat.fill_(torch.nan)
        else:
            self.way.decode(self.values)
            if self.values is not self.flat:
                self.flat.copy_(self.values)
        _synchronize(self.flat)
        self.spans["decode"] = start_s, time.perf_counter()
        self.notify()

    def notify(self) -> None:
        """Notify waiters that the group has completed or failed."""
        if self._done is not None:
            self._done()

    def account(self) -> dict[str, Any]:
        """Codec, scheme, bytes sent by this rank, and seconds of each phase."""
        seconds = {f"{act}_s": end - start for act, (start, end) in self.spans.items()}
        return {"codec": self.codec, "scheme": self.scheme, "sent_bytes": self.sent_bytes, **seconds}

    def _told(self) -> str:
        names = list(self.way.pools.sizes)
        told = ", ".join(
            f"{names[fault.place]!r} "
            + (f"(found by rank {fault.rank})" if fault.rank >= 0 else "(of the sum over the ranks)")
            for fault in self.faults
        )
        return (
            f"NaN or infinity in step {self.way.pools.step} in the gradient of {told}; codec {self.codec!r} expected "
            "finite values: look for a diverging loss, or give Compression(nonfinite='skip') together with "
            "torch.amp.GradScaler"
        )


def _synchronize(tensor: Tensor) -> None:
    """Wait until all that this thread launched is done, so that another may go on with the tensor."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
