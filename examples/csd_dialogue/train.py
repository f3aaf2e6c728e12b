"""A dialogue model of several knowledge sources, trained data-parallel.

    torchrun examples/csd_dialogue/train.py                                         # one rank, all cores
    torchrun --nproc-per-node 2 examples/csd_dialogue/train.py --sync ddp           # two ranks, torch's own buckets
    wirewise run swift -- torchrun --nproc-per-node 2 examples/csd_dialogue/train.py --plan plan.json

Prints losses, then metrics on dialogues that training has not seen and ten generated answers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch

from csd.esconv import read_esconv
from csd.generator import LEXICON, generate
from csd.metrics import evaluate
from csd.model import SOURCES, DialogueModel, Sizes
from csd.samples import Samples, Settings, Vocabulary, samples_of, split
from csd.schema import read_dialogues, read_lexicon
from wirewise import plans
from wirewise.runtime import recovery


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    begin_s = time.perf_counter()
    dialogues = load(options)
    lexicon = LEXICON if options.lexicon is None else read_lexicon(options.lexicon)
    settings = Settings(mask_rates=(0.0,) if "mask" in options.without else Settings().mask_rates)
    training, unseen = split(dialogues)
    vocabulary = Vocabulary(training)
    made = samples_of(training, vocabulary, lexicon, settings)
    torch.set_num_threads(1)  # sums of another number of threads differ by rounding
    torch.manual_seed(options.seed)
    model = DialogueModel(
        Sizes(len(vocabulary), settings.history, settings.answer, settings.turns, options.width,
              decoder_layers=options.layers, dropout=options.dropout),
        options.without,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    steps = options.encoder_steps + options.steps
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_of(step, options))

    samples = Samples(
        made,
        settings,
        batch=options.batch,
        encoder_steps=options.encoder_steps,
        steps=steps,
        seed=options.seed,
    )
    job = recovery.protect(
        model,
        optimizer,
        samples,
        steps=steps,
        sync=sync_of(options),
        state=recovery.State(schedulers=[rates], clip=1.0),
        checkpoints=options.checkpoints,
        seed=options.seed,
    )
    samples.shares = job.world_size
    curve = []
    for batch in job:
        with job.step():
            losses = job.model(batch)
            losses.total.backward()
        curve.append(losses.total.item())
        if job.rank == 0 and (job.position % 50 == 0 or job.position == 1):
            shown = {
                name: round(value.item(), 6) for name, value in losses._asdict().items() if value is not None
            }
            print(f"step {job.position}: {json.dumps(shown)}", flush=True)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    if options.losses is not None:
        Path(f"{options.losses}.{job.rank}").write_text(json.dumps(curve) + "\n")
    print(f"weights of rank {job.rank} after {steps} steps: {digest}", flush=True)
    if job.rank == 0:
        tell(model, unseen, vocabulary, lexicon, settings, options)
        print(f"all of it took {time.perf_counter() - begin_s:.0f} s", flush=True)


def sync_of(options: argparse.Namespace):
    """How gradients are reduced; those of the decoder are zeros while encoders are trained alone."""
    if options.sync != "buckets":
        return {"ddp": recovery.DDP, "fold": recovery.Fold}[options.sync]()
    return recovery.Buckets(None if options.plan is None else plans.load(options.plan), unused="zeros")


def rate_of(step: int, options: argparse.Namespace) -> float:
    """Factor of the learning rate: up in 20 steps, down in the last third, once for the encoders and once for all."""
    joint = step >= options.encoder_steps
    steps, step = (options.steps, step - options.encoder_steps) if joint else (options.encoder_steps, step)
    return min(1.0, (step + 1) / 20, 3 * max(steps - step, 0) / max(steps, 1))


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="File of dialogues; without it they are generated.")
    parser.add_argument("--esconv", type=Path, help="Path of ESConv.json, in place of --data.")
    parser.add_argument(
        "--lexicon", type=Path, help="File of words, valence and arousal; without it that of the example."
    )
    parser.add_argument("--dialogues", type=int, default=400, help="Dialogues to generate.")
    parser.add_argument(
        "--encoder-steps", type=int, default=500, help="Steps in which encoders are trained alone."
    )
    parser.add_argument("--steps", type=int, default=250, help="Steps in which all is trained.")
    parser.add_argument("--batch", type=int, default=32, help="Samples of a step, over all ranks.")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4, help="Layers of the decoder.")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", nargs="*", default=[], choices=SOURCES, help="Sources to leave out.")
    parser.add_argument("--plan", help="Plan of `wirewise advise`.")
    parser.add_argument("--sync", choices=["buckets", "ddp", "fold"], default="buckets")
    parser.add_argument("--checkpoints", help="Folder for checkpoints.")
    parser.add_argument("--metrics", type=Path, help="File that takes the metrics as JSON.")
    parser.add_argument("--losses", help="Beginning of the names of files that take the losses of each rank.")
    return parser.parse_args(arguments)


def load(options: argparse.Namespace):
    if options.esconv is not None:
        return read_esconv(options.esconv)
    return generate(options.dialogues, options.seed) if options.data is None else read_dialogues(options.data)


def tell(model, unseen, vocabulary, lexicon, settings, options: argparse.Namespace) -> None:
    tested = samples_of(unseen, vocabulary, lexicon, settings)
    samples = Samples(tested, settings, batch=1, encoder_steps=0, steps=1)
    said = [one.said for one in tested] if options.steps else []
    metrics, answered = evaluate(model, samples, len(tested), vocabulary, said)
    print(f"metrics on {len(tested)} answers of {len(unseen)} dialogues that training has not seen:")
    print(json.dumps(metrics._asdict(), indent=2))
    if options.metrics is not None:
        options.metrics.write_text(json.dumps(metrics._asdict()) + "\n")
    for one in answered[:: max(len(answered) // 10, 1)][:10]:
        print(f"  elder: {one.before}\n  model: {one.answer}\n  data:  {one.reference}\n")


if __name__ == "__main__":
    main()
