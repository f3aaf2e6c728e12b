"""Collectives by programs over the event-driven transport."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collectives"))

from jobs import MB, run, saved
from setting import Setting, quartiles_of

from common import scratch
from wirewise import topology
from wirewise.collective import network
from wirewise.cost import Links
from wirewise.lab import Lab
from wirewise.planners.collective import PLANNERS, CollectiveProblem
from wirewise.sim import predict
from wirewise.topology import lab_hosts, preset

NETWORKS = {
    "4 hosts, 100mbit": lambda: lab_hosts(["100mbit"] * 4),
    "4 hosts, 200mbit to 50mbit": lambda: lab_hosts(["200mbit", "200mbit", "100mbit", "50mbit"]),
    "h4-quarter, a link a pair": lambda: preset("h4-quarter"),
}
TOLD = (
    "Planned by `auto` for links that `wirewise topo probe` measured in the same lab, and predicted with them. One "
    "call, from a barrier to the end on the slowest rank; every rank's result is compared with gloo's."
)


def settings(names: list[str], collectives: dict[str, int], repeats: int) -> Iterator[Setting]:
    """Planned programs on each network, by collective and MB."""
    for name in names:
        with scratch() as folder, Lab.of(NETWORKS[name]()) as lab:
            probed = folder / "probed.toml"
            done = lab.run(
                ["-m", "wirewise", "topo", "probe", "-o", str(probed)], launcher="direct", timeout_s=180
            )
            if not done.ok:
                raise SystemExit(f"the links could not be probed: {done.tails}")
            links = Links.of(topology.load(probed))
            for collective, size in collectives.items():
                problem = CollectiveProblem(
                    network=network(topology.load(probed)), collective=collective, size_bytes=size * MB
                )
                made = PLANNERS["auto"](problem, time_budget_s=20.0)
                job = {
                    "collective": collective,
                    "sizes": [size * MB],
                    "repeats": repeats,
                    "programs": {"own": saved(folder, made.program)},
                }
                (found,) = run(lab, "worker.py", job)[0]
                seconds = predict(made, None, links).step_s
                yield Setting(
                    family="collective", where=name, plan=f"{collective}, {size} MB, {made.program.name}",
                    predicted_s=seconds, quartiles_s=quartiles_of(found["seconds"]["own"]),
                )  # fmt: skip
