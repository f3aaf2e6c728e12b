"""Claims about neighbour sampling and cached rows: all rows are counted over sampled batches, all seconds measured.

    python benchmarks/cache_volume/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `volume` (share of the remote rows that each policy leaves to fetch), `choice` (which policy leaves the fewest
over graphs, batches and fanouts: the default), `ahead` (caches that know coming batches),
`sampler` (S6: sampled edges a second, next to PyG's NeighborLoader where pyg-lib, its fast backend, is installed),
`cost` (V6: seconds of inclusion probabilities).

Graphs: `debian` is the package graph that comes with wirewise, in both directions, with 8 % of its nodes as training
nodes; `blocks` a generated block model; `dense` one of 18,660 nodes with as many neighbours as people have in a social
network; `cora` citations.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pymetis
import torch
from lookahead import fetched_rows, remote_rows
from scipy.sparse import csr_matrix

from common import Page, arguments, spread, verdict
from wirewise.graph import BlockModel, block_model, load
from wirewise.graph.sampling import SEMANTICS, NeighborSampler
from wirewise.planners.cache import (
    POLICIES,
    CacheProblem,
    count_misses,
    inclusion,
    seed_probability,
    select_cached,
)

ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
FANOUTS = (15, 10, 5)
# Graph, machines, seeds of a batch.
PRESETS = {
    "smoke": {
        "volume": [("debian", 4, 64, 2)],
        "choice": ([("cora", (16,))], 2),
        "ahead": ("small", 4, 16),
        "blocks": 30_000,
        "turns": 2,
        "batches": 4,
        "rival_batches": 2,
    },
    "paper": {
        "volume": [("debian", 4, 64, 8), ("debian", 8, 32, 8), ("blocks", 8, 16, 2)],
        "choice": (
            [
                ("debian", (16, 128, 512)),
                ("dense", (16, 128, 512)),
                ("cora", (4, 16, 32)),
                ("blocks", (16, 128)),
            ],
            4,
        ),
        "ahead": ("blocks", 8, 16),
        "blocks": 300_000,
        "turns": 7,
        "batches": 24,
        "rival_batches": 4,
    },
}
CHOICE_FANOUTS = ((10, 5), (15, 10, 5))
CHOICE_ALPHAS = (0.1, 0.5)
CHOICE_MACHINES = 4
WINDOW = 20
TRAIN_SHARE = 0.08


def graph_of(name, preset):
    if name == "debian":
        return load("debian").undirected()
    if name == "cora":
        return load("cora")
    if name == "dense":
        return block_model(BlockModel(nodes=18_660, classes=8, mean_degree=85.0, p_in=0.6, features=2))
    nodes = preset["blocks"] if name == "blocks" else 20_000
    return block_model(BlockModel(nodes=nodes, classes=nodes // 500, mean_degree=13.0, features=2))


def training_nodes(graph):
    """8 % of all nodes, drawn from the training split where that is larger."""
    pool = np.flatnonzero(graph.split == 0)
    return np.random.default_rng(1).choice(
        pool, min(int(TRAIN_SHARE * graph.num_nodes), len(pool)), replace=False
    )


def owners(graph, train, machines):
    """Parts by METIS with equal training nodes, other nodes and edges."""
    trains = np.isin(np.arange(graph.num_nodes), train)
    edges = graph.in_edges
    weights = np.stack([trains, ~trains, np.diff(edges.indptr)], axis=1).astype(np.int64)
    adjacency = pymetis.CSRAdjacency(edges.indptr, edges.indices)
    return np.array(pymetis.part_graph(machines, adjacency=adjacency, vweights=weights.ravel().tolist())[1])


def problem_of(name, machines, batch_size, preset, fanouts=FANOUTS):
    graph = graph_of(name, preset)
    train = training_nodes(graph)
    owner = owners(graph, train, machines).astype(np.int64)
    return CacheProblem(
        edges=graph.in_edges,
        owner=owner,
        train=tuple(np.sort(train[owner[train] == machine]) for machine in range(machines)),
        batch_size=batch_size,
        fanouts=fanouts,
    )


def volume_row(page, preset):
    page.add(
        "## Rows that are left to fetch\n\nShare of the remote rows that batches need and a machine does not keep, by "
        "alpha: each of K machines keeps alpha N / K rows. Fanouts 15, 10, 5; every hop expands all nodes seen. "
        "Counted over epochs that no policy saw; the oracle ranks by accesses of as many other epochs, `simulated` and "
        "`bayesian` by two."
    )
    for name, machines, batch_size, epochs in preset["volume"]:
        one_volume(page, problem_of(name, machines, batch_size, preset), name, epochs)


def one_volume(page, problem, name, epochs):
    machines = range(problem.machines)
    own = [problem.owner == k for k in machines]
    counts = [problem.counts(k, range(10, 10 + epochs)) for k in machines]
    whole = sum(count_misses(counts[k], own[k], []) for k in machines)
    batches = epochs * sum(-(-len(train) // problem.batch_size) for train in problem.train)
    scores = {policy: [POLICIES[policy](problem, k) for k in machines] for policy in POLICIES}
    scores["oracle"] = [problem.counts(k, range(50, 50 + epochs)).astype(float) for k in machines]
    page.add(
        f"### {name}, {problem.machines} machines\n\n{problem.num_nodes} nodes, {len(problem.edges.indices)} directed "
        f"edges, parts of {np.bincount(problem.owner).tolist()} nodes, batches of {problem.batch_size} seeds a "
        f"machine; {whole / batches:.0f} remote rows a batch, {batches} batches counted."
    )
    left = {}
    with page.table("policy", *(f"alpha {alpha:g}" for alpha in ALPHAS)) as row:
        for policy, by_machine in scores.items():
            left[policy] = [share_left(problem, by_machine, own, counts, alpha) / whole for alpha in ALPHAS]
            row(policy, *(f"{share:.3f}" for share in left[policy]))
    volume_claims(page, left, published=(name, problem.machines) == ("debian", 4))


def share_left(problem, scores, own, counts, alpha):
    budget = int(alpha * problem.num_nodes / problem.machines)
    return sum(
        count_misses(counts[k], own[k], select_cached(scores[k], own[k], budget))
        for k in range(problem.machines)
    )


def volume_claims(page, left, published):
    """Ratios to degree and PageRank are claimed of the graph and the machines for which they were published."""
    over = [a - b for a, b in zip(left["vip"], left["oracle"], strict=True)]
    at = {alpha: place for place, alpha in enumerate(ALPHAS)}
    statics = [name for name in left if name not in ("vip", "bayesian", "oracle")]
    with page.table("claim", "figure", "threshold") as row:
        high = [gap for gap, share in zip(over, left["vip"], strict=True) if share >= 0.35]
        low = [gap for gap, share in zip(over, left["vip"], strict=True) if share < 0.35]
        row("VIP over the oracle, most", f"{max(high):.3f}", verdict(max(high), most=0.02))
        if low:
            row("the same where less than 0.35 is left", f"{max(low):.3f}", verdict(max(low), most=0.035))
        worst = max(left["vip"][at[a]] / left["simulated"][at[a]] for a in ALPHAS if a >= 0.1)
        row("VIP / simulated, alpha of 0.1 or more", f"{worst:.3f}", verdict(worst, most=1.0))
        worst = max(left["vip"][at[a]] / min(left[s][at[a]] for s in statics) for a in ALPHAS if a >= 0.05)
        row("VIP / best other, alpha of 0.05 or more", f"{worst:.3f}", verdict(worst, most=1.01))
        for rival, most in (("degree", 0.90), ("reverse-pagerank", 0.95)):
            ratio = left["vip"][at[0.1]] / left[rival][at[0.1]]
            row(
                f"VIP / {rival}, alpha 0.1",
                f"{ratio:.3f}",
                verdict(ratio, most=most) if published else "none",
            )
        worst = max(
            b / min(v, s)
            for b, v, s in zip(*(left[n] for n in ("bayesian", "vip", "simulated")), strict=True)
        )
        row("bayesian / better of VIP and simulated, most", f"{worst:.3f}", "none")


def choice_row(page, preset):
    """Every policy against the oracle in each setting; the mean of what it leaves above the oracle decides."""
    settings, epochs = preset["choice"]
    page.add(
        f"## Which policy leaves the fewest rows\n\n{CHOICE_MACHINES} machines, 8 % of the nodes train; share of the "
        f"remote rows left to fetch, counted over {epochs} epochs that no policy saw. The oracle ranks by accesses of "
        "as many other epochs. Lowest policy in bold."
    )
    over = {policy: [] for policy in POLICIES}
    with page.table("graph", "batch", "fanouts", "alpha", *POLICIES, "oracle") as row:
        for name, batch_sizes in settings:
            for batch_size in batch_sizes:
                for fanouts in CHOICE_FANOUTS:
                    problem = problem_of(name, CHOICE_MACHINES, batch_size, preset, fanouts)
                    for alpha, left in choices(problem, epochs).items():
                        least = min(left[policy] for policy in POLICIES)
                        for policy in POLICIES:
                            over[policy].append(left[policy] - left["oracle"])
                        cells = [
                            f"**{share:.4f}**" if policy != "oracle" and share == least else f"{share:.4f}"
                            for policy, share in left.items()
                        ]
                        row(name, batch_size, ",".join(map(str, fanouts)), f"{alpha:g}", *cells)
    with page.table("policy", "above the oracle, mean", "most", "settings in which it is above VIP") as row:
        for policy, gaps in sorted(over.items(), key=lambda item: np.mean(item[1])):
            above = sum(gap > rival for gap, rival in zip(gaps, over["vip"], strict=True))
            row(policy, f"{np.mean(gaps):.4f}", f"{max(gaps):.4f}", f"{above} of {len(gaps)}")


def choices(problem, epochs):
    """Share that each policy and the oracle leave, by alpha."""
    machines = range(problem.machines)
    own = [problem.owner == k for k in machines]
    counts = [problem.counts(k, range(10, 10 + epochs)) for k in machines]
    whole = sum(count_misses(counts[k], own[k], []) for k in machines)
    scores = {policy: [POLICIES[policy](problem, k) for k in machines] for policy in POLICIES}
    scores["oracle"] = [problem.counts(k, range(50, 50 + epochs)).astype(float) for k in machines]
    return {
        alpha: {name: share_left(problem, one, own, counts, alpha) / whole for name, one in scores.items()}
        for alpha in CHOICE_ALPHAS
    }


def ahead_row(page, preset):
    name, machines, batch_size = preset["ahead"]
    problem = problem_of(name, machines, batch_size, preset)
    page.add(
        f"## Caches that know coming batches\n\n{name}, {machines} machines, batches of {batch_size}; machine 0 over "
        f"two epochs. Half and half: half of the rows kept always by VIP, the rest while one of the next {WINDOW} "
        "batches needs them. All batches known: the least that is possible (Belady)."
    )
    rows, own = remote_rows(problem, 0, (0, 1)), problem.owner == 0
    whole, scores = sum(map(len, rows)), POLICIES["vip"](problem, 0)
    with page.table("alpha", "VIP", "half and half", f"{WINDOW} batches known", "all batches known") as row:
        for alpha in ALPHAS[1:]:
            budget = int(alpha * problem.num_nodes / machines)
            cells = []
            for share, window in ((1.0, 0), (0.5, WINDOW), (0.0, WINDOW), (0.0, None)):
                static = select_cached(scores, own, int(share * budget))
                room = budget - int(share * budget)
                found = fetched_rows(rows, problem.num_nodes, static=static, room=room, window=window)
                cells.append(f"{found / whole:.3f}")
            row(f"{alpha:g}", *cells)


def sampler_row(page, preset):
    graph = graph_of("blocks", preset)
    edges, nodes = graph.in_edges, graph.num_nodes
    seeds = np.random.default_rng(0)
    chosen = [seeds.choice(nodes, min(1024, nodes // 20), replace=False) for _ in range(preset["batches"])]
    page.add(
        f"## Sampled edges a second (S6)\n\n{nodes} nodes, {len(edges.indices)} directed edges, batches of "
        f"{len(chosen[0])} seeds, fanouts 15, 10, 5; {len(chosen)} batches a turn, {preset['turns']} turns in which "
        "all take part. Ids are made local and edges sorted by target; no features."
    )
    samplers = {name: NeighborSampler(edges, FANOUTS, semantics=name) for name in SEMANTICS}
    rivals, told = loaders(edges, nodes)
    found = {(name, threads): [] for name in SEMANTICS for threads in (1, 2)} | {
        (name, 1): [] for name in rivals
    }
    for turn in range(preset["turns"] + 1):
        for (name, threads), rates in found.items():
            if name in samplers:
                rate = own_rate(samplers[name], chosen, threads, turn)
            else:
                rate = rivals[name](chosen[: preset["rival_batches"]])
            if turn:
                rates.append(rate)
    with page.table("sampler", "threads", "M edges/s", "claimed") as row:
        for (name, threads), rates in found.items():
            least = 4.0 if (name in samplers and threads == 1) else None
            told_rate = verdict(float(np.median(rates)) / 1e6, least=least) if least else "none"
            row(name, threads, spread(rates, 1e-6), told_rate)
    with page.table("claim", "figure", "threshold") as row:
        for name in SEMANTICS:
            gain = np.array(found[name, 2]) / np.array(found[name, 1])
            row(
                f"{name}: two threads over one",
                spread(gain, digits=2),
                verdict(float(np.median(gain)), least=1.6),
            )
        for name in rivals:
            gain = float(np.median(np.array(found["frontier", 1]) / np.array(found[name, 1])))
            row(f"frontier over {name}", f"{gain:.1f}", verdict(gain, least=6.0))
    page.add(told)


def own_rate(sampler, chosen, threads, epoch):
    def draw(number):
        batch = sampler.sample(chosen[number], epoch=epoch, batch=number)
        return batch.num_edges if sampler.semantics == "cumulative" else len(batch.layers[0].sources)

    start = time.perf_counter()
    if threads == 1:
        drawn = sum(map(draw, range(len(chosen))))
    else:
        with ThreadPoolExecutor(threads) as pool:
            drawn = sum(pool.map(draw, range(len(chosen))))
    return drawn / (time.perf_counter() - start)


def loaders(edges, nodes):
    """PyG's NeighborLoader on pyg-lib, without workers, if it can run here; a slower backend is no fair base."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.typing import WITH_PYG_LIB

    if not WITH_PYG_LIB:
        return {}, "No factor over PyG's NeighborLoader: pyg-lib, its fast backend, is not installed here."

    target = np.repeat(np.arange(nodes), np.diff(edges.indptr))
    data = Data(
        edge_index=torch.from_numpy(np.stack([edges.indices.astype(np.int64), target])), num_nodes=nodes
    )

    def rate(chosen):
        torch.set_num_threads(1)
        loader = NeighborLoader(
            data,
            list(FANOUTS),
            input_nodes=torch.from_numpy(np.concatenate(chosen)),
            batch_size=len(chosen[0]),
        )
        start = time.perf_counter()
        drawn = sum(batch.edge_index.shape[1] for batch in loader)
        return drawn / (time.perf_counter() - start)

    told = "NeighborLoader makes a `Data` object of each batch; no workers, and fewer batches a turn."
    return {"NeighborLoader (pyg-lib)": rate}, told


