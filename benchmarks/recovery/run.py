"""Claims about surviving failures: seconds to a new step, detection, goodput, 200 kills, cost while nothing fails.

    python benchmarks/recovery/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]
        [--optimizers NAME,...]

Rows: `recovery` (R4, R5: one training under kills with a warmed spare, one without, and torchrun with a checkpoint),
`silence` (R5: ranks that are stopped), `goodput` (R13: failures at random instants, against checkpoints, commits in
memory), `torchft` (where it is installed), `soak` (R14: kills in sequence), `updates` (R8: ways back from an update),
`predicted` (R10: recoveries of a pipeline from logs, computing slept, next to what plans say of them), `stages` (R6:
stages recomputed from logs), `helpers` (R7: shared among ranks), `logs` (R8: what logs cost), `kills` (R1: kills at
random instants, with each optimizer named; with --out a finished setting is kept beside the page in FILE.json),
`shrink` (R12: fewer ranks, and more again), `checks` (what comparisons of replicas cost while nothing fails).

Ranks run on the hosts of a lab and share the processors of one machine; kills, links and steps are real.
"""

import random
import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checks import checks_row
from consistency import overheads
from kills import OPTIMIZERS, kills_row, shrink_row
from predicted import UNITS, predicted_recoveries
from soak import soak_row

from common import KeptFigures, Page, arguments, scratch, spread, verdict
from pipelines import helpers_row, logs_row, stages_row
from wirewise.lab.faults import random_kills
from wirewise.trials.start import open_network
from wirewise_papers.swift.experiment import checkpoint_interval
from wirewise_papers.swift.job import SwiftJob, script_settings
from wirewise_papers.swift.kills import read_steps
from wirewise_papers.swift.ways import (
    checkpoint_seconds,
    final_states,
    match_recoveries,
    record_of,
    train_with_checkpoints,
    train_with_commits,
    train_with_kills,
    train_with_spares,
)

ROWS = (
    "recovery", "silence", "goodput", "commits", "torchft", "soak", "updates", "predicted",
    "stages", "helpers", "logs", "kills", "shrink", "checks",
)  # fmt: skip
PRESETS = {
    "smoke": {
        "steps": 60,
        "kills": 2,
        "goodput_s": 5.0,
        "plain_steps": 40,
        "beside_s": 5.0,
        "mtbf_s": 2.0,
        "soak": 3,
        "updates": 20,
        "checks": 100,
        "repeats": 2,
        "predicted": (1, (4,), ((1,),)),
        "stage_updates": 16,
        "stage_turns": 2,
        "random_kills": 3,
        "shrink": (60, 10, 3),
    },
    "paper": {
        "steps": 500,
        "kills": 20,
        "goodput_s": 60.0,
        "plain_steps": 150,
        "beside_s": 30.0,
        "mtbf_s": 5.0,
        "soak": 200,
        "updates": 200,
        "checks": 400,
        "repeats": 5,
        "predicted": (1, (8, 20), UNITS),
        "stage_updates": 20,
        "stage_turns": 15,
        "random_kills": 50,
        "shrink": (300, 10, 10),
    },
}
HERE = Path(__file__).resolve().parent
SILENCE_S = 2.0
"""Seconds of silence after which the agent of a host kills a process."""
LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind=sys.argv[1], min_replicas=2, join_timeout_ms=100, quorum_tick_ms=50, heartbeat_timeout_ms=1000
)
time.sleep(100_000)
"""


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def phases(folder, found):
    """Seconds from each kill to the agent's knowledge, and to that of the last rank."""
    told = match_recoveries(folder, found)
    return [
        (one.seen_s - kill.clock_s, one.noticed_s - kill.clock_s) for kill, one in told if one is not None
    ]


