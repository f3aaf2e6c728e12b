"""Strategies of the reduction check themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from tests.runtime.recovery.trained import plan_of
from wirewise.errors import InputError
from wirewise.runtime.data_parallel import Compression
from wirewise.runtime.recovery import DDP, Backward, Buckets, Fold, Shards
from wirewise.runtime.recovery.sync import check_sync, has_codecs

MODEL = nn.Linear(2, 2)
WHOLE, WITH_CODECS = plan_of(MODEL, "none"), plan_of(MODEL, "onebit")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Buckets(MODEL), r"got Buckets\(Linear\); expected a FusionPlan"),  # type: ignore[arg-type]
        (lambda: Buckets(unused="skip"), r"got Buckets\(unused='skip'\); expected 'error' or 'zeros'"),  # type: ignore[arg-type]
        (lambda: Buckets(WHOLE, mirrored=True), "got mirrored=True and no plan with codecs"),
        (lambda: Buckets(compression=Compression()), "got compression and no plan with codecs"),
        (lambda: Backward(WITH_CODECS), r"expected one without codecs, or Buckets\(plan\)"),
        (lambda: Backward("plan.json"), r"got Backward\(str\)"),  # type: ignore[arg-type]
        *[
            (lambda kind=kind: kind(consistency="hope"), "consistency is 'hope'; expected one of auto")
            for kind in (Buckets, DDP, Fold, Backward)
        ],
        (lambda: Shards(None, 2), r"got Shards\(None\); expected a function"),  # type: ignore[arg-type]
        (lambda: Shards(lambda model, mesh: None, 1), "a shard without replica is lost with its rank"),
    ],
)
def test_values_that_do_not_fit_are_refused_when_a_strategy_is_made(
    make: Callable[[], Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        make()


def test_every_strategy_is_one_and_a_class_or_a_word_is_none() -> None:
    for sync in (
        Buckets(WITH_CODECS, mirrored=True, compression=Compression()),
        DDP(consistency="undo"),
        Fold(),
        Backward(WHOLE),
        Shards(lambda model, mesh: None, 2),
    ):
        check_sync(sync)
        assert has_codecs(sync.plan) == (sync.plan is WITH_CODECS)
    for other in (DDP, "ddp"):
        with pytest.raises(InputError, match=r"expected one of Buckets\(\.\.\.\), DDP\(\.\.\.\)"):
            check_sync(other)
