"""All-reduces without a codec, started on the thread of back-propagation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from wirewise.runtime.transport import Transport

__all__ = ["AllReduces"]


class AllReduces:
    """Sums of flat tensors on their way.

    Args:
        transport: Transport between the ranks.
        collective: Instead of the group's all-reduce, called on a thread of its own.
    """

    def __init__(self, transport: Transport, collective: Callable[[Tensor], None] | None) -> None:
        self.transport, self._collective = transport, collective
        self._thread = ThreadPoolExecutor(1, "wirewise-reduce") if collective else None
        self._works: list[tuple[str, Any]] = []

    def __len__(self) -> int:
        return len(self._works)

    def start(self, tensor: Tensor, what: str, planned: bool = True) -> None:
        """Start one; those that the plan does not know go by the group's all-reduce."""
        if planned and self._thread is not None:
            if tensor.is_cuda:
                torch.cuda.current_stream(tensor.device).synchronize()
            assert self._collective is not None
            tell(self._collective, tensor)
            self._works.append((what, self._thread.submit(self._collective, tensor)))
            return

        def launch() -> None:
            self._works.append((what, self.transport.group.allreduce([tensor])))

        self.transport.guard(launch, "all-reduce")

    def wait(self) -> None:
        """Until all are done.

        Raises:
            PeerError: A peer is gone.
        """
        for what, work in self._works:
            if isinstance(work, Future):
                # The collective has timeouts of its own.
                work.result()
            else:
                self.transport.wait_for(work, what)

    def forget(self) -> None:
        """Those that were waited for."""
        self._works = []


def tell(collective: Callable[[Tensor], None], tensor: Tensor) -> None:
    """Tell a collective that wants to know that a tensor was handed over."""
    if (handed_over := getattr(collective, "handed_over", None)) is not None:
        handed_over(tensor)
