"""Rows about whole trainings: S4, S5, S6 and A4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from plan_worker import Rounds

from common import Page, Quiet, paired, scratch, spread, verdict
from wirewise import lab
from wirewise.graph.datasets import data_root
from wirewise.results import EpochRecord
from wirewise.trials.start import choose_network
from wirewise_papers.adaqp import experiment as adaqp
from wirewise_papers.adaqp.job import FullGraphJob, Outcome

WORKER = str(Path(__file__).parent / "plan_worker.py")
S4_MODES = ("fp32", "adaqp", "uniform-8", "uniform-4", "uniform-2", "bf16")
S4_BUDGET = ("fp32", "uniform-8", "uniform-4", "bf16")
"""Static modes with no more noise than four bits."""
S4_LOOPBACK, S4_NEVER_BELOW, S4_TO_BEST = 1.05, 0.95, 1.05
S4_WARM_UP = 3
"""Epochs before the first planned one, which is left out too: it measures the links."""
S5_CLAIM = 0.02
S6_MODES = ("fp32", "adaqp", "pipegcn", "bns")
A4_CLAIM = 0.15
A4_SLOW = 3


def train(job: FullGraphJob, folder: Path) -> Outcome:
    """Train on parts that lie in the folder already, or are made now."""
    if not (folder / "parts").exists():
        adaqp.prepare_parts(job, folder, Quiet())
    network, notes = choose_network(job.network)
    job = msgspec.structs.replace(job, network=network)
    if notes and job.network != "loopback":
        raise SystemExit(notes[0])
    return adaqp.train(job, folder, lambda mode, record: None)


def seconds(records: Sequence[EpochRecord]) -> list[float]:
    """Times of the epochs that follow the first plan."""
    return [r.train_s for r in records[S4_WARM_UP:]]


def bits_used(records: Sequence[EpochRecord]) -> str:
    """Shares of messages by width after the first plan: "4: 80 %, 8: 20 %"."""
    counts: Counter[int] = Counter()
    for record in records[S4_WARM_UP:]:
        for exchange in record.bits.values():
            counts.update(exchange)
    total = max(sum(counts.values()), 1)
    return ", ".join(f"{bits}: {100 * n / total:.0f} %" for bits, n in sorted(counts.items()) if n)


def megabytes(records: Sequence[EpochRecord]) -> str:
    return f"{np.median([r.bytes_sent for r in records[S4_WARM_UP:]]) / 1e6:.2f}"


def plan_share(records: Sequence[EpochRecord], cycle: int) -> tuple[float | None, float]:
    """Share of time spent planning over whole cycles after the first one, and over all epochs."""
    later = records[cycle : len(records) - len(records) % cycle]

    def part(of: Sequence[EpochRecord]) -> float:
        return sum(r.phases.get("plan", 0.0) for r in of) / sum(r.train_s for r in of)

    return part(later) if later else None, part(records)


def s4_and_s5(page: Page, preset: dict, rows: Sequence[str]) -> None:
    page.add(
        f"## S4: on every network, `{preset['s4_dataset']}`, P=2\n\nDefault model; modes take turns of "
        f"{preset['turn']} epochs; times are those of epochs after the first plan, ratios epoch by epoch. "
        "Measured; links of a lab, `loopback` is unshaped. `to best` is adaqp's time over that of the fastest "
        "static mode with no more noise than four bits. Planning is part of the times of adaqp."
    )
    found: dict[str, list[EpochRecord]] = {}
    titles = ("network", "mode", "epoch ms", "time / fp32", "MB an epoch", "interface MB in all", "bits")
    with scratch() as folder, page.table(*titles, "threshold") as row:
        for link, epochs in preset["s4_links"].items():
            job = FullGraphJob(
                dataset=preset["s4_dataset"],
                workers=2,
                hosts=1 if link == "loopback" else 2,
                network="loopback" if link == "loopback" else "lab",
                link="1gbit" if link == "loopback" else link,
                epochs=epochs,
                modes=S4_MODES,
                turn=preset["turn"],
                evaluate_every=0,
                replan_every=preset["cycle"],
            )
            outcome = train(job, folder)
            found[link] = outcome.modes["adaqp"].records
            for cells in s4_rows(link, outcome):
                row(*cells)
    if "s5" in rows:
        s5(page, preset, found)


def s4_rows(link: str, outcome: Outcome) -> list[list[str]]:
    times = {mode: seconds(o.records) for mode, o in outcome.modes.items()}
    to_fp32 = {mode: float(np.median(1 / paired(times["fp32"], t))) for mode, t in times.items()}
    best = min(S4_BUDGET, key=lambda mode: to_fp32[mode])
    to_best = float(np.median(1 / paired(times[best], times["adaqp"])))
    lines = []
    for mode, o in outcome.modes.items():
        told = ""
        if mode == "adaqp":
            limit = S4_LOOPBACK if link == "loopback" else 1 / S4_NEVER_BELOW
            told = f"to fp32 {verdict(to_fp32[mode], most=limit)}; "
            told += f"to best ({best}) {to_best:.2f} {verdict(to_best, most=S4_TO_BEST)}"
        counted = "" if o.kernel_bytes is None else f"{o.kernel_bytes / 1e6:.1f}"
        ratios = 1 / paired(times["fp32"], times[mode])
        cells = [spread(times[mode], 1e3), spread(ratios, digits=2), megabytes(o.records), counted]
        lines.append([link, mode, *cells, bits_used(o.records), told])
    return lines


def s5(page: Page, preset: dict, found: dict[str, list[EpochRecord]]) -> None:
    page.add(
        f"## S5: what planning costs, every {preset['cycle']} epochs\n\nShare of adaqp's training time in the "
        "phase `plan` (mean of the ranks), in the longer trainings of S4: over whole cycles after the first, and over "
        "all epochs with the first plan, which also measures links and codec. Measured."
    )
    with page.table("network", "re-planning", "all epochs", "first plan ms", "threshold") as row:
        for link, records in found.items():
            if len(records) < 2 * preset["cycle"]:
                continue
            again, whole = plan_share(records, preset["cycle"])
            first = max(r.phases.get("plan", 0.0) for r in records[:S4_WARM_UP])
            row(
                link, f"{again or 0:.2%}", f"{whole:.2%}", f"{first * 1e3:.0f}", verdict(again, most=S5_CLAIM)
            )


def s6(page: Page, preset: dict) -> None:
    page.add(
        "## S6: time to the fp32 loss\n\nP=4, four hosts at 200mbit (measured; four ranks share this machine's "
        f"processors), default model, {preset['s6_epochs']} epochs. `time to loss`: wall clock until the mean "
        "loss of the last five epochs was within 1 % of fp32's at its end. No threshold: a report."
    )
    sets = [*preset["s6_datasets"], *(["cora"] if (data_root() / "Planetoid" / "Cora").exists() else [])]
    titles = ("graph", "mode", "epoch ms", "time to loss s", "speedup", "final loss", "test accuracy")
    with page.table(*titles, "MB an epoch", "bits") as row:
        for dataset in sets:
            job = FullGraphJob(
                dataset=dataset,
                workers=4,
                network="lab",
                link="200mbit",
                epochs=preset["s6_epochs"],
                modes=S6_MODES,
                evaluate_every=preset["s6_epochs"],
            )
            with scratch() as folder:
                outcome = train(job, folder)
            target = 1.01 * adaqp.smoothed_losses(outcome.modes["fp32"].records)[-1]
            base = adaqp.time_to_loss(outcome.modes["fp32"].records, target)
            for mode, o in outcome.modes.items():
                reached = adaqp.time_to_loss(o.records, target)
                row(
                    dataset,
                    mode,
                    spread(seconds(o.records), 1e3),
                    "not reached" if reached is None else f"{reached:.2f}",
                    "" if reached is None or base is None else f"{base / reached:.2f}",
                    f"{adaqp.smoothed_losses(o.records)[-1]:.4f}",
                    f"{o.accuracy:.3f}",
                    megabytes(o.records),
                    bits_used(o.records),
                )


def a4(page: Page, preset: dict) -> None:
    job = FullGraphJob(
        dataset=preset["a4_dataset"], workers=4, network="lab", link="200mbit", links={A4_SLOW: "40mbit"},
        modes=("adaqp-q",), partition="random",
    )  # fmt: skip
    page.add(
        f"## A4: one slow link\n\nP=4, 200mbit, host {A4_SLOW} at 40mbit; `{job.dataset}` in random parts. The "
        f"ranks train three epochs, plan (adaqp without overlap), then run the planned rounds alone "
        f"{preset['a4_repeats']} times. Predicted by the planner from the links and codec that it measured. "
        "Measured. The threshold is for each round, and for all rounds of an epoch together."
    )
    with scratch() as folder:
        adaqp.prepare_parts(job, folder, Quiet())
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        command = [WORKER, str(folder / "job.json"), "3", str(preset["a4_repeats"])]
        with lab.Lab(4, job.link, job.links) as network:
            result = network.run(command, launcher="direct", timeout_s=300)
        if not result.ok:
            raise SystemExit("\n".join(["a rank failed:", *(line for tail in result.tails for line in tail)]))
        found = msgspec.json.decode((folder / "rounds.json").read_bytes(), type=Rounds)
    slow, others = channel_means(found.mean_bits, A4_SLOW)
    with page.table("channels", "mean bits", "threshold") as row:
        told = f"below the others: {'holds' if max(slow) < min(others) else 'FAILS'}"
        row(f"of host {A4_SLOW}", f"{np.mean(slow):.2f} ({min(slow):.2f} to {max(slow):.2f})", told)
        row("others", f"{np.mean(others):.2f} ({min(others):.2f} to {max(others):.2f})", "")
    with page.table("round", "MB", "predicted ms", "measured ms", "predicted / measured", "threshold") as row:
        for name, predicted in found.predicted_s.items():
            times = found.measured_s[name]
            a4_row(row, name, found.size_bytes[name], predicted, times)
        total = np.sum([found.measured_s[name] for name in found.predicted_s], axis=0)
        a4_row(row, "all", sum(found.size_bytes.values()), sum(found.predicted_s.values()), total)


def a4_row(row, name: str, size: int, predicted: float, times: Sequence[float]) -> None:
    ratio = predicted / float(np.median(times))
    told = verdict(ratio, least=1 - A4_CLAIM, most=1 + A4_CLAIM)
    row(name, f"{size / 1e6:.2f}", f"{predicted * 1e3:.1f}", spread(times, 1e3), f"{ratio:.2f}", told)


def channel_means(bits: dict[str, float], host: int) -> tuple[list[float], list[float]]:
    """Mean bits of the channels that touch a host, and of the others."""
    touches = {name: str(host) in name.split("-") for name in bits}
    return [b for n, b in bits.items() if touches[n]], [b for n, b in bits.items() if not touches[n]]
