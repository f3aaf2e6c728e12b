"""Every command that writes a folder refuses one that another process writes to, before it does anything."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from wirewise.cli.main import app

_HOLDER = """
import sys, time
from wirewise.files import exclusive_folder
with exclusive_folder(sys.argv[1]):
    print("holds it", flush=True)
    time.sleep(300)
"""
_COMMANDS = {
    "adaqp": "run adaqp --dataset cora-like --out {folder}",
    "adaqp, on the way": "run adaqp --resume {folder}",
    "salientpp": "run salientpp --out {folder}",
    "sea-er": "run sea-er --out {folder}",
    "gnn-tasks": "run gnn-tasks --dataset debian --out {folder}",
    "cupcake": "run cupcake --trace {trace} --out {folder}",
    "dpro": "run dpro --out {folder} -- {python} -c pass",
    "advise": "advise --out {folder} -- {python} -c pass",
    "trace": "profile trace --out {folder} -- {python} -c pass",
    "stalls": "profile stalls --out {folder} -- {python} -c pass",
}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    folder = tmp_path_factory.mktemp("held")
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(folder)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"holds it\n"
        yield folder, holder.pid
        holder.kill()


@pytest.mark.sweep
@pytest.mark.parametrize("name", _COMMANDS)
def test_a_folder_in_use_is_refused(name, held, tmp_path):
    folder, holder = held
    before = {path.name for path in folder.iterdir()}
    trace = tmp_path / "gradients.json"
    trace.write_text('{"tensors": [{"name": "weight", "elements": 10, "gap_us": 5.0}]}')
    if "--resume" in _COMMANDS[name]:
        (folder / "job.json").write_text('{"dataset": "debian"}')
    line = _COMMANDS[name].format(folder=folder, trace=trace, python=sys.executable)
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2, done.output
    assert f"{folder} is in use: process {holder} of another run" in done.stderr
    (folder / "job.json").unlink(missing_ok=True)
    assert {path.name for path in folder.iterdir()} == before
