"""The dialogue example: accuracy of labels with and without its sources of knowledge, and the whole training.

    python benchmarks/dialogue/run.py --preset paper --out benchmarks/results/dialogue_MACHINE.md

Rows: `labels` (C2: encoders alone, over seeds), `sources` (C3: the same without the lexicon), `masks` (without hidden
words), `whole` (torchrun from nothing: seconds, metrics).
All data are synthetic: a therapist's labels are functions of the emotion before and of the topic.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from common import Page, arguments, scratch, verdict

ROWS = ("labels", "sources", "masks", "whole")
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "csd_dialogue" / "train.py"
PRESETS = {
    "smoke": {
        "seeds": 1,
        "words": ["--dialogues", "40", "--encoder-steps", "3", "--batch", "8"],
        "whole": ["--steps", "2"],
    },
    "paper": {"seeds": 3, "words": [], "whole": []},
}


def train(folder, *words):
    """Seconds from nothing to the end, and metrics."""
    out = folder / "metrics.json"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(SCRIPT)]
    start_s = time.perf_counter()
    done = subprocess.run(
        [*launch, *words, "--metrics", str(out)], capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return time.perf_counter() - start_s, json.loads(out.read_text())


def encoders(row, preset, folder, name, *without):
    """Accuracies of principles and seconds, by seed; a row of the table."""
    found = [
        train(folder, *preset["words"], "--steps", "0", "--seed", str(seed), *without)
        for seed in range(preset["seeds"])
    ]
    shown = (
        ("accuracy", "principle"),
        ("macro_f1", "principle"),
        ("accuracy", "emotion"),
        ("accuracy", "strategy"),
    )
    means = [f"{np.mean([one[kind][label] for _, one in found]):.3f}" for kind, label in shown]
    row(name, *means, f"{np.mean([took for took, _ in found]):.0f}")
    return [one["accuracy"]["principle"] for _, one in found], [took for took, _ in found]


HEAD = ("encoders with", "principle", "its macro-F1", "emotion", "strategy", "seconds")


def labels_row(page, preset, folder):
    page.add(
        f"## Labels of unseen dialogues (C2)\n\nEncoders alone, {preset['seeds']} seeds of data, model and order. "
        "Seconds are from the start of torchrun to the end, metrics included."
    )
    with page.table(*HEAD) as row:
        accuracy, seconds = encoders(row, preset, folder, "all sources")
    with page.table("claim", "figure", "threshold") as row:
        row(
            "C2: principle accuracy, least of the seeds",
            f"{min(accuracy):.3f}",
            verdict(min(accuracy), least=0.85),
        )
        row("C2: seconds, most of the seeds", f"{max(seconds):.0f}", verdict(max(seconds), most=60.0))


def sources_row(page, preset, folder):
    page.add("## Without a source (C3)\n\nAs above; the lexicon is what the emotion words mean.")
    with page.table(*HEAD) as row:
        whole, _ = encoders(row, preset, folder, "all sources")
        blind, _ = encoders(row, preset, folder, "no lexicon", "--without", "knowledge")
    lost = 100 * (np.mean(whole) - np.mean(blind))
    with page.table("claim", "figure", "threshold") as row:
        row("C3: points lost without the lexicon", f"{lost:.1f}", verdict(lost, least=5.0))


def masks_row(page, preset, folder):
    page.add("## Without masks\n\nAs above; no word is hidden from the encoders.")
    with page.table(*HEAD) as row:
        encoders(row, preset, folder, "no masks", "--without", "mask")


def whole_row(page, preset, folder):
    seconds, found = train(folder, *preset["words"], *preset["whole"])
    page.add("## The whole training, as the README starts it")
    with page.table("metric", "value") as row:
        for name, value in found.items():
            for label, one in value.items() if isinstance(value, dict) else [("", value)]:
                row(f"{name} {label}".replace("_", " ").strip(), f"{one:.3f}")
    with page.table("claim", "figure", "threshold") as row:
        row("seconds from nothing", f"{seconds:.0f}", verdict(seconds, most=300.0))


def main():
    options = arguments(__doc__, ROWS)
    page = Page(
        "A dialogue model", options.preset, {"Data": "synthetic; seconds measured on one thread of one rank"}
    )
    with scratch() as folder:
        for name in options.only:
            globals()[f"{name}_row"](page, PRESETS[options.preset], folder)
    page.finish(options)


if __name__ == "__main__":
    main()
