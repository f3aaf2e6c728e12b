"""Plan files: atomic writing, errors that name the file and the place inside."""

from __future__ import annotations

import os

import pytest

from wirewise import plans
from wirewise.errors import InputError, PlanError

PLAN = plans.BitWidthPlan(
    world_size=2,
    planner="test",
    channels=(plans.ChannelBits(exchange="forward1", sender=0, receiver=1, width=4, bits=b"\x04\x08"),),
)


def test_save_and_load(tmp_path):
    path = tmp_path / "plan.json"
    plans.save(PLAN, path)
    assert plans.load(path) == PLAN
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


HEAD = '{"family": "bitwidth", "world_size": 2, "planner": "x", '
CHANNEL = '{"exchange": "forward1", "sender": 0, "receiver": 1, "width": 4, '


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"family": "bitwidth", "world_size": "2"}', "$.world_size"),
        (HEAD + '"channels": [{"exchange": 1}]}', "$.channels[0].exchange"),
        (HEAD + '"channels": [' + CHANNEL + '"bits": "???"}]}', "$.channels[0].bits"),
        ('{"family": "bitwidth", "world_size": 2}', "planner"),
        ('{"family": "tarot"}', "'tarot' - at `$.family`; expected one of: bitwidth"),
        ("[1, 2]", "$.family"),
        ('{"family": ["bitwidth"]}', "['bitwidth'] - at `$.family`"),
        (HEAD + '"channels": [], "world": 2}', "unknown field `world`"),
        (HEAD + '"channels": [' + CHANNEL + '"bits": "", "senders": 2}]}', "unknown field `senders`"),
        (
            HEAD.replace("2", "0") + '"channels": []}',
            "world_size is 0 - at `$.world_size`; expected at least 1",
        ),
        (HEAD + '"channels": [' + CHANNEL.replace("0", "9") + '"bits": ""}]}', "sender is 9"),
        (HEAD + '"channels": [' + CHANNEL + '"bits": "/w=="}]}', "message 0 has 255 bits"),
        ("[" * 100_000, "cannot read a wirewise plan"),
        ('{"family": ', "truncated"),
    ],
)
def test_load_names_the_file_and_the_place_inside(tmp_path, text, place):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        plans.load(path)
    assert "broken.json" in str(caught.value)
    assert place in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.json.*check the path"):
        plans.load(tmp_path / "none.json")


def test_unwritable_folder_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="choose a folder that exists"):
        plans.save(PLAN, tmp_path / "missing" / "plan.json")


def test_a_full_disk_keeps_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("older")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        plans.save(PLAN, path)
    assert path.read_text() == "older"
    assert len(list(tmp_path.iterdir())) == 1


def test_from_json_of_the_family():
    assert plans.BitWidthPlan.from_json(PLAN.to_json()) == PLAN
    with pytest.raises(PlanError, match="family"):
        plans.BitWidthPlan.from_json('{"family": "tarot"}')
