"""Steps of data-parallel training: buckets of gradients, and groups that are compressed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from setting import Setting

from common import scratch
from wirewise import plans
from wirewise.cost.gradients import load_costs
from wirewise.lab.replayed import scale_trace
from wirewise.sim import predict
from wirewise.trace import read_gradient_trace
from wirewise_papers.cupcake.experiment import CupcakeJob, run
from wirewise_papers.cupcake.job import COSTS_FILE, TRACE_FILE, plan_file

RECORDED = ("resnet50", 16)
"""Gradients of a model as recorded on a V100, and by what their elements are divided."""
FUSION = ("none:bucket:0.4", "none:even:4", "none:cupcake")
COMPRESSION = ("fp16:even:4", "efsign:even:4", "topk:even:4", "cupcake")
TOLD = (
    f"Gradients of {RECORDED[0]} as recorded on a V100, 1/{RECORDED[1]} of each one's elements; computing is slept "
    "(emulated), a rank a host. Each network is one job (`wirewise run cupcake`): codecs, collectives and gradients "
    "are measured alone, then all plans are made from these, and carried out in windows that take turns. Predicted "
    "from the measured gradients and costs, which the job writes; 4 ranks share 2 processors for codecs."
)


def settings(networks: list[tuple[int, str]], rounds: int) -> Iterator[Setting]:
    """Both families on each network: ranks and link."""
    name, scale = RECORDED
    trace = scale_trace(
        read_gradient_trace(Path(os.environ["WIREWISE_DATA"]) / "gradient-traces" / f"{name}.json"), scale
    )
    for hosts, link in networks:
        job = CupcakeJob(
            trace=trace,
            hosts=hosts,
            link=link,
            scale=scale,
            plans=(*FUSION, *COMPRESSION),
            least_gain=0.0,
            trials=0,
            steps=4,
            rounds=rounds,
        )
        with scratch() as folder:
            found = run(job, folder, lambda text: None)
            measured, costs = read_gradient_trace(folder / TRACE_FILE), load_costs(folder / COSTS_FILE)
            for plan, record in found.plans.items():
                predicted = predict(
                    plans.load(plan_file(folder, plan)),
                    measured,
                    costs=costs,
                    forward_share=found.forward_s / found.backward_s,
                )
                yield Setting(
                    family="fusion" if plan in FUSION else "compression",
                    where=f"{hosts} ranks, {link}",
                    plan=plan,
                    predicted_s=predicted.step_s,
                    quartiles_s=(record.quartiles_s[0], record.step_s, record.quartiles_s[1]),
                )
