"""Claims about placing the tasks of GNN training: simulated, but for seconds of the simulator and the row `lab`.

    python benchmarks/gnn_placement/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...] [--scheduler NAME,...]

Rows: `policies` (P3: time under each order of flows over what no order beats), `search` (P4: placements found against
rules, and against the best of all), `events` (P5: seconds of the simulator), `graph` (flows found from a graph against
counted ones, and placements made from either), `lab` (P6: plans carried out over real links next to their
simulated times, flows ordered by each scheduler of iter, oes and fifo, or those that --scheduler names).

Generated jobs: 4 hosts with a store each, 6 workers of 2 samplers, a parameter server, room for 2 workers a host; every
sampler prefers some stores (Dirichlet, 0.5); sizes and times vary by 20 % from iteration to iteration. Mixed
interfaces: 1, 2.5 or 5 Gbit/s, drawn for each host; uniform: 2.5 Gbit/s.
"""

import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec
import numpy as np

from common import Page, arguments, scratch, verdict
from random_tasks import random_tasks
from wirewise.codec.row_formats import exact_format
from wirewise.cost import Links
from wirewise.graph import BlockModel, block_model, load, partition
from wirewise.graph.sampling import seed_batches
from wirewise.planners.cache import CacheProblem
from wirewise.planners.placement import (
    PLANNERS,
    VOLUMES,
    PlacementProblem,
    first_fit,
    from_graph,
    search,
)
from wirewise.sim.flows import POLICIES, FlowSimulator
from wirewise.topology import lab_hosts
from wirewise_papers.gnn_tasks.experiment import GnnTasks
from wirewise_papers.gnn_tasks.planning import PlacementJob, lab_problem

PRESETS = {
    "smoke": {
        "seeds": 2,
        "steps": (100,),
        "exhaustive": 1,
        "iterations": 30,
        "graphs": ("blocks",),
        "epochs": 1,
        "lab": {"seeds": 1, "turns": 1, "iterations": 3, "batch_bytes": 3e5},
    },
    "paper": {
        "seeds": 6,
        "steps": (250,),
        "exhaustive": 6,
        "iterations": 70,
        "graphs": ("debian, metis", "debian, random", "blocks"),
        "epochs": 4,
        "lab": {"seeds": 6, "turns": 2, "iterations": 8, "batch_bytes": 2e6},
    },
}
RATES = (1e9 / 8, 2.5e9 / 8, 5e9 / 8)
LAB_LINKS = ("400mbit", "400mbit", "400mbit", "50mbit")
LAB = lab_hosts(LAB_LINKS)
SCHEDULERS = ("iter", "oes", "fifo")
"""Schedulers of the flows of plans that are carried out."""
ID_BYTES, REAL_ROW_BYTES = 4, 400
"""Bytes of a row's number, and of a row of 100 real numbers."""


def interfaces(kind, seed, hosts=4):
    if kind == "uniform":
        return Links.of(lab_hosts([RATES[1]] * hosts))
    return Links.of(lab_hosts(np.random.default_rng(seed).choice(RATES, hosts).tolist()))


def problem_of(kind, seed, **sizes):
    hosts = sizes.get("hosts", 4)
    names = tuple(f"host{number}" for number in range(hosts))
    return PlacementProblem(random_tasks(seed=seed, **sizes), names, interfaces(kind, seed, hosts))


def places_of(found):
    return np.array([task.host for task in found.tasks])


def policies_row(page, preset):
    page.add(
        f"## Orders of flows (P3)\n\nColocated tasks, {preset['seeds']} seeds. Time of 8 iterations over the larger of "
        "bytes over bandwidth of the busiest interface and the executions of the busiest task, which no order beats. "
        "Ratio: most flows that can share an interface, the factor that is guaranteed for `oes`; peak: most that did."
    )
    most = {"oes": 1.35, "iter": 1.15}
    with page.table("interfaces", "policy", "mean", "worst", "claimed of the worst", "ratio", "peak") as row:
        for kind in ("mixed", "uniform"):
            for policy in POLICIES:
                over, ratios, peaks = [], [], []
                for seed in range(preset["seeds"]):
                    problem = problem_of(kind, seed)
                    simulator, places = problem.simulator, places_of(PLANNERS["colocated"](problem))
                    bounds, found = simulator.bounds(places), simulator.run(places, policy)
                    over.append(found.end_s.max() / max(bounds.interface_s, bounds.execution_s))
                    ratios.append(simulator.competitive_ratio(places))
                    peaks.append(found.peak)
                claim = verdict(max(over), most=most[policy]) if policy in most else "none"
                row(
                    kind, policy, f"{np.mean(over):.3f}", f"{max(over):.3f}", claim,
                    f"{max(ratios):.0f}", max(peaks),
                )  # fmt: skip


