"""Steps whose regions Inductor compiles, in a process of its own: compilers leave processes behind while it lives.

compiled_worker.py MODEL...; prints how far gradients are from those of eager mode, and what was not compiled.
"""

from __future__ import annotations

import copy
import json
import sys

import torch

from tests.runtime.data_parallel.captured import BUILDS, alone, duplicated, example, in_regions, loss_of
from tests.runtime.data_parallel.examples import made
from wirewise.runtime.data_parallel.capture import capture
from wirewise.runtime.data_parallel.compiled import compile_step


def compared(name: str, most: int = 3) -> dict[str, object]:
    """One step of a model with so many regions of several operators, some of them copied."""
    model = made(BUILDS[name])
    reference = copy.deepcopy(model)
    graph = capture(model, loss_of, example(name)).operators
    regions = duplicated(graph, 0)[:most]
    step = compile_step(model, loss_of, example(name), in_regions(model, regions), alone())
    batch = example(name, step=1)
    loss, expected = step(batch), loss_of(reference, batch)
    expected.backward()
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    apart = [float((p.grad - q.grad).abs().max()) for p, q in pairs]
    return {
        "loss": abs(float(loss) - float(expected)),
        "gradients": max(apart),
        "compiled": sum(len(region) > 1 for region in regions) - len(step.fallbacks),
        "fallbacks": step.fallbacks,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({name: compared(name) for name in sys.argv[1:]}) + "\n")
