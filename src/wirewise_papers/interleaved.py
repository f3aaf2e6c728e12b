"""Variants of a job that ranks train interleaved, timed on the slowest rank: the runner of most experiments.

`-m wirewise_papers.interleaved FOLDER MODULE:CLASS` is one of the ranks.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import msgspec

from wirewise.errors import InputError
from wirewise.files import owns_folder
from wirewise.options import Options
from wirewise.plans import Plan, save
from wirewise.results import Comparison
from wirewise_papers.experiment import Experiment, Log

if TYPE_CHECKING:
    from wirewise.lab.counters import HostBytes
    from wirewise.trials.rank import Rank
    from wirewise.trials.start import Network

__all__ = [
    "Interleaved",
    "InterleavedRun",
    "Measurements",
    "Subject",
    "VariantRecord",
    "interleave",
    "plan_file",
]

J = TypeVar("J", bound=Options)
R = TypeVar("R", bound=msgspec.Struct)


class Subject(Protocol):
    """Variant of a job on one rank."""

    def train(self, steps: int) -> Iterator[float]:
        """Train n steps; yields this rank's part of the loss after each. All work is done when it ends.

        A method that returned after each step would stall pipelines, whose stages are in different steps.
        """

    def outcome(self) -> Any:
        """Further measurements, called once on all ranks as a collective; those of rank 0 are kept."""

    def close(self) -> None:
        """Release connections and threads."""


class Measurements(msgspec.Struct, kw_only=True):
    """Measurements of a variant."""

    steps_s: list[float] = []
    """Duration of each counted step on the slowest rank."""
    losses: list[float] = []
    """Loss of every step, including uncounted ones, summed over ranks."""
    ends_s: list[float] = []
    """Training time at which each step had ended on all ranks, including uncounted steps, in seconds."""
    bytes_sent: int | None = None
    """Bytes out of all interfaces in a counted step, headers included. None if nothing counts them."""
    sent_by_rank: list[int] = []
    """Bytes out of the interface of each rank's host in a counted step of the last turn. Empty if not counted."""
    received_by_rank: list[int] = []
    """Bytes into the interface of each rank's host in a counted step of the last turn. Empty if not counted."""
    outcome: Any = None
    """Further measurements (`Subject.outcome`)."""

    @property
    def step_s(self) -> float:
        """Median duration of a step."""
        return statistics.median(self.steps_s)


class VariantRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of an `InterleavedRun`."""

    step_s: float
    """Median duration of a step on the slowest rank."""
    predicted_step_s: float | None
    """Step time predicted for its plan, in seconds. None if it has no plan."""
    steps_s: list[float]
    losses: list[float]
    bytes_sent: int | None
    """Bytes out of all interfaces in a step, headers included. None if nothing counts them."""
    outcome: Any
    """Further measurements of the experiment."""


class InterleavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Default result of an interleaved experiment."""

    options: dict[str, Any]
    variants: dict[str, VariantRecord]
    """Variants; the first is the baseline."""
    fastest: str
    speedup: float
    """Speed-up of the fastest variant over the baseline, by step time."""


class Interleaved(Experiment[J, R]):
    """An experiment whose variants train the same job interleaved on the same ranks."""

    job: ClassVar[type[Options] | None] = None
    """Record that the ranks read. None if it is the options."""
    unit: ClassVar[str] = "step"
    """Name of a step in the log."""
    warm_up: ClassVar[int] = 0
    """Untimed warm-up steps of each variant before the first turn."""
    filling: ClassVar[int] = 1
    """Uncounted steps at the start of each turn, which fill caches and pipelines."""
    together: ClassVar[bool] = True
    """Whether the ranks begin each step together. False for pipelines, whose steps overlap."""

    def plans(self, job: J) -> Mapping[str, Plan]:
        """Plans by variant, for the folder of the run."""
        return {}

    def network(self, job: J) -> str:
        """Network of the hosts: "lab" or "slurm"."""
        asked: Any = job
        return str(asked.network)

    def rates(self, job: J) -> tuple[str, ...]:
        """Rate of each host's link."""
        raise NotImplementedError

    def ranks(self, job: J) -> int:
        """Number of ranks. Defaults to one on each host."""
        return len(self.rates(job))

    def turns(self, job: J) -> Sequence[int]:
        """Number of counted steps in each turn."""
        asked: Any = job
        return [asked.steps] * asked.turns

    def shape(self, job: J, network: Network) -> None:
        """Change the network after entering it and before ranks start, such as the speed of a host."""

    def subjects(self, rank: Rank[Any]) -> Mapping[str, Subject]:
        """Variants on this rank, the reference first."""
        raise NotImplementedError

    def summarise(self, job: J, measurements: Mapping[str, Measurements]) -> R:
        """Make the result from the measurements. Defaults to an `InterleavedRun`."""
        predicted = {name: getattr(plan, "predicted_step_s", None) for name, plan in self.plans(job).items()}
        variants = {
            name: VariantRecord(
                step_s=one.step_s,
                predicted_step_s=predicted.get(name),
                steps_s=one.steps_s,
                losses=one.losses,
                bytes_sent=one.bytes_sent,
                outcome=one.outcome,
            )
            for name, one in measurements.items()
        }
        best = min(variants, key=lambda name: variants[name].step_s)
        result: Any = InterleavedRun(
            options=msgspec.to_builtins(job),
            variants=variants,
            fastest=best,
            speedup=next(iter(variants.values())).step_s / variants[best].step_s,
        )
        return result  # type: ignore[no-any-return]

    def comparison(self, result: R) -> Comparison:
        """Compare the variants. Defaults to step, speed, prediction and bytes of an `InterleavedRun`."""
        from wirewise_papers.interleaved_page import interleaved_comparison

        run: Any = result
        return interleaved_comparison(run, f"wirewise run {self.name}", self.unit)

    def run(self, job: J, folder: Path, log: Log) -> R:
        """Save the plans, train all variants interleaved, and summarise.

        Raises:
            InputError: The allocation has too few hosts.
            LabError: No lab can be built here.
            PeerError: A rank failed; the message quotes the end of its output.
        """
        return self.summarise(job, self.measure(job, folder, log))

    @owns_folder
    def measure(self, job: J, folder: Path, log: Log) -> dict[str, Measurements]:
        """Train all variants interleaved on hosts of a lab or an allocation; errors as in `run`."""
        from wirewise.trials.start import open_network, run_ranks

        for name, plan in self.plans(job).items():
            save(plan, plan_file(folder, name))
        rates, place = self.rates(job), f"{type(self).__module__}:{type(self).__qualname__}"
        with open_network(self.network(job), len(rates), rates) as network:
            self.shape(job, network)
            return run_ranks(
                __name__,
                folder,
                dict[str, Measurements],
                network=network,
                ranks=self.ranks(job),
                job=job,
                log=log,
                arguments=[place],
            )

    def work(self, rank: Rank[Any]) -> None:
        """Train on one rank and write the measurements."""
        subjects = self.subjects(rank)
        if not subjects:
            raise InputError(
                f"the experiment {self.name!r} has no variants for this job; expected one or more"
            )
        measured = interleave(self, rank, subjects)
        for name, subject in subjects.items():
            measured[name].outcome = subject.outcome()
        rank.outcome(measured)
        for subject in subjects.values():
            subject.close()


