"""Ranks as processes of which one is killed, and another takes its place in a new process group."""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing.connection
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.processes import _SERVER

LIMIT_S = 60.0
_GROUP_S = 15.0


@dataclass
class Place:
    """A rank of a job in one of its generations."""

    rank: int
    world: int
    folder: Path
    generation: int
    kill: tuple[str, int] | None
    """Point and step at which this process kills itself."""
    groups: list[Any] = field(default_factory=list)

    def reach(self, point: str, step: int) -> None:
        if self.kill == (point, step):
            os.kill(os.getpid(), signal.SIGKILL)

    def group(self) -> Any:
        """The process group of the generation."""
        import torch.distributed as dist

        store = dist.FileStore(str(self.folder / f"generation-{self.generation}"), self.world)
        options = dist.ProcessGroupGloo._Options()
        options._timeout = datetime.timedelta(seconds=_GROUP_S)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        self.groups.append(dist.ProcessGroupGloo(store, self.rank, self.world, options))
        return self.groups[-1]

    def leave(self) -> None:
        """Close the connections of the present group, also under others that wait for this rank."""
        import torch

        # A receive that ends by its limit closes all connections; one from a dead rank does not begin.
        for peer in set(range(self.world)) - {self.rank}:
            with contextlib.suppress(RuntimeError):
                work = self.groups[-1].recv([torch.zeros(1)], peer, 77777)
                work.wait(datetime.timedelta(milliseconds=2))
        self.generation += 1


def run_with_kill(
    train: Callable[[Place], Any], world: int, victim: int, kill: tuple[str, int], folder: Path
) -> list[Any]:
    """What `train` returns on every rank; a module's function, so that it can be pickled.

    One rank kills itself, and a process in its place starts with generation 1; the others leave and come to it too.
    """
    ranks: dict[int, tuple[Any, Any]] = {}
    lost: list[Any] = []
    try:
        for rank in range(world):
            ranks[rank] = _start(train, Place(rank, world, folder, 0, kill if rank == victim else None))
        dead = ranks[victim][0]
        lost.append(dead)
        dead.join(LIMIT_S)
        assert dead.exitcode == -signal.SIGKILL, (
            f"rank {victim} ended with {dead.exitcode}: {_told(ranks[victim][1])}"
        )
        ranks[victim] = _start(train, Place(victim, world, folder, 1, None))
        return [_told(ranks[rank][1]) for rank in range(world)]
    finally:
        for process in [*lost, *(process for process, _ in ranks.values())]:
            if process.is_alive():
                process.kill()
            process.join()
        for _, pipe in ranks.values():
            pipe.close()


def _start(train: Callable[[Place], Any], place: Place) -> tuple[Any, Any]:
    ours, theirs = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_main, args=(train, place, theirs), name=f"rank-{place.rank}")
    process.start()
    theirs.close()
    return process, ours


def _main(train: Callable[[Place], Any], place: Place, answer: Any) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        message = ("result", train(place))
    except BaseException:
        message = ("error", traceback.format_exc())
    answer.send_bytes(pickle.dumps(message))
    # Threads may wait for a group that is no more.
    os._exit(0)


def _told(pipe: Any) -> Any:
    assert multiprocessing.connection.wait([pipe], LIMIT_S), "a rank did not end in time"
    try:
        kind, value = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return "nothing"
    assert kind == "result", value
    return value
