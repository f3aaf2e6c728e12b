"""Rank side of a job: process group, transport, log, outcome, and joint exit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import msgspec
import torch
import torch.distributed as dist

from wirewise.decoding import decode_json
from wirewise.files import write_json
from wirewise.hosts import integer_variable
from wirewise.profile.ending import end_process
from wirewise.runtime.full_graph import keep_freed_memory
from wirewise.runtime.startup import start_group
from wirewise.runtime.transport import Transport, transport_of
from wirewise.trials.log import Report, Text, write_line
from wirewise.trials.start import JOB, OUTCOME

__all__ = ["Rank", "join_job", "main", "prepare_process"]


class _Job(Protocol):
    @property
    def timeout_s(self) -> float: ...


J = TypeVar("J", bound=_Job)


class Rank(Generic[J]):
    """One rank of a job, as a process or a thread.

    Args:
        job: What all ranks of the job read; its `timeout_s` limits every wait.
        folder: Folder of the job.
        transport: Messages between all ranks.
    """

    def __init__(self, job: J, folder: Path, transport: Transport) -> None:
        self.job, self.folder, self.transport = job, folder, transport
        self.first = transport.rank == 0

    def log(self, text: str) -> None:
        """Send a log line to the user; only rank 0 does."""
        if self.first:
            write_line(Text(text))

    def report(self, record: object) -> None:
        """Send an intermediate measurement to the parent; only rank 0 does."""
        if self.first:
            write_line(Report(msgspec.Raw(msgspec.json.encode(record))))

    def outcome(self, outcome: object) -> None:
        """Write the outcome of the job; only rank 0 does."""
        if self.first:
            write_json(self.folder / OUTCOME, outcome)

    def from_first(self, value: object, kind: Any) -> Any:
        """Broadcast a value from rank 0.

        Args:
            value: Value on rank 0; ignored on other ranks.
            kind: Type of the record.
        """
        content = msgspec.json.encode(value) if self.first else b""
        return msgspec.json.decode(self.transport.from_first(content, "what rank 0 decided"), type=kind)

    def group(self) -> Transport:
        """Create a transport over a further process group; collective call."""
        group = dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        return Transport(group, timeout_s=self.job.timeout_s, store=self.transport.store)


@contextmanager
def join_job(timeout_s: float = 120.0, *, backend: str = "gloo") -> Iterator[Transport]:
    """Join the job that the environment describes; leave it together with all other ranks.

    Args:
        timeout_s: Time limit for other ranks to join and to answer, in seconds.
        backend: "gloo", or "nccl" with the device that LOCAL_RANK names.

    Raises:
        PeerError: Ranks did not join; the message names them.
    """
    start_group(timeout_s, backend)
    try:
        transport = transport_of(timeout_s=timeout_s)
        yield transport
        # A rank that left earlier would look like one that died.
        transport.barrier("the end of the job")
        transport.close()
    finally:
        dist.destroy_process_group()


def prepare_process(memory: Callable[[], None] = keep_freed_memory) -> None:
    """Set the number of threads to OMP_NUM_THREADS, else one, and keep freed memory.

    Args:
        memory: Function that configures the allocator; called before the first tensor is created.
    """
    torch.set_num_threads(integer_variable("OMP_NUM_THREADS", 1, minimum=1))
    memory()


def main(
    kind: type[J],
    work: Callable[[Rank[J]], None],
    folder: str,
    *,
    backend: Callable[[J], str] = lambda _: "gloo",
    memory: Callable[[], None] = keep_freed_memory,
) -> NoReturn:
    """Run the work of the rank that the environment describes; then exit with code 0.

    Args:
        kind: Type of the job.
        work: Called with the rank.
        folder: Folder that holds the job.
        backend: Backend of the default process group, by the job.
        memory: Function that configures the allocator, for `prepare_process`.
    """
    prepare_process(memory)
    path = Path(folder)
    job = decode_json((path / JOB).read_bytes(), kind)
    with join_job(job.timeout_s, backend=backend(job)) as transport:
        work(Rank(job, path, transport))
    end_process()
