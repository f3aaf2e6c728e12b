"""Tasks of GNN training on hosts."""

from __future__ import annotations

from collections.abc import Iterator

from setting import Setting, quartiles_of

from common import scratch
from random_tasks import random_tasks
from wirewise.planners.placement import PLANNERS
from wirewise.sim import predict
from wirewise_papers.gnn_tasks.experiment import GnnTasks
from wirewise_papers.gnn_tasks.planning import PlacementJob, lab_links, lab_problem

LINKS = ("400mbit", "400mbit", "400mbit", "50mbit")
TOLD = (
    f"Random tasks on hosts with links of {', '.join(LINKS)} (`wirewise run gnn-tasks`); real TCP flows, executions "
    "are slept (emulated). Seconds of all 8 iterations."
)


def settings(seeds: range, policies: tuple[str, ...], turns: int) -> Iterator[Setting]:
    """Tasks where they belong together, and where the planner puts them, under each order of flows."""
    for seed in seeds:
        tasks = random_tasks(seed=seed, iterations=8, batch_bytes=2e6, gradient_bytes=3e5)
        problem = lab_problem(tasks, LINKS)
        made = {
            f"{method}, {policy}": PLANNERS[method](problem, policy=policy, seed=seed)
            for policy in policies
            for method in ("colocated", "gnn-tasks")
        }
        with scratch() as folder:
            found = GnnTasks().execute_plans(
                PlacementJob(tasks=tasks, links=LINKS, plans=made, turns=turns), folder, lambda text: None
            )
        for name, one in found.items():
            predicted = predict(made[name], tasks, lab_links(LINKS))
            seconds = [tasks.iterations * turn for turn in one.all_s]
            yield Setting(
                family="placement",
                where=f"random tasks, seed {seed}",
                plan=name,
                predicted_s=predicted.step_s,
                quartiles_s=quartiles_of(seconds),
            )
