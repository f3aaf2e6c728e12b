"""Ranks that wait compute microbatches of a lost stage: the weights are those that the stage would have had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness.tiers import keep
from tests.runtime.pipeline.examples import batches, chain, plan_for, unet
from tests.runtime.recovery.test_recompute import (
    CHECKPOINT,
    UPDATES,
    _Rank,
    equal,
    finished,
    recovered,
    undisturbed,
)
from wirewise.errors import InputError
from wirewise.plans.timetables import StagePass
from wirewise.runtime.recovery.helping import HelperOptions, recompute_together
from wirewise.runtime.recovery.logs import LoggedMessages


def helped(own: _Rank, helping: HelperOptions) -> None:
    recompute_together(own.pipeline, own.journal, lambda update: batches(UPDATES, own.plan)[update:], helping)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("build", "style", "dead", "ranks"),
    keep(
        [(chain, "1f1b", 1, 2), (unet, "2bw", 2, 3)],
        [
            (build, style, dead, ranks)
            for build in (chain, unet)
            for style in ("1f1b", "2bw", "eager-split")
            for dead in range(3)
            for ranks in (2, 3)
        ],
    ),
)
@pytest.mark.sample(9)
def test_exact_help_leaves_the_same_bits_and_the_same_log(
    build: Any, style: str, dead: int, ranks: int, tmp_path: Path
) -> None:
    plan = plan_for(build(), 3, style=style, microbatches=4)
    expected = undisturbed(build, plan, tmp_path)
    fresh = [build() for _ in range(3)]
    seen = {}

    def before(own: _Rank) -> None:
        helped(own, HelperOptions(lambda: fresh[own.rank], ranks, "exact"))
        if own.rank == dead:
            seen["updates"] = own.pipeline.update
            seen["spans"] = {
                t: LoggedMessages([tmp_path], t).span(dead) for t in {(dead + 1) % 3, (dead - 1) % 3}
            }

    kind: Any = "I" if style == "eager-split" else "B"
    stops = {0: StagePass(5, kind, 0, 1), 1: StagePass(5, kind, 1, 2)} if dead == 2 else {}
    assert equal(finished(recovered(build, plan, tmp_path, {dead}, stops, before)), expected)
    assert seen["updates"] == 5
    # Neighbours find all in the log of the replacement that they would need.
    neighbours = {edge for pair in plan.all_edges for edge in (pair, pair[::-1]) if dead in edge}
    assert all(seen["spans"][target] == (CHECKPOINT, 5) for source, target in neighbours if source == dead)


def test_fast_help_is_right_up_to_rounding(tmp_path: Path) -> None:
    plan = plan_for(chain(), 3, style="1f1b", microbatches=4)
    expected = undisturbed(chain, plan, tmp_path)
    fresh = [chain() for _ in range(3)]
    found = finished(
        recovered(
            chain,
            plan,
            tmp_path,
            {1},
            {},
            lambda own: helped(own, HelperOptions(lambda: fresh[own.rank], 3, "fast")),
        )
    )
    for one, other in zip(found, expected, strict=True):
        assert all(float((one[name] - other[name]).abs().max()) <= 1e-6 for name in one)
    assert not torch.equal(found[1]["2.0.weight"], expected[1]["2.0.weight"])


def test_neighbours_that_are_lost_together_catch_up_by_themselves(tmp_path: Path) -> None:
    plan = plan_for(chain(), 3, style="1f1b", microbatches=3)
    expected = undisturbed(chain, plan, tmp_path)
    fresh = [chain() for _ in range(3)]
    ranks = recovered(
        chain, plan, tmp_path, {0, 1}, {}, lambda own: helped(own, HelperOptions(lambda: fresh[own.rank]))
    )
    assert equal(finished(ranks), expected)


def test_help_for_stages_that_share_a_rank_is_refused(tmp_path: Path) -> None:
    plan = plan_for(chain(), 2, style="interleaved", microbatches=2)

    class _Pipeline:
        pass

    pipeline: Any = _Pipeline()
    pipeline.plan = plan
    with pytest.raises(
        InputError, match="4 stages on 2 ranks; helpers share the microbatches of one stage a rank"
    ):
        recompute_together(pipeline, None, lambda _: [], HelperOptions(chain))  # type: ignore[arg-type]