def search_row(page, preset):
    page.add(
        f"## Placements found (P4)\n\n{preset['seeds']} seeds. Gain: time less than that of colocated tasks, in %, "
        "under the same order of flows; the search starts from the faster one of colocated and store-affine tasks. "
        "Bound: time over what no order beats with the places found."
    )
    with page.table(
        "interfaces", "policy", "placement", "mean gain %", "worst", "best", "over bound", "claimed"
    ) as row:
        for kind, policy in itertools.product(("mixed", "uniform"), ("iter", "oes")):
            methods = [(f"gnn-tasks, {steps} steps", {"steps": steps}) for steps in preset["steps"]]
            for name, knobs in [*methods, ("store-affine", {}), ("random", {})]:
                method = "gnn-tasks" if knobs else name
                gains, over = [], []
                for seed in range(preset["seeds"]):
                    found = PLANNERS[method](problem_of(kind, seed), policy=policy, seed=seed, **knobs)
                    gains.append(100 * (1 - found.predicted_s / found.colocated_s))
                    over.append(found.predicted_s / found.lower_bound_s)
                claimed = kind == "mixed" and knobs.get("steps") == preset["steps"][0]
                row(
                    kind, policy, name, f"{np.mean(gains):.1f}", f"{min(gains):.1f}", f"{max(gains):.1f}",
                    f"{np.mean(over):.3f}", verdict(np.mean(gains), least=10) if claimed else "none",
                )  # fmt: skip
    exhaustive(page, preset)


def exhaustive(page, preset):
    page.add(
        "Against all placements: 3 hosts, 2 workers of a sampler and a server, 243 places, 2000 steps from a packing."
    )
    with page.table("seed", "best of all s", "found s", "over the best", "claimed", "simulated") as row:
        for seed in range(preset["exhaustive"]):
            problem = problem_of("mixed", seed, hosts=3, workers=2, samplers=1, iterations=3)
            best = np.inf
            for hosts in itertools.product(range(3), repeat=len(problem.free)):
                places = problem.fixed.copy()
                places[problem.free] = hosts
                if problem.fits(places):
                    best = min(best, problem.simulator.seconds(places))
            found = search(problem, first_fit(problem), steps=2000, seed=seed)
            over = found.seconds / best
            row(
                seed,
                f"{best:.4f}",
                f"{found.seconds:.4f}",
                f"{over:.4f}",
                verdict(over, most=1.02),
                found.simulated,
            )


def events_row(page, preset):
    tasks = random_tasks(hosts=6, workers=10, samplers=2, iterations=preset["iterations"])
    simulator = FlowSimulator(tasks, Links.of(lab_hosts([RATES[1]] * 6)))
    places = [n % 6 if task.kind != "sampler" else (n + 3) % 6 for n, task in enumerate(tasks.tasks)]
    page.add(
        f"## Seconds of the simulator (P5, measured)\n\n6 hosts, 10 workers of 2 samplers, {tasks.iterations} "
        "iterations. Processor's seconds of one thread, compilation not counted."
    )
    with page.table("policy", "flows", "times at which rates changed", "seconds", "claimed") as row:
        for policy in POLICIES:
            simulator.run(places, policy)
            start_s = time.process_time()
            found = simulator.run(places, policy)
            seconds = time.process_time() - start_s
            first = len(tasks.tasks) * tasks.iterations
            flows = int((found.end_s > found.start_s)[first:].sum())
            row(policy, flows, found.events, f"{seconds:.3f}", verdict(seconds, most=2.0))


