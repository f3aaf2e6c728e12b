"""R6, R7 and the part of logs of R8: stages that are killed and recomputed, with and without help; what logging costs.

Computing is slept; processes, kills, messages and logs are real. Ranks share the processors of one machine.
"""

import os
import pickle
import signal
import statistics
import tempfile
import time
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from common import verdict
from wirewise.lab.accelerator import VirtualLayer
from wirewise.plans import StagePlan
from wirewise.plans.timetables import StagePass
from wirewise.runtime.pipeline import LayerGraph, Pipeline
from wirewise.runtime.recovery import (
    CheckpointFolder,
    HelperOptions,
    RecoveryJournal,
    SenderLog,
    join,
    train_through_faults,
)
from wirewise.runtime.recovery.agent import PRELOAD, Agent

FORWARD_S, BACKWARD_S = 0.01, 0.02
_ROWS, _TURN, _WARM = 2, 5, 4


def layers(stages: int) -> LayerGraph:
    """A layer a stage, dropout in each: a stage that is recomputed has to draw the same random numbers."""
    torch.manual_seed(1)
    return LayerGraph(
        [
            nn.Sequential(VirtualLayer(1000, forward_s=FORWARD_S, backward_s=BACKWARD_S), nn.Dropout(0.1))
            for _ in range(stages)
        ]
    )


def plan_of(job: dict) -> StagePlan:
    names = [str(number) for number in range(job["stages"])]
    return StagePlan.from_cuts(
        names,
        range(1, job["stages"]),
        style=job["style"],
        microbatches=job["microbatches"],
        microbatch_size=_ROWS,
    )


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def sgd(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.01, momentum=0.9, foreach=False)


def batch(update: int, job: dict) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(update)
    rows = _ROWS * job["microbatches"]
    return torch.randn(rows, job["values"], generator=random), torch.zeros(rows, job["values"])


def killing(job: dict, member):
    """Kills this rank at the backward pass in the middle of an update, in the generations that have one for it."""

    @contextmanager
    def around(step: StagePass):
        if job["kills"].get((member.generation.number, member.rank)) == step.update and step.kind == "B":
            os.kill(os.getpid(), signal.SIGKILL)
        yield

    return around if job["kills"] else lambda _: nullcontext()


def train(job: dict) -> None:
    """Train as a rank; the end of each update, the generation and whether it was recomputed are written down."""
    torch.set_num_threads(1)
    member = join()
    folder, rank = Path(job["folder"]), member.rank
    log = SenderLog(folder / "logs", rank)
    journal = RecoveryJournal(
        log,
        [folder / "logs"],
        member.store,
        generation=member.generation.number,
        interrupted=lambda: member.is_over,
    )
    pipeline = Pipeline(
        layers(job["stages"]), plan_of(job), loss=loss, optimizer=sgd, journal=journal,
        process_group=member.transport, around=killing(job, member),
    )  # fmt: skip
    helping = HelperOptions(lambda: layers(job["stages"]), *job["helping"]) if job["helping"] else None
    checkpoints = CheckpointFolder(folder / "states", rank)
    ends = []
    for one in train_through_faults(
        pipeline,
        journal,
        lambda first: (batch(update, job) for update in range(first, job["updates"])),
        member,
        checkpoints=checkpoints,
        every=job["every"],
        helping=helping,
    ):
        ends.append((member.generation.number, one.update, time.time(), journal.is_behind))
    outcome = {"state": pipeline.state_dict()["weights"], "ends": ends}
    (folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(outcome))
    pipeline.close()
    log.close(remove=True)
    checkpoints.close()


def _run(**job) -> tuple[list[dict], list]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        job = {"folder": folder, "kills": {}, "helping": None, "values": 256, **job}
        kills = job["kills"]
        agent = Agent(
            train, (job,), ranks=job["stages"], spares=1 if kills else 0, folder=Path(folder) / "out",
            preload=(*PRELOAD, "wirewise.runtime.recovery.pipelines"),
        )  # fmt: skip
        recoveries = agent.run().recoveries
        ranks = [
            pickle.loads((Path(folder) / f"rank-{rank}.pickle").read_bytes()) for rank in range(job["stages"])
        ]
    return ranks, recoveries


def _equal(ranks: list[dict], others: list[dict]) -> bool:
    return all(
        torch.equal(one[name], other[name])
        for rank, like in zip(ranks, others, strict=True)
        for one, other in zip(rank["state"], like["state"], strict=True)
        for name in one
    )


def _steps(ends: list, generation: int, behind: bool) -> list[float]:
    """Seconds of updates of one generation that were recomputed, or not."""
    own = [at for number, _, at, late in ends if number == generation and late == behind]
    return [later - earlier for earlier, later in pairwise(own)]


