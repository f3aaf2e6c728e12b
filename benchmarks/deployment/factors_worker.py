"""One rank of the timed layer: steps of one linear layer whose gradients are summed, or made of sufficient factors.

factors_worker.py FOLDER
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

from wirewise.lab.counters import interface_bytes
from wirewise.plans.deployment import DeployedDevice, DeployedGroup, DeploymentPlan
from wirewise.profile.ending import end_process
from wirewise.runtime.deployment import Deployment
from wirewise.runtime.pipeline import LayerGraph
from wirewise.trials.rank import join_job, prepare_process
from wirewise.trials.windows import alternate


def plan_of(way, ranks, rows):
    own = ("layer",) if way == "duplicate" else ()
    group = DeployedGroup(
        ops=("layer",), devices=tuple(range(ranks)), communication=way, rows=(rows,) * ranks, duplicated=own
    )
    return DeploymentPlan(
        world_size=ranks, planner="by hand", batch=ranks * rows, groups=(group,), predicted_step_s=0.0,
        devices=tuple(DeployedDevice(name=f"device{n}", host=f"host{n}") for n in range(ranks)),
        baseline_step_s=0.0, predicted_bytes=(0,) * ranks,
    )  # fmt: skip


def main():
    prepare_process()
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    with join_job(120.0) as transport:
        torch.manual_seed(0)
        batch = transport.world_size * job["rows"]
        x, y = torch.randn(batch, job["width"]), torch.randn(batch, job["width"])
        made, found = {}, {}
        for way in ("allreduce", "duplicate"):
            torch.manual_seed(1)
            layers = LayerGraph({"layer": nn.Linear(job["width"], job["width"])})
            plan = plan_of(way, transport.world_size, job["rows"])
            made[way] = Deployment(layers, plan, loss=nn.functional.mse_loss)
            found[way] = {"seconds": [], "bytes": 0}
        for turn, way in alternate(list(made), job["turns"] + 1):
            transport.barrier("the begin of a step")
            before, start_s = interface_bytes(), time.perf_counter()
            made[way].step(x, y)
            seconds = float(transport.slowest(time.perf_counter() - start_s))
            after = interface_bytes()
            if turn:
                found[way]["seconds"].append(seconds)
                found[way]["bytes"] = (after - before).tx_bytes
        # Compared here, where both are.
        gradients = [one.modules["layer"].weight.grad for one in made.values()]
        worst = float(transport.slowest(float((gradients[0] - gradients[1]).abs().max())))
        if transport.rank == 0:
            (folder / "result.json").write_text(json.dumps({"ways": found, "difference": worst}))
        for one in made.values():
            one.close()
    end_process()


if __name__ == "__main__":
    main()
