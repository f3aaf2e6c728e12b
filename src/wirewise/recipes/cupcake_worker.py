"""One rank of a run of compressed gradients: `-m wirewise.recipes.cupcake_worker FOLDER`.

It reads FOLDER/job.json, traces the model alone, measures codecs and collectives, by themselves and beside
back-propagation, unless FOLDER/costs.json has them, takes the plans that rank 0 makes, tries those between which the
measured step decides, and carries them out in turns; rank 0 writes FOLDER/outcome.json, the measured gradients and the
plans, from which `wirewise sim` predicts the same steps.
"""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from wirewise.cost.gradients import GradientCosts
from wirewise.files import atomic_file
from wirewise.lab import interface_bytes
from wirewise.lab.replayed import ReplayedModel
from wirewise.planners.fusion.cupcake import fastest
from wirewise.plans import Bucket, FusionPlan, save
from wirewise.profile.ending import end_process
from wirewise.profile.gradients import gradient_trace, measure_costs
from wirewise.recipes.cupcake_contention import measure_delays
from wirewise.recipes.cupcake_job import (
    COSTS_FILE,
    TRACE_FILE,
    Job,
    Measured,
    groups_of,
    make_finalists,
    make_plans,
    options_of,
    plan_file,
)
from wirewise.recipes.launch import SAYS
from wirewise.results import CompressionRun, PlanRecord
from wirewise.runtime import full_graph
from wirewise.runtime.data_parallel import DataParallel, parallel, transport_of
from wirewise.runtime.data_parallel.compression import Compression
from wirewise.runtime.transport import Transport

__all__ = ["main"]

_KNOTS = 8
"""Sizes at which codecs are measured."""
_SMALLEST = 64


def main(path: str) -> None:
    """Be the rank that the environment names."""
    torch.set_num_threads(1)
    full_graph.keep_freed_memory()
    folder = Path(path)
    job = msgspec.json.decode((folder / "job.json").read_bytes(), type=Job)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=job.timeout_s))
    try:
        _Rank(job, folder, transport_of(timeout_s=job.timeout_s)).work()
    finally:
        dist.destroy_process_group()


