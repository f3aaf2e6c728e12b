"""Readers of published cluster logs and of measured speeds; files are supplied by the user.

Q. Hu et al.: Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters, SC 2021
(Helios); M. Jeon et al.: Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, ATC 2019
(Philly); Q. Weng et al.: MLaaS in the Wild, NSDI 2022 (Alibaba PAI); TapFinger, INFOCOM 2023.

A log states the duration of a job with the resources that it requested, not its speed with other resources. Jobs with
equal requests are therefore of one kind, run with exactly these resources, and have individual paces, which are hidden
from schedulers. Jobs that never ran, requested nothing, or fit no cluster are left out; notes of the queue count the
latter.
"""

from __future__ import annotations

import csv
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import ceil, inf, isfinite
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

import msgspec

from wirewise.decoding import decode_json
from wirewise.errors import InputError
from wirewise.trace.queues import EdgeCluster, JobKind, JobQueue, QueuedJob

__all__ = ["HELIOS_LIKE", "QUEUE_LOGS", "read_queue_log", "read_speeds"]

_HELIOS = ("job_id", "gpu_num", "cpu_num", "submit_time", "duration")
_MOST_FIGURES = 1_000_000
_ABSENT = ("", "none", "null", "nan", "nat")
"""Words for a time that there is not: of the logs as published, and of tools that wrote them anew."""
_PAI_HEAD = "job_name"
"""First name of a line of names, which some copies of the tables have."""
_START_S = 14.0
"""Seconds that TapFinger adds to measured times, for a job to start."""


class _Logged(NamedTuple):
    """A job of a log; times in seconds."""

    name: str
    arrival_s: float
    seconds: float
    cpus: int
    gpus: int

    @property
    def asked(self) -> tuple[int, int]:
        """Processors and accelerators; those with accelerators are not held to their processors."""
        return (0 if self.gpus else self.cpus), self.gpus


def read_queue_log(
    form: str,
    path: str | os.PathLike[str],
    clusters: Sequence[EdgeCluster],
    *,
    slot_s: float = 60.0,
    jobs: int | None = None,
) -> JobQueue:
    """Read a published cluster log.

    Args:
        form: Name of the cluster, a key of `QUEUE_LOGS`.
        path: File of the log; of "pai" the folder of both files.
        clusters: Clusters that share the jobs.
        slot_s: Seconds of a slot.
        jobs: Number of jobs, the first to arrive. Defaults to all.

    Raises:
        InputError: The form or the file does not exist, the file or a number in it is malformed, or no job that ran
            and fits a cluster; the message names the place.
    """
    if form not in QUEUE_LOGS:
        raise InputError(f"got a log in the form {form!r}; expected one of {', '.join(QUEUE_LOGS)}")
    return _queue(QUEUE_LOGS[form](Path(path)), path, clusters, slot_s, jobs)


def _helios(path: Path) -> Iterator[_Logged]:
    """Jobs of a `cluster_log.csv` of Helios, whose columns are named in the first line."""
    with _opened(path) as file:
        table = csv.DictReader(file)
        table.fieldnames = [name.strip() for name in table.fieldnames or ()]
        if missing := [name for name in _HELIOS if name not in table.fieldnames]:
            raise InputError(f"{path}: has no column {missing[0]!r}; expected a cluster_log.csv of Helios")
        for row in table:
            if _is_absent(row["submit_time"]) or _is_absent(row["duration"]):
                continue
            with _naming_place(path, table.line_num):
                job = _Logged(
                    row["job_id"] or f"line {table.line_num}",
                    _instant(row["submit_time"]),
                    _figure(row["duration"]),
                    _amount(_whole(row["cpu_num"])),
                    _amount(_whole(row["gpu_num"])),
                )
            yield job


class _Detail(msgspec.Struct):
    gpus: list[str]


class _Attempt(msgspec.Struct):
    start_time: str | None
    end_time: str | None
    detail: list[_Detail]


class _PhillyJob(msgspec.Struct):
    jobid: str
    submitted_time: str
    attempts: list[_Attempt]


def _philly(path: Path) -> Iterator[_Logged]:
    """Jobs of a `cluster_job_log` of Philly, a list in JSON.

    A job asks for as many accelerators as the attempt that had most of them for its time, and takes as long with these
    as all its attempts took with theirs, if seconds times accelerators are the same. "None" stands for no time.
    """
    try:
        found = decode_json(path.read_bytes(), list[_PhillyJob])
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: {error}; expected a cluster_job_log of Philly") from error
    for number, job in enumerate(found):
        if _is_absent(job.submitted_time):
            continue
        work: defaultdict[int, float] = defaultdict(float)
        with _naming_place(path, number, "job"):
            arrival_s = _instant(job.submitted_time)
            for one in job.attempts:
                if not (_is_absent(one.start_time) or _is_absent(one.end_time)):
                    gpus = sum(len(host.gpus) for host in one.detail)
                    spent_s = _instant(one.end_time or "") - _instant(one.start_time or "")
                    # Clocks of two machines may differ by more than a short attempt takes.
                    work[gpus] += gpus * max(spent_s, 0.0)
        most = max(work, key=work.__getitem__, default=0)
        yield _Logged(job.jobid, arrival_s, sum(work.values()) / most if most else 0.0, 0, most)


