"""Arguments of `protect` beside the reduction check themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wirewise.errors import InputError
from wirewise.runtime.recovery import Checkpoints, Ranks, State


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: State(schedulers=object()), "got schedulers=object; expected schedules in a list"),  # type: ignore[arg-type]
        (lambda: State(objects=["ema"]), "got objects=list; expected objects by name"),  # type: ignore[arg-type]
        (lambda: State(clip=0.0), r"got clip=0\.0; expected a norm above 0"),
        (lambda: State(clip=float("nan")), "got clip=nan"),
        (lambda: State(scaler=object()), r"objects\['scaler'\] is a object"),  # type: ignore[arg-type]
        (lambda: Checkpoints(3), r"got Checkpoints\(3\); expected the path of a folder"),  # type: ignore[arg-type]
        (lambda: Checkpoints("saved", every=0), "got every=0; expected at least 1 update"),
        (lambda: Checkpoints("saved", accept_changes="lr"), "expected names in a list"),
        (lambda: Ranks(timeout_s=0.0), r"got timeout_s=0\.0; expected seconds above 0"),
        (lambda: Ranks(compare_every=0), "got compare_every=0; expected at least 1"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_name(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make()


def test_a_path_means_checkpoints_by_the_defaults() -> None:
    given = Checkpoints("saved", every=5)
    assert Checkpoints.of(given) is given
    assert Checkpoints.of(Path("saved")) == Checkpoints(Path("saved"), every=100)
