"""Sketches of dataflow graphs."""

import numpy as np

from wirewise.sim.data_parallel import LayerCost, data_parallel_step
from wirewise.trace.sketch import GraphSketch

MIB = 2**20

LAYERS = [LayerCost("a", 1.0, 2.0, 2 * MIB), LayerCost("b", 1.0, 2.0, 1 * MIB)]


def test_sketch_gives_back_the_same_graph():
    flow = data_parallel_step(LAYERS, [0, 1, 1], bucket_bytes=1, optimizer_s=0.1)
    again = GraphSketch.of(flow).dataflow()
    for name in (
        "kind",
        "rank",
        "duration_s",
        "flow_bytes",
        "flow_indptr",
        "rounds",
        "resource",
        "indptr",
        "indices",
    ):
        assert np.array_equal(getattr(flow, name), getattr(again, name)), name