def cost_row(page, preset):
    graph = graph_of("blocks", preset)
    edges, nodes = graph.in_edges, graph.num_nodes
    problem = CacheProblem(
        edges=edges,
        owner=np.zeros(nodes, np.int64),
        train=(training_nodes(graph),),
        batch_size=64,
        fanouts=FANOUTS,
    )
    matrix = csr_matrix((np.ones(len(edges.indices)), edges.indices, edges.indptr), shape=(nodes, nodes))
    x, seeds = np.random.default_rng(0).random(nodes), seed_probability(nodes, problem.train[0], 64)
    times = {"inclusion": [], "products": []}
    for turn in range(preset["turns"] + 1):
        for name, work in (
            ("inclusion", lambda: inclusion(problem.drawers, seeds, FANOUTS)),
            ("products", lambda: [matrix @ x for _ in FANOUTS]),
        ):
            start = time.perf_counter()
            work()
            if turn:
                times[name].append(time.perf_counter() - start)
    ratio = np.array(times["inclusion"]) / np.array(times["products"])
    page.add(
        f"## Cost of inclusion probabilities (V6)\n\n{nodes} nodes, {len(edges.indices)} edges, three hops, against "
        "three products of the adjacency with a vector (scipy, float64); one thread."
    )
    with page.table("inclusion ms", "products ms", "ratio", "claimed") as row:
        row(
            spread(times["inclusion"], 1e3), spread(times["products"], 1e3), spread(ratio, digits=2),
            verdict(float(np.median(ratio)), most=3.0),
        )  # fmt: skip


ROWS = {
    "volume": volume_row,
    "choice": choice_row,
    "ahead": ahead_row,
    "sampler": sampler_row,
    "cost": cost_row,
}


def main():
    options = arguments(__doc__, list(ROWS))
    page = Page("Sampling and cached rows", options.preset, {"Rows": "counted", "Seconds": "measured"})
    for name in options.only:
        ROWS[name](page, PRESETS[options.preset])
    page.finish(options)


if __name__ == "__main__":
    main()
