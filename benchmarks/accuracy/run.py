"""Claims about accuracy: what quantized messages do to the test accuracy and to the final training loss.

    python benchmarks/accuracy/run.py --preset smoke|paper [--out FILE.md] [--only debian,block,arxiv-like]

Static modes give the same numbers on any network and train on loopback; adaqp decides its bits from the links
and trains in a lab at 200mbit. Seeds, initial weights and dropout masks are common to all modes. The paper
preset is sized for 25 minutes on two idle processors.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from common import Page, arguments, scratch, verdict
from wirewise import lab
from wirewise.results import EpochRecord
from wirewise_papers.adaqp import experiment as adaqp
from wirewise_papers.adaqp.job import FullGraphJob, ModeOutcome

ROWS = ("debian", "block", "arxiv-like")
PRESETS = {
    "smoke": {
        "seeds": 1, "workers": 2,
        "debian": {"dataset": "block:nodes=1000", "epochs": 15},
        "block": {"dataset": "block:nodes=1000", "epochs": 15},
        "arxiv-like": {
            "dataset": "block:nodes=1000,directed=true", "epochs": 15,
            "model": "gcn", "norm": False, "learning_rate": 5e-4,
        },
    },
    "paper": {
        "seeds": 5, "workers": 4,
        "debian": {"dataset": "debian", "epochs": 60},
        "block": {"dataset": "block:nodes=4000", "epochs": 60},
        "arxiv-like": {
            "dataset": "block:nodes=16000,directed=true", "epochs": 140,
            "model": "gcn", "norm": False, "learning_rate": 5e-4,
        },
    },
}  # fmt: skip
STATIC = ("fp32", "uniform-8", "uniform-4")
LINK = "200mbit"
MOST_LOST = {
    "debian": {"uniform-8": 0.5, "adaqp": 0.3, "uniform-4": 1.0},
    "block": {"uniform-8": 0.5, "adaqp": 0.5, "uniform-4": 1.0},
    "arxiv-like": {"uniform-8": 0.5, "adaqp": 0.5, "uniform-4": 1.0},
}
"""Points of test accuracy, mean over seeds, below fp32."""
MOST_LOSS = {"uniform-8": 1.2, "adaqp": 1.4, "uniform-4": 1.4}
"""Final training loss over that of fp32, mean over seeds."""
FP32_RANGE = (0.70, 0.90)
"""Where fp32 should be, so that accuracy can move either way."""


class Quiet:
    """Hears of a run and says nothing."""

    def start(self, modes: list[str], epochs: int) -> None: ...

    def epoch(self, mode: str, record: EpochRecord) -> None: ...

    def note(self, text: str) -> None: ...

    def finish(self) -> None: ...


def train(knobs: dict, workers: int, seed: int) -> dict[str, ModeOutcome]:
    """Train all modes with one seed, on the same parts."""
    epochs = knobs["epochs"]
    common = {
        "workers": workers,
        "seed": seed,
        "turn": epochs,
        "evaluate_every": max(1, epochs // 12),
        **knobs,
    }
    with scratch() as folder:
        static = FullGraphJob(**common, hosts=1, network="loopback", modes=STATIC)
        adaqp.prepare_parts(static, folder, Quiet())
        planned = FullGraphJob(**common, hosts=workers, network="lab", link=LINK, modes=("adaqp",))
        found = adaqp.train(static, folder, lambda mode, record: None).modes
        return found | adaqp.train(planned, folder, lambda mode, record: None).modes


def final_loss(outcome: ModeOutcome) -> float:
    return adaqp.smoothed_losses(outcome.records)[-1]


def mean_bits(outcome: ModeOutcome) -> float:
    """Over the messages of the last epoch."""
    counts: dict[int, int] = {}
    for exchange in outcome.records[-1].bits.values():
        for bits, n in exchange.items():
            counts[bits] = counts.get(bits, 0) + n
    return sum(b * n for b, n in counts.items()) / max(sum(counts.values()), 1)


def lost_points(fp32: list[float], other: list[float]) -> np.ndarray:
    """Points of accuracy that each seed lost."""
    return 100 * (np.asarray(fp32) - np.asarray(other))


def shown(values: list[float] | np.ndarray, digits: int) -> str:
    """Mean and standard deviation over the seeds."""
    values = np.asarray(values)
    deviation = values.std(ddof=1) if len(values) > 1 else 0.0
    return f"{values.mean():.{digits}f} +- {deviation:.{digits}f}"


def section(page: Page, name: str, preset: dict) -> None:
    knobs = preset[name]
    page.add(
        f"## {name}\n\n`{knobs['dataset']}`, P={preset['workers']}, "
        + ", ".join(f"{k} {v}" for k, v in knobs.items() if k != "dataset")
        + f"; {preset['seeds']} seeds. Test accuracy at the best validation accuracy; final loss: mean of the "
        "last five epochs. Measured; mean +- standard deviation over seeds."
    )
    by_mode: dict[str, list[ModeOutcome]] = {}
    with page.table("seed", "mode", "test accuracy", "final loss", "bits", "MB sent") as row:
        for seed in range(preset["seeds"]):
            for mode, outcome in train(knobs, preset["workers"], seed).items():
                by_mode.setdefault(mode, []).append(outcome)
                sent = sum(r.bytes_sent for r in outcome.records) / 1e6
                row(
                    seed,
                    mode,
                    f"{outcome.accuracy:.4f}",
                    f"{final_loss(outcome):.4f}",
                    f"{mean_bits(outcome):.2f}",
                    f"{sent:.1f}",
                )
    accuracy = {mode: [o.accuracy for o in found] for mode, found in by_mode.items()}
    loss = {mode: [final_loss(o) for o in found] for mode, found in by_mode.items()}
    base = float(np.mean(accuracy["fp32"]))
    titles = ("mode", "test accuracy", "points lost", "threshold", "final loss", "loss / fp32", "threshold")
    with page.table(*titles) as row:
        told = verdict(base, least=FP32_RANGE[0], most=FP32_RANGE[1])
        row("fp32", shown(accuracy["fp32"], 4), "0", told, shown(loss["fp32"], 4), "1", "")
        for mode in (m for m in by_mode if m != "fp32"):
            lost = lost_points(accuracy["fp32"], accuracy[mode])
            ratio = float(np.mean(loss[mode]) / np.mean(loss["fp32"]))
            row(
                mode,
                shown(accuracy[mode], 4),
                shown(lost, 2),
                verdict(float(lost.mean()), most=MOST_LOST[name][mode]),
                shown(loss[mode], 4),
                f"{ratio:.3f}",
                verdict(ratio, most=MOST_LOSS[mode]),
            )


def main() -> None:
    given = arguments(__doc__, ROWS)
    os.environ["OMP_NUM_THREADS"] = "1"
    ok, reason = lab.available()
    if not ok:
        raise SystemExit(f"adaqp's bits depend on the links, so this benchmark needs a lab: {reason}")
    preset = PRESETS[given.preset]
    networks = f"loopback for static modes, whose losses no network changes; a lab at {LINK} for adaqp"
    page = Page("Accuracy", given.preset, {"Networks": networks, "Repeats": f"{preset['seeds']} seeds"})
    for name in ROWS:
        if name in given.only:
            section(page, name, preset)
    page.finish(given)


if __name__ == "__main__":
    main()
