"""Rows of the benchmark of parallel plans that train in a lab: plans against predictions, models in several ways."""

import statistics
import sys

import msgspec
from scipy.stats import spearmanr

from common import paired, scratch, verdict
from wirewise.cost.links import Links
from wirewise.cost.transfers import TransferSample
from wirewise.errors import PlanError, WirewiseError
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise_papers.rhino import experiment as rhino
from wirewise_papers.rhino.job import SIZES, RhinoJob, RhinoOptions
from wirewise_papers.rhino.links import fit_links, measured_links, timed_collectives
from wirewise_papers.rhino.records import ParallelRun

LINKS = {
    "100 Mbit/s": {},
    "500 Mbit/s": {"link": "500mbit"},
    "100 Mbit/s, one host 25": {"links": {3: "25mbit"}},
}
"""Topologies of four hosts."""
SHAPES = (
    (1, (4,), 1),
    (4, (1,), 4),
    (2, (2,), 4),
    (1, (2, 2), 1),
    (1, (4,), 2),
    (1, (2, 2), 2),
    (1, (4,), 4),
)
"""Stages, mesh and microbatches of the plans that are compared."""
RATES = ("100mbit", "10gbit", "5mbit")
"""Rates of the links for which plans are made: others than the true one give plans that fit worse."""


def various_plans(wish, graph):
    """Plans of several shapes and objectives, each once."""
    found = {}
    for stages, mesh, microbatches in SHAPES:
        for rate in RATES:
            links = Links.of_lab([rate] * wish.hosts)
            problem = ParallelProblem(graph=graph, links=links, states=1.0)
            try:
                plan = make_plan(
                    problem, stages=stages, mesh=mesh, microbatches=microbatches, time_limit_s=20.0
                )
            except PlanError:
                continue
            same = {(p.stage_of, p.placements, p.moves, p.microbatches) for p in found.values()}
            if (plan.stage_of, plan.placements, plan.moves, plan.microbatches) not in same:
                mesh_words = "x".join(map(str, mesh))
                found[f"{stages} stages of {mesh_words}, {microbatches} parts, for {rate}"] = plan
    return found


def plans_row(page, preset, figures):
    page.add(
        "## Plans against their predictions (P7)\n\nFour hosts at 100 Mbit/s, a rank on each, model "
        f"`{preset['model']}`; plans of several shapes, made for links of other rates too, so that some fit badly; all "
        "predicted for the true links. Bytes: out of the interfaces of all hosts in a step, over those of the plan's "
        "collectives and messages."
    )
    wish = RhinoOptions(model=preset["model"], turns=preset["turns"], steps=preset["steps"])
    graph = rhino.graph_of(wish)
    plans = dict(list(various_plans(wish, graph).items())[: preset["plans"]])
    job = RhinoJob(wish=wish, sizes=SIZES[wish.model], plans=plans, timeout_s=120.0)
    with scratch() as folder:
        links = measured_links(job, folder, lambda _: None)
        found, losses = rhino.train(job, graph, folder, lambda _: None)
    run = rhino.summarise(job, graph, links, found, losses, (0.0, 0.0))
    with page.table(
        "plan", "step s", "quickest", "predicted", "error %", "MB sent", "over planned", "losses"
    ) as row:
        for name, one in run.plans.items():
            over = (one.bytes_sent or 0) / max(one.predicted_bytes or 0, 1)
            row(
                name, f"{one.step_s:.3f}", f"{min(one.steps_s):.3f}", f"{one.predicted_step_s:.3f}",
                f"{100 * (one.predicted_step_s / one.step_s - 1):+.1f}", f"{(one.bytes_sent or 0) / 1e6:.2f}",
                f"{over:.3f}" if one.predicted_bytes else "-",
                "equal" if one.loss_equal else f"off by {one.loss_error:.1e}",
            )  # fmt: skip
    ones = list(run.plans.values())
    predicted = [o.predicted_step_s for o in ones]
    rank = spearmanr(predicted, [o.step_s for o in ones]).statistic
    quickest = spearmanr(predicted, [min(o.steps_s) for o in ones]).statistic
    errors = [abs(o.predicted_step_s / o.step_s - 1) for o in ones]
    bytes_off = max(
        (abs(o.bytes_sent / o.predicted_bytes - 1) for o in ones if o.predicted_bytes and o.bytes_sent),
        default=1.0,
    )
    with page.table("claim", "figure", "threshold") as row:
        row("plans", len(ones), verdict(len(ones), least=12))
        row("Spearman's coefficient of predicted and measured steps", f"{rank:.3f}", verdict(rank, least=0.9))
        row("the same of the quickest step of each plan", f"{quickest:.3f}", "none")
        row("bytes off what was planned, most %", f"{100 * bytes_off:.1f}", verdict(100 * bytes_off, most=5))
        row("plans whose losses are those of one device within 1e-5", sum(o.loss_equal for o in ones),
            verdict(sum(o.loss_equal for o in ones), least=len(ones)))  # fmt: skip
        row("error of a predicted step, median %", f"{100 * statistics.median(errors):.1f}", "none")