def recovery_row(page, preset):
    job = SwiftJob(steps=preset["steps"], link="10gbit")
    with scratch() as folder, open_network("lab", job.hosts, job.link) as network:
        still = train_with_spares(network, folder / "undisturbed", job)
        kills = random_kills(job.hosts, preset["kills"], (0.05 * still.seconds, 0.95 * still.seconds), 1)
        warm = train_with_spares(network, folder / "warm", job, kills=kills)
        cold = train_with_spares(
            network, folder / "cold", SwiftJob(steps=100, link=job.link, spares=0), kills=[(1.0, 1)]
        )
        few = SwiftJob(steps=120, link=job.link)
        restarted = train_with_checkpoints(
            network, folder / "restarted", few, every=20, kills=[(2.0, 1), (12.0, 0)]
        )
        states = [*final_states(folder / "undisturbed", job), *final_states(folder / "warm", job)]
        known = phases(folder / "warm", warm)
    page.add(
        f"## Seconds to a new step (R4) and detection (R5)\n\n{job.hosts} hosts at {job.link}, data parallel, "
        f"{states[0].bytes / 1e6:.1f} MB of state, {1e3 * still.step_s:.0f} ms a step without failures; killed at "
        "random instants. From SIGKILL to the first step that was not committed before, of the process that takes the "
        "place of the killed one; torchrun: to its first step of any number, with a checkpoint every 20 steps."
    )
    own = [one.recovered_s for one in warm.survived]
    again = [one.resumed_s for one in restarted.survived]
    equal = len({one.digest for one in states}) == 1
    with page.table("case", "kills", "seconds", "claim") as row:
        half = verdict(statistics.median(own), most=0.35)
        late = verdict(percentile(own, 0.95), most=1.0)
        row(
            "a warmed spare",
            len(own),
            spread(own, 1, 3),
            f"median {half}; 95 % {percentile(own, 0.95):.3f}, {late}",
        )
        row("no spare", len(cold.survived), spread([s.recovered_s for s in cold.survived], 1, 2),
            verdict(max((s.recovered_s for s in cold.survived), default=float("nan")), most=8.0))  # fmt: skip
        faster = statistics.median(again) / statistics.median(own)
        row("torchrun and a checkpoint", len(again), spread(again, 1, 2),
            f"spare {faster:.1f}x as fast, {verdict(faster, least=10)}")  # fmt: skip
        row("agent knows", len(known), spread([one for one, _ in known], 1e3, 0) + " ms", "-")
        last = percentile([one for _, one in known], 0.95)
        row("last rank has let go", len(known), spread([one for _, one in known], 1e3, 0) + " ms",
            f"95 % {1e3 * last:.0f} ms, {verdict(last, most=0.1)}")  # fmt: skip
        row(
            "state at the end",
            len(states),
            "equal bit for bit" if equal else "DIFFERS",
            verdict(float(equal), least=1),
        )


def silence_row(page, preset):
    page.add(
        f"## Ranks that are stopped (R5)\n\nSIGSTOP at random instants; the limit is {SILENCE_S:g} s. From the signal "
        "to the agent's knowledge, after it has killed the process."
    )
    job = SwiftJob(steps=preset["steps"], link="10gbit")
    instants = [(2.0 + 5.0 * n, n % job.hosts) for n in range(min(preset["kills"], 5))]
    with scratch() as folder, open_network("lab", job.hosts, job.link) as network:
        found = train_with_spares(
            network, folder / "stopped", job, kills=instants, signal_number=signal.SIGSTOP
        )
        known = [one for one, _ in phases(folder / "stopped", found)]
    with page.table("stops", "seconds", "claim") as row:
        row(len(known), spread(known, 1, 2), verdict(max(known, default=float("nan")), most=SILENCE_S + 0.2))


def goodput_row(page, preset):
    goodputs(
        page,
        preset,
        "## Goodput (R13)",
        {"protected": train_with_spares, "checkpoint": train_with_checkpoints},
    )


def commits_row(page, preset):
    goodputs(page, preset, "## Goodput with commits in memory (R13)", {"commit": train_with_commits})


