import importlib
import json
import re

import pytest
import typer
from typer.testing import CliRunner

import wirewise
from wirewise.cli.main import GROUPS, app
from wirewise.errors import WirewiseError
from wirewise.plans import BitWidthPlan, ChannelBits, save


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def plan_file(tmp_path):
    channel = ChannelBits(exchange="forward1", sender=0, receiver=1, width=64, bits=bytes([4, 8, 8]))
    save(BitWidthPlan(world_size=2, planner="threshold", channels=(channel,)), tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_help_names_every_group():
    text = call("--help").stdout
    assert all(name in text for name in GROUPS)


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_can_be_called(name):
    result = call(name, "--help")
    assert result.exit_code == 0, result.output
    assert f" {name} " in result.stdout.split("\n\n")[0]


def helps():
    """Helps of all options and arguments."""
    root = typer.main.get_command(app)
    groups = [typer.main.get_command(importlib.import_module(f"wirewise.cli.{name}").app) for name in GROUPS]
    commands = [
        root,
        *groups,
        *(group.get_command(None, name) for group in groups for name in group.list_commands(None)),
    ]
    commands += [root.get_command(None, name) for name in root.list_commands(None) if name not in GROUPS]
    return [text for one in commands for option in one.params if (text := getattr(option, "help", None))]


def test_no_help_turns_a_word_into_a_picture():
    """Helps are drawn by rich, which knows words between colons as pictures."""
    from rich._emoji_codes import EMOJI

    words = {word for text in helps() for word in _between(text)}
    assert "binomial" in words
    assert words.isdisjoint(EMOJI)


def test_helps_stand_alone():
    found = helps()
    assert len(found) > 200
    assert not [
        text for text in found if text.startswith(("Of ", "That ", "As ", "With ", "By ", "The same"))
    ]


def _between(said):
    return re.findall(r"(?=:([a-z_]+):)", said)


def test_version():
    assert call("--version").stdout == f"{wirewise.__version__}\n"


def test_an_error_is_one_message_and_code_2(tmp_path):
    result = call("show", tmp_path / "absent.json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("wirewise: cannot read plan file")
    assert "Traceback" not in result.stderr


def test_an_error_in_a_group_is_one_message_too():
    result = call("data", "show", "nonsense")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("wirewise: dataset 'nonsense' is unknown")


def test_debug_shows_the_error_itself(tmp_path):
    result = call("--debug", "show", tmp_path / "absent.json")
    assert isinstance(result.exception, WirewiseError)


def test_show_is_plain_when_piped(plan_file):
    titles, row = call("show", plan_file).stdout.splitlines()
    cells = dict(zip(titles.split("\t"), row.split("\t"), strict=True))
    assert (cells["exchange"], cells["4 bit"], cells["8 bit"]) == ("forward1", "1", "2")


def test_show_writes_the_plan_as_json(plan_file, tmp_path):
    assert json.loads(call("show", plan_file, "--json", "-").stdout) == json.loads(plan_file.read_text())
    call("show", plan_file, "--json", tmp_path / "copy.json")
    assert json.loads((tmp_path / "copy.json").read_text())["family"] == "bitwidth"


def test_list_systems():
    lines = {
        line.split("\t")[0]: line.split("\t")[1:] for line in call("list", "systems").stdout.splitlines()
    }
    assert lines["AdaQP"][2] == "wirewise run adaqp"
    assert lines["TAG"][1:] == ["done", "wirewise run tag", "wirewise.planners.placement.tag"]
    systems = json.loads(call("list", "systems", "--json", "-").stdout)["systems"]
    assert systems[0]["name"] == "adaqp"


def test_a_json_file_in_no_folder_is_refused_before_the_work(tmp_path):
    result = call("data", "list", "--json", tmp_path / "absent" / "out.json")
    assert result.exit_code == 2 and "its folder does not exist" in result.stderr
    assert result.stdout == ""