def _pai(folder: Path) -> Iterator[_Logged]:
    """Jobs of `pai_job_table.csv` and `pai_task_table.csv` of Alibaba PAI, which have no line of names.

    Shares of accelerators are rounded up for all instances of a task together. A job takes from the first start to the
    last end of its tasks.
    """
    spans: dict[str, tuple[float, float]] = {}
    asked: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    tasks = folder / "pai_task_table.csv"
    for line, row in _rows(tasks, 10):
        name, _, instances, _, start, end, cpus, _, gpus, _ = row
        if not (_is_absent(start) or _is_absent(end)) and name != _PAI_HEAD:
            with _naming_place(tasks, line):
                count, first, last = map(_figure, (instances or "1", start, end))
                shares = [_amount(ceil(count * _figure(share or "0") / 100)) for share in (cpus, gpus)]
            before = spans.get(name, (inf, -inf))
            spans[name] = min(before[0], first), max(before[1], last)
            asked[name] = [old + new for old, new in zip(asked[name], shares, strict=True)]
    table = folder / "pai_job_table.csv"
    for line, row in _rows(table, 6):
        if row[0] in spans and not _is_absent(row[4]):
            first, last = spans[row[0]]
            with _naming_place(table, line):
                arrival_s = _figure(row[4])
            yield _Logged(row[0], arrival_s, last - first, *asked[row[0]])


