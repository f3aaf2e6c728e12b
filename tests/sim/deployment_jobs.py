"""Random models, unequal devices, and plans of all kinds for them."""

from __future__ import annotations

import numpy as np

from wirewise.cost import Links
from wirewise.plans import DeployedDevice, DeployedGroup, DeploymentPlan
from wirewise.trace import StageModule, StageTrace


def random_model(seed: int, modules: int = 6, *, skips: int = 0) -> StageTrace:
    """Seconds of 2, 4 and 8 rows; every other module has linear layers."""
    random = np.random.default_rng(seed)
    names = [f"m{number}" for number in range(modules)]
    edges = {(names[i], names[i + 1]) for i in range(modules - 1)} if skips else set()
    for _ in range(skips):
        first, second = sorted(random.choice(modules, 2, replace=False).tolist())
        edges.add((names[first], names[second]))
    made = []
    for number, name in enumerate(names):
        row, fixed = random.uniform(0.002, 0.02), random.uniform(0.0, 0.01)
        seconds = [fixed + row * rows for rows in (2, 4, 8)]
        weights = float(random.integers(10_000, 2_000_000))
        made.append(
            StageModule(
                name=name,
                forward_s=tuple(seconds),
                backward_s=tuple(2 * s for s in seconds),
                output_bytes=float(random.integers(1_000, 50_000)),
                saved_bytes=float(random.integers(50_000, 100_000)),
                parameter_bytes=weights,
                optimizer_s=weights * 1e-9,
                factor_bytes=float(random.integers(1_000, 20_000)) if number % 2 else 0.0,
                factored_bytes=0.9 * weights if number % 2 else 0.0,
            )
        )
    ordered = sorted(edges, key=lambda edge: (int(edge[0][1:]), int(edge[1][1:])))
    return StageTrace(modules=tuple(made), sizes=(2, 4, 8), edges=tuple(ordered))


def unequal_links(seed: int, ranks: int) -> Links:
    """Some hosts with two ranks; rates apart by up to eight times."""
    random = np.random.default_rng(seed)
    host = np.cumsum([0, *(random.random(ranks - 1) < 0.7).astype(int)])
    hosts = int(host[-1]) + 1
    rate = random.choice([5e6, 1e7, 2e7, 4e7], hosts)
    latency = np.full((hosts, hosts), 2e-4)
    np.fill_diagonal(latency, 1e-5)
    return Links(rate, rate.copy(), latency, np.full(hosts, 1e9), host_of_rank=host)


def unequal_devices(seed: int, links: Links) -> tuple[DeployedDevice, ...]:
    random = np.random.default_rng(seed)
    speed = random.choice([0.5, 1.0, 2.0, 4.0], links.hosts)
    return tuple(
        DeployedDevice(name=f"gpu{rank}", host=f"host{host}", speed=float(speed[host]))
        for rank, host in enumerate(links.host_of_rank)
    )


def random_plan(seed: int, trace: StageTrace, links: Links, batch: int = 16) -> DeploymentPlan:
    """One to three ops a group, each group on ranks of its own, with rows and a way that are drawn."""
    random, ranks = np.random.default_rng(seed), links.world_size
    names, groups = [module.name for module in trace.modules], []
    while names:
        ops, names = names[: (k := int(random.integers(1, 4)))], names[k:]
        devices = np.sort(random.choice(ranks, int(random.integers(1, ranks + 1)), replace=False)).tolist()
        way = str(random.choice(["allreduce", "ps", "duplicate", "mp"]))
        factored = tuple(op for op in ops if trace.modules[trace.numbers[op]].factored_bytes > 0)
        if way == "duplicate" and (not factored or len(devices) < 2):
            way = "allreduce"
        owners = tuple(int(one) for one in random.choice(devices, len(ops))) if way in ("mp", "ps") else ()
        if way == "mp":
            devices = sorted(set(owners))
        rows = 1 + random.multinomial(batch - len(devices), np.full(len(devices), 1 / len(devices)))
        groups.append(
            DeployedGroup(
                ops=tuple(ops),
                devices=tuple(devices),
                communication=way,
                rows=() if way == "mp" else tuple(rows.tolist()),
                owners=owners,
                duplicated=factored if way == "duplicate" else (),
                priority=int(random.integers(3)),
            )
        )
    return DeploymentPlan(
        world_size=ranks,
        planner="drawn",
        batch=batch,
        devices=unequal_devices(seed, links),
        groups=tuple(groups),
        predicted_step_s=0.0,
        baseline_step_s=0.0,
        predicted_bytes=(0,) * ranks,
    )
