"""Records of advice that scripts read as JSON: the bottleneck of a job, candidate changes, and the best one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from wirewise import plans
from wirewise.files import write_json
from wirewise.plans import Plan
from wirewise.report.figures import MISSING, factor, seconds, signed, size
from wirewise.results import CompressionAdvice

__all__ = ["BOUNDS", "FAMILIES", "LEAST_GAIN", "Advice", "Candidate", "StepCurve"]

BOUNDS = (
    "network",
    "latency",
    "straggler",
    "imbalance",
    "data",
    "host",
    "compute",
    "memory",
    "unknown",
)
"""Values of `Advice.bound_by`."""

FAMILIES = {
    "loader": "workers and prefetching of the data loader",
    "stragglers": "ranks that others wait for",
    "buckets": "buckets of gradients and their order",
    "bucket-view": "gradients that are views of their buckets",
    "codecs": "compressed gradients",
    "collectives": "algorithms of collectives",
    "links": "faster links",
    "topology": "the links of another cluster",
    "ranks": "fewer or more ranks",
    "accumulation": "micro-batches between exchanges of gradients",
    "kernels": "CUDA graphs and fused kernels",
    "sharding": "FSDP2 in place of DDP",
    "parallel": "pipelines and parallel plans of a captured model",
    "graph": "bits and caches of graph training",
    "protection": "protection from failures",
    "combinations": "several changes of the script together",
}
"""Every family of changes: each has candidates in an advice, or a reason why it has none."""

LEAST_GAIN = 0.03
"""Fraction of a step that a change must save to be advised: replays of the committed runs are off by 1 to 3 %."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate change of a job."""

    family: str
    """One of FAMILIES."""
    planner: str
    """Name of the change within its family, or of the planner that made it."""
    predicted_step_s: float | None
    """Predicted step, in seconds, scaled by the replay's error on the unchanged job. None if unknown."""
    measured_step_s: float | None = None
    """Measured step, in seconds. None if the change was not tried."""
    ci95: tuple[float, float] | None = None
    """95 % interval of the measured step, or of the predicted mean over the recorded steps."""
    memory_bytes: int | None = None
    """Change of a rank's memory, in bytes; negative if it needs less. None if unknown."""
    risk: str = ""
    """Possible effect on convergence; empty if there is none."""
    note: str = ""
    plan_file: str = ""
    """File of the plan; empty if the change needs none."""
    lines: tuple[str, ...] = ()
    """Lines to write into the script; empty if the change is to machines instead."""
    work: float = 1.0
    """Samples per step, as a multiple of the current number."""
    arguments: Mapping[str, bool | int | float | str] = {}
    """Arguments of the script's calls that a trial changes, such as `num_workers`; empty if no restart can try it."""
    baseline_step_s: float | None = None
    """Seconds of an unchanged step measured in the same trial. None if the advice's own step is the baseline."""
    failure: str = ""
    """Error of the script in a trial of the change, which rules the change out; empty if there was none."""
    source: str = "simulated"
    """"simulated", or "accounted" if the job cannot be replayed: the recorded idle time that the change removes."""

    @property
    def step_s(self) -> float | None:
        """Step time in seconds: measured if it was tried, else predicted."""
        return self.predicted_step_s if self.measured_step_s is None else self.measured_step_s

    @property
    def effort(self) -> int:
        """Number of script lines to write."""
        return len(self.lines)

    def baseline_step_time_s(self, step_s: float) -> float:
        """Baseline step time in seconds: measured in the same trial if there was one, else `step_s`."""
        return self.baseline_step_s or step_s

    def gain(self, step_s: float) -> float:
        """Fraction of the time per sample saved, compared with a job whose step takes `step_s`; 0 if unknown."""
        if self.step_s is None or self.failure:
            return 0.0
        return 1.0 - self.step_s / self.work / self.baseline_step_time_s(step_s)


class StepCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted step time, of the baseline and under its best script change, against another quantity."""

    over: str
    """"rate of links", as a multiple of the current rate, or "ranks"."""
    values: tuple[float, ...]
    as_it_is_s: tuple[float | None, ...]
    """Seconds of a step at each value. None where the job cannot be replayed."""
    change: str = ""
    """Family and name of the change; empty if none saves time."""
    changed_s: tuple[float | None, ...] = ()
    """Seconds for as many samples under the change, at each value."""
    break_even: float | None = None
    """Value at which both are equally fast. None if one is faster at all values."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice on a job; `to_json` has the field names that scripts rely on."""

    step_s: float
    """Measured step of the unchanged job, in seconds."""
    bound_by: str
    """One of BOUNDS."""
    bound_reason: str
    """Explanation, which names the rank, the link or the loader."""
    ranks: int
    candidates: tuple[Candidate, ...]
    """Changes by savings, largest first."""
    not_applicable: Mapping[str, str]
    """Reason of each family without a candidate."""
    advice: str
    """Recommendation, in a sentence."""
    lines: tuple[str, ...]
    """Lines to write into the script; empty if it is best left unchanged."""
    steps: int = 0
    """Recorded steps."""
    prediction_error: float | None = None
    """Replay error on the unchanged job, as a fraction of the measured step. None if nothing was replayed."""
    held_out_error: float | None = None
    """Error in steps that the prediction had not seen (`sim.held_out`). None if unknown."""
    parts_s: Mapping[str, float] = {}
    """Breakdown of a step in seconds, mean over ranks."""
    compression: CompressionAdvice | None = None
    """Measurements of the family of codecs. None if the job was not run."""
    curves: tuple[StepCurve, ...] = ()
    """Predicted step over the rate of links and over ranks. Empty if nothing was replayed."""
    notes: tuple[str, ...] = ()

    @property
    def plans(self) -> dict[str, Plan]:
        """Saved plans by family and name, such as "buckets/dpro"."""
        return {
            f"{one.family}/{one.planner}": plans.load(one.plan_file)
            for one in self.candidates
            if one.plan_file
        }

    def to_json(self) -> bytes:
        """The record as JSON."""
        return msgspec.json.encode(self)

    def save(self, folder: Path) -> Path:
        """Write `advice.json` and `advice.html`, and return the path of the page."""
        from wirewise.report.shell import write_page

        write_json(folder / "advice.json", self)
        write_page(self.page(), folder / "advice.html")
        return folder / "advice.html"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Titles and rows for the baseline and all candidates, as text."""
        titles = ["change", "predicted", "measured", "95 %", "a sample", "memory", "lines", "note"]
        as_it_is = ["leave it as it is", MISSING, seconds(self.step_s), MISSING, MISSING, MISSING, "0", ""]
        rows = [self._row(one) for one in self.candidates]
        better = sum(one.gain(self.step_s) > 0 for one in self.candidates)
        return titles, [*rows[:better], as_it_is, *rows[better:]]

    def _row(self, one: Candidate) -> list[str]:
        memory = size(one.memory_bytes)
        interval = MISSING if one.ci95 is None else " to ".join(map(seconds, one.ci95))
        times = f"{factor(one.work)} the samples" if one.work != 1 else ""
        failed = f"the script failed under it: {one.failure}" if one.failure else ""
        return [
            f"{one.family}: {one.planner}",
            seconds(one.predicted_step_s),
            seconds(one.measured_step_s),
            interval,
            MISSING if one.step_s is None or one.failure else signed(-one.gain(self.step_s)),
            memory,
            str(one.effort),
            "; ".join(filter(None, (times, one.note, one.risk, failed))),
        ]

    def page(self) -> str:
        """Render one HTML file: the current step, its bottleneck, candidates with predicted and measured times."""
        from wirewise.advice.page import advice_html

        return advice_html(self)

    def _repr_html_(self) -> str:
        from wirewise.advice.page import advice_section

        return advice_section(self)
