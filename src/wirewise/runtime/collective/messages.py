"""Point-to-point messages of the backend, by a gloo group that connects two ranks when they first need it."""

# torch's own signatures are overloads that only C++ can have.
# mypy: disable-error-code="override, attr-defined"

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from wirewise.errors import InputError, PeerError

__all__ = ["Messages"]


class Messages:
    """Messages between two ranks of a group.

    Args:
        store: Store of the group.
        rank: Index of this rank.
        size: Number of ranks.
        timeout: Time to wait for a message.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._made: Any = None

    def send(self, tensors: Sequence[Tensor], target: int, tag: int) -> dist.Work:
        """Start sending a tensor.

        Raises:
            InputError: The tensor is on a device, or not contiguous.
            PeerError: The other rank is gone.
        """
        return self._started("send", tensors, target, tag)

    def receive(self, tensors: Sequence[Tensor], source: int | None, tag: int) -> dist.Work:
        """Start receiving a tensor, from any rank if `source` is None; errors as in `send`."""
        if source is None:
            return self._started("recv_anysource", tensors, None, tag)
        return self._started("recv", tensors, source, tag)

    def close(self) -> None:
        """Release the connections."""
        self._made = None

    def _started(self, name: str, tensors: Sequence[Tensor], peer: int | None, tag: int) -> dist.Work:
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise InputError(
                    f"got a tensor on {tensor.device} for a message between two ranks; the backend 'wirewise' sends "
                    "those of the CPU: send tensor.cpu(), or make a group for messages: new_group(backend='nccl')"
                )
            if not tensor.is_contiguous():
                raise InputError(
                    f"got a tensor of strides {tuple(tensor.stride())} for a message; expected a contiguous one"
                )
        where = f"{name} with {'any rank' if peer is None else f'rank {peer}'}"
        to = () if peer is None else (peer,)
        return _Message(_named(lambda: getattr(self._group(), name)(list(tensors), *to, tag), where), where)

    def _group(self) -> Any:
        if self._made is None:
            gloo: Any = dist.ProcessGroupGloo
            options = gloo._Options()
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
            device = (
                gloo.create_device(interface=interface, lazy_init=True)
                if interface
                else gloo.create_default_device(lazy_init=True)
            )
            options._devices, options._timeout = [device], self._timeout
            store = dist.PrefixStore("messages", self._store)
            self._made = gloo(store, self._rank, self._size, options)
        return self._made


class _Message(dist.Work):
    """Message under way."""

    def __init__(self, work: Any, where: str) -> None:
        super().__init__()
        self._work, self._where = work, where

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for its end.

        Raises:
            PeerError: It failed or timed out.
        """
        limit = (timeout,) if timeout else ()
        return bool(_named(lambda: self._work.wait(*limit), self._where))

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        return bool(self._work.is_completed())

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _named(call: Any, where: str) -> Any:
    """Call torch, and name the rank in what it raises."""
    try:
        return call()
    except RuntimeError as error:
        short = str(error).splitlines()[0][:200]
        raise PeerError(
            f"{where} failed: it died, sent nothing in time, or its message has another size [{short}]"
        ) from error
