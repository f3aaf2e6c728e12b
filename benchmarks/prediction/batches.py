"""Mini-batches whose rows of other machines are fetched, but for those that a plan caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from batches_worker import Batches
from setting import Setting, quartiles_of

from common import scratch
from wirewise import lab, plans
from wirewise.cost import TCP_PAYLOAD, Links
from wirewise.recipes.salientpp import MiniBatchJob, prepare
from wirewise.sim import BatchTimes, predict
from wirewise.topology import lab_hosts

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
            alone = carried_out(folder, "10gbit")
            for link in links:
                found = carried_out(folder, link)
                times = BatchTimes(row_bytes=found.row_bytes, sample_s=alone.prepare_s, train_s=TRAIN_S)
                table = Links.of(lab_hosts([link] * MACHINES), payload=TCP_PAYLOAD)
                yield Setting(
                    "cache",
                    link,
                    f"{policy}, alpha {alpha:g}",
                    predict(plan, times, table).step_s,
                    quartiles_of(found.batch_s),
                )


def carried_out(folder: Path, link: str) -> Batches:
    """What the machines of a lab measured."""
    with lab.Lab(MACHINES, link) as network:
        done = network.run([WORKER, str(folder), str(TRAIN_S)], launcher="direct", timeout_s=300)
    if not done.ok:
        raise SystemExit("\n".join(["a machine failed:", *(line for tail in done.tails for line in tail)]))
    return msgspec.json.decode((folder / "batches.json").read_bytes(), type=Batches)