def models_row(page, preset, figures):
    page.add(
        "## Models on three topologies\n\nFour hosts, a rank on each; seconds of a step, measured (median, ways in "
        "turns) and in brackets predicted. ddp: DistributedDataParallel; fsdp: FSDP2; tensor: pairs of layers split by "
        "hand on all ranks; rhino: the parallel plan; tag: TAG's deployment of whole modules. A dash: the model is not "
        "trained so (one graph is one sample; a U-Net has no pairs; TAG's executor cannot carry the model out). Ratio: "
        "the quickest way of users over the plan, by medians, and in brackets the least and the largest of a turn."
    )
    ways = ("ddp", "fsdp", "tensor", "rhino", "tag")
    gains, of_tag, errors = [], [], {way: [] for way in ways}
    titles = ("model", "links", *ways, "best of users over rhino", "over tag", "losses")
    with page.table(*titles) as row:
        for model in preset["models"]:
            for links, more in list(LINKS.items())[: preset["links"]]:
                wish = RhinoOptions(model=model, turns=preset["turns"], steps=preset["steps"], **more)
                run = kept_run(figures, f"{model}, {links}", links, wish)
                row(model, links, *cells_of(run, ways, gains, of_tag, errors))
    with page.table("claim", "figure", "threshold") as row:
        worst = min(gains, default=None)
        row(
            "the plan against the best way of users, least",
            f"{worst:.2f}" if worst else "-",
            verdict(worst, least=0.95),
        )
        below = sum(gain < 0.95 for gain in gains)
        row("settings where it is below that", f"{below} of {len(gains)}", "none")
        if gains:
            mean = statistics.geometric_mean(gains)
            row("the plan against the best way of users, geometric mean", f"{mean:.2f}", "none")
        if of_tag:
            mean = statistics.geometric_mean(of_tag)
            row("TAG's deployment against the best way of users, geometric mean", f"{mean:.2f}", "none")
        for way, own in errors.items():
            if own:
                row(
                    f"error of a predicted step, {way}, median %",
                    f"{100 * statistics.median(own):.1f}",
                    "none",
                )


def cells_of(run, ways, gains, of_tag, errors):
    """Cells of a row of the models' table; notes ratios and errors."""
    cells = []
    for way in ways:
        one = run.plans.get(way)
        if one is None:
            cells.append("-")
            continue
        predicted = one.predicted_step_s
        cells.append(f"{one.step_s:.3f} ({'-' if predicted is None else f'{predicted:.3f}'})")
        if predicted is not None:
            errors[way].append(abs(predicted / one.step_s - 1))
    users = [way for way in ("ddp", "fsdp", "tensor") if way in run.plans]
    best = min(users, key=lambda way: run.plans[way].step_s, default=None)
    for way, found in (("rhino", gains), ("tag", of_tag)):
        if best is None or way not in run.plans:
            cells.append("-")
            continue
        each = paired(run.plans[best].steps_s, run.plans[way].steps_s)
        found.append(run.plans[best].step_s / run.plans[way].step_s)
        cells.append(f"{found[-1]:.2f} ({each.min():.2f} to {each.max():.2f})")
    unequal = [way for way, one in run.plans.items() if not one.loss_equal]
    return [*cells, f"DIFFER: {', '.join(unequal)}" if unequal else "equal"]


def kept_run(figures, key, links, wish):
    """What was measured before under this key, or is now; links are measured once for all models."""
    if key not in figures:
        samples = f"collectives, {links}"
        if samples not in figures:
            job = RhinoJob(wish=wish, sizes=SIZES[wish.model], plans={})
            with scratch() as folder:
                figures[samples] = timed_collectives(job, folder, lambda _: None)
        found = msgspec.convert(figures[samples], list[TransferSample])
        figures[key] = one_run(wish, fit_links(wish.rates, found))
    return msgspec.convert(figures[key], ParallelRun)


def one_run(wish, links):
    """A run with TAG's deployment among the ways, or without it where it cannot be carried out."""
    for ways in ((*wish.against, "tag"), wish.against):
        try:
            with scratch() as folder:
                own = msgspec.structs.replace(wish, against=ways)
                return rhino.run(own, folder, lambda _: None, links=links)
        except WirewiseError as error:
            if ways == wish.against:
                raise
            print(f"without tag: {error}", file=sys.stderr)
    raise AssertionError
