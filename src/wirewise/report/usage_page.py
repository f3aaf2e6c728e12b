"""Records of each rank separately: tables, JSON object, and one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from wirewise.report import shell
from wirewise.report.figures import MISSING, percent, seconds
from wirewise.report.replay_rows import TextTable
from wirewise.sim.bounds import Verdict
from wirewise.sim.usage import RankUse
from wirewise.trace.records import Trace

__all__ = ["idle_rows", "usage_html", "usage_object", "use_rows"]


def use_rows(uses: Sequence[RankUse]) -> TextTable:
    """Breakdown of each rank's step in seconds, and the fraction of communication that overlaps with compute."""
    parts_of_time = ["compute", "communication", "exposed", "overlap", "copies", "idle"]
    late = any(use.late_wait_s for use in uses)
    titles = ["rank", "step", "lane", "its time", *parts_of_time, *(["for late ranks"] if late else [])]
    rows = []
    for use in uses:
        overlap = MISSING if use.overlap_share is None else percent(use.overlap_share)
        parts = (use.wall_s, use.compute_s, use.communication_s, use.exposed_communication_s)
        cells = [str(use.rank), seconds(use.step_s), use.lane, *map(seconds, parts), overlap]
        waiting = [seconds(use.late_wait_s)] if late else []
        rows.append([*cells, seconds(use.copy_s), percent(use.idle_share), *waiting])
    return TextTable(titles, rows)


def idle_rows(uses: Sequence[RankUse]) -> TextTable:
    """Causes of device idle time, as fractions of wall-clock time; no rows if none was recorded."""
    data = any(use.data_wait_s for use in uses)
    titles = [
        "rank",
        "idle",
        "until late launches",
        "starts of kernels",
        "other",
        *(["host waits for data"] if data else []),
    ]
    rows = []
    for use in uses:
        if use.lane == "device" and use.wall_s > 0:
            parts = (use.idle_s, use.host_wait_s, use.kernel_wait_s, use.other_idle_s)
            waiting = [seconds(use.data_wait_s)] if data else []
            rows.append([str(use.rank), *(percent(part / use.wall_s) for part in parts), *waiting])
    return TextTable(titles, rows)


def usage_object(trace: Trace, uses: Sequence[RankUse], verdict: Verdict) -> dict[str, Any]:
    """Result of `wirewise trace show` without a replay, as a JSON object."""
    return {
        "summary": verdict.sentence,
        "bound": verdict.bound,
        "bound_by": verdict.bound,
        "share": verdict.share,
        "step_s": sum(use.step_s for use in uses) / len(uses),
        # Shares are those of the wall clock of the lane.
        "ranks": [
            {**msgspec.to_builtins(use), "overlap_share": use.overlap_share, "idle_share": use.idle_share}
            for use in uses
        ],
        "partial": trace.partial,
        "replayed": False,
        "notes": trace.notes,
    }


def usage_html(trace: Trace, uses: Sequence[RankUse], verdict: Verdict) -> str:
    """Render the page of a trace that is not replayed."""
    sections = [
        shell.head(f"wirewise trace \N{MIDDLE DOT} {len(uses)} ranks recorded", verdict.sentence),
        shell.section(
            "Where a step goes", "Mean step of each rank, as recorded.", shell.table(*use_rows(uses))
        ),
        shell.section("Why devices are idle", "Share of their time.", shell.table(*idle_rows(uses))),
        shell.notes("Notes", trace.notes),
    ]
    return shell.page(f"Trace of {len(uses)} ranks", sections)
