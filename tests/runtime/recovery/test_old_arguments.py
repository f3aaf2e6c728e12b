"""Arguments that `protect` took before its strategy objects: each is refused with a form that can be called."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.recovery.trained import plan_of
from wirewise.errors import InputError
from wirewise.runtime import recovery
from wirewise.runtime.data_parallel import Compression
from wirewise.runtime.recovery.old_arguments import OLD_ARGUMENTS, new_form

MODEL = nn.Linear(2, 2)
SGD = torch.optim.SGD(MODEL.parameters(), lr=0.1)
PLAN = plan_of(MODEL, "none")
OBJECTS = {
    "plan": plan_of(MODEL, "onebit"),
    "compression": Compression(),
    "schedulers": [torch.optim.lr_scheduler.StepLR(SGD, 2)],
    "scaler": torch.amp.GradScaler("cpu"),
    "objects": {"scheduler": torch.optim.lr_scheduler.StepLR(SGD, 2)},
    "shard": lambda model, mesh: None,
    "folder": "saved",
}
"""Values of the names in a form, as a script would have them."""

FORMS: list[tuple[dict[str, Any], str]] = [
    ({"through": "buckets"}, "sync=Buckets()"),
    ({"through": "ddp"}, "sync=DDP()"),
    ({"through": "fold"}, "sync=Fold()"),
    ({"through": "backward"}, "sync=Backward()"),
    ({"through": "backward", "plan": PLAN}, "sync=Backward(plan)"),
    ({"through": "ddp", "consistency": "undo"}, "sync=DDP(consistency='undo')"),
    ({"plan": PLAN}, "sync=Buckets(plan)"),
    ({"unused": "zeros"}, "sync=Buckets(unused='zeros')"),
    ({"through": "buckets", "unused": "zeros"}, "sync=Buckets(unused='zeros')"),
    ({"compression": OBJECTS["compression"]}, "sync=Buckets(plan, compression=compression)"),
    ({"mirrored": True}, "sync=Buckets(plan, mirrored=True)"),
    ({"consistency": "ping-pong"}, "sync=Buckets(consistency='ping-pong')"),
    ({"shard": OBJECTS["shard"], "replicas": 4}, "sync=Shards(shard, replicas=4)"),
    ({"shard": OBJECTS["shard"]}, "sync=Shards(shard, replicas=2)"),
    ({"replicas": 2}, "sync=Shards(shard, replicas=2)"),
    ({"schedulers": OBJECTS["schedulers"]}, "state=State(schedulers=schedulers)"),
    ({"scaler": OBJECTS["scaler"]}, "state=State(scaler=scaler)"),
    ({"objects": OBJECTS["objects"]}, "state=State(objects=objects)"),
    ({"clip": 1.0}, "state=State(clip=1.0)"),
    ({"checkpoint_every": 50}, "checkpoints=Checkpoints(folder, every=50)"),
    ({"accept_changes": ["lr"]}, "checkpoints=Checkpoints(folder, accept_changes=['lr'])"),
    (
        {"checkpoints": "out", "checkpoint_every": 9, "accept_changes": ("lr", "steps")},
        "checkpoints=Checkpoints('out', every=9, accept_changes=['lr', 'steps'])",
    ),
    ({"timeout_s": 9.0}, "ranks=Ranks(timeout_s=9.0)"),
    ({"device": "cuda"}, "ranks=Ranks(device='cuda')"),
    ({"backend": "gloo"}, "ranks=Ranks(backend='gloo')"),
    ({"compare_every": 7}, "ranks=Ranks(compare_every=7)"),
    (
        {"clip": 1.0, "device": "cuda", "through": "ddp"},
        "sync=DDP(), state=State(clip=1.0), ranks=Ranks(device='cuda')",
    ),
]


def call(**arguments: Any) -> None:
    recovery.protect(MODEL, SGD, lambda step, share: torch.ones(2), steps=1, **arguments)


@pytest.mark.parametrize(
    ("old", "new"), FORMS, ids=lambda one: one if isinstance(one, str) else ",".join(one)
)
def test_every_former_argument_is_refused_with_its_new_form(old: dict[str, Any], new: str) -> None:
    with pytest.raises(InputError) as error:
        call(**old)
    text = str(error.value)
    told, _, rest = text.partition(") is now ")
    assert told.startswith("protect(..., ") and all(
        f"{name}=" in told for name in old if name != "checkpoints"
    )
    form, _, names = rest.partition("; import ")
    assert form == new
    kinds = names.removesuffix(" from wirewise.runtime.recovery").split(", ")
    # The form is what a script can write: names that it imports, and those of its own objects.
    known = {kind: getattr(recovery, kind) for kind in kinds}
    given = eval(
        f"dict({form})", {**OBJECTS, **{name: one for name, one in old.items() if name == "plan"}, **known}
    )
    assert set(given) <= set(inspect.signature(recovery.protect).parameters)


def test_all_former_arguments_are_tried_and_none_is_left_in_the_signature() -> None:
    assert {name for old, _ in FORMS for name in old} - {"checkpoints"} == set(OLD_ARGUMENTS)
    parameters = inspect.signature(recovery.protect).parameters
    assert len(parameters) <= 10 and not set(parameters) & set(OLD_ARGUMENTS)


def test_what_had_no_effect_is_told_and_unknown_arguments_stay_errors_of_python() -> None:
    with pytest.raises(
        InputError, match=r"is now sync=DDP\(\), without unused, which it never used; import DDP"
    ):
        call(through="ddp", unused="zeros")
    with pytest.raises(TypeError, match="unexpected keyword argument 'throug'"):
        call(throug="ddp")


def test_defaults_that_were_written_out_mean_the_plain_call() -> None:
    sync = {
        "through": "buckets",
        "plan": None,
        "shard": None,
        "replicas": 0,
        "mirrored": False,
        "compression": None,
    }
    form = new_form({**sync, "objects": None})
    assert form == {"sync": "Buckets(mirrored=False, compression=None)", "state": "State(objects=None)"}
    known = {"Buckets": recovery.Buckets, "State": recovery.State}
    assert eval(form["sync"], known) == recovery.Buckets() and eval(form["state"], known) == recovery.State()
