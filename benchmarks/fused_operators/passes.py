"""Several passes over the same regions, as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from wirewise.trials.operators.samples import Sample


def key_of(one: Sample) -> tuple[Any, ...]:
    """What tells a sample from others, equal in all passes over the same draws."""
    return one.source, one.draw, one.size, one.operators, one.outputs, one.details


def least_of(passes: Sequence[Sequence[Sequence[Sample]]]) -> list[list[Sample]]:
    """The regions of the first of some passes over the same draws, with the least times that any of them measured.

    A neighbour's load may last for minutes, longer than the measuring of one region.
    """
    found = [{key_of(one): one for region in regions for one in region} for regions in passes]
    return [
        [_least([own[key] for own in found if (key := key_of(one)) in own]) for one in r] for r in passes[0]
    ]


def _least(measured: Sequence[Sample]) -> Sample:
    first, graph = measured[0], measured[0].graph
    alone = zip(*(one.graph.operators for one in measured), strict=True)
    operators = tuple(
        msgspec.structs.replace(same[0], time_s=min(one.time_s for one in same)) for same in alone
    )
    return msgspec.structs.replace(
        first,
        graph=msgspec.structs.replace(graph, operators=operators),
        seconds=min(one.seconds for one in measured),
    )
