"""Claims about the replay simulator's speed: ops a second on one core, and ResNet50 on a ring of 128 ranks.

    python benchmarks/replay/run.py --preset smoke|paper [--out FILE.md] [--only ROW,...]

Rows: `speed` (ops a second of the compiled core, and of `sim.replay` with the preparation of its arrays),
`resnet50` (a step on 128 ranks with every hop of every ring as an op: one rank for all by symmetry, and all
ranks where the preset says so).

ResNet50's gradients come from $WIREWISE_DATA/gradient-traces/resnet50.json: elements of each tensor and the
time since the one before, recorded on a V100. Assumed: float32 gradients; a gap is the time of the backward
op that ends it; the forward pass takes half of the time of the backward pass, the optimizer 2 ms; 128 hosts
with a rank each, alike, on 10 Gbit/s and 20 us; all-reduces run one at a time in order. Nothing here is
measured on 128 hosts: the page shows how fast the simulator is and not how good its prediction is.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from rings import ring_step

from common import Page, arguments, spread, verdict
from wirewise.cost import Links
from wirewise.sim import replay
from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.sim.engine import run
from wirewise.sim.links import prepare

PRESETS = {
    # Ops of the speed row; repeats; ranks that are simulated in full, and with which bucket caps.
    "smoke": {"ops": 200_000, "repeats": 3, "full": [(16, "25 MiB", None)]},
    "paper": {
        "ops": 2_000_000,
        "repeats": 7,
        "full": [(128, "25 MiB", None), (128, "one tensor", 1.0)],
    },
}
RANKS, RATE, LATENCY = 128, 10e9 / 8, 20e-6
LEAST_OPS_PER_S, MOST_SECONDS = 1e6, 60.0


def resnet50():
    """Layers, one a tensor, in the order of the forward pass."""
    path = Path(os.environ["WIREWISE_DATA"]) / "gradient-traces" / "resnet50.json"
    tensors = json.loads(path.read_text())["tensors"]
    backward = [
        LayerCost(t["name"], 0.5e-6 * t["gap_us"], 1e-6 * t["gap_us"], 4.0 * t["elements"]) for t in tensors
    ]
    return backward[::-1]


def even_layers(count):
    random = np.random.default_rng(0)
    times = random.random((count, 3))
    return [LayerCost(f"layer {i}", 1e-3 * a, 2e-3 * b, 4e6 * c) for i, (a, b, c) in enumerate(times)]


def graphs(ops):
    """(name, graph, links) of about so many ops."""
    uneven = 1 + 0.1 * np.random.default_rng(1).random(64)
    layers = even_layers(max(ops // 128, 8))
    yield (
        "64 ranks, compute and whole rings",
        data_parallel_step(layers, range(64), slowdown=uneven, optimizer_s=1e-3),
        Links.uniform(64, RATE, LATENCY),
    )
    layers = even_layers(max(ops // (16 * 32), 8))
    yield (
        "16 ranks, hops of rings",
        ring_step(layers, 16, bucket_bytes=1.0, slowdown=uneven[:16], optimizer_s=1e-3),
        Links.uniform(16, RATE, LATENCY),
    )


def timed(action, repeats):
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = action()
        seconds.append(time.perf_counter() - start)
    return result, seconds


def speed(page, preset):
    page.add(
        "## Ops a second on one core\n\nMedian and quartiles of repeats after a first run; both columns in "
        "millions of ops a second."
    )
    with page.table("graph", "ops", "core", "with preparation", "core, claimed") as row:
        for name, flow, links in graphs(preset["ops"]):
            replay(flow, links)
            prepared = prepare(flow, links)
            n = len(flow.names)
            _, core = timed(lambda p=prepared: run(p.ops, p.uses), preset["repeats"])
            _, whole = timed(lambda f=flow, k=links: replay(f, k), preset["repeats"])
            core, whole = n / np.array(core), n / np.array(whole)
            row(
                name,
                n,
                spread(core, 1e-6, 2),
                spread(whole, 1e-6, 2),
                verdict(float(np.median(core)), least=LEAST_OPS_PER_S),
            )


def resnet50_row(page, preset):
    layers = resnet50()
    options = {"optimizer_s": 2e-3}
    page.add(
        f"## ResNet50 on a ring of {RANKS} ranks, hop by hop\n\nSeconds to build the graph and to replay it; the "
        "step is simulated."
    )
    with page.table(
        "ranks", "simulated", "bucket", "ops", "build s", "replay s", "step ms", "claimed"
    ) as row:
        caps = {"25 MiB": None, "one tensor": 1.0}
        cases = [(RANKS, True, name, cap) for name, cap in caps.items()]
        cases += [(ranks, False, name, cap) for ranks, name, cap in preset["full"]]
        for ranks, symmetric, name, cap in cases:
            flow, build = timed(
                lambda n=ranks, c=cap, s=symmetric: ring_step(
                    layers, n, bucket_bytes=c, symmetric=s, **options
                ),
                1,
            )
            result, took = timed(lambda f=flow, n=ranks: replay(f, Links.uniform(n, RATE, LATENCY)), 1)
            row(
                ranks,
                "one rank for all" if symmetric else "all ranks",
                name,
                len(flow.names),
                f"{build[0]:.2f}",
                f"{took[0]:.2f}",
                f"{result.step_s * 1e3:.3f}",
                verdict(build[0] + took[0], most=MOST_SECONDS),
            )


ROWS = {"speed": speed, "resnet50": resnet50_row}


def main():
    options = arguments(__doc__, list(ROWS))
    preset = PRESETS[options.preset]
    page = Page("Replay simulator", options.preset, {"Threads": "1"})
    flow = ring_step(even_layers(4), 4)
    replay(flow, Links.uniform(4, RATE, LATENCY))
    for name in options.only:
        ROWS[name](page, preset)
    page.finish(options)


if __name__ == "__main__":
    main()
