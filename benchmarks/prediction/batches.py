"""Mini-batches whose rows of other machines are fetched, but for those that a plan caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from batches_worker import Batches
from setting import Setting, quartiles_of

from common import scratch
from wirewise import lab, plans
from wirewise.cost import Links
from wirewise.sim import BatchTimes, predict
from wirewise_papers.salientpp.experiment import MiniBatchJob, prepare

WORKER = str(Path(__file__).parent / "batches_worker.py")
MACHINES = 4
BATCH_SIZE = 62
"""Divides the training nodes evenly into batches."""
TRAIN_S = 0.01
TOLD = (
    f"The graph `debian` in {MACHINES} parts, batches of {BATCH_SIZE} seeds a machine, fanouts 15, 10, 5, each made "
    "when it is asked for. Rows travel dense, so that links bind; rows, links and sampling are real, training is slept "
    "(emulated). Predicted from the rows that the plan expects of a batch, the links' rates, and the seconds that "
    "sampling, slicing and assembling took on links of 10 Gbit/s. Seconds of a batch, mean of an epoch."
)


def settings(links: list[str], policies: dict[str, float], epochs: int) -> Iterator[Setting]:
    """Every plan on each link: a policy, and the share of all nodes that caches hold together."""
    for policy, alpha in policies.items():
        with scratch() as folder:
            job = MiniBatchJob(
                workers=MACHINES,
                policies=(policy,),
                alpha=alpha,
                epochs=epochs,
                batch_size=BATCH_SIZE,
                row_format="dense",
            )
            prepare(job, folder)
            plan = plans.load(folder / "plan.json")
            alone = batches_on(folder, "10gbit", MACHINES, TRAIN_S)
            for link in links:
                found = batches_on(folder, link, MACHINES, TRAIN_S)
                times = BatchTimes(row_bytes=found.row_bytes, sample_s=alone.prepare_s, train_s=TRAIN_S)
                table = Links.of_lab([link] * MACHINES)
                yield Setting(
                    family="cache",
                    where=link,
                    plan=f"{policy}, alpha {alpha:g}",
                    predicted_s=predict(plan, times, table).step_s,
                    quartiles_s=quartiles_of(found.batch_s),
                )


def batches_on(folder: Path, link: str, machines: int, train_s: float) -> Batches:
    """What the machines of a lab measured of the job in a folder, training slept for so long."""
    with lab.Lab(machines, link) as network:
        done = network.run([WORKER, str(folder), str(train_s)], launcher="direct", timeout_s=300)
    if not done.ok:
        raise SystemExit("\n".join(["a machine failed:", *(line for tail in done.tails for line in tail)]))
    return msgspec.json.decode((folder / "batches.json").read_bytes(), type=Batches)
