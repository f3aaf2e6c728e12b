"""R1 and R12: trainings under kills at random instants, bit by bit; and on fewer ranks, next to ten seeds."""

import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import nn

from common import verdict
from wirewise.runtime import recovery
from wirewise.runtime.recovery import Agent, TrainingState
from wirewise.runtime.trees import digest_of

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.003),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.003),
    "lamb": lambda parameters: recovery.Lamb(parameters, 0.003),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, 0.003, amsgrad=True),
}
_FEATURES, _CLASSES, _ROWS, _BATCH = 32, 8, 2048, 8


def _data():
    random_numbers = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, _FEATURES, generator=random_numbers)
    y = (x @ torch.randn(_FEATURES, _CLASSES, generator=random_numbers)).argmax(1)
    return torch.utils.data.TensorDataset(x, y)


def train(job: dict) -> None:
    """Train as a rank; its state is written down at the end, what it has learned meanwhile where that is asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    model = nn.Sequential(
        nn.Linear(_FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, _CLASSES)
    )
    optimizer, data, folder = OPTIMIZERS[job["optimizer"]](model.parameters()), _data(), Path(job["folder"])
    training = recovery.protect(
        model,
        optimizer,
        torch.utils.data.DataLoader(data, _BATCH, shuffle=True),
        steps=job["steps"],
        sync=recovery.Buckets(consistency=job["consistency"]),
        seed=job["seed"],
    )
    least = training.world_size
    for x, y in training:
        with training.step():
            # Until all kills are carried out; no state depends on it.
            if not (folder / "enough").exists():
                time.sleep(job["sleep_s"])
            nn.functional.cross_entropy(model(x), y).backward()
        least = min(least, training.world_size // len(training.shares))
        if job["look"] and training.shares.start == 0 and training.position % job["look"] == 0:
            with torch.no_grad():
                model.eval()
                loss = float(nn.functional.cross_entropy(model(data.tensors[0]), data.tensors[1]))
                model.train()
            with (folder / "losses").open("a") as file:
                file.write(f"{training.position} {loss} {least}\n")
            least = training.world_size
    state = digest_of([TrainingState(model, optimizer, buffers="shared").shared(), torch.get_rng_state()])
    (folder / f"rank-{training.rank}.json").write_text(json.dumps(state))


def _run(ranks, kills=0, *, seed=0, gap_s=0.4, spares=1, elastic=False, **job):
    """States by rank, kills carried out, evaluations (step, loss, least processes) and recoveries."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        job = {"folder": name, "seed": seed, "look": 0, "sleep_s": 0.01, **job}
        agent = Agent(
            train, (job,), ranks=ranks, spares=spares, folder=folder / "out", elastic=elastic,
            preload=(*recovery.agent.PRELOAD, "kills"),
        )  # fmt: skip
        with _killing(agent, folder, kills, gap_s, random.Random(seed)) as killed:
            agent.run()
        states = {path.stem: path.read_text() for path in folder.glob("rank-*.json")}
        looks = folder / "losses"
        lines = [line.split() for line in looks.read_text().splitlines()] if looks.exists() else []
    curve = {int(step): (float(loss), int(processes)) for step, loss, processes in lines}
    return states, len(killed), curve, agent.outcome.recoveries


@contextmanager
def _killing(agent, folder, kills, gap_s, draw):
    """Kills ranks at random instants of the training, about `gap_s` after the recovery from the kill before."""
    killed, ended = [], threading.Event()
    if not kills:
        (folder / "enough").touch()

    def strike():
        while len(killed) < kills and not ended.wait(draw.uniform(0.0, 2 * gap_s)):
            pids, done = agent.pids, [one for one in agent.outcome.recoveries if one.ranks]
            # A second kill before the state is copied would strike the last rank that has it.
            if (
                agent.outcome.generations
                and len(done) == len(killed)
                and all(one.committed_s for one in done)
            ):
                rank = draw.choice(sorted(pids))
                with suppress(ProcessLookupError):
                    os.kill(pids[rank], signal.SIGKILL)
                    killed.append(rank)
        (folder / "enough").touch()

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def kills_row(page, preset):
    """R1."""
    kept, kills = preset["kept"], preset["random_kills"]
    page.add(
        f"## Kills at random instants (R1)\n\nRanks of one host with a spare, dropout and BatchNorm; {kills} kills of "
        "a rank drawn at random, each after the recovery from the one before, next to a training that nothing "
        "disturbs. Compared: parameters, state of the optimizer, buffers and random numbers of every rank."
    )
    with page.table(
        "optimizer", "ranks", "consistency", "kills", "recoveries", "to a new step", "claim"
    ) as row:
        for name in preset["optimizers"]:
            for ranks, consistency in ((2, "ping-pong"), (4, "roll-forward")):
                if (key := f"{name} {ranks} {kills}") not in kept:
                    kept[key] = _killed(name, ranks, consistency, kills)
                one = kept[key]
                row(
                    name, ranks, consistency, one["kills"], one["recoveries"], f"{one['seconds']:.2f} s",
                    f"{'equal bit for bit' if one['same'] else 'DIFFERS'}, {verdict(one['same'], least=1)}; "
                    f"kills {verdict(one['kills'], least=kills)}",
                )  # fmt: skip


def _killed(name, ranks, consistency, kills):
    """What a training under kills came to, and whether it is bit for bit the undisturbed one."""
    job = {"optimizer": name, "consistency": consistency, "steps": 100 + 40 * kills}
    calm, *_ = _run(ranks, spares=0, **job)
    states, killed, _, recoveries = _run(ranks, kills, **job)
    seconds = [one.committed_s - one.seen_s for one in recoveries if one.committed_s]
    return {
        "kills": killed,
        "recoveries": len(recoveries),
        "seconds": statistics.median(seconds),
        "same": float(calm == states and len(states) == ranks),
    }


def shrink_row(page, preset):
    """R12."""
    steps, look, seeds = preset["shrink"]
    job = {"optimizer": "adamw", "consistency": "auto", "steps": steps, "look": look, "spares": 0}
    calm = [_run(4, seed=seed, **job)[2] for seed in range(seeds)]
    _, killed, curve, recoveries = _run(4, 2, seed=seeds, elastic=True, gap_s=1.0, **job | {"sleep_s": 0.05})
    page.add(
        f"## Fewer ranks without a spare, and more again (R12)\n\nFour ranks of one host, {steps} updates, the loss of "
        f"the whole dataset every {look}; {seeds} seeds undisturbed, and another one with {killed} ranks killed, whose "
        "shares of each batch the others compute until new processes have come up."
    )
    worst = max(
        abs(curve[step][0] - statistics.fmean(one[step][0] for one in calm))
        / statistics.stdev(one[step][0] for one in calm)
        for step in curve
    )
    processes = [curve[step][1] for step in sorted(curve)]
    with page.table("kills", "groups", "processes, fewest to last", "looks", "farthest from the mean") as row:
        row(
            killed, len(recoveries) + 1, f"{min(processes)} to {processes[-1]}", len(curve),
            f"{worst:.2f} standard deviations, {verdict(worst, most=3)}",
        )  # fmt: skip
