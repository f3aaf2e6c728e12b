"""Start the ranks of a full-graph run, and tell what they report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from wirewise.decoding import decode_json
from wirewise.recipes.job import Event, FullGraphJob, Outcome
from wirewise.results import EpochRecord
from wirewise.trials.start import open_network, run_ranks

__all__ = ["train"]


def train(
    job: FullGraphJob,
    folder: Path,
    heard: Callable[[str, EpochRecord], None],
    *,
    start: Mapping[str, int] | None = None,
) -> Outcome:
    """Run the workers to their end and return what they measured.

    Args:
        job: The job, its network settled.
        folder: Holds the parts; takes the job file, events, logs and the outcome.
        heard: Called with every finished epoch, also with those before the checkpoints.
        start: Epoch of the checkpoint that each mode goes on from, 0 for one that starts anew. By default all
            modes start anew, and checkpoints of an earlier run are removed.

    Raises:
        InputError: There are no such checkpoints.
        PeerError: A worker failed; the message holds its last words and where its log is.
    """
    _clear(job, folder, start)
    if start is not None:
        from wirewise.recipes import resuming

        for event in resuming.events(folder):
            heard(event.mode, event.record)

    def report(record: bytes) -> None:
        event = decode_json(record, Event)
        heard(event.mode, event.record)

    with open_network(job.network, job.hosts, job.link, job.links) as network:
        return run_ranks(
            "wirewise.recipes.full_graph_worker",
            folder,
            Outcome,
            network=network,
            ranks=job.workers,
            job=job,
            report=report,
            arguments=[msgspec.json.encode(start or {}).decode()],
        )


def _clear(job: FullGraphJob, folder: Path, start: Mapping[str, int] | None) -> None:
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
    for mode in job.modes:
        (folder / f"plan-{mode}.json").unlink(missing_ok=True)
