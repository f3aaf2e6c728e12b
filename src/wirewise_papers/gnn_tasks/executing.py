"""Real-time execution of placed tasks and flows on one host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import torch

from wirewise.errors import PeerError
from wirewise.runtime.flows import Connections, execute
from wirewise.sim.flows.measured import OpTimes
from wirewise.trials.rank import Rank
from wirewise_papers.gnn_tasks.planning import PlacementJob, lab_links

__all__ = ["Execution", "executions"]


class Execution:
    """One host's part of a plan (`wirewise_papers.interleaved.Subject`)."""

    def __init__(self, rank: Rank[PlacementJob], name: str, peers: Connections, opened: ExitStack) -> None:
        self._rank, self._name, self._peers, self._opened = rank, name, peers, opened
        self._times: list[np.ndarray] = []

    def train(self, steps: int) -> Iterator[float]:
        """Execute the plan n times."""
        job = self._rank.job
        for _ in range(steps):
            self._times.append(
                np.stack(execute(job.plans[self._name], job.tasks, self._peers, lab_links(job.links)))
            )
            yield 0.0

    def outcome(self) -> list[OpTimes]:
        """Times of all ops of all hosts in each execution."""
        return [self._of_all_hosts(own) for own in self._times]

    def _of_all_hosts(self, own: np.ndarray) -> OpTimes:
        every = self._rank.transport.all_gather(torch.from_numpy(own), f"the times of plan {self._name!r}")
        start_s, end_s = np.nanmax(torch.stack(every).numpy(), axis=0)
        if never := int(np.isnan(start_s + end_s).sum()):
            raise PeerError(f"plan {self._name!r}: {never} ops never ended; see the hosts' logs")
        return OpTimes(start_s=start_s.tolist(), end_s=end_s.tolist())

    def close(self) -> None:
        """Close the connections, which all plans use."""
        self._opened.close()


def executions(rank: Rank[PlacementJob]) -> dict[str, Execution]:
    """This host's part of each plan, over the same connections."""
    opened = ExitStack()
    peers = opened.enter_context(Connections(rank.transport))
    return {name: Execution(rank, name, peers, opened) for name in rank.job.plans}