class _Rank:
    def __init__(self, job: Job, folder: Path, transport: Transport) -> None:
        self.job, self.folder, self.transport = job, folder, transport
        self.model = ReplayedModel(job.trace, forward_share=job.forward_share, seed=transport.rank)
        # The steps of an accelerator's optimizer are slept with the forward pass; this one is there to be waited in.
        self.optimizer = torch.optim.SGD([min(self.model.parameters(), key=torch.numel)], lr=0.0)
        self.x = torch.ones(1, requires_grad=True)

    def work(self) -> None:
        """Measure, plan, carry out, write."""
        options = {codec: options_of(codec, self.job.ratio) for codec in self.job.codecs}
        names, size_bytes = zip(*((t.name, 4 * t.elements) for t in self.job.trace.tensors), strict=True)
        wrapped = parallel(
            self.model,
            FusionPlan(
                world_size=self.transport.world_size,
                planner="one group",
                buckets=(Bucket(parameters=names, size_bytes=sum(size_bytes)),),
            ),
            self.optimizer,
            compression=Compression(options=options),
            timeout_s=self.job.timeout_s,
        )
        found = self._measure(wrapped)
        made = make_plans(self.job, found) if self.transport.rank == 0 else {}
        if self.job.trials:
            made |= self._try(wrapped, found)
        plans = self._from_first({name: plan for name, (plan, _) in made.items()}, dict[str, FusionPlan])
        steps, sent, accounts = self._carry_out(wrapped, plans, self.job.rounds)
        if self.transport.rank:
            return
        with atomic_file(self.folder / TRACE_FILE) as file:
            file.write(msgspec.json.format(msgspec.json.encode(found.trace)))
        records = {}
        for name, (plan, problem) in made.items():
            save(plan, plan_file(self.folder, name))
            groups = groups_of(plan, problem, self.job.ratio, accounts[name])
            records[name] = _record(plan, groups, steps[name], sent[name])
        with atomic_file(self.folder / "outcome.json") as file:
            file.write(msgspec.json.encode(self._result(found, records)))

    def _measure(self, wrapped: DataParallel) -> Measured:
        self._say("tracing the gradients of a job that sends nothing")
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
        whole = torch.tensor([statistics.median(seconds[-self.job.trace_steps :])], dtype=torch.float64)
        self.transport.all_reduce(whole, "the exchange of measured times", dist.ReduceOp.MAX)
        return Measured(trace, max(float(whole) - backward_s, 0.0), self._costs(wrapped))

    def _costs(self, wrapped: DataParallel) -> GradientCosts:
        kept = self.folder / COSTS_FILE
        found = self._from_first(
            msgspec.json.decode(kept.read_bytes(), type=GradientCosts)
            if self.transport.rank == 0 and kept.exists()
            else None,
            GradientCosts | None,
        )
        if found is not None and set(self.job.codecs) <= set(found.codecs):
            self._say("costs of codecs and collectives are those of costs.json")
            return found
        self._say(f"measuring codecs ({', '.join(self.job.codecs) or 'none'}) and collectives")
        sizes = [t.elements for t in self.job.trace.tensors]
        low, high = max(min(sizes), _SMALLEST), max(sum(sizes), 2 * _SMALLEST)
        found = measure_costs(
            self.transport,
            self.job.codecs,
            sizes=np.unique(np.geomspace(low, high, _KNOTS).astype(int)).tolist(),
            ratio=self.job.ratio,
            tensor_elements=max(sum(sizes) // len(sizes), 1),
        )
        delays = measure_delays(found, self.transport, partial(self._backward_beside, wrapped))
        found = msgspec.structs.replace(found, delays=delays)
        if self.transport.rank == 0:
            with atomic_file(kept) as file:
                file.write(msgspec.json.format(msgspec.json.encode(found)))
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

    def _try(self, wrapped: DataParallel, found: Measured) -> dict[str, Any]:
        """On rank 0: the fastest of the finalists for each plan that has some, and the problem that it answers."""
        made = make_finalists(self.job, found) if self.transport.rank == 0 else {}
        tried = {name: {way: plan for way, (plan, _) in own.items()} for name, own in made.items()}
        chosen = {}
        for name, plans in self._from_first(tried, dict[str, dict[str, FusionPlan]]).items():
            steps, _, _ = self._carry_out(wrapped, plans, self.job.trials)
            medians = {way: statistics.median(seconds) for way, seconds in steps.items()}
            way = fastest(plans, medians, self.job.least_gain)
            self._say(f"{way} is taken after {self.job.trials} windows")
            if self.transport.rank == 0:
                chosen[name] = made[name][way]
        return chosen

    def _carry_out(
        self, wrapped: DataParallel, plans: dict[str, FusionPlan], rounds: int
    ) -> tuple[Any, Any, Any]:
        """By plan: seconds of each step on the slowest rank, bytes a host sent in a step, times of groups."""
        steps: dict[str, list[float]] = {name: [] for name in plans}
        sent: dict[str, list[float]] = {name: [] for name in plans}
        accounts: dict[str, list[Any]] = {name: [] for name in plans}
        for number in range(rounds):
            # As ABBA, so that a slow drift of the machine favours none.
            for name in sorted(plans, key=list(plans).index, reverse=number % 2 == 1):
                wrapped.use(plans[name])
                for _ in range(self.job.warmup):
                    self._timed(wrapped)
                before = interface_bytes()
                for _ in range(self.job.steps):
                    steps[name].append(self._timed(wrapped))
                    accounts[name].append(_times(wrapped.reducer.account()))
                after = interface_bytes()
                if before and after:
                    sent[name].append((after - before).tx_bytes / self.job.steps)
                self._say(
                    f"{name}, window {number + 1} of {rounds}: "
                    f"{1e3 * statistics.median(steps[name][-self.job.steps :]):.1f} ms a step"
                )
        self.transport.barrier("the end of the last step")
        return self._slowest(steps), self._mean(sent), self._slowest_groups(accounts)

    def _timed(self, wrapped: DataParallel) -> float:
        """One training step."""
        start_s = time.perf_counter()
        wrapped(self.x).sum().backward()
        self.optimizer.step()
        self.model.zero_grad()
        return time.perf_counter() - start_s

    def _slowest(self, seconds: dict[str, list[float]]) -> dict[str, list[float]]:
        return {name: self._reduced(own, dist.ReduceOp.MAX) for name, own in seconds.items()}

    def _mean(self, sent: dict[str, list[float]]) -> dict[str, int | None]:
        return {
            name: round(statistics.mean(self._reduced(own)) / self.transport.world_size) if own else None
            for name, own in sent.items()
        }

    def _slowest_groups(self, accounts: dict[str, list[Any]]) -> dict[str, Any]:
        """[groups, 3] seconds: medians over steps of the slowest rank; None where torch's all-reduce does all."""
        return {
            name: np.median(self._reduced(own, dist.ReduceOp.MAX), axis=0).tolist() if own[0] else None
            for name, own in accounts.items()
        }

    def _reduced(self, values: Any, op: Any = dist.ReduceOp.SUM) -> Any:
        both = torch.tensor(values, dtype=torch.float64)
        self.transport.all_reduce(both, "the exchange of measured times", op)
        return both.tolist()

    def _from_first(self, value: Any, kind: Any) -> Any:
        """What rank 0 has, on all ranks."""
        text = self.transport.from_first(msgspec.json.encode(value), "what rank 0 decided")
        return msgspec.json.decode(text, type=kind)

    def _result(self, found: Measured, records: dict[str, PlanRecord]) -> CompressionRun:
        job = self.job
        part = f"; 1/{job.scale} of each gradient's elements" if job.scale > 1 else ""
        device = job.trace.device or "an accelerator"
        return CompressionRun(
            model=job.trace.model,
            emulated=f"compute is slept as recorded on {device}, gradients are noise{part}",
            hosts=job.hosts,
            link=job.link,
            codec=job.codec,
            tensors=len(job.trace.tensors),
            elements=sum(t.elements for t in job.trace.tensors),
            forward_s=found.forward_s,
            backward_s=1e-6 * sum(t.gap_us for t in found.trace.tensors),
            steps=job.steps * job.rounds,
            plans=records,
            fastest=min(records, key=lambda name: records[name].step_s),
        )

    def _say(self, text: str) -> None:
        if self.transport.rank == 0:
            sys.stdout.write(f"{SAYS}{text}\n")
            sys.stdout.flush()


def _times(account: list[dict[str, Any]]) -> list[list[float]]:
    return [[group["encode_s"], group["communicate_s"], group["decode_s"]] for group in account]


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
    main(sys.argv[1])
    end_process()
