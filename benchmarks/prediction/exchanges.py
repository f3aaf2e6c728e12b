"""Epochs of full-graph training: halo rows in planned bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from exchanges_worker import Case, Epochs
from setting import Setting, quartiles_of

from common import scratch
from wirewise import graph, lab

WORKER = str(Path(__file__).parent / "exchanges_worker.py")
PARTS = 4
TOLD = (
    "The graph `debian` in 4 random parts, two layers of width 64. An epoch is the exchanges of both layers, forward "
    "and back, with packing, the wire and unpacking; computing of central and marginal rows is slept (emulated). Links "
    "and codec are measured by the ranks before, as training does; plans are made from these. `auto`: no more noise "
    "than 4 bits everywhere."
)


def settings(networks: dict[str, dict[int, str]], epochs: int) -> Iterator[Setting]:
    """Every plan on each network: a link, and hosts whose link differs."""
    data = graph.load("debian")
    with scratch() as folder:
        graph.save_parts(data, graph.partition(data, PARTS, method="random", seed=0), folder / "parts")
        for link, others in networks.items():
            with lab.Lab(PARTS, link, others) as network:
                found = epochs_on(network, folder, Case(epochs=epochs))
            where = ", ".join([link, *(f"host {host} {rate}" for host, rate in others.items())])
            for plan, seconds in found.seconds.items():
                yield Setting(
                    family="full-graph bits",
                    where=where,
                    plan=plan,
                    predicted_s=found.predicted_s[plan],
                    quartiles_s=quartiles_of(seconds),
                )


def epochs_on(network: lab.Lab, folder: Path, case: Case) -> Epochs:
    """What the ranks of a lab measured; the folder holds the parts of a graph, one a host."""
    (folder / "case.json").write_bytes(msgspec.json.encode(case))
    done = network.run([WORKER, str(folder / "case.json")], launcher="direct", timeout_s=300)
    if not done.ok:
        raise SystemExit("\n".join(["a rank failed:", *(line for tail in done.tails for line in tail)]))
    return msgspec.json.decode((folder / "epochs.json").read_bytes(), type=Epochs)
