"""One HTML file about what ranks recorded by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from wirewise.report import shell
from wirewise.report.usage_rows import idle_rows, use_rows
from wirewise.sim.bounds import Verdict
from wirewise.sim.usage import RankUse
from wirewise.trace.records import Trace

__all__ = ["usage_html"]


def usage_html(trace: Trace, uses: Sequence[RankUse], verdict: Verdict) -> str:
    """Page of a trace that is not replayed, as text."""
    sections = [
        shell.head(f"wirewise trace \N{MIDDLE DOT} {len(uses)} ranks recorded", verdict.sentence),
        shell.section(
            "Where a step goes", "Mean step of each rank, as recorded.", shell.table(*use_rows(uses))
        ),
        shell.section("Why devices are idle", "Share of their time.", shell.table(*idle_rows(uses))),
        shell.notes("Notes", trace.notes),
    ]
    return shell.page(f"Trace of {len(uses)} ranks", sections)
