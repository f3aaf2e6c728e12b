"""Deployment plans as they were carried out in labs: predicted against measured steps, and the gain over DDP."""

import json
import os
import statistics
import sys
from pathlib import Path

import msgspec

from common import scratch, verdict
from wirewise.trials.start import open_network
from wirewise_papers.tag.experiment import Tag
from wirewise_papers.tag.job import TagOptions
from wirewise_papers.tag.planning import make_job
from wirewise_papers.tag.records import DeploymentRecord

WORKER = str(Path(__file__).resolve().parent / "factors_worker.py")
LABS = {
    "two groups": {"speeds": (1.0, 0.5), "links": ("200mbit", "50mbit")},
    "four speeds": {"speeds": (1.0, 1.0, 0.5, 0.25), "links": ("200mbit", "200mbit", "100mbit", "50mbit")},
    "slow pair": {"speeds": (1.0, 1.0, 0.4), "links": ("400mbit", "100mbit", "100mbit")},
    "quarter": {"speeds": (1.0, 0.25), "links": ("200mbit", "50mbit")},
}
"""Unequal hosts, a rank on each."""
NEAR, ENOUGH = 0.08, 6


class Carried(msgspec.Struct):
    """What was measured of plans."""

    load: float
    """Load average of the machine before."""
    plans: dict[str, DeploymentRecord]


def carried_out(wish, preset):
    """Plans of a wish in a lab, unless they were carried out before."""
    kept, key = preset["kept"], msgspec.json.encode(wish).decode()
    if key not in kept:
        load = os.getloadavg()[0]
        with scratch() as folder:
            found = Tag().run(make_job(wish), folder / "run", lambda text: print(text, file=sys.stderr))
        kept[key] = Carried(load, dict(found.plans))
    return msgspec.convert(kept[key], Carried)


def told(one):
    return (
        f"{one.step_s:.3f} s",
        f"{one.predicted_step_s:.3f} s",
        f"{one.error:+.1%}",
        f"{one.bytes_sent / 1e6:.2f} MB",
    )


def plans_row(page, preset):
    page.add(
        "## Plans on unequal hosts (F2, F4, F7)\n\nPlans of TAG compared with torch's DistributedDataParallel (DDP) "
        f"with even rows and with rows as hosts are fast. Asked: at least {ENOUGH} plans of TAG whose step is within "
        f"{NEAR:.0%} of the predicted one; on two groups a median error of 15 %; with a host of a quarter of the "
        "speed behind 50 Mbit/s, 1.2 times the speed of DDP; losses of one process over 10 steps, to 1e-5.\n\n"
        + "\n".join(
            f"- {name}: speeds {_listed(lab['speeds'])}, links {_listed(lab['links'])}"
            for name, lab in LABS.items()
        )
    )
    found = {}
    with page.table(
        "hosts", "model", "load", "plan", "a step", "predicted", "error", "sent", "over DDP", "losses"
    ) as row:
        for lab, model in (pair for pair in preset["pairs"] if pair[0] in preset["labs"]):
            wish = TagOptions(
                model=model, compute_ms=preset["compute_ms"], steps=preset["steps"], turns=preset["turns"], **LABS[lab]
            )  # fmt: skip
            carried = carried_out(wish, preset)
            found[lab, model] = own = carried.plans
            for name, one in own.items():
                row(lab, model, f"{carried.load:.1f}", name, *told(one), *against_ddp(own, one))
    near = sum(abs(own["tag"].error) <= NEAR for own in found.values())
    gains = [own["ddp-proportional"].step_s / own["tag"].step_s for own in found.values()]
    errors = [
        abs(one.error) for (lab, _), own in found.items() for one in own.values() if lab == "two groups"
    ]
    with page.table("claim", "figure", "verdict") as row:
        told_of_all = verdict(near, least=ENOUGH) if len(found) >= ENOUGH else "not judged: some labs alone"
        row(f"plans of TAG within {NEAR:.0%}", f"{near} of {len(found)}", told_of_all)
        median = statistics.median(errors) if errors else None
        row("median error on two groups (F2)", f"{median:.1%}" if errors else "-", verdict(median, most=0.15))
        for (lab, model), own in found.items():
            if lab == "quarter":
                gain = own["ddp"].step_s / own["tag"].step_s
                row(f"over DDP, {model} (F4)", f"{gain:.2f}", verdict(gain, least=1.2))
        row("over DDP in proportional rows", f"{min(gains):.2f} to {max(gains):.2f}", "-")


def against_ddp(own, one):
    equal = "equal" if one.loss_equal else f"{one.loss_error:.1e} FAILS"
    return f"{own['ddp'].step_s / one.step_s:.2f}", equal


def _listed(values):
    return ", ".join(map(str, values))


def real_row(page, preset):
    model, lab = "cnn", "two groups"
    page.add(
        f"## Real computing on hosts of speed 1 and 0.5\n\nModel {model}, {preset['real_batch']} rows, hosts as in "
        f"{lab!r}. Nothing is slept: a rank has one thread, and the processes of the slower host are stopped for half "
        "of every 50 ms. Modules were measured before, on one thread; what else runs on the machine meanwhile makes "
        "steps longer than predicted."
    )
    wish = TagOptions(
        model=model, batch=preset["real_batch"], computing="real", steps=preset["steps"] + 1,
        turns=preset["turns"], **LABS[lab],
    )  # fmt: skip
    carried = carried_out(wish, preset)
    own = carried.plans
    with page.table("plan", "load", "a step", "predicted", "error", "sent", "over DDP", "losses") as row:
        for name, one in own.items():
            row(name, f"{carried.load:.1f}", *told(one), *against_ddp(own, one))
    gain = own["ddp"].step_s / own["tag"].step_s
    with page.table("claim", "figure", "verdict") as row:
        row("TAG over DDP, real computing", f"{gain:.2f}", verdict(gain, least=1.2))


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


ROWS = {"factors": factors_row, "plans": plans_row, "real": real_row}
