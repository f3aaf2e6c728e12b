"""The interface of a lab without a network of its own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Self, Unpack

from wirewise.lab.job import Job, JobOptions, JobResult, Process
from wirewise.lab.launch import Place, rank_commands

__all__ = ["Loopback"]


class Loopback:
    """The ranks of a job on this machine without any shaping; used, and labelled, where no lab can be had."""

    network = "loopback"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(
        self,
        command: Sequence[str],
        *,
        processes: int,
        launcher: str = "torchrun",
        **options: Unpack[JobOptions],
    ) -> JobResult:
        """Run one job of `processes` ranks and wait for its end; arguments as `Lab.launch`."""
        place = Place(0, 1, "lo", "127.0.0.1", _free_port())
        ranks = rank_commands(place, command, per_host=processes, launcher=launcher)
        return Job([Process(0, argv, variables) for argv, variables in ranks], **options).wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
