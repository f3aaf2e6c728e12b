"""`wirewise plan fusion --trace`: groups of gradients that are compressed together."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from wirewise.cli.output import print_table, write_json
from wirewise.cost.gradients import load_costs
from wirewise.cost.links import Links
from wirewise.errors import InputError
from wirewise.planners.fusion.cupcake import CompressionProblem, compression_problem, parse_split, plan_groups
from wirewise.plans import DECODES, FusionPlan, save
from wirewise.report.figures import seconds
from wirewise.trace.gradients import read_gradient_trace
from wirewise.units import parse_rate

__all__ = ["METHODS", "Words", "gradients"]

METHODS = "cupcake, layer-wise, even:K, bucket:MIB, mg-wfbp, mergecomp"

TraceOption = Annotated[
    Path | None, typer.Option(help="JSON with name, elements and gap_us of each gradient, as they get ready.")
]
CodecOption = Annotated[
    str | None,
    typer.Option(
        help="Of --trace: a codec that the costs have, none, or auto: any; cupcake may leave it out."
    ),
]
RanksOption = Annotated[int | None, typer.Option(help="Of --trace and --graph: how many ranks; 8.")]
BandwidthOption = Annotated[
    str | None,
    typer.Option(
        help="Of --trace and --graph: of each host, such as 10gbit; the costs' own times of collectives."
    ),
]
CostsOption = Annotated[
    str | None, typer.Option(help="Of --trace and --graph: v100, or a JSON file of measured times.")
]
DecodeOption = Annotated[
    str | None, typer.Option(help=f"Of --trace: where, some of {','.join(DECODES)}; inline.")
]
RanksPerHostOption = Annotated[
    int | None, typer.Option(help="Of --trace and --graph with --bandwidth: how many ranks share a host; 1.")
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        help="Of --trace: larger tensors travel in pieces of at most this size, such as 16MiB; none; or auto, the "
        "default: by the size that gains most, if the step gains 2 %."
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Of --trace and --graph: recorded in the plan.")]


class Words(NamedTuple):
    """Options that only --trace and --graph have."""

    codec: str | None
    ranks: int | None
    bandwidth: str | None
    costs: str | None
    decode: str | None
    ranks_per_host: int | None
    seed: int | None
    split: str | None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return 8 if self.ranks is None else self.ranks

    def links(self) -> Links | None:
        """Links between the ranks; None: no bandwidth is given.

        Raises:
            InputError: A bandwidth that is no rate, hosts that are not full, or ranks a host without a bandwidth.
        """
        ranks, per_host = self.world_size, 1 if self.ranks_per_host is None else self.ranks_per_host
        if per_host < 1 or ranks % per_host:
            raise InputError(f"got {ranks} ranks, {per_host} a host; expected at least 2, and full hosts")
        if self.bandwidth is None:
            if per_host > 1:
                raise InputError(
                    "--ranks-per-host says how many ranks share a bandwidth; expected --bandwidth with it"
                )
            return None
        hosts, rate = ranks // per_host, parse_rate(self.bandwidth)
        # On one host no bytes pass an interface: the bandwidth is that of its ranks among each other.
        intra = per_host * rate if hosts == 1 else float("inf")
        return Links.uniform(hosts, rate, intra_bytes_per_s=intra, ranks_per_host=per_host)

    def refuse(self) -> None:
        """Raise if one is given, because there is no such file.

        Raises:
            InputError: Names it.
        """
        for name, value in self._asdict().items():
            if value is not None:
                raise InputError(
                    f"--{name.replace('_', '-')} belongs to --trace FILE or --graph FILE, and neither is given"
                )


def gradients(trace: Path, method: str, words: Words, out: Path | None, json: str | None) -> None:
    """Plan, write and tell.

    Raises:
        InputError: A file or an option that cannot be used.
        PlanError: No planner has the name.
    """
    problem = _problem(trace, words)
    split = parse_split(words.split or "auto")
    begin = time.perf_counter()
    found = plan_groups(problem, method=method, seed=words.seed or 0, split=split)
    planning_s = time.perf_counter() - begin
    if out is not None:
        save(found, out)
    write_json(json, _record(found, planning_s))
    if json == "-":
        return
    typer.echo(
        f"A step of {found.world_size} ranks takes {seconds(found.predicted_step_s)} simulated under the plan and "
        f"{seconds(found.baseline_step_s)} with each gradient on its own; no plan takes less than "
        f"{seconds(found.lower_bound_s)} (gap {_gap(found):.2%})." + _of_splits(found)
    )
    print_table(*found.table())


def _problem(trace: Path, words: Words) -> CompressionProblem:
    costs, codec = load_costs(words.costs or "v100"), words.codec or "auto"
    decodes = (words.decode or "inline").split(",")
    if wrong := [place for place in decodes if place not in DECODES]:
        raise InputError(f"unknown place to decode {wrong[0]!r}; expected some of {','.join(DECODES)}")
    return compression_problem(
        read_gradient_trace(trace),
        costs,
        words.links(),
        [*costs.codecs, "none"] if codec == "auto" else [codec, "none"],
        ranks=words.world_size,
        decodes=decodes,
    )


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
    ways = [
        {"codec": bucket.codec, "scheme": bucket.scheme, "decode": bucket.decode} for bucket in found.buckets
    ]
    return {
        "planner": found.planner,
        "groups": [{**span._asdict(), **way} for span, way in zip(found.spans, ways, strict=True)],
        "splits": found.splits,
        "unsplit_step_s": found.unsplit_step_s,
        "predicted_step_s": found.predicted_step_s,
        "layer_wise_step_s": found.baseline_step_s,
        "lower_bound_s": found.lower_bound_s,
        "gap": _gap(found),
        "planning_s": planning_s,
    }
