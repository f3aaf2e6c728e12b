"""Ranks of a distributed planner as threads of one process, with an all-gather between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["run_ranks"]

Vector = NDArray[np.float64]
T = TypeVar("T")


def run_ranks(
    world_size: int, body: Callable[[int, Callable[[Vector], list[Vector]]], T], *, timeout_s: float = 60.0
) -> list[T]:
    """Run `body(rank, allgather)` for every rank and return the results in rank order.

    The first error of any rank is raised; the others are released from the barrier.
    """
    barrier = threading.Barrier(world_size, timeout=timeout_s)
    slots: list[Any] = [None] * world_size
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def allgather(rank: int, own: Vector) -> list[Vector]:
        slots[rank] = own.copy()
        barrier.wait()
        everyone = list(slots)
        barrier.wait()
        return everyone

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank, lambda own: allgather(rank, own))
        except threading.BrokenBarrierError:
            return
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
