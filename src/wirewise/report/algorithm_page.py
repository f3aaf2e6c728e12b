"""Pages for algorithm files of other runtimes: steps of each rank, and traffic between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wirewise.report import shell

__all__ = ["algorithm_html"]

_MOST_RANKS = 64
"""Ranks above which only the busiest pairs are listed."""
_MOST_PAIRS = 200


def algorithm_html(
    kind: str,
    headline: str,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    sent: Mapping[tuple[int, int], int],
) -> str:
    """Render the page of one file.

    Args:
        kind: Kind of the file, in a few words.
        headline: Contents in one sentence.
        titles: Titles of the columns of `rows`.
        rows: Cells of each rank.
        sent: Number of chunks sent between ranks, by source and target.
    """
    ranks = range(len(rows))
    if len(ranks) <= _MOST_RANKS:
        matrix = [[str(a), *(str(sent.get((a, b), "")) for b in ranks), str(_total(sent, a))] for a in ranks]
        traffic = shell.table(["from \\ to", *map(str, ranks), "all"], matrix)
    else:
        busiest = sorted(sent.items(), key=lambda item: (-item[1], item[0]))[:_MOST_PAIRS]
        traffic = shell.table(["from", "to", "chunks"], [[str(a), str(b), str(n)] for (a, b), n in busiest])
    return shell.page(
        headline,
        [
            shell.head(kind, headline),
            shell.section("Ranks", "", shell.table(titles, rows)),
            shell.section("Chunks from rank to rank", "Each as often as it is sent.", traffic),
        ],
    )


def _total(sent: Mapping[tuple[int, int], int], source: int) -> int:
    return sum(count for (a, _), count in sent.items() if a == source)