def goodputs(page, preset, title, ways):
    draw, kills, at_s = random.Random(5), [], 0.0
    link, found, goodput = "10gbit", {}, {}
    with scratch() as folder, open_network("lab", 3, link) as network:
        few = SwiftJob(steps=preset["plain_steps"], link=link)
        plain = [train_with_checkpoints(network, folder / "plain", few, every=few.steps)]
        step_s = plain[0].mean_step_s
        while (at_s := at_s + draw.expovariate(1 / preset["mtbf_s"])) < 0.97 * preset["goodput_s"]:
            kills.append((at_s, draw.randrange(3)))
        checkpoint_s = checkpoint_seconds(folder / "plain")
        every = checkpoint_interval(preset["mtbf_s"], checkpoint_s, step_s)
        for name, train in ways.items():
            seconds = preset["goodput_s"] if name == "protected" else preset["beside_s"]
            # A survivor that waits for a process that was killed while it joined waits as long as its group allows.
            timeout_s = 60.0 if name == "protected" else 15.0
            job = SwiftJob(steps=round(seconds / step_s), link=link, timeout_s=timeout_s)
            more = {} if name == "protected" else {"every": every if name == "checkpoint" else 5}
            due = [kill for kill in kills if kill[0] < 0.97 * seconds]
            found[name] = train(network, folder / name, job, kills=due, **more)
            plain.append(train_with_checkpoints(network, folder / f"plain-{name}", few, every=few.steps))
    means = [one.mean_step_s for one in plain]
    page.add(
        f"{title}\n\nWithout protection and failures {few.steps} steps were trained before each way and after it, of "
        f"{', '.join(f'{1e3 * one:.0f}' for one in means)} ms on average. The protected way trains as many as make "
        f"{preset['goodput_s']:g} s by the first of these, others {preset['beside_s']:g} s, with the first of the same "
        f"kills, drawn for a failure every {preset['mtbf_s']:g} s of training: one that is due while its rank does not "
        "train strikes when it does, and the next ones come as much later; those after the end of the training are "
        f"left out. Checkpoints every {every} steps by Young's rule ({1e3 * checkpoint_s:.0f} ms each), commits every "
        "5. Goodput: seconds of the steps without protection and failures, by the mean of before and after, over what "
        "was taken."
    )
    with page.table(
        "way", "kills", "left out", "to a step", "to a new step", "computed again", "a step", "seconds", "goodput",
        "claim",
    ) as row:  # fmt: skip
        for (name, one), beside in zip(found.items(), pairwise(means), strict=True):
            record = record_of(name, one, statistics.fmean(beside))
            goodput[name] = record.goodput
            claim = "not judged"
            if name == "protected":
                claim = verdict(record.goodput, least=0.85)
            elif "protected" in goodput:
                over = goodput["protected"] / record.goodput
                claim = f"protected over it {over:.2f}, {verdict(over, least=1.5)}"
            row(
                name, record.kills, record.spared, told(record.resumed_s), told(record.recovered_s), record.repeated,
                f"{1e3 * record.step_s:.0f} ms", f"{record.seconds:.1f}", f"{record.goodput:.3f}", claim,
            )  # fmt: skip


def told(seconds):
    return f"{statistics.median(seconds):.2f}" if seconds else "-"


def torchft_row(page, preset):
    page.add(
        "## torchft\n\ntorchft 0.2.0 from PyPI, three replica groups of a rank, each restarted by torchrun; the same "
        "model and kills, and the three lines of protection next to it. After a kill the others go on without the "
        "batches of the lost group, which are trained by nobody; its new process copies the state. "
        "`torchft.DistributedDataParallel` of that version ends survivors with an AssertionError, so gradients are "
        "reduced by `Manager.allreduce`."
    )
    if not can_import_torchft():
        page.add("Not installed here: `pip install torchft`.")
        return
    job = SwiftJob(steps=2 * preset["steps"], link="10gbit")
    kills = [(3.0 + 12.0 * number, (number + 1) % job.hosts) for number in range(min(preset["kills"], 3))]
    with page.table(
        "way",
        "kills",
        "next step of the others",
        "first step of the new process",
        "batches left out",
        "a step",
    ) as row:
        with scratch() as folder, open_network("lab", job.hosts, job.link) as network:
            for name, train in (("torchft", by_torchft), ("protected", train_with_spares)):
                found = train(network, folder / name, job, kills=kills)
                gone = [absence(folder / name, job.hosts, kill) for kill in found.kills]
                row(
                    name, len(found.kills), f"{told([next_s for next_s, _ in gone])} s",
                    f"{told([one.resumed_s for one in found.survived])} s", sum(missed for _, missed in gone),
                    f"{1e3 * found.step_s:.0f} ms",
                )  # fmt: skip


def absence(folder, ranks, kill):
    """Seconds from a kill to the next step of the others, and steps that they committed without the killed rank."""
    others = [line for rank in range(ranks) if rank != kill.rank for line in read_steps(folder, rank)]
    own = read_steps(folder, kill.rank)
    before = max(line.step for line in others if line.at_s <= kill.at_s)
    next_s = min(line.at_s for line in others if line.at_s > kill.at_s and line.step > before) - kill.at_s
    last = max(line.step for line in own if line.at_s <= kill.at_s)
    first = min(
        (line.step for line in own if line.at_s > kill.at_s), default=max(line.step for line in others) + 1
    )
    steps = {line.step for line in others if last < line.step < first}
    return next_s, len(steps - {line.step for line in own})


def can_import_torchft():
    return subprocess.run([sys.executable, "-c", "import torchft"], capture_output=True).returncode == 0


