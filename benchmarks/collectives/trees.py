"""Rows of event-driven trees: `noise` (G3), `windows` and `slow_leaf` (G4)."""

import numpy as np
from jobs import MB, ms, run, saved
from noise import Noise

from common import paired, scratch, verdict
from wirewise.collective.builders import build
from wirewise.lab import Lab

SEGMENT_BYTES = 65_536
ADAPT = [2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]
"""Bytes under way in the published runtime: two segments at the sender, three at the receiver."""
ONE = [SEGMENT_BYTES, SEGMENT_BYTES]


def noise(page, preset_):
    page.add(
        f"## Trees under noise (G3)\n\n{tree_text(preset_)} Waiting: the same tree and transport, but a rank goes on "
        "to the next segment only when it has received this one and given it to all children. Windows are buffers of "
        "the kernel: two segments at the sender, three at the receiver. Giving a segment to the kernel ends before it "
        "is delivered, so with these windows waiting ranks have several under way too. One under way: windows of one "
        "segment at both ends, nearest to sends that end with their delivery, as those of MPI do at this size. "
        f"Means of {preset_['calls']} calls, median of {preset_['turns']} pairs."
    )
    quiet = {}
    with page.table(
        "noise", "one under way ms", "waiting ms", "event-driven ms", "one, over none", "waiting, over none",
        "event-driven, over none", "event-driven over waiting", "event-driven over one under way", "claimed of waiting",
        "claimed of one",
    ) as row:  # fmt: skip
        for percent, most in ((0, 1.05), (5, None), (10, 0.85)):
            times = disturbed(preset_, percent, {"windows": ADAPT, "one": ONE})
            ratios = [float(np.median(paired(times["event"], times[way]))) for way in ("waiting", "one")]
            medians = {way: float(np.median(times[way])) for way in ("one", "waiting", "event")}
            quiet = quiet or medians
            claims = [verdict(ratio, most=most) if most else "none" for ratio in ratios]
            row(
                f"{percent} %", *ms(*medians.values()), *(f"{medians[way] / quiet[way]:.2f}" for way in medians),
                *(f"{ratio:.2f}" for ratio in ratios), *claims,
            )  # fmt: skip


def windows(page, preset_):
    page.add(
        f"## Windows of event-driven trees\n\n{tree_text(preset_)} The kernel's own: no windows are set, and it "
        "grows the buffers of each connection with what the connection carries. Windows that are set stay. Means of "
        f"{preset_['calls']} calls, medians of {preset_['window_turns']}."
    )
    fewer = {**preset_, "turns": preset_["window_turns"]}
    sizes = {
        "the kernel's own": None,
        "1 and 1": ONE,
        "2 and 3": ADAPT,
        "8 and 12": [4 * size for size in ADAPT],
    }
    with page.table("segments at sender and receiver", "no noise ms", "10 % ms", "slower by") as row:
        for name, chosen in sizes.items():
            solo, held = (
                float(np.median(disturbed(fewer, percent, {"windows": chosen})["event"]))
                for percent in (0, 10)
            )
            row(name, *ms(solo, held), f"{held / solo:.2f}")


def tree_text(preset_):
    return (
        f"Broadcasts of {preset_['noise_mb']} MB in segments of 64 KiB along a binomial tree of {preset_['ranks']} "
        "hosts with 1 Gbit/s each. Noise: each rank is stopped ten times a second for U(0, 10 ms) or U(0, 20 ms)."
    )


def disturbed(preset_, percent, options):
    """Seconds of each way on the slowest rank, while all ranks are stopped now and then."""
    ranks, size = preset_["ranks"], preset_["noise_mb"] * MB
    program = build("broadcast", "binomial", ranks, segments=size // SEGMENT_BYTES)
    source = Noise(0.002 * percent)
    with scratch() as folder, Lab(ranks, "1gbit") as lab:
        job = {
            "program": saved(folder, program), "size_bytes": size, "turns": preset_["turns"],
            "calls": preset_["calls"], **options,
        }  # fmt: skip
        try:
            (found,), *_ = run(lab, "trees_worker.py", job, disturbing(source, lab) if percent else None)
        finally:
            source.stop()
    return found["slowest"]


def disturbing(source, lab):
    """Start the noise when the ranks are ready."""
    return lambda folder, line: source.disturb(lab) if line == "ready" else None


def slow_leaf(page, preset_):
    page.add(
        "## One slow leaf (G4)\n\nRank 0 sends to three others, 400 Mbit/s each; then the link to the third has 40. "
        "Time of the two other leaves, event-driven and waiting for all after each segment of 64 KiB."
    )
    size = preset_["leaf_mb"] * MB
    program = build("broadcast", "flat", 4, segments=size // SEGMENT_BYTES)
    found = {}
    for rate in ("400mbit", "40mbit"):
        with scratch() as folder, Lab(4, "400mbit", pairs={(0, 3): rate}) as lab:
            job = {
                "program": saved(folder, program), "size_bytes": size, "turns": preset_["turns"], "calls": 1,
                "windows": ADAPT,
            }  # fmt: skip
            lines = run(lab, "trees_worker.py", job)
        found[rate] = {
            way: float(np.median([np.median(lines[leaf][-1]["own"][way]) for leaf in (1, 2)]))
            for way in ("event", "waiting")
        }
    with page.table("way", "all fast ms", "one slow ms", "slower by", "claimed") as row:
        for way, name in (("event", "event-driven"), ("waiting", "waiting")):
            solo, held = (found[rate][way] for rate in ("400mbit", "40mbit"))
            claimed = verdict(held / solo, most=1.1) if way == "event" else "none"
            row(name, *ms(solo, held), f"{held / solo:.2f}", claimed)
