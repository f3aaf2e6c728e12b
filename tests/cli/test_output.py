import io
import json
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from wirewise.cli import output
from wirewise.cli.output import print_comparison, print_table, print_text, write_json
from wirewise.errors import InputError
from wirewise.report.shell import write_page
from wirewise.results import Comparison, Variant


def test_json_goes_to_stdout_alone(capsys):
    write_json("-", {"a": [1, 2.5, None]})
    assert json.loads(capsys.readouterr().out) == {"a": [1, 2.5, None]}


def test_no_target_writes_nothing(capsys):
    write_json(None, {"a": 1})
    assert capsys.readouterr().out == ""


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "out.json"
    write_json(str(target), {"a": 1})
    write_json(str(target), {"b": 2})
    assert json.loads(target.read_text()) == {"b": 2}
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*out\.json"):
        write_json(tmp_path / "absent" / "out.json", {})


def test_what_json_cannot_hold_leaves_the_old_file(tmp_path):
    target = tmp_path / "out.json"
    write_json(target, {"a": 1})
    with pytest.raises(InputError, match="NaN or infinite"):
        write_json(target, {"a": float("nan")})
    assert json.loads(target.read_text()) == {"a": 1}


def test_a_table_is_tabs_when_piped(capsys):
    print_table(["x", "y"], [["1", "[bold]"]], title="numbers")
    assert capsys.readouterr().out == "x\ty\n1\t[bold]\n"


def test_a_table_is_drawn_on_a_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda: Console(file=stream, force_terminal=True, width=80))
    print_table(["x", "y"], [["1", "[bold]"]], title="numbers")
    assert "numbers" in stream.getvalue()
    assert "[bold]" in stream.getvalue()
    assert "\t" not in stream.getvalue()


def test_a_narrow_terminal_breaks_words_and_cuts_nothing_off(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(
        output, "Console", lambda: Console(file=stream, force_terminal=True, width=24, no_color=True)
    )
    print_table(["each direction", "where"], [["/a/rather/long/path.json", "h0"]])
    lines = stream.getvalue().splitlines()
    columns = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]
    found = "".join(cells[0] for cells in columns if len(cells) == 2)
    assert "…" not in stream.getvalue()
    assert re.sub(r"\x1b\[[0-9;]*m|\s", "", found) == "eachdirection/a/rather/long/path.json"


def test_a_comparison_is_its_table_its_result_and_its_notes(capsys):
    found = Comparison(
        kind="wirewise run it",
        sentence="b is faster.",
        title="Steps",
        what="plan",
        variants={name: Variant(cells={"step": f"{name} s"}) for name in "ab"},
        notes=("Emulated: all of it.",),
    )
    print_comparison(found)
    assert capsys.readouterr().out == "plan\tstep\na\ta s\nb\tb s\nb is faster.\nEmulated: all of it.\n"


HOSTILE = "\x1b]0;OWNED\x07\x1b[31mred\u202e\r\n\tw"


def test_control_characters_of_files_are_shown_and_not_sent(capsys, monkeypatch):
    print_table(["name"], [[HOSTILE]])
    print_text(HOSTILE)
    out = capsys.readouterr().out
    assert out == (
        "name\n\\x1b]0;OWNED\\x07\\x1b[31mred\\u202e\\r\\n\\tw\n"
        "\\x1b]0;OWNED\\x07\\x1b[31mred\\u202e\\r\n\tw\n"
    )
    stream = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda: Console(file=stream, force_terminal=True, width=120))
    print_table(["name"], [[HOSTILE]], title=f"[red]{HOSTILE}")
    assert "OWNED" in stream.getvalue() and "\x07" not in stream.getvalue() and "]0;" in stream.getvalue()
    assert "[red]" in stream.getvalue() and "\u202e" not in stream.getvalue()


def test_bytes_of_a_files_name_that_are_no_text_are_shown_by_their_codes(capsys, tmp_path):
    name = os.fsdecode(b"caf\xe9.json")
    print_text(f"{name}: 2 ranks")
    print_table(["file"], [[name]])
    assert capsys.readouterr().out == "caf\\udce9.json: 2 ranks\nfile\ncaf\\udce9.json\n"
    write_page(f"<p>{name}</p>", tmp_path / name)
    assert (tmp_path / name).read_text() == "<p>caf\\udce9.json</p>"


def test_commands_print_texts_through_one_function():
    """A direct echo would send what a file holds to the terminal."""
    folder = Path(output.__file__).parent
    direct = {path.name for path in folder.glob("*.py") if "typer.echo(" in path.read_text()}
    # JSON, TOML and scripts, which escape by themselves or are for another program; the version.
    assert direct == {"main.py", "output.py", "slurm.py", "topo.py"}
    assert (folder / "main.py").read_text().count("typer.echo(") == 1
