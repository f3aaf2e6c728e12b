"""Handle of an operation in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from wirewise.errors import PeerError

if TYPE_CHECKING:
    from wirewise.runtime.collective.engine import Engine

__all__ = ["Work"]


class Work:
    """Started operation; the interface of `torch.distributed.Work`."""

    def __init__(self, name: str, engine: Engine | None, result: Any) -> None:
        self.name = name
        self._engine, self._result = engine, result
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._future: torch.futures.Future | None = None
        self._lock = threading.Lock()

    def is_completed(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self._ended.is_set()

    def is_success(self) -> bool:
        """Whether it has succeeded."""
        return self._ended.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Error of the operation. None if there is none so far."""
        return self._error

    def result(self) -> Any:
        """Result tensors, once it has ended."""
        return self._result

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end.

        Raises:
            PeerError: A peer is dead, hung or inconsistent, or the operation timed out.
        """
        if not self._ended.is_set() and self._engine is not None:
            self._engine.wait(self, timeout_s)
        if not self._ended.is_set():
            raise PeerError(
                f"{self.name} had not ended after {timeout_s:g} s; it goes on, wait longer or look for a late rank"
            )
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future:
        """Future of the result, or of the error."""
        with self._lock:
            future, made = self._future, self._future is None
            if future is None:
                future = self._future = torch.futures.Future()
            over = made and self._ended.is_set()
        if over:
            self._settle(future)
        return future

    def block(self, seconds: float) -> None:
        """Block while another thread moves the bytes."""
        self._ended.wait(seconds)

    def end(
        self,
        finish: Callable[[], object] | None = None,
        error: BaseException | None = None,
        *,
        before_callbacks: Callable[[], object] = lambda: None,
    ) -> None:
        """Mark as ended; called by the engine."""
        try:
            if finish is not None and error is None:
                finish()
        except Exception as raised:
            error = raised
        with self._lock:
            self._error = error
            self._ended.set()
            future = self._future
        # Without the lock: a callback may take as long as it likes.
        if future is not None:
            before_callbacks()
            self._settle(future)

    def _settle(self, future: torch.futures.Future) -> None:
        if self._error is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._error)
