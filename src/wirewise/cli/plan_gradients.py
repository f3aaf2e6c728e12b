"""`wirewise plan fusion --trace`: groups of gradients to compress together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

from wirewise import options as opt
from wirewise.cli.options import refuse
from wirewise.cli.plan_job import make_plan, print_plan
from wirewise.cli.topo import open_topology
from wirewise.cost.gradients import load_costs
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.fusion.cupcake import CompressionProblem, by_rule, compression_problem, parse_split
from wirewise.plans import DECODES, FusionPlan
from wirewise.plans.fusion import LOSSES
from wirewise.report.figures import seconds
from wirewise.trace.gradients import read_gradient_trace
from wirewise.units import parse_rate

__all__ = ["GradientOptions", "gradients", "uniform"]


class GradientOptions(opt.Options, frozen=True, kw_only=True):
    """Options that only --trace and --graph have. None if not given."""

    codec: Annotated[
        str | None,
        opt.about("Codec that the costs have, none, or auto: any, and cupcake may leave it out (--trace)."),
    ] = None
    ranks: Annotated[int | None, opt.about("Ranks of the job, by default 8 (--trace, --graph).")] = None
    topology: Annotated[
        str | None,
        opt.about(
            "Topology of the job, a preset or a file of `wirewise topo probe`, instead of --bandwidth "
            "(--trace, --graph)."
        ),
    ] = None
    bandwidth: Annotated[
        str | None,
        opt.about(
            "Bandwidth of each host, such as 10gbit; by default the costs' own times of collectives (--trace, --graph)."
        ),
    ] = None
    costs: Annotated[
        str | None, opt.about("Costs of codecs: v100, or a JSON file of measured times (--trace, --graph).")
    ] = None
    decode: Annotated[
        tuple[str, ...] | None,
        opt.about(f"Places of decoding, some of {', '.join(DECODES)}; by default inline (--trace)."),
    ] = None
    ranks_per_host: Annotated[
        int | None, opt.about("Ranks that share the --bandwidth of a host, by default 1 (--trace, --graph).")
    ] = None
    split: Annotated[
        str | None,
        opt.about(
            "Largest size of a tensor, such as 16MiB, above which it travels in pieces; none; or auto, the default: "
            "the size that gains most, if the step gains 2 % (--trace)."
        ),
    ] = None
    seed: Annotated[int | None, opt.about("Seed, recorded in the plan (--trace, --graph).")] = None

    def between(self) -> tuple[Links | None, int]:
        """Resolve the links between ranks (None if the measured costs are used), and the number of ranks.

        Raises:
            InputError: A topology was given with options that it already defines, or with another number of ranks; or
                as in `uniform`.
        """
        if self.topology is None:
            ranks = 8 if self.ranks is None else self.ranks
            return uniform(ranks, self.bandwidth, self.ranks_per_host), ranks
        refuse(
            self,
            ["bandwidth", "ranks_per_host"],
            f"says what --topology {self.topology} says; give one of them",
        )
        links = Links.of(open_topology(self.topology))
        if self.ranks not in (None, links.world_size):
            raise InputError(
                f"--ranks is {self.ranks}, and --topology {self.topology} has {links.world_size} ranks; "
                "leave --ranks out"
            )
        return links, links.world_size


def uniform(ranks: int, bandwidth: str | None, ranks_per_host: int | None) -> Links | None:
    """Build the links of equal hosts; None if no bandwidth is given.

    Raises:
        InputError: The bandwidth is invalid, hosts are not full, or ranks per host were given without a bandwidth.
    """
    per_host = 1 if ranks_per_host is None else ranks_per_host
    if per_host < 1 or ranks % per_host:
        raise InputError(f"got {ranks} ranks, {per_host} a host; expected at least 2, and full hosts")
    if bandwidth is None:
        if per_host > 1:
            raise InputError(
                "--ranks-per-host says how many ranks share a bandwidth; expected --bandwidth with it"
            )
        return None
    hosts, rate = ranks // per_host, parse_rate(bandwidth)
    # On one host no bytes pass an interface: the bandwidth is that of its ranks among each other.
    intra = per_host * rate if hosts == 1 else float("inf")
    return Links.uniform(hosts, rate, intra_bytes_per_s=intra, ranks_per_host=per_host)


def gradients(
    trace: Path, method: str, settings: GradientOptions, out: Path | None, json: str | None
) -> None:
    """Plan the groups, write the plan and print it.

    Raises:
        InputError: A file or an option is unusable.
        PlanError: No planner has this name.
    """
    name, _, number = method.partition(":")
    # Rules leave tensors whole by themselves.
    split = settings.split or ("auto" if name == "cupcake" else None)
    links, ranks = settings.between()
    problem = compression_problem(
        read_gradient_trace(trace),
        links,
        codec=settings.codec or "auto",
        costs=load_costs(settings.costs or "v100"),
        ranks=ranks,
        decodes=settings.decode or ("inline",),
    )
    begin = time.perf_counter()
    found = make_plan(
        FusionPlan,
        name,
        problem,
        number=number or None,
        split=None if split is None else parse_split(split),
        seed=settings.seed,
    )
    planning_s = time.perf_counter() - begin
    said = (
        f"A step of {found.world_size} ranks takes {seconds(found.predicted_step_s)} simulated under the plan and "
        f"{seconds(found.baseline_step_s)} with each gradient on its own{_of_baseline(problem)}; no plan takes "
        f"less than {seconds(found.lower_bound_s)} (gap {_gap(found):.2%})."
        + _of_splits(found)
        + _of_losses(found)
    )
    print_plan(found, out, json, said, found.table(), record=_record(found, planning_s))


def _of_baseline(problem: CompressionProblem) -> str:
    """Name the codecs of the layer-wise plan, which compresses if it can, also where the plan found does not."""
    codecs = {problem.options[group.option].codec for group in by_rule(problem, "layer-wise")} - {"none"}
    return f" under {' and '.join(sorted(codecs))}" if codecs else ""


def _of_losses(found: FusionPlan) -> str:
    """Describe the loss of lossy codecs; seconds alone say nothing of accuracy."""
    said = "; ".join(f"{codec} sends {LOSSES.get(codec, 'less')}" for codec in found.codecs)
    return f" Lossy: {said}, so compare the loss of a training, too." if said else ""


def _of_splits(found: FusionPlan) -> str:
    if not found.splits:
        return ""
    count = len(found.splits)
    return (
        f" {count} {'tensors travel' if count > 1 else 'tensor travels'} in pieces; without, the step takes "
        f"{seconds(found.unsplit_step_s)}."
    )


def _gap(found: FusionPlan) -> float:
    return max(found.predicted_step_s / found.lower_bound_s - 1.0, 0.0) if found.lower_bound_s > 0 else 0.0


def _record(found: FusionPlan, planning_s: float) -> dict[str, Any]:
    return {
        "planner": found.planner,
        "groups": [
            {**span._asdict(), "codec": bucket.codec, "scheme": bucket.scheme, "decode": bucket.decode}
            for span, bucket in zip(found.spans, found.buckets, strict=True)
        ],
        "splits": found.splits,
        "unsplit_step_s": found.unsplit_step_s,
        "predicted_step_s": found.predicted_step_s,
        "layer_wise_step_s": found.baseline_step_s,
        "lower_bound_s": found.lower_bound_s,
        "gap": _gap(found),
        "planning_s": planning_s,
    }
