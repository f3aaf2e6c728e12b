"""Rows of the benchmark of parallel plans that train in a lab: plans against predictions, models in several ways."""

import statistics
import time

from scipy.stats import spearmanr

from common import scratch, verdict
from wirewise.cost.links import TCP_PAYLOAD, Links
from wirewise.errors import PlanError
from wirewise.planners.parallel import ParallelProblem
from wirewise.planners.parallel.rhino.explore import plan as make_plan
from wirewise.recipes import rhino
from wirewise.recipes.rhino_job import SIZES, RhinoJob, RhinoWish
from wirewise.recipes.rhino_ways import possible
from wirewise.topology import lab_hosts

LINKS = {
    "200 Mbit/s": {},
    "1 Gbit/s": {"link": "1gbit"},
    "200 Mbit/s, one host 50": {"links": {3: "50mbit"}},
}
"""Topologies of four hosts."""
SHAPES = ((1, (4,), 1), (1, (2, 2), 1), (1, (4,), 2), (1, (2, 2), 2), (1, (4,), 4), (1, (2, 2), 4))
"""Stages, mesh and microbatches of the plans that are compared."""
RATES = ("200mbit", "20gbit", "10mbit")
"""Rates of the links for which plans are made: others than the true one give plans that fit worse."""


def various_plans(wish, graph):
    """Plans of several shapes and objectives, each once."""
    found = {}
    for stages, mesh, microbatches in SHAPES:
        for rate in RATES:
            links = Links.of(lab_hosts([rate] * wish.hosts), payload=TCP_PAYLOAD)
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


def plans_row(page, preset):
    page.add(
        "## Plans against their predictions (P7)\n\nFour hosts at 200 Mbit/s, a rank on each, model "
        f"`{preset['model']}`; plans of several shapes, made for links of other rates too, so that some fit badly; all "
        "predicted for the true links. Bytes: out of the interfaces of all hosts in a step, over those of the plan's "
        "collectives and messages."
    )
    wish = RhinoWish(model=preset["model"], turns=preset["turns"], steps=preset["steps"])
    graph = rhino.graph_of(wish)
    plans = dict(list(various_plans(wish, graph).items())[: preset["plans"]])
    job = RhinoJob(wish=wish, sizes=SIZES[wish.model], plans=plans, timeout_s=120.0)
    with scratch() as folder:
        found, losses = rhino.train(job, graph, folder, lambda _: None)
    run = rhino.summarise(job, graph, found, losses, (0.0, 0.0))
    with page.table("plan", "step s", "predicted", "error %", "MB sent", "over planned", "losses") as row:
        for name, one in run.plans.items():
            over = (one.bytes_sent or 0) / max(one.predicted_bytes or 0, 1)
            row(
                name, f"{one.step_s:.3f}", f"{one.predicted_step_s:.3f}",
                f"{100 * (one.predicted_step_s / one.step_s - 1):+.1f}", f"{(one.bytes_sent or 0) / 1e6:.2f}",
                f"{over:.3f}" if one.predicted_bytes else "-",
                "equal" if one.loss_equal else f"off by {one.loss_error:.1e}",
            )  # fmt: skip
    ones = list(run.plans.values())
    rank = spearmanr([o.predicted_step_s for o in ones], [o.step_s for o in ones]).statistic
    errors = [abs(o.predicted_step_s / o.step_s - 1) for o in ones]
    bytes_off = max(
        (abs(o.bytes_sent / o.predicted_bytes - 1) for o in ones if o.predicted_bytes and o.bytes_sent),
        default=1.0,
    )
    with page.table("claim", "figure", "threshold") as row:
        row("plans", len(ones), verdict(len(ones), least=12))
        row("Spearman's coefficient of predicted and measured steps", f"{rank:.3f}", verdict(rank, least=0.9))
        row("bytes off what was planned, most %", f"{100 * bytes_off:.1f}", verdict(100 * bytes_off, most=5))
        row("plans whose losses are those of one device within 1e-5", sum(o.loss_equal for o in ones),
            verdict(sum(o.loss_equal for o in ones), least=len(ones)))  # fmt: skip
        row("error of a predicted step, median %", f"{100 * statistics.median(errors):.1f}", "none")


def models_row(page, preset):
    page.add(
        "## Models on three topologies\n\nFour hosts, a rank on each; seconds of a step, median, ways in turns; for "
        "the plan also predicted seconds. ddp: DistributedDataParallel; fsdp: FSDP2; tensor: pairs of layers split by "
        "hand on all ranks; rhino: the plan. A dash: users do not train the model so (one graph is one sample; a U-Net "
        "has no pairs)."
    )
    titles = (
        "model",
        "links",
        "ddp",
        "fsdp",
        "tensor",
        "rhino",
        "predicted",
        "rhino over best other",
        "losses",
    )
    gains = []
    with page.table(*titles) as row:
        for model in preset["models"]:
            for links, more in list(LINKS.items())[: preset["links"]]:
                wish = RhinoWish(model=model, turns=preset["turns"], steps=preset["steps"], **more)
                run = one_run(wish)
                cells = [f"{run.plans[w].step_s:.3f}" if w in run.plans else "-" for w in titles[2:6]]
                own = run.plans["rhino"]
                others = [one.step_s for name, one in run.plans.items() if name != "rhino"]
                gain = min(others) / own.step_s if others else None
                gains += [gain] if gain else []
                equal = all(one.loss_equal for one in run.plans.values())
                row(model, links, *cells, f"{own.predicted_step_s:.3f}", f"{gain:.2f}" if gain else "-",
                    "equal" if equal else "DIFFER")  # fmt: skip
    with page.table("claim", "figure", "threshold") as row:
        worst = min(gains, default=None)
        row(
            "the plan over the best other way, least",
            f"{worst:.2f}" if worst else "-",
            verdict(worst, least=0.95),
        )


def one_run(wish):
    graph = rhino.graph_of(wish)
    start_s = time.perf_counter()
    plan = make_plan(ParallelProblem(graph=graph, links=rhino.links_of(wish), states=1.0), stages=1)
    planning_s = time.perf_counter() - start_s
    ways = tuple(way for way in wish.against if possible(way, wish.model))
    job = RhinoJob(wish=wish, sizes=SIZES[wish.model], plans={"rhino": plan}, ways=ways)
    with scratch() as folder:
        found, losses = rhino.train(job, graph, folder, lambda _: None)
    return rhino.summarise(job, graph, found, losses, (0.0, planning_s))