def recomputed(updates: int = 16, stages: int = 4, microbatches: int = 4) -> dict[str, dict]:
    """Kill each stage once, two updates before a checkpoint, under "1f1b" and "2bw" (R6).

    Args:
        updates: Updates from one checkpoint to the next.
        stages: Number of stages, a rank each.
        microbatches: Microbatches of an update.

    Returns:
        For each style `live_s` and `recomputed_s`, medians of an update; their `ratio`; `bit_equal`;
        `recovery_over_bound`, for each kill the seconds until it has caught up over 1.15 times the stage's
        computing of the updates recomputed plus 0.3 s; `went_back`, updates that survivors did twice.
    """
    found = {}
    for style in ("1f1b", "2bw"):
        job = {
            "style": style, "stages": stages, "microbatches": microbatches, "updates": updates * stages,
            "every": updates,
        }  # fmt: skip
        calm, _ = _run(**job)
        kills = {(rank + 1, rank): updates * (rank + 1) - 2 for rank in range(stages)}
        ranks, recoveries = _run(kills=kills, **job)
        live = [s for one in calm for s in _steps(one["ends"], 1, False)[_WARM:]]
        again = [s for rank, one in enumerate(ranks) for s in _steps(one["ends"], rank + 2, True)]
        stage_s = microbatches * (FORWARD_S + BACKWARD_S)
        over = [
            (one.resumed_s - one.seen_s) / (1.15 * one.replayed_iterations * stage_s + 0.3)
            for one in recoveries
        ]
        twice = sum(len(one["ends"]) - len({update for _, update, _, _ in one["ends"]}) for one in ranks)
        live_s, again_s = statistics.median(live), statistics.median(again)
        found[style] = {
            "live_s": live_s,
            "recomputed_s": again_s,
            "ratio": again_s / live_s,
            "bit_equal": _equal(ranks, calm),
            "recovery_over_bound": over,
            "went_back": twice,
        }
    return found


def helped(updates: int = 40, stages: int = 4, microbatches: int = 6) -> dict[str, dict]:
    """Recover with 1, 2 and 3 ranks that share a lost stage's microbatches, "exact" and "fast" (R7).

    Returns:
        For each, as "2 exact", `recomputed_s`, the median seconds of an update; `speed_up` over one rank alone and
        the `share` of it in the number of ranks; `bit_equal`, and `difference`, the largest of any weight.
    """
    job = {
        "style": "1f1b", "stages": stages, "microbatches": microbatches, "updates": updates, "every": 0,
    }  # fmt: skip
    kills = {(1, 1): updates - 6}
    calm, _ = _run(**job)
    found: dict[str, dict] = {}
    alone_s = 0.0
    for count, mode in ((1, "exact"), (2, "exact"), (3, "exact"), (2, "fast"), (3, "fast")):
        ranks, recoveries = _run(kills=kills, helping=(count, mode), **job)
        (recovery,) = recoveries
        # Helped updates are done before the training goes on, and give no results.
        each_s = (recovery.resumed_s - recovery.restored_s) / max(recovery.replayed_iterations, 1)
        alone_s = alone_s or each_s
        difference = max(
            float((one[name] - other[name]).abs().max())
            for rank, like in zip(ranks, calm, strict=True)
            for one, other in zip(rank["state"], like["state"], strict=True)
            for name in one
        )
        found[f"{count} {mode}"] = {
            "recomputed_s": each_s,
            "speed_up": alone_s / each_s,
            "share": alone_s / each_s / count,
            "bit_equal": _equal(ranks, calm),
            "difference": difference,
        }
    return found


class _AtOnce(RecoveryJournal):
    """Writes each message when it is sent."""

    def sent(self, *args):
        wanted = super().sent(*args)
        self.log.flush()
        return wanted


def _turns(job: dict) -> None:
    """Updates of a pipeline without a log, with one, and with one that is written at once, in turns."""
    torch.set_num_threads(1)
    member = join()
    pipelines, logs, seconds = {}, [], {"plain": [], "logged": [], "at once": []}
    for number, way in enumerate(seconds):
        journal = None
        if way != "plain":
            logs.append(SenderLog(Path(job["folder"]) / way, member.rank))
            kind = RecoveryJournal if way == "logged" else _AtOnce
            journal = kind(logs[-1], [], member.store)
            journal.generation = number + 1
        pipelines[way] = Pipeline(
            layers(job["stages"]), plan_of(job), loss=loss, optimizer=sgd, journal=journal,
            process_group=member.transport,
        )  # fmt: skip
    for _ in range(job["turns"]):
        for way, pipeline in pipelines.items():
            first = pipeline.update
            feed = [batch(update, job) for update in range(first, first + _TURN + 1)]
            before = 0.0
            for _ in pipeline.train(feed):
                now = time.perf_counter()
                if before:
                    seconds[way].append(now - before)
                before = now
            for log in logs:
                log.collect(pipeline.update)
            member.transport.barrier("the end of a turn")
    (Path(job["folder"]) / f"rank-{member.rank}.pickle").write_bytes(pickle.dumps(seconds))
    for pipeline in pipelines.values():
        pipeline.close()
    for log in logs:
        log.close(remove=True)
    member.finish()


