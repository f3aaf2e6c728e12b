import importlib
import io
import json
import re
import signal
import sys

import pytest
import typer
from typer.testing import CliRunner

import wirewise
from wirewise.cli.main import GROUPS, _renamed, app, main
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
    # A shell completes `wirewise`, not its groups.
    assert "--install-completion" not in result.stdout


def commands():
    """All commands and groups."""
    root = typer.main.get_command(app)
    groups = [typer.main.get_command(importlib.import_module(f"wirewise.cli.{name}").app) for name in GROUPS]
    found = [
        root,
        *groups,
        *(group.get_command(None, name) for group in groups for name in group.list_commands(None)),
    ]
    return found + [root.get_command(None, name) for name in root.list_commands(None) if name not in GROUPS]


def helps():
    """Helps of all options and arguments."""
    return [text for one in commands() for option in one.params if (text := getattr(option, "help", None))]


def test_what_a_command_writes_has_one_name_in_all_of_them():
    options = [option.opts for one in commands() for option in one.params]
    assert sum("-o" in names for names in options) > 20
    wrong = [names for names in options if ("--out" in names) != ("-o" in names) or "--output" in names]
    assert wrong == []


@pytest.mark.parametrize("words", [(), ("plan",), ("plan", "fusion"), ("data", "partition"), ("sim",)])
def test_help_has_a_short_name_and_switches_show_no_type(words):
    short, long = call(*words, "-h"), call(*words, "--help")
    assert short.exit_code == 0 and short.output == long.output
    assert "--help" in short.output and "bool" not in short.output


def test_the_help_of_plan_names_every_family():
    group = typer.main.get_command(importlib.import_module("wirewise.cli.plan").app)
    assert [name for name in group.list_commands(None) if name not in GROUPS["plan"]] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data", "partition", "no-such-data", "--output", "parts"), "no-such-data"),
        (("data", "partition", "no-such-data", "--output=parts"), "no-such-data"),
        (("plan", "fusion", "--memory-budget", "8GiB"), "nothing to plan for"),
        (("sim", "run", "--on", "lab-4"), "--topology belongs to --plan FILE"),
        (("check", "absent.json", "--on=lab-2"), "absent.json"),
        (("show", "all_reduce:ring:4", "--on", "lab-5"), "is for 4 ranks and 'lab-5' has 5"),
    ],
)
def test_former_names_of_options_are_understood_and_not_shown(words, said):
    result = call(*words)
    assert result.exit_code == 2 and said in result.output and "No such option" not in result.output
    assert all(
        word.partition("=")[0] not in call(*words[:2], "--help").output for word in words[2:] if "--" in word
    )


def test_options_behind_the_users_own_command_are_the_users():
    assert _renamed(["--output", "a", "--", "x", "--output=b"], {"--output": "--out"}) == [
        "--out", "a", "--", "x", "--output=b"
    ]  # fmt: skip


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


def test_an_encoding_without_a_minus_sign_gets_its_code(monkeypatch):
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(taken, encoding="latin-1", write_through=True))
    monkeypatch.setattr("wirewise.cli.main.app", lambda **_: typer.echo("\N{MINUS SIGN}2.1 %"))
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        main()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert taken.getvalue() == b"\\u22122.1 %\n"


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


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("data", "list"), "--json"),
        (("plan", "collective", "--topology", "no-such-preset"), "-o"),
        (("plan", "recovery", "no-such-file"), "--out"),
        (("topo", "import", "no-such-file"), "-o"),
        (("trace", "show", "no-such-run"), "--html"),
        (("trace", "export", "no-such-run"), "-o"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(words, option, tmp_path):
    result = call(*words, option, tmp_path / "absent" / "out.json")
    assert result.exit_code == 2 and "its folder does not exist" in result.stderr
    assert result.stdout == ""
    result = call(*words, option, tmp_path)
    assert result.exit_code == 2 and "it is a folder; choose a file" in result.stderr


def test_a_table_of_devices_with_bytes_that_are_no_text_is_refused_by_a_message(tmp_path):
    (tmp_path / "topo.txt").write_bytes(b"\tGPU0\tGPU1\nGPU\xff0\t X \n")
    result = call("topo", "smi", tmp_path / "topo.txt")
    assert result.exit_code == 2 and result.stderr.startswith("wirewise: ")