def by_torchft(network, folder, job, *, kills):
    """The script under torchft: a replica group on each host, restarted by torchrun, and a lighthouse on host 0."""
    lighthouse = f"{network.address(0)}:29700"
    idle = [["true"]] * (job.hosts - 1)
    holder = network.launch([[sys.executable, "-c", LIGHTHOUSE, lighthouse], *idle], launcher="none")
    common = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        "--nproc-per-node=1",
        "--max-restarts=1000",
    ]
    common += ["--monitor-interval=0.05", "--master-port=29702"]
    script = [str(HERE / "torchft_script.py"), str(folder)]
    addresses = [network.address(host) for host in range(job.hosts)]
    commands = [
        [*common, f"--master-addr={address}", *script, str(host), address]
        for host, address in enumerate(addresses)
    ]
    settings = script_settings(job, every=0) | {"least_replicas": job.hosts - 1, "timeout_s": 10}
    try:
        time.sleep(5.0)
        environment = {"TORCHFT_LIGHTHOUSE": f"http://{lighthouse}"}
        return train_with_kills(network, folder, job, commands, settings, kills, environment)
    finally:
        holder.stop()


def updates_row(page, preset):
    limits = {"roll-forward": 0.02, "undo": 0.02, "ping-pong": 0.04}
    found = overheads(preset["updates"], preset["repeats"], (*limits, "checkpoint"))
    most = max(found[way]["overhead"] for way in limits)
    # Which nobody judges, and which take longer.
    found |= overheads(preset["updates"] // 4, 1, ("journal", "snapshot"))
    page.add(
        f"## Cost of ways back from an update (R8)\n\nA transformer of half a million parameters, AdamW, one thread; "
        f"{preset['repeats']} repeats of {preset['updates']} steps, ways in turns; over the plain optimizer. A "
        "checkpoint that loses as little is a copy of all state after each step, written to disk beside the next one. "
        f"Apart, {preset['updates'] // 4} steps once: the journal, and that copy alone, which is lost with its process."
    )
    with page.table("way", "a step", "over plain", "kept", "claim") as row:
        for way, one in found.items():
            share = f"{one['overhead']:+.1%} ({one['lowest']:+.1%} to {one['highest']:+.1%})"
            judged = verdict(one["overhead"], most=limits[way]) if way in limits else "not judged"
            if way == "checkpoint":
                judged = verdict(one["overhead"], least=most)
            row(way, f"{1e3 * one['step_s']:.1f} ms", share, f"{one['journal_bytes'] / 1e6:.1f} MB", judged)


def predicted_row(page, preset):
    repeats, updates, units = preset["predicted"]
    page.add(
        "## Predicted and measured recoveries (R10)\n\nFour stages of a pipeline in processes of one host, 1F1B with 4 "
        f"microbatches, computing slept (emulated), with a spare; {repeats} kill of each kind, or the median of them. "
        "Measured: from SIGKILL until the update under way is done, less a live update. What a recovery takes whatever "
        "is recomputed comes from kills in the first update, all else from times of passes."
    )
    with page.table("lost", "updates recomputed", "measured", "predicted", "error", "claim") as row:
        for one in predicted_recoveries(repeats, updates, units):
            lost = " and ".join(map(str, one["stages"]))
            row(
                f"stage {lost}", one["updates"], f"{one['measured_s']:.3f} s", f"{one['predicted_s']:.3f} s",
                f"{one['error']:+.1%}", verdict(abs(one["error"]), most=0.15),
            )  # fmt: skip


def main():
    options = arguments(__doc__, ROWS, optimizers=OPTIMIZERS)
    kept = KeptFigures(options.out and options.out.with_suffix(".json"))
    preset = PRESETS[options.preset] | {"optimizers": options.optimizers, "kept": kept}
    page = Page(
        "Recovery", options.preset, {"Ranks": "hosts of a lab on one machine, whose processors they share"}
    )
    rows = {
        "recovery": recovery_row, "silence": silence_row, "goodput": goodput_row, "commits": commits_row,
        "torchft": torchft_row, "soak": soak_row,
        "updates": updates_row,
        "predicted": predicted_row,
        "stages": stages_row, "helpers": helpers_row, "logs": logs_row,
        "kills": kills_row, "shrink": shrink_row,
        "checks": checks_row,
    }  # fmt: skip
    for name in options.only:
        rows[name](page, preset)
    page.finish(options)


if __name__ == "__main__":
    main()
