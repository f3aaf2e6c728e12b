"""Trainings of the dialogue model as jobs that clusters share: measured here, scheduled by `wirewise plan jobs`.

    python examples/csd_dialogue/job_queue.py -o queue.json
    wirewise plan jobs queue.json --with tapfinger

There are two kinds of jobs: "dialogue" trains the whole model, "labels" its encoders alone. How much of a training a
slot completes with 1, 2, ... processors is measured on this machine, by steps with as many threads.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import msgspec
import torch

from csd.generator import LEXICON, generate
from csd.model import DialogueModel, Sizes
from csd.samples import Samples, Settings, Vocabulary, samples_of, split
from wirewise.sim.jobs import draw_queue
from wirewise.trace import JobKind, write_queue

STEPS = {"dialogue": 250, "labels": 500}
"""Steps of a training of each kind."""


def step_seconds(kind: str, threads: int, steps: int = 5) -> float:
    """Median seconds of a step."""
    torch.set_num_threads(threads)
    training, _ = split(generate(80))
    vocabulary = Vocabulary(training)
    made = samples_of(training, vocabulary, LEXICON, Settings())
    encoder_steps = 0 if kind == "dialogue" else steps + 1
    samples = Samples(made, Settings(), batch=32, encoder_steps=encoder_steps, steps=steps + 1, fixed=True)
    model = DialogueModel(Sizes(len(vocabulary)))
    optimizer = torch.optim.AdamW(model.parameters())
    took = []
    for step in range(steps + 1):
        begin_s = time.perf_counter()
        model(samples(step, 0)).total.backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - begin_s)
    return median(took[1:])


def kind_of(seconds: list[float], steps: int, slot_s: float) -> JobKind:
    """A kind by the seconds of its steps with 1, 2, ... processors."""
    rows = [(0.0,), *((min(slot_s / (steps * one), 1.0),) for one in seconds)]
    return JobKind(progress=tuple(rows), cpus=1, gpus=0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("-o", "--out", required=True)
    parser.add_argument("--cpus", type=int, default=cores, help="processors of each cluster")
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.5, help="jobs that arrive in a slot")
    parser.add_argument("--slot-s", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    kinds = {}
    for kind, steps in STEPS.items():
        seconds = [step_seconds(kind, threads) for threads in range(1, min(options.cpus, cores) + 1)]
        print(f"{kind}: " + ", ".join(f"{one:.3f} s a step with {n}" for n, one in enumerate(seconds, 1)))
        kinds[kind] = kind_of(seconds, steps, options.slot_s)
    queue = draw_queue(
        [(options.cpus, 0)] * options.clusters,
        options.rate,
        jobs=options.jobs,
        kinds=kinds,
        seed=options.seed,
    )
    write_queue(msgspec.structs.replace(queue, slot_s=options.slot_s), options.out)


if __name__ == "__main__":
    main()
