"""Start the workers of a full-graph run on a lab or on loopback, and follow what they report."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from wirewise import lab
from wirewise.decoding import decode_json
from wirewise.errors import LabError, PeerError
from wirewise.files import atomic_file
from wirewise.recipes.job import Event, Job, Outcome
from wirewise.results import EpochRecord

__all__ = ["SAYS", "choose_network", "in_lab", "on_loopback", "train", "why_it_failed"]

_WORKER = ["-m", "wirewise.recipes.full_graph_worker"]
SAYS = "for the user: "
"""Start of a line of a worker that the user shall read."""
_ERROR = re.compile(r"^(?:\[rank\d+\]: )?(?:wirewise\.errors\.\w+Error: |(?=[\w.]+Error\b))")
"""Start of a line that ends a traceback: all before the message, or before the name of an error of others."""


def choose_network(job: Job) -> tuple[Job, list[str]]:
    """Settle "auto" and "lab": the job with the network that will be used, and what a reader must know of it.

    Raises:
        LabError: A lab was asked for and cannot be had.
    """
    if job.network == "loopback":
        return job, ["The workers talked over loopback, which no link shapes."]
    ok, reason = lab.available()
    if ok:
        return msgspec.structs.replace(job, network="lab"), []
    if job.network == "lab":
        raise LabError(f"no lab here: {reason}. Use --network loopback, or mend what is missing")
    note = f"No lab here ({reason}): the workers talked over loopback, which no link shapes."
    return msgspec.structs.replace(job, network="loopback"), [note]


def in_lab(
    module: str,
    folder: Path,
    hosts: int,
    link: str,
    say: Callable[[str], None],
    *,
    links: Mapping[int, str] | None = None,
    per_host: int = 1,
    timeout_s: float = 3600.0,
) -> bytes:
    """Run `-m MODULE FOLDER` as ranks on each host of a lab; returns what rank 0 wrote to FOLDER/outcome.json.

    Args:
        module: Of the worker; lines that it prints with `SAYS` before them are for the user.
        folder: Holds what workers read; takes logs.
        hosts: How many.
        link: Rate of each host.
        say: Hears the lines for the user.
        links: Rates of single hosts that differ.
        per_host: Ranks of a host.
        timeout_s: Of the whole job.

    Raises:
        LabError: No lab can be built here.
        PeerError: A rank failed; the message holds its last words.
    """
    possible, reason = lab.available()
    if not possible:
        raise LabError(f"no lab here: {reason}; `wirewise doctor` says more")
    with lab.Lab(hosts, link, links) as network:
        start = partial(network.run, processes_per_host=per_host, timeout_s=timeout_s)
        return _outcome(start, module, folder, say)


def on_loopback(
    module: str, folder: Path, ranks: int, say: Callable[[str], None], *, timeout_s: float = 3600.0
) -> bytes:
    """As `in_lab`, but all ranks are processes of this machine that talk over loopback, which no link shapes.

    Raises:
        PeerError: A rank failed; the message holds its last words.
    """
    with lab.Loopback() as network:
        return _outcome(partial(network.run, processes=ranks, timeout_s=timeout_s), module, folder, say)


def _outcome(
    start: Callable[..., lab.JobResult], module: str, folder: Path, say: Callable[[str], None]
) -> bytes:
    """What rank 0 wrote when a network had started the ranks."""

    def heard(host: int, line: str) -> None:
        if line.startswith(SAYS):
            say(line.removeprefix(SAYS))

    outcome = folder / "outcome.json"
    outcome.unlink(missing_ok=True)
    done = start(["-m", module, str(folder)], launcher="direct", folder=folder / "logs", listener=heard)
    if not done.ok:
        raise PeerError(why_it_failed(done, folder / "logs"))
    return outcome.read_bytes()


def train(
    job: Job,
    folder: Path,
    heard: Callable[[str, EpochRecord], None],
    *,
    start: Mapping[str, int] | None = None,
) -> Outcome:
    """Run the workers to their end and return what they measured.

    Args:
        job: The job, its network settled.
        folder: Holds the parts; takes the job file, events, logs and the outcome.
        heard: Called with every finished epoch.
        start: Epoch of the checkpoint that each mode goes on from, 0 for one that starts anew. By default all
            modes start anew, and checkpoints of an earlier run are removed.

    Raises:
        InputError: There are no such checkpoints.
        PeerError: A worker failed; the message holds its last words and where its log is.
    """
    _clear(job, folder, start)
    with atomic_file(folder / "job.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(job)))
    with _Follower(folder / "events.jsonl", heard):
        result = _run(job, folder, start or {})
    if not result.ok:
        raise PeerError(why_it_failed(result, folder / "logs"))
    return decode_json((folder / "outcome.json").read_bytes(), Outcome)


def _clear(job: Job, folder: Path, start: Mapping[str, int] | None) -> None:
    """Remove what an earlier run left, from the epochs `start` on; first of all what a later one could resume."""
    # Checkpoints need torch, which takes seconds to import.
    if start is not None:
        from wirewise.recipes import resuming

        resuming.rewind(job, folder, start)
    else:
        if (folder / "checkpoints").is_dir():
            from wirewise.recipes import resuming

            resuming.forget(folder)
        (folder / "events.jsonl").unlink(missing_ok=True)
    for old in ("outcome.json", *(f"plan-{mode}.json" for mode in job.modes)):
        (folder / old).unlink(missing_ok=True)


def _run(job: Job, folder: Path, start: Mapping[str, int]) -> lab.JobResult:
    command = [*_WORKER, str(folder / "job.json"), msgspec.json.encode(start).decode()]
    logs = folder / "logs"
    if job.network == "lab":
        with lab.Lab(job.hosts, job.link, job.links) as network:
            return network.run(
                command, processes_per_host=job.workers // job.hosts, launcher="direct", folder=logs
            )
    with lab.Loopback() as loopback:
        return loopback.run(command, processes=job.workers, launcher="direct", folder=logs)


def why_it_failed(result: lab.JobResult, logs: Path) -> str:
    """The most telling line of each failed worker, an error where there is one; equal lines are said once.

    The worker that failed first stands first, and those that only failed to meet others say whom none heard of.
    """
    failed = [rank for rank, code in enumerate(result.exit_codes) if code]
    said: dict[str, list[str]] = {}
    for rank in sorted(failed, key=lambda rank: rank != result.first_failed):
        said.setdefault(_ending(result.exit_codes[rank], result.tails[rank]), []).append(str(rank))
    waited = [rank for rank in failed if any("DistStoreError" in line for line in result.tails[rank])]
    absent = [str(rank) for rank in range(len(result.exit_codes)) if rank not in waited]
    words = [f"worker {', '.join(ranks)}: {words}" for words, ranks in said.items()]
    if waited and absent:
        words.append(f"worker {', '.join(absent)} did not come to the start of the job in time")
    return f"training failed. {'; '.join(words)}. The full logs are in {logs}"


def _ending(code: int, tail: Sequence[str]) -> str:
    """How a worker ended, and the last that it said, if anything."""
    lines = [line for line in tail if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    last = _ERROR.sub("", (errors or lines or [""])[-1].strip())
    if code >= 0:
        return last or "it said nothing"
    return f"ended by signal {-code}" + (f", its last words: {last}" if last else " and said nothing")


class _Follower:
    """Reads the event file while the workers write it."""

    def __init__(self, path: Path, heard: Callable[[str, EpochRecord], None]) -> None:
        self._path, self._heard = path, heard
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        for line in self._lines():
            event = decode_json(line, Event)
            self._heard(event.mode, event.record)

    def _lines(self) -> Iterator[bytes]:
        done, rest = 0, b""
        while True:
            last = self._ended.wait(0.2)
            if self._path.exists():
                with self._path.open("rb") as file:
                    file.seek(done)
                    new = file.read()
                done += len(new)
                *lines, rest = (rest + new).split(b"\n")
                yield from lines
            if last:
                return