def plan_file(folder: Path, name: str) -> Path:
    """File of a variant's plan in the folder of a run."""
    return folder / f"plan-{name.replace(':', '-')}.json"


def interleave(
    experiment: Interleaved[J, R], rank: Rank[Any], subjects: Mapping[str, Subject]
) -> dict[str, Measurements]:
    """Train all variants in the order ABBA and time their steps.

    Args:
        experiment: Experiment that gives the counted steps and whether ranks synchronise before them.
        rank: This process's rank.
        subjects: Variants by name.
    """
    from wirewise.trials.windows import alternate

    measured = {name: Measurements() for name in subjects}
    if experiment.warm_up:
        for name, subject in subjects.items():
            losses = list(subject.train(experiment.warm_up))
            measured[name].losses += rank.transport.total(losses).tolist()
    counts = experiment.turns(rank.job)
    sent = dict.fromkeys(subjects, 0)
    for number, name in alternate(list(subjects), len(counts)):
        record = measured[name]
        passed = _turn(experiment, rank, subjects[name], counts[number], record)
        sent[name] += passed.tx_bytes
        record.sent_by_rank, record.received_by_rank = _by_rank(rank, passed, counts[number])
        rank.log(f"{name}: {1e3 * record.step_s:.1f} ms a {experiment.unit}, median")
    for name, own in sent.items():
        # Nothing counts bytes outside of a lab.
        if total := float(rank.transport.total(float(own))):
            measured[name].bytes_sent = round(total / sum(counts))
    return measured


def _by_rank(rank: Rank[Any], passed: HostBytes, steps: int) -> tuple[list[int], list[int]]:
    """Bytes that each rank's host sent and received in a step. Empty if nothing counts them."""
    import torch

    everyone = rank.transport.all_gather(
        torch.tensor([passed.tx_bytes, passed.rx_bytes]), "counters of interfaces"
    )
    sent, received = ([int(one[way]) // steps for one in everyone] for way in (0, 1))
    return (sent, received) if any(sent) else ([], [])


def _turn(
    experiment: Interleaved[J, R], rank: Rank[Any], subject: Subject, steps: int, record: Measurements
) -> HostBytes:
    """Train one turn and add it to the record; bytes of this host in the counted steps, 0 if not counted."""
    from wirewise.lab.counters import HostBytes, interface_bytes

    transport, filling = rank.transport, experiment.filling
    training, before = subject.train(filling + steps), None
    durations: list[float] = []
    losses: list[float] = []
    transport.barrier("the start of a turn")
    end_s = time.perf_counter()
    for number in range(filling + steps):
        if number == filling:
            before = interface_bytes()
        if experiment.together:
            transport.barrier(f"the start of a {experiment.unit}")
            end_s = time.perf_counter()
        loss = next(training, None)
        start_s, end_s = end_s, time.perf_counter()
        if loss is None:
            raise InputError(
                f"{subject!r} yielded {number} losses of {filling + steps} steps; expected one a step"
            )
        losses.append(loss)
        durations.append(end_s - start_s)
    # The last step is done once the training has ended, as with an optimizer that steps behind its loss.
    for _ in training:
        raise InputError(f"{subject!r} yielded more than {filling + steps} losses; expected one a step")
    durations[-1] += time.perf_counter() - end_s
    transport.barrier("the end of a turn")
    after = interface_bytes()
    slowest = transport.slowest(durations).tolist()
    record.steps_s += slowest[filling:]
    record.losses += transport.total(losses).tolist()
    elapsed_s = record.ends_s[-1] if record.ends_s else 0.0
    for duration in slowest:
        elapsed_s += duration
        record.ends_s.append(elapsed_s)
    return HostBytes(0, 0) if before is None or after is None else after - before


def _main(folder: str, place: str) -> None:
    from wirewise.trials.rank import main

    module, _, name = place.partition(":")
    experiment: Interleaved[Any, Any] = getattr(importlib.import_module(module), name)()
    kind: Any = experiment.job or experiment.options
    main(kind, experiment.work, folder)


if __name__ == "__main__":
    _main(*sys.argv[1:])
