"""Families of communication on 2 to 32 hosts of a lab: what each takes, and what is predicted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from batches import batches_on
from exchanges import epochs_on
from exchanges_worker import Case
from gradients_worker import Steps, StepsJob
from jobs import MB, run, saved
from setting import Judged, quartiles_of

from common import scratch
from wirewise import graph, plans
from wirewise.collective import build
from wirewise.collective.bounds import bound
from wirewise.cost import Links
from wirewise.lab import Lab
from wirewise.planners.fusion.cupcake import compression_problem, plan_groups
from wirewise.plans import StagePlan
from wirewise.sim import BatchTimes, predict, simulate_program
from wirewise.sim.lowering.collective import network_of
from wirewise.trace.gradients import GradientTensor, GradientTrace
from wirewise.trace.stages import StageModule, StageTrace
from wirewise_papers.salientpp.experiment import MiniBatchJob, prepare

BENCHMARKS = Path(__file__).resolve().parents[1]
MOST = 32
"""Ranks at which strong and weak scaling do the same work, so that it is measured once."""
FORWARD_SHARE = 0.5
"""Forward pass over back-propagation."""


class Point(Judged, frozen=True, kw_only=True):
    """A job on so many ranks."""

    what: str
    scaling: str
    """"strong": the work of all ranks together is fixed. "weak": the work of each."""
    ranks: int
    ideal_s: float
    """Seconds with nothing to wait for: of the slept computing; of collectives, the bound of the links."""


def scalings(ranks: int) -> tuple[str, ...]:
    return ("strong", "weak") if ranks < MOST else ("strong",)


def share(scaling: str, ranks: int) -> float:
    """Work of a rank, over that among 32."""
    return MOST / ranks if scaling == "strong" else 1.0


def links_of(link: str, ranks: int) -> Links:
    return Links.of_lab([link] * ranks)


def collectives(ranks: int, link: str, sizes: dict) -> Iterator[Point]:
    """Rings of the own transport: a buffer of all ranks that is fixed, or one that grows with them."""
    network = network_of(links_of(link, ranks))
    for name in sizes["names"]:
        program = build(name, "ring", ranks, segments=sizes["segments"])
        sizes_bytes = {
            scaling: round(sizes["MB"] * MB * share(scaling, ranks) * ranks / MOST) // (4 * ranks) * 4 * ranks
            for scaling in scalings(ranks)
        }
        with scratch() as folder, Lab(ranks, link) as lab:
            job = {
                "collective": name, "sizes": list(dict.fromkeys(sizes_bytes.values())), "repeats": sizes["repeats"],
                "programs": {"ring": saved(folder, program)},
            }  # fmt: skip
            found = {one["size_bytes"]: one["seconds"]["ring"] for one in run(lab, "worker.py", job)[0]}
        for scaling, size in sizes_bytes.items():
            yield Point(
                what=name, scaling=scaling, ranks=ranks, quartiles_s=quartiles_of(found[size]),
                predicted_s=simulate_program(program, network, size).finish_s,
                ideal_s=bound(network, name, size).seconds,
            )  # fmt: skip


def gradients(ranks: int, link: str, sizes: dict) -> Iterator[Point]:
    """Steps of the reducer: gradients of one model, the samples of a step fixed or those of a rank."""
    traces = {
        scaling: even_gradients(
            sizes["tensors"], sizes["MB"] * MB, sizes["backward_s"] * share(scaling, ranks)
        )
        for scaling in scalings(ranks)
    }
    # Both are gradients of one model, and so have one plan.
    problem = compression_problem(traces["strong"], links_of(link, ranks), codec="none")
    plan = plan_groups(problem, method=sizes["plan"])
    job = StepsJob(
        plan=plan, traces=traces, forward_share=FORWARD_SHARE, steps=sizes["steps"], turns=sizes["turns"]
    )
    found = msgspec.convert(
        ranks_of(ranks, link, "scaling/gradients_worker.py", msgspec.to_builtins(job)), Steps
    )
    for scaling, trace in traces.items():
        predicted = predict(plan, trace, costs=found.costs, forward_share=FORWARD_SHARE)
        backward_s = 1e-6 * sum(tensor.gap_us for tensor in trace.tensors)
        yield Point(
            what="reducer", scaling=scaling, ranks=ranks, quartiles_s=quartiles_of(found.seconds[scaling]),
            predicted_s=predicted.step_s, ideal_s=(1 + FORWARD_SHARE) * backward_s,
        )  # fmt: skip


def even_gradients(count: int, size_bytes: int, backward_s: float) -> GradientTrace:
    """Gradients of equal layers that get ready one after another."""
    tensors = (
        GradientTensor(name=f"layer{n}", elements=size_bytes // 4 // count, gap_us=1e6 * backward_s / count)
        for n in range(count)
    )
    return GradientTrace(tensors=tuple(tensors), model="even layers")


def pipelines(ranks: int, link: str, sizes: dict) -> Iterator[Point]:
    """Updates of eager 1F1B: a model of 32 layers cut into as many stages as ranks, or a layer a rank."""
    cases, predicted, ideal = {}, {}, {}
    for scaling in scalings(ranks):
        forward_s = sizes["forward_s"] * share(scaling, ranks)
        names = [str(number) for number in range(ranks)]
        plan = StagePlan.from_cuts(names, range(1, ranks), style="eager", microbatches=sizes["microbatches"])
        case = {
            "engine": "own", "microbatches": sizes["microbatches"], "values": sizes["values"], "parameters": 64,
            "forward_s": forward_s, "backward_s": 2 * forward_s, "weight_s": forward_s,
            "plan": msgspec.to_builtins(plan),
        }  # fmt: skip
        modules = tuple(
            StageModule(
                name=name, forward_s=(forward_s,), backward_s=(2 * forward_s,), weight_gradient_s=(forward_s,),
                output_bytes=4.0 * sizes["values"], parameter_bytes=256.0,
            )
            for name in names
        )  # fmt: skip
        cases[scaling] = case
        predicted[scaling] = predict(plan, StageTrace(modules=modules), links_of(link, ranks)).step_s
        ideal[scaling] = 3 * forward_s * sizes["microbatches"]
    found = ranks_of(
        ranks,
        link,
        "pipelines/worker.py",
        {"cases": cases, "turns": sizes["turns"], "updates": sizes["updates"]},
    )
    for scaling in cases:
        yield Point(
            what="eager 1F1B", scaling=scaling, ranks=ranks, quartiles_s=quartiles_of(found[scaling]),
            predicted_s=predicted[scaling], ideal_s=ideal[scaling],
        )  # fmt: skip


def ranks_of(ranks: int, link: str, script: str, job: dict) -> dict:
    """What rank 0 of a job in a folder wrote there."""
    with scratch() as folder, Lab(ranks, link) as lab:
        (folder / "job.json").write_bytes(msgspec.json.encode(job))
        done = lab.run([str(BENCHMARKS / script), str(folder)], launcher="direct", timeout_s=300)
        if not done.ok:
            raise SystemExit(f"{script} failed: {done.tails}")
        return msgspec.json.decode((folder / "result.json").read_bytes())


def exchanges(ranks: int, link: str, sizes: dict) -> Iterator[Point]:
    """Epochs of full-graph training: a graph of all ranks that is fixed, or so many nodes a rank."""
    for scaling in scalings(ranks):
        slept = share(scaling, ranks)
        nodes = round(sizes["nodes"] * slept * ranks)
        data = graph.block_model(graph.BlockModel(nodes=nodes, features=8, mean_degree=sizes["degree"]))
        case = Case(
            width=sizes["width"], central_s=sizes["central_s"] * slept, marginal_s=sizes["marginal_s"] * slept,
            epochs=sizes["epochs"], plans={"fp32": ("uniform", 32)},
        )  # fmt: skip
        with scratch() as folder, Lab(ranks, link) as lab:
            graph.save_parts(data, graph.partition(data, ranks, method="random", seed=0), folder / "parts")
            found = epochs_on(lab, folder, case)
        yield Point(
            what="full-graph", scaling=scaling, ranks=ranks, quartiles_s=quartiles_of(found.seconds["fp32"]),
            predicted_s=found.predicted_s["fp32"],
            # Two layers, forward and back.
            ideal_s=4 * (case.central_s + case.marginal_s),
        )  # fmt: skip


def batches(ranks: int, link: str, sizes: dict) -> Iterator[Point]:
    """Mini-batches that fetch features from their owners: the seeds of all ranks' batches fixed, or those of a rank."""
    for scaling in scalings(ranks):
        train_s = sizes["train_s"] * share(scaling, ranks)
        job = MiniBatchJob(
            dataset=sizes["dataset"], workers=ranks, policies=("vip",), alpha=sizes["alpha"],
            fanouts=sizes["fanouts"], batch_size=round(sizes["seeds"] * share(scaling, ranks)), train_share=1.0,
            epochs=sizes["epochs"], row_format="dense",
        )  # fmt: skip
        with scratch() as folder:
            prepare(job, folder)
            plan = plans.load(folder / "plan.json")
            alone, found = (batches_on(folder, rate, ranks, train_s) for rate in ("10gbit", link))
        times = BatchTimes(row_bytes=found.row_bytes, sample_s=alone.prepare_s, train_s=train_s)
        yield Point(
            what="mini-batch", scaling=scaling, ranks=ranks, quartiles_s=quartiles_of(found.batch_s),
            predicted_s=predict(plan, times, found.links).step_s, ideal_s=train_s,
        )  # fmt: skip
