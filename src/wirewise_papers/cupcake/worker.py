"""One rank of a run of compressed gradients: `-m wirewise_papers.cupcake.worker FOLDER`.

It reads FOLDER/job.json, traces the model alone, measures codecs and collectives, alone and during back-propagation,
unless FOLDER/costs.json has them, receives the plans of rank 0, tries those that only the measured step can rank, and
executes them interleaved. Rank 0 writes FOLDER/outcome.json, the measured gradients and the plans, from which
`wirewise sim` predicts the same steps.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch

from wirewise import options as opt
from wirewise.cost.gradients import GradientCosts, codec_options
from wirewise.files import write_json
from wirewise.lab import interface_bytes
from wirewise.lab.replayed import ReplayedModel
from wirewise.planners.fusion.cupcake import fastest
from wirewise.plans import Bucket, FusionPlan, save
from wirewise.profile.gradients import gradient_trace, measure_costs_of
from wirewise.runtime.data_parallel import DataParallel, parallel
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.trials.contention import measure_delays
from wirewise.trials.rank import Rank, main
from wirewise.trials.windows import alternate
from wirewise_papers.cupcake.job import (
    COSTS_FILE,
    TRACE_FILE,
    CupcakeJob,
    JobCosts,
    groups_of,
    make_finalists,
    make_plans,
    plan_file,
)
from wirewise_papers.cupcake.records import CompressionRun, PlanRecord

__all__ = ["work"]


def work(rank: Rank[CupcakeJob]) -> None:
    """Measure, plan, execute the plans and write their times."""
    _Training(rank).run()


class _Training:
    """The replayed model of one rank."""

    def __init__(self, rank: Rank[CupcakeJob]) -> None:
        self.rank, self.job, self.folder, self.transport = rank, rank.job, rank.folder, rank.transport
        job = rank.job
        self.model = ReplayedModel(job.trace, forward_share=job.forward_share, seed=self.transport.rank)
        # The steps of an accelerator's optimizer are slept with the forward pass; this one is there to be waited in.
        self.optimizer = torch.optim.SGD([min(self.model.parameters(), key=torch.numel)], lr=0.0)
        self.x = torch.ones(1, requires_grad=True)

    def run(self) -> None:
        """Measure, plan, execute, write."""
        options = {codec: codec_options(codec, self.job.ratio) for codec in self.job.codecs}
        names, size_bytes = zip(*((t.name, 4 * t.elements) for t in self.job.trace.tensors), strict=True)
        wrapped = parallel(
            self.model,
            FusionPlan(
                world_size=self.transport.world_size,
                planner="one group",
                buckets=(Bucket(parameters=names, size_bytes=sum(size_bytes)),),
            ),
            self.optimizer,
            self.transport,
            compression=Compression(options=options),
            timeout_s=self.job.timeout_s,
        )
        found = self._measure(wrapped)
        made = make_plans(self.job, found) if self.rank.first else {}
        if self.job.trials:
            made |= self._try(wrapped, found)
        own = {name: plan for name, (plan, _) in made.items()}
        plans = self.rank.from_first(own, dict[str, FusionPlan])
        steps, sent, accounts = self._carry_out(wrapped, plans, self.job.rounds)
        if not self.rank.first:
            return
        write_json(self.folder / TRACE_FILE, found.trace)
        records = {}
        for name, (plan, problem) in made.items():
            save(plan, plan_file(self.folder, name))
            groups = groups_of(plan, problem, self.job.ratio, accounts[name])
            records[name] = _record(plan, groups, steps[name], sent[name])
        self.rank.outcome(self._result(found, records))

    def _measure(self, wrapped: DataParallel) -> JobCosts:
        self.rank.log("tracing the gradients of a job that sends nothing")
        seconds: list[float] = []

        def step() -> None:
            start_s = time.perf_counter()
            # Gradients are copied to their group, as in a step that sends it; the optimizer would have it sent.
            with wrapped.no_sync():
                wrapped(self.x).sum().backward()
            self.model.zero_grad()
            seconds.append(time.perf_counter() - start_s)

        trace = gradient_trace(self.model, step, steps=self.job.trace_steps, transport=self.transport)
        backward_s = 1e-6 * sum(t.gap_us for t in trace.tensors)
        whole_s = float(self.transport.slowest(statistics.median(seconds[-self.job.trace_steps :])))
        return JobCosts(trace, max(whole_s - backward_s, 0.0), self._costs(wrapped))

    def _costs(self, wrapped: DataParallel) -> GradientCosts:
        kept = self.folder / COSTS_FILE
        found = self.rank.from_first(
            msgspec.json.decode(kept.read_bytes(), type=GradientCosts)
            if self.rank.first and kept.exists()
            else None,
            GradientCosts | None,
        )
        if found is not None and set(self.job.codecs) <= set(found.codecs):
            self.rank.log("costs of codecs and collectives are those of costs.json")
            return found
        self.rank.log(f"measuring codecs ({', '.join(self.job.codecs) or 'none'}) and collectives")
        found = measure_costs_of(self.job.trace, self.transport, self.job.codecs, ratio=self.job.ratio)
        delays = measure_delays(found, self.transport, partial(self._backward_beside, wrapped))
        found = msgspec.structs.replace(found, delays=delays)
        if self.rank.first:
            write_json(kept, found)
        return found

    def _backward_beside(self, wrapped: DataParallel, begin: Callable[[], object]) -> float:
        """Seconds of a back-propagation that sends nothing, beside what `begin` starts."""
        with wrapped.no_sync():
            loss = wrapped(self.x).sum()
            self.transport.barrier("the measuring of delays")
            begin()
            start_s = time.perf_counter()
            loss.backward()
            seconds = time.perf_counter() - start_s
        self.model.zero_grad()
        return seconds

    def _try(self, wrapped: DataParallel, found: JobCosts) -> dict[str, Any]:
        """The fastest of the finalists of each plan that has some, and the problem that it answers, on rank 0."""
        made = make_finalists(self.job, found) if self.rank.first else {}
        tried = {name: {way: plan for way, (plan, _) in own.items()} for name, own in made.items()}
        chosen = {}
        for name, plans in self.rank.from_first(tried, dict[str, dict[str, FusionPlan]]).items():
            steps, _, _ = self._carry_out(wrapped, plans, self.job.trials)
            medians = {way: statistics.median(seconds) for way, seconds in steps.items()}
            way = fastest(plans, medians, self.job.least_gain)
            self.rank.log(f"{way} is taken after {self.job.trials} windows")
            if self.rank.first:
                chosen[name] = made[name][way]
        return chosen

    def _carry_out(
        self, wrapped: DataParallel, plans: dict[str, FusionPlan], rounds: int
    ) -> tuple[Any, Any, Any]:
        """Seconds of each step on the slowest rank, bytes sent per host in a step, and [groups, 3] seconds, by plan.

        The last are medians over steps of the slowest rank.
        """
        steps: dict[str, list[float]] = {name: [] for name in plans}
        sent: dict[str, list[float]] = {name: [] for name in plans}
        accounts: dict[str, list[Any]] = {name: [] for name in plans}
        for number, name in alternate(list(plans), rounds):
            wrapped.use(plans[name])
            for _ in range(self.job.warmup):
                self._timed(wrapped)
            before = interface_bytes()
            for _ in range(self.job.steps):
                steps[name].append(self._timed(wrapped))
                account = wrapped.reducer.account()
                accounts[name].append([[g["encode_s"], g["communicate_s"], g["decode_s"]] for g in account])
            after = interface_bytes()
            if before and after:
                sent[name].append((after - before).tx_bytes / self.job.steps)
            self.rank.log(
                f"{name}, window {number + 1} of {rounds}: "
                f"{1e3 * statistics.median(steps[name][-self.job.steps :]):.1f} ms a step"
            )
        slowest, mean = self.transport.slowest, self.transport.mean
        self.transport.barrier("the end of the last step")
        return (
            {name: slowest(own).tolist() for name, own in steps.items()},
            {name: round(float(mean(own).mean())) if own else None for name, own in sent.items()},
            # None where torch's all-reduce does all.
            {
                name: np.median(slowest(own), axis=0).tolist() if own[0] else None
                for name, own in accounts.items()
            },
        )

    def _timed(self, wrapped: DataParallel) -> float:
        """One training step."""
        start_s = time.perf_counter()
        wrapped(self.x).sum().backward()
        self.optimizer.step()
        self.model.zero_grad()
        return time.perf_counter() - start_s

    def _result(self, found: JobCosts, records: dict[str, PlanRecord]) -> CompressionRun:
        job = self.job
        part = f"; 1/{job.scale} of each gradient's elements" if job.scale > 1 else ""
        device = job.trace.device or "an accelerator"
        return CompressionRun(
            model=job.trace.model,
            emulated=f"compute is slept as recorded on {device}, gradients are noise{part}",
            hosts=job.hosts,
            link=opt.OWN_RATE if job.network == "slurm" else job.link,
            codec=job.codec,
            tensors=len(job.trace.tensors),
            elements=sum(t.elements for t in job.trace.tensors),
            forward_s=found.forward_s,
            backward_s=1e-6 * sum(t.gap_us for t in found.trace.tensors),
            steps=job.steps * job.rounds,
            plans=records,
            fastest=min(records, key=lambda name: records[name].step_s),
        )


def _record(plan: FusionPlan, groups: Any, seconds: list[float], sent: int | None) -> PlanRecord:
    low, step_s, high = np.percentile(seconds, [25, 50, 75]).tolist()
    return PlanRecord(
        step_s=step_s,
        quartiles_s=(low, high),
        predicted_step_s=plan.predicted_step_s,
        error=plan.predicted_step_s / step_s - 1.0,
        lower_bound_s=plan.lower_bound_s,
        payload_bytes=sum(group.payload_bytes for group in groups),
        bytes_sent=sent,
        groups=groups,
    )


if __name__ == "__main__":
    main(CupcakeJob, work, sys.argv[1])
