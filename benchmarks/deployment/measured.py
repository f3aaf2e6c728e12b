"""Deployment plans as they were carried out in labs: predicted against measured steps, and the gain over DDP."""

import json
import statistics
import sys
from pathlib import Path

from common import scratch, verdict
from wirewise.recipes import tag
from wirewise.recipes.tag_job import DeploymentWish
from wirewise.trials.start import open_network

WORKER = str(Path(__file__).resolve().parent / "factors_worker.py")
LABS = {
    "two groups": {"speeds": (1.0, 0.5), "links": ("200mbit", "50mbit")},
    "four speeds": {"speeds": (1.0, 1.0, 0.5, 0.25), "links": ("200mbit", "200mbit", "100mbit", "50mbit")},
    "slow pair": {"speeds": (1.0, 1.0, 0.4), "links": ("400mbit", "100mbit", "100mbit")},
    "quarter": {"speeds": (1.0, 0.25), "links": ("200mbit", "50mbit")},
}
"""Unequal hosts, a rank on each."""
NEAR, ENOUGH = 0.08, 6


def carried_out(lab, model, plans, preset):
    """Records of plans by name."""
    wish = DeploymentWish(
        model=model,
        plans=plans,
        compute_ms=preset["compute_ms"],
        steps=preset["steps"],
        turns=preset["turns"],
        **LABS[lab],
    )
    with scratch() as folder:
        return tag.run(tag.make_job(wish), folder / "run", lambda text: print(text, file=sys.stderr)).plans


def told(one):
    return (
        f"{one.step_s:.3f} s",
        f"{one.predicted_step_s:.3f} s",
        f"{one.error:+.1%}",
        f"{one.bytes_sent / 1e6:.2f} MB",
    )


def two_groups_row(page, preset):
    page.add(
        "## Predicted against measured steps on two groups (F2)\n\nTwo hosts of speed 1 and 0.5, on 200 and 50 Mbit/s. "
        "Losses: those of one process over 10 steps, to 1e-5 (F7)."
    )
    errors = []
    with page.table("model", "plan", "a step", "predicted", "error", "sent", "losses") as row:
        for model in preset["models"]:
            for name, one in carried_out("two groups", model, preset["plans"], preset).items():
                errors.append(abs(one.error))
                row(model, name, *told(one), "equal" if one.loss_equal else f"{one.loss_error:.1e} FAILS")
    median = statistics.median(errors)
    page.add(
        f"Median error of {len(errors)} plans: {median:.1%}, largest {max(errors):.1%}; {verdict(median, most=0.15)}."
    )


def plans_row(page, preset):
    page.add(
        f"## Plans of TAG on unequal hosts\n\nEach next to torch's DistributedDataParallel (DDP) with even rows and "
        f"with rows as hosts are fast. Asked: at least {ENOUGH} plans whose measured step is within {NEAR:.0%} of the "
        "predicted one."
    )
    near, gains = 0, {}
    with page.table(
        "hosts", "model", "plan", "a step", "predicted", "error", "sent", "over DDP", "losses"
    ) as row:
        for lab, model in preset["pairs"]:
            found = carried_out(lab, model, ("ddp", "ddp-proportional", "tag"), preset)
            for name, one in found.items():
                gain = found["ddp"].step_s / one.step_s
                equal = "equal" if one.loss_equal else f"{one.loss_error:.1e} FAILS"
                row(lab, model, name, *told(one), f"{gain:.2f}", equal)
            near += abs(found["tag"].error) <= NEAR
            gains[lab, model] = found["ddp-proportional"].step_s / found["tag"].step_s
    page.add(
        f"Plans of TAG within {NEAR:.0%}: {near} of {len(preset['pairs'])}; {verdict(near, least=ENOUGH)}. Over DDP in "
        f"proportional rows: {min(gains.values()):.2f} to {max(gains.values()):.2f} times as fast."
    )


def speedup_row(page, preset):
    page.add(
        "## A host of a quarter of the speed, behind 50 Mbit/s (F4)\n\nTwo hosts of speed 1 and 0.25, the second on 50 "
        "Mbit/s. Over DDP: of torch with even rows."
    )
    with page.table("model", "plan", "a step", "predicted", "error", "sent", "over DDP") as row:
        for model in preset["models"][:2]:
            found = carried_out("quarter", model, ("ddp", "ddp-proportional", "tag"), preset)
            for name, one in found.items():
                gain = found["ddp"].step_s / one.step_s
                row(
                    model,
                    name,
                    *told(one),
                    verdict(gain, least=1.2) + f" ({gain:.2f})" if name == "tag" else f"{gain:.2f}",
                )


def factors_row(page, preset):
    width, rows = preset["width"], 8
    page.add(
        f"## Sufficient factors of a layer of {width} x {width} (F6)\n\nTwo hosts at 100 Mbit/s, {rows} rows on each; "
        "a whole step of the layer, its arithmetic included."
    )
    with scratch() as folder, open_network("lab", 2, "100mbit") as network:
        (folder / "job.json").write_text(json.dumps({"width": width, "rows": rows, "turns": preset["turns"]}))
        done = network.run([WORKER, str(folder)], launcher="direct", timeout_s=300)
        if not done.ok:
            sys.exit(f"worker failed: {done.tails}")
        found = json.loads((folder / "result.json").read_text())
    with page.table("gradient", "a step", "a host sends", "claim") as row:
        summed, made = (found["ways"][way] for way in ("allreduce", "duplicate"))
        for name, one in (("all-reduce", summed), ("factors", made)):
            gain = statistics.median(summed["seconds"]) / statistics.median(one["seconds"])
            claim = f"times as fast: {gain:.1f}, {verdict(gain, least=5.0)}" if name == "factors" else "-"
            row(name, f"{statistics.median(one['seconds']):.4f} s", f"{one['bytes'] / 1e6:.2f} MB", claim)
    page.add(
        f"Largest difference of the gradients: {found['difference']:.1e}; {verdict(found['difference'], most=1e-5)}."
    )


ROWS = {"factors": factors_row, "two-groups": two_groups_row, "speedup": speedup_row, "plans": plans_row}
