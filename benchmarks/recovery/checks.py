"""Cost of the checks of a protected training, in steps without failures."""

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from common import spread, verdict
from wirewise.runtime import recovery
from wirewise.runtime.recovery import Agent

_WIDTH, _LENGTH, _BATCH, _LAYERS = 96, 64, 16, 4
"""The transformer of `consistency.py`: half a million parameters and 1,024 tokens a step."""
_TURN = 25
"""Steps in a row with the checks, and without."""
PARTS = ("comparison", "look", "seal", "touched")


class _Meter:
    """Seconds that the parts of the checks have taken; `on` lets them run."""

    def __init__(self, training):
        self.on, self.seconds = True, dict.fromkeys(PARTS, 0.0)
        compared = training._compared
        compared.run = self.timed("comparison", compared.run)
        compared.observe = self.timed("look", compared.observe)
        # A step cannot be left unsealed, so this part is timed in all turns.
        training._updates.seal = self.timed("seal", training._updates.seal, always=True)
        training._touched.keep = self.timed("touched", training._touched.keep)
        training._touched.detect_changes = self.timed("touched", training._touched.detect_changes)

    def timed(self, part, call, *, always=False):
        def measured(*args, **named):
            if not self.on and not always:
                return
            start_s = time.perf_counter()
            call(*args, **named)
            if self.on:
                self.seconds[part] += time.perf_counter() - start_s

        return measured


def train(job: dict) -> None:
    """Train as a rank, with and without the checks, interleaved; rank 0 writes its seconds down."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, 0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, _LAYERS)
    x = torch.randn(_BATCH, _LENGTH, _WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = recovery.protect(model, optimizer, lambda step, share: x, steps=job["steps"] + _TURN)
    meter, turns = _Meter(training), {True: [], False: []}
    began_s = time.perf_counter()
    for batch in training:
        step = training.position
        if step % _TURN == 0 and step:
            # The first turn warms up.
            if step > _TURN:
                turns[meter.on].append((time.perf_counter() - began_s) / _TURN)
            else:
                meter.seconds = dict.fromkeys(PARTS, 0.0)
            meter.on = step // _TURN % 2 == 1
            began_s = time.perf_counter()
        with training.step():
            model(batch).square().mean().backward()
    if training.rank == 0:
        Path(job["out"]).write_text(
            json.dumps({"with": turns[True], "without": turns[False], **meter.seconds})
        )


def checks_row(page, preset):
    """Steps with the checks and without, interleaved, and the seconds of each part."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        out = Path(name) / "seconds.json"
        job = {"steps": preset["checks"], "out": str(out)}
        Agent(train, (job,), ranks=2, spares=0, folder=Path(name)).run()
        found = json.loads(out.read_text())
    page.add(
        "## Cost of checks while nothing fails\n\nTwo ranks on one machine, a transformer of half a million "
        f"parameters, AdamW, one thread; {preset['checks']} steps, {_TURN} with the checks and {_TURN} without, "
        "interleaved. Seconds of a part are those of rank 0 in the turns with checks, over the seconds of these turns; "
        "a comparison has in it the wait for the other rank. The state after the script's code is copied in all turns."
    )
    total_s = _TURN * sum(found["with"])
    ratios = [a / b - 1 for a, b in zip(found["with"], found["without"], strict=False)]
    with page.table("part", "of a step", "claim") as row:
        for part in PARTS:
            own = found[part] / total_s
            row(
                part,
                f"{100 * own:.3f} %",
                verdict(own, most=0.005) if part in ("comparison", "look") else "not judged",
            )
        both = (found["comparison"] + found["look"]) / total_s
        row("comparison and look", f"{100 * both:.3f} %", verdict(both, most=0.005))
        row("a step with, over one without", f"{spread(ratios, 100, 2)} %", "not judged")
        row("a step", f"{1e3 * statistics.median(found['without']):.1f} ms", "not judged")