def sampled(name, hosts=4):
    """A graph cut among hosts, its training nodes, batches of 64 seeds; and the bytes of a row with its number."""
    row_bytes = REAL_ROW_BYTES + ID_BYTES
    if name.startswith("debian"):
        graph = load("debian").undirected()
        owner = partition(graph, hosts, method=name.split(", ")[1]).astype(np.int64)
        row_bytes = exact_format(graph.x)[1] + ID_BYTES
    else:
        graph = block_model(BlockModel(nodes=8000, classes=16, mean_degree=13.0, features=2))
        owner = graph.y.astype(np.int64) % hosts
    train = np.flatnonzero(graph.split == 0)
    train = np.random.default_rng(0).choice(train, len(train) // 4, replace=False)
    problem = CacheProblem(
        edges=graph.in_edges,
        owner=owner,
        train=tuple(np.sort(train[owner[train] == k]) for k in range(hosts)),
        batch_size=64,
        fanouts=(15, 10, 5),
    )
    return problem, row_bytes


def counted_rows(problem, k, epochs):
    """Rows of each store in each batch of one sampler of worker k, [batches, stores]."""
    sampler, found = problem.sampler(), []
    for epoch in range(epochs):
        for number, seeds in enumerate(seed_batches(problem.train[k], 32, epoch=epoch, seed=7)):
            if len(seeds) == 32:
                batch = sampler.sample(seeds, epoch=epoch, batch=number)
                found.append(np.bincount(problem.owner[batch.n_id], minlength=problem.machines))
    return np.array(found)


def graph_row(page, preset):
    page.add(
        "## Placed before anything ran\n\nFlows from the graph against rows counted over other sampled batches: "
        "`drawn` samples the first 8 batches, `expected` takes inclusion probabilities. A worker a part, 2 samplers of "
        "32 seeds, fanouts 15, 10, 5, a model of 0.5 MB, room for 2 workers a host, 5 ms to sample "
        "and 20 ms to train, three interfaces of 400 Mbit/s and one of 50. Mean error of flows from other parts' "
        "stores, and from the own part's. Milliseconds of an iteration, simulated with the counted flows, whichever "
        "the placement was made from. A row: its number and its features, of the Debian graph the columns of its ones, "
        "of blocks 100 real numbers."
    )
    hosts = tuple(f"host{k}" for k in range(4))
    with page.table(
        "graph", "a row, bytes", "flows", "error, others %", "error, own %", "colocated ms", "placed ms",
        "placed by counted ms", "placed / by counted", "claimed",
    ) as row:  # fmt: skip
        for name in preset["graphs"]:
            problem, row_bytes = sampled(name)
            counted = np.array([counted_rows(problem, k, preset["epochs"]).mean(axis=0) for k in range(4)])
            known = PlacementProblem(
                with_rows(tasks_of(problem, hosts, row_bytes, "expected"), counted, row_bytes),
                hosts,
                Links.of(LAB),
            )
            best = ms_of(known, PLANNERS["gnn-tasks"](known, steps=600))
            together = ms_of(known, PLANNERS["colocated"](known))
            for volumes in VOLUMES:
                job = tasks_of(problem, hosts, row_bytes, volumes)
                error = 100 * np.abs(rows_of(job, row_bytes) / counted - 1)
                own = np.eye(4, dtype=bool)
                placed = ms_of(
                    known, PLANNERS["gnn-tasks"](PlacementProblem(job, hosts, Links.of(LAB)), steps=600)
                )
                row(
                    name, f"{row_bytes:.1f}", volumes, f"{error[~own].mean():.1f}", f"{error[own].mean():.1f}",
                    f"{together:.1f}", f"{placed:.1f}", f"{best:.1f}", f"{placed / best:.3f}",
                    verdict(placed / best, most=1.05),
                )  # fmt: skip


def tasks_of(problem, hosts, row_bytes, volumes):
    return from_graph(
        problem, hosts, row_bytes=row_bytes, model_bytes=5e5, samplers=2, sampler_s=0.005, worker_s=0.02,
        volumes=volumes,
    )  # fmt: skip


def rows_of(job, row_bytes):
    """Mean rows that the samplers of each worker get of each store, [workers, stores]."""
    found = np.zeros((4, 4))
    for flow in job.flows:
        if flow.source.startswith("store"):
            worker = int(flow.target.removeprefix("sampler").split(".")[0])
            found[worker, int(flow.source[5:])] += np.mean(job.numbers(flow.size_bytes)) / row_bytes / 2
    return found


def with_rows(job, counted, row_bytes):
    """The job with counted flows."""
    flows = []
    for flow in job.flows:
        name = flow.target if flow.source.startswith("store") else flow.source
        if name.startswith("sampler"):
            rows = counted[int(name.removeprefix("sampler").split(".")[0])]
            part = rows[int(flow.source[5:])] if flow.source.startswith("store") else rows.sum()
            flow = msgspec.structs.replace(flow, size_bytes=float(part * row_bytes))
        flows.append(flow)
    return msgspec.structs.replace(job, flows=tuple(flows))


def ms_of(problem, found):
    return 1e3 * problem.simulator.seconds(places_of(found), found.policy) / problem.tasks.iterations


def lab_row(page, preset, schedulers):
    sizes = preset["lab"]
    page.add(
        f"## Carried out (P6, measured)\n\nFour hosts of a lab, links of {', '.join(LAB_LINKS)}; a process a host, "
        "real TCP flows in chunks, executions slept (emulated compute). Each sampler fetches and hands on "
        f"{sizes['batch_bytes'] / 1e6:g} MB an iteration, gradients are {0.15 * sizes['batch_bytes'] / 1e6:g} MB a "
        f"worker; {sizes['iterations']} iterations, median of {sizes['turns']} turns, all placements of a scheduler in "
        "turns; gnn-tasks searched under that scheduler. Seconds of an iteration; bound: measured over what no order "
        "of flows beats with these places at 0.9 of the links' rates, of which TCP can carry 0.95. Off: most by which "
        "an iteration of a worker, or a flow, ended before or after its simulated end, of the whole run."
    )
    errors, gains = [], {scheduler: [] for scheduler in schedulers}
    with page.table(
        "scheduler", "seed", "placement", "simulated s", "measured s", "measured / simulated - 1, %", "over bound",
        "workers off, %", "flows off, %", "gain simulated %", "gain measured %",
    ) as row:  # fmt: skip
        for scheduler, seed in itertools.product(schedulers, range(sizes["seeds"])):
            job, found = carried_out(seed, scheduler, sizes)
            base = found["colocated"]
            for name, one in found.items():
                errors.append(100 * (one.measured_s / one.simulated_s - 1))
                least = job.plans[name].lower_bound_s / sizes["iterations"]
                gain = [100 * (1 - a / b) for a, b in zip(one[:2], base[:2], strict=True)]
                off = [late_percent(one, kind, sizes["iterations"]) for kind in ("worker", "flow")]
                row(
                    scheduler, seed, name, f"{one.simulated_s:.3f}", f"{one.measured_s:.3f}", f"{errors[-1]:+.1f}",
                    f"{one.measured_s / least:.3f}", f"{off[0]:.1f}", f"{off[1]:.1f}", f"{gain[0]:.1f}",
                    f"{gain[1]:.1f}",
                )  # fmt: skip
            gains[scheduler].append(gain[1])
    with page.table("claim", "figure", "threshold") as row:
        worst = max(map(abs, errors))
        row("measured / simulated - 1, largest, %", f"{worst:.1f}", verdict(worst, most=20))
        for scheduler, found in gains.items():
            mean = np.mean(found)
            claimed = verdict(mean, least=15) if scheduler == "iter" else "none"
            row(f"mean measured gain over colocated under {scheduler}, %", f"{mean:.1f}", claimed)
            row(f"least measured gain under {scheduler}, %", f"{min(found):.1f}", "none")


def late_percent(one, kind, iterations):
    """Furthest that any of a kind ended from its simulated time, of the run's time."""
    line = one.latest(kind)
    return 100 * max(map(abs, line.late_s)) / (one.measured_s * iterations) if line else 0.0


def carried_out(seed, scheduler, sizes):
    batch = sizes["batch_bytes"]
    tasks = random_tasks(
        seed=seed, iterations=sizes["iterations"], batch_bytes=batch, gradient_bytes=0.15 * batch
    )
    problem = lab_problem(tasks, LAB_LINKS)
    plans = {
        name: PLANNERS[name](problem, policy=scheduler, seed=seed) for name in ("colocated", "gnn-tasks")
    }
    job = PlacementJob(tasks=tasks, links=LAB_LINKS, plans=plans, turns=sizes["turns"])
    with scratch() as folder:
        return job, GnnTasks().execute_plans(job, folder, lambda text: print(text, flush=True))


ROWS = {
    "policies": policies_row,
    "search": search_row,
    "events": events_row,
    "graph": graph_row,
    "lab": lab_row,
}


def main():
    options = arguments(__doc__, list(ROWS), scheduler=SCHEDULERS)
    page = Page(
        "Placement of GNN training tasks", options.preset, {"Threads": "1", "Times": "simulated unless said"}
    )
    for name in options.only:
        also = {"schedulers": options.scheduler} if name == "lab" else {}
        ROWS[name](page, PRESETS[options.preset], **also)
    page.finish(options)


if __name__ == "__main__":
    main()
