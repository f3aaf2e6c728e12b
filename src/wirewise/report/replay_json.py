"""Replayed trace as JSON objects for `--json`; undefined or non-finite values are None."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from wirewise.cost.links import Links
from wirewise.report.figures import finite
from wirewise.sim.analysis import TraceAnalysis
from wirewise.sim.breakdown import Breakdown
from wirewise.sim.steps import ReplayReport, StepPrediction
from wirewise.trace.records import Trace

__all__ = ["analysis_object", "report_object"]


def report_object(
    trace: Trace, report: ReplayReport, links: Links, baselines: dict[str, float]
) -> dict[str, Any]:
    """Result of `wirewise sim` as a JSON object."""
    return {
        "measured_step_s": report.measured_step_s,
        **_prediction(report),
        "error": report.error,
        "error_ci95": list(report.error_ci95),
        "steps": report.steps,
        "interference": report.interference,
        "critical_path": [msgspec.to_builtins(op) for op in report.critical_path],
        "per_step": [msgspec.to_builtins(step) for step in report.per_step],
        "baselines": {
            name: {"predicted_step_s": value, "error": value / report.measured_step_s - 1}
            for name, value in baselines.items()
        },
        "links": {
            "bandwidth_bytes_per_s": [finite(rate) for rate in links.bandwidth_out_bytes_per_s.tolist()],
            "latency_s": float(links.latency_s.max(initial=0.0)),
        },
        "what_if": None if report.what_if is None else _prediction(report.what_if),
        "notes": trace.notes,
    }


def analysis_object(trace: Trace, analysis: TraceAnalysis) -> dict[str, Any]:
    """Result of `wirewise trace show`: `report_object`, the diagnosis, all changes, sensitivities, ranks."""
    found = analysis.diagnosis
    rows = zip(trace.ranks, analysis.ranks, analysis.compute_s, strict=True)
    return {
        "summary": found.sentence,
        **{name: getattr(found, name) for name in found.__struct_fields__ if name != "sentence"},
        **report_object(trace, analysis.report, analysis.links, analysis.baselines),
        "bound_by": found.bound,
        "step_s": analysis.report.measured_step_s,
        "ranks": [
            _rank(recorded.header.rank, parts)
            for recorded, parts in zip(trace.ranks, analysis.ranks, strict=True)
        ],
        "partial": trace.partial,
        "replayed": True,
        "step": analysis.step,
        "per_rank": [
            {
                "rank": recorded.header.rank,
                "host": recorded.header.host,
                "ops": len(recorded.ops),
                "complete": recorded.complete,
                "compute_s": compute,
                "breakdown": msgspec.to_builtins(parts),
            }
            for recorded, parts, compute in rows
        ],
        "what_ifs": [
            {
                "change": row.change,
                "refused": row.refused,
                **(_prediction(row.prediction) if row.prediction else {}),
            }
            for row in analysis.what_ifs
        ],
        "link_sensitivity": [
            {**asdict(one), "kink_factor": finite(one.kink_factor)} for one in analysis.link_sensitivity
        ],
        "op_sensitivity": [
            {name: value for name, value in asdict(one).items() if name != "op"}
            for one in analysis.op_sensitivity
        ],
    }


def _rank(number: int, parts: Breakdown) -> dict[str, Any]:
    """Where the time of a rank goes, in the words that hold for recorded devices too."""
    moved = parts.exposed_communication_s + parts.overlapped_communication_s
    whole = parts.compute_s + parts.exposed_communication_s + parts.wait_s
    return {
        "rank": number,
        "lane": "host",
        "compute_s": parts.compute_s,
        "communication_s": moved,
        "exposed_communication_s": parts.exposed_communication_s,
        "overlap_share": parts.overlapped_communication_s / moved if moved > 0 else None,
        "idle_share": parts.wait_s / whole if whole > 0 else 0.0,
    }


def _prediction(found: StepPrediction) -> dict[str, Any]:
    names = ("predicted_step_s", "p50_s", "p95_s", "ci95_s", "ranks", "breakdown")
    return {name: msgspec.to_builtins(getattr(found, name)) for name in names}
