"""Predictions of steps on clusters of dgx-h100 machines, in a process of their own: seconds and peak memory as JSON.

python predictions.py FAMILY MACHINES [whole]
"""

import json
import resource
import sys
import time

from wirewise.cost import Links
from wirewise.plans import Bucket, FusionPlan, StagePlan
from wirewise.sim import predict
from wirewise.topology import preset
from wirewise.trace import Module, ModuleTrace, StageModule, StageTrace

LAYERS = 48
GRADIENT_BYTES = 40_000_000


def fusion(ranks):
    """Data-parallel training of 48 layers, a bucket for every six."""
    names = [f"layer{number}" for number in range(LAYERS)]
    job = ModuleTrace(
        modules=[
            Module(name=name, forward_s=0.001, backward_s=0.002, gradient_bytes=GRADIENT_BYTES)
            for name in names
        ],
        hosts=[rank // 8 for rank in range(ranks)],
        optimizer_s=0.005,
    )
    buckets = tuple(
        Bucket(parameters=tuple(reversed(names[first : first + 6])), size_bytes=6 * GRADIENT_BYTES)
        for first in reversed(range(0, LAYERS, 6))
    )
    return FusionPlan(world_size=ranks, planner="by hand", buckets=buckets), job


def stages(ranks):
    """Eight stages of six layers, two ranks for a stage's tensors, the rest replicas; 32 microbatches."""
    names = [f"layer{number}" for number in range(LAYERS)]
    job = StageTrace(
        modules=tuple(
            StageModule(
                name=name,
                forward_s=(0.001,),
                backward_s=(0.002,),
                output_bytes=8e6,
                saved_bytes=8e6,
                parameter_bytes=GRADIENT_BYTES,
            )
            for name in names
        ),
        width_speedup={2: 1.8},
    )
    plan = StagePlan.from_cuts(names, range(6, LAYERS, 6), microbatches=32, replicas=ranks // 16, width=2)
    return plan, job


FAMILIES = {"fusion": fusion, "stages": stages}


def main():
    family, machines = sys.argv[1], int(sys.argv[2])
    more = {"fold": False} if sys.argv[3:] else {}
    plan, job = FAMILIES[family](8 * machines)
    begin = time.perf_counter()
    links = Links.of(preset(f"dgx-h100x{machines}"))
    linked = time.perf_counter()
    found = predict(plan, job, links, **more)
    done = time.perf_counter()
    told = {"links_s": linked - begin, "predict_s": done - linked, "step_s": found.step_s}
    told |= {"ranks": 8 * machines, "classes": found.classes}
    print(json.dumps(told | {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