def read_speeds(path: str | os.PathLike[str], *, slot_s: float = 5.0) -> dict[str, JobKind]:
    """Read times measured with every number of CPUs and accelerators, in the format of TapFinger.

    A line has the name of a kind, CPUs, accelerators, seconds, and further fields that are ignored. Repeats are
    averaged, and 14 s are added for a job to start, as in the paper.

    Args:
        path: File of the log.
        slot_s: Seconds of a slot.

    Raises:
        InputError: The file does not exist, a line is malformed, or an amount between measured ones is missing.
    """
    found: defaultdict[str, defaultdict[tuple[int, int], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line, row in _rows(path, None):
        with _naming_place(path, line):
            kind, amount, seconds = row[0], (int(row[1]), int(row[2])), _figure(row[3])
        if min(amount) < 0 or sum(amount) < 1 or seconds <= 0:
            raise InputError(f"{path}, line {line}: {row[:4]}; expected an amount and seconds above 0")
        found[kind][amount].append(seconds)
    if not found:
        raise InputError(f"{path}: is empty; expected lines of kind, processors, accelerators and seconds")
    return {kind: _kind_of(path, kind, times, slot_s) for kind, times in found.items()}


def _kind_of(
    path: str | os.PathLike[str], name: str, times: dict[tuple[int, int], list[float]], slot_s: float
) -> JobKind:
    (low_c, low_g), (high_c, high_g) = (
        [end(amount[n] for amount in times) for n in range(2)] for end in (min, max)
    )
    if (high_c + 1) * (high_g + 1) > _MOST_FIGURES:
        raise InputError(
            f"{path}: {name!r} has up to {high_c} processors and {high_g} accelerators; expected a table of at most "
            f"{_MOST_FIGURES:,} figures, count coarser units"
        )
    # Before there is a table, and without a list of the amounts: one of a torn file may be of any size.
    for c in range(low_c, high_c + 1):
        for g in range(low_g, high_g + 1):
            if (c, g) not in times:
                raise InputError(
                    f"{path}: {name!r} was not measured with {c} processors and {g} accelerators"
                )
    rows = [[0.0] * (high_g + 1) for _ in range(high_c + 1)]
    for (c, g), own in times.items():
        rows[c][g] = slot_s / (sum(own) / len(own) + _START_S)
    return JobKind(progress=tuple(map(tuple, rows)), cpus=low_c, gpus=low_g)


def _queue(
    logged: Iterable[_Logged],
    path: str | os.PathLike[str],
    clusters: Sequence[EdgeCluster],
    slot_s: float,
    jobs: int | None,
) -> JobQueue:
    """The queue of those that ran, in order of arrival."""
    if not (isfinite(slot_s) and slot_s > 0) or (jobs is not None and jobs < 1):
        raise InputError(
            f"got slots of {slot_s} s and {jobs} jobs; expected seconds above 0, and one job at least"
        )
    ran = sorted(
        (one for one in logged if one.seconds > 0 and one.cpus + one.gpus > 0), key=lambda one: one.arrival_s
    )
    if not ran:
        raise InputError(
            f"{path}: no job of it ran with a processor or an accelerator; expected one at least"
        )
    ran, notes = _those_that_fit(ran, path, clusters, jobs)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    amounts: dict[str, tuple[int, int]] = {}
    for one in ran:
        seconds[_name(one)].append(one.seconds)
        amounts[_name(one)] = one.asked
    middle = {name: median(own) for name, own in seconds.items()}
    kinds = {}
    for name, (cpus, gpus) in amounts.items():
        rows = [[0.0] * (gpus + 1) for _ in range(cpus + 1)]
        rows[cpus][gpus] = slot_s / middle[name]
        kinds[name] = JobKind(progress=tuple(map(tuple, rows)), cpus=cpus, gpus=gpus)
    return JobQueue(
        queue=tuple(
            QueuedJob(
                name=one.name,
                kind=_name(one),
                arrival=int((one.arrival_s - ran[0].arrival_s) // slot_s),
                pace=middle[_name(one)] / one.seconds,
            )
            for one in ran
        ),
        kinds=kinds,
        clusters=tuple(clusters),
        slot_s=slot_s,
        notes=notes,
    )


def _those_that_fit(
    ran: Sequence[_Logged], path: str | os.PathLike[str], clusters: Sequence[EdgeCluster], jobs: int | None
) -> tuple[list[_Logged], tuple[str, ...]]:
    """The first jobs that fit a cluster, each with a name of its own, and what is to be said of the others."""
    fitting: list[_Logged] = []
    seen: Counter[str] = Counter()
    notes = []
    larger = 0
    for one in ran:
        cpus, gpus = one.asked
        if not any(place.cpus >= cpus and place.gpus >= gpus for place in clusters):
            larger += 1
            largest = one
            continue
        seen[one.name] += 1
        fitting.append(one if seen[one.name] == 1 else one._replace(name=f"{one.name} ({seen[one.name]})"))
        if len(fitting) == jobs:
            break
    if larger:
        cpus, gpus = largest.asked
        notes.append(
            f"{larger} of the jobs of the log fit no cluster and are left out, such as {largest.name!r}, which asks "
            f"for {cpus} cpus and {gpus} gpus"
        )
    if not fitting:
        raise InputError(f"{path}: {notes[0]}; expected one at least that fits, give a cluster more room")
    if repeated := sum(count > 1 for count in seen.values()):
        notes.append(
            f"{repeated} names of jobs are in the log several times; later ones have a number behind them"
        )
    return fitting, tuple(notes)


def _name(one: _Logged) -> str:
    """Name of a job's kind: a job with accelerators is not held to its processors, which few logs tell well."""
    return f"gpu{one.gpus}" if one.gpus else f"cpu{one.cpus}"


def _is_absent(text: str | None) -> bool:
    return (text or "").strip().lower() in _ABSENT


def _instant(text: str) -> float:
    """Seconds since 1970; a time without a zone is in UTC."""
    found = datetime.fromisoformat(text.strip())
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    try:
        # Spreadsheets put a mark of the byte order before the first name.
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: {error}; expected a file of comma-separated values") from error


def _rows(path: str | os.PathLike[str], width: int | None) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each line."""
    with _opened(path) as file:
        for number, row in enumerate(csv.reader(file), 1):
            if width is not None and len(row) != width:
                raise InputError(f"{path}, line {number}: has {len(row)} fields; expected {width}")
            yield number, row


def _whole(text: str) -> int:
    """A count, which tools that have gaps in a column write with decimals: 2.0."""
    figure = _figure(text)
    if not figure.is_integer():
        raise ValueError(f"{text!r} is no whole number")
    return int(figure)


def _amount(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _figure(text: str) -> float:
    if not isfinite(figure := float(text)):
        raise ValueError(f"{text!r} is not finite")
    return figure


@contextmanager
def _naming_place(path: str | os.PathLike[str], place: int, label: str = "line") -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(f"{path}, {label} {place}: {error}; expected figures and times there") from error


QUEUE_LOGS: dict[str, Callable[[Path], Iterator[_Logged]]] = {
    "helios": _helios,
    "philly": _philly,
    "pai": _pai,
}
"""Readers of published logs, by the name of the cluster, for `read_queue_log`."""
HELIOS_LIKE = Path(__file__).parent / "data" / "helios-like.csv"
"""Log in the format of Helios with 400 randomly sampled jobs; it describes no real cluster."""