def logged(turns: int = 40, stages: int = 4, microbatches: int = 4, values: int = 65536) -> dict[str, float]:
    """What logs cost while nothing fails (R8).

    Returns:
        `overhead` and `at_once_overhead`, medians of an update over that without a log less 1, written beside waiting
        and when sent; `bytes_per_update` of all ranks.
    """
    job = {"style": "1f1b", "stages": stages, "microbatches": microbatches, "values": values, "turns": turns}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Agent(_turns, ({**job, "folder": folder},), ranks=stages, spares=0, folder=Path(folder) / "out").run()
        ranks = [pickle.loads((Path(folder) / f"rank-{r}.pickle").read_bytes()) for r in range(stages)]
    median = {way: statistics.median(s for one in ranks for s in one[way][_WARM:]) for way in ranks[0]}
    return {
        "plain_s": median["plain"],
        "overhead": median["logged"] / median["plain"] - 1,
        "at_once_overhead": median["at once"] / median["plain"] - 1,
        "bytes_per_update": 2 * (stages - 1) * microbatches * _ROWS * values * 4,
    }


def stages_row(page, preset):
    """R6."""
    found = recomputed(preset["stage_updates"])
    page.add(
        f"## Lost stages (R6)\n\nFour stages, four microbatches, {1e3 * FORWARD_S:.0f} ms forward and "
        f"{1e3 * BACKWARD_S:.0f} ms backward, slept. Each stage is killed once, {preset['stage_updates'] - 2} updates "
        "after a checkpoint; a spare recomputes, until it has caught up. The bound of a recovery is 1.15 times the "
        "computing of the updates recomputed and 0.3 s. Without flushes (2bw) a live update has no idle time that "
        "recomputing could save."
    )
    with page.table(
        "timetable",
        "a live update",
        "a recomputed one",
        "share",
        "recoveries over bound",
        "bit-equal",
        "went back",
    ) as row:
        for style, one in found.items():
            over = max(one["recovery_over_bound"])
            row(
                style,
                f"{1e3 * one['live_s']:.0f} ms",
                f"{1e3 * one['recomputed_s']:.0f} ms",
                f"{one['ratio']:.3f}, {verdict(one['ratio'], most=0.6) if style == '1f1b' else 'not judged'}",
                f"{over:.2f}, {verdict(over, most=1.0)}",
                f"{one['bit_equal']}, {verdict(float(one['bit_equal']), least=1)}",
                f"{one['went_back']}, {verdict(one['went_back'], most=0)}",
            )


def helpers_row(page, preset):
    """R7."""
    found = helped(preset["stage_updates"])
    page.add(
        "## Shared recomputation (R7)\n\nFour stages, six microbatches; the second stage is lost and no checkpoint was "
        "written. Speed-up over a replacement alone, in the number of ranks that share its microbatches."
    )
    with page.table(
        "ranks, mode", "an update", "speed-up", "its share", "largest difference of a weight"
    ) as row:
        for name, one in found.items():
            alone, most = name.startswith("1"), 0.0 if name.endswith("exact") else 1e-6
            row(
                name,
                f"{1e3 * one['recomputed_s']:.0f} ms",
                f"{one['speed_up']:.2f}",
                "" if alone else f"{one['share']:.2f}, {verdict(one['share'], least=0.7)}",
                f"{one['difference']:.2g}, {verdict(one['difference'], most=most)}",
            )


def logs_row(page, preset):
    """R8, the part of logs."""
    found = logged(preset["stage_turns"])
    page.add(
        f"## Cost of logs (R8)\n\nFour stages, four microbatches, {found['bytes_per_update'] / 1e6:.0f} MB an update "
        "on all ranks together; turns of five updates without a log, with one that is written while ranks wait, and "
        f"with one that is written when messages are sent. An update without takes {1e3 * found['plain_s']:.0f} ms."
    )
    share = found["overhead"] / max(found["at_once_overhead"], 1e-9)
    with page.table("while ranks wait", "at once", "share") as row:
        row(
            f"{found['overhead']:+.2%}, {verdict(found['overhead'], most=0.03)}",
            f"{found['at_once_overhead']:+.2%}",
            f"{share:.2f}, {verdict(share, most=1 / 3)}",
        )
