"""A user's script as the main program of a rank: its loader workers, and what is left of a rank that was killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wirewise.errors import PeerError
from wirewise.runtime.points import FAULTS
from wirewise.runtime.recovery import Agent, run_script


def test_a_script_stays_the_main_program(tmp_path):
    script = tmp_path / "train.py"
    (tmp_path / "beside.py").write_text("VALUE = 3\n")
    script.write_text(
        textwrap.dedent("""
        import sys, pickle
        import beside
        class Defined:
            pass
        main = sys.modules["__main__"]
        assert (__name__, main.__file__, main.Defined) == ("__main__", __file__, Defined)
        assert isinstance(pickle.loads(pickle.dumps(Defined())), Defined)
        print(sys.argv[1:], beside.VALUE)
        """)
    )
    call = f"from wirewise.runtime.recovery import run_script; run_script({str(script)!r}, ['a'])"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert done.stdout == "['a'] 3\n", done.stderr


def test_a_process_group_before_protect_is_refused_by_name(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    call = f"from wirewise.runtime.recovery import run_script; run_script({str(script)!r})"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert "InputError" in done.stderr and "calls init_process_group before protect" in done.stderr


BARE = """
from torch import nn, optim, randn
from torch.utils.data import DataLoader, TensorDataset
from wirewise.runtime import recovery

model = nn.Linear(8, 1)
loader = DataLoader(TensorDataset(randn(64, 8), randn(64, 1)), batch_size=4, shuffle=True, num_workers=2)
training = recovery.protect(model, optim.SGD(model.parameters(), 0.1), loader, epochs=1)
for x, y in training:
    with training.step():
        nn.functional.mse_loss(training.model(x), y).backward()
print("done", training.rank)
"""

GUARDED = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from wirewise.runtime import recovery

class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index)), torch.ones(1)

def note(number):
    Path(sys.argv[2], f"{os.environ['OF_RANK']}-{os.getpid()}-{os.getppid()}").touch()

def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True

if __name__ == "__main__":
    os.environ["OF_RANK"] = str(os.getpid())
    model = nn.Linear(8, 1)
    loader = DataLoader(
        Rows(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1], persistent_workers=True,
        worker_init_fn=note,
    )
    training = recovery.protect(model, optim.SGD(model.parameters(), 0.001), loader, epochs=2)
    for x, y in training:
        with training.step():
            nn.functional.mse_loss(training.model(x), y).backward()
    dead = {
        pid
        for path in Path(sys.argv[2]).iterdir()
        if gone(path.name.split("-")[0])
        for pid in path.name.split("-")[1:]
    }
    until = time.monotonic() + 20
    while not all(map(gone, dead)) and time.monotonic() < until:
        time.sleep(0.01)
    print("done", len(dead), [pid for pid in dead if not gone(pid)])
"""


def run(folder: Path, source: str, arguments: list[str], **options: object) -> list[str]:
    """What the processes of a script of two ranks and a spare wrote."""
    script = folder / "train.py"
    script.write_text(source)
    Agent(run_script, [str(script), arguments], ranks=2, spares=1, folder=folder, **options).run()  # type: ignore[arg-type]
    return [log.read_text() for log in sorted(folder.glob("process-*.log"))]


@pytest.mark.slow
@pytest.mark.dist
def test_loader_workers_do_not_run_a_script_without_a_guard_again(tmp_path):
    assert sorted(run(tmp_path, BARE, [])) == ["", "done 0\n", "done 1\n"]


@pytest.mark.slow
@pytest.mark.dist
def test_a_worker_that_runs_a_script_without_a_guard_says_what_is_missing(tmp_path):
    spawning = BARE.replace("num_workers=2", "num_workers=1, multiprocessing_context='spawn'")
    with pytest.raises(PeerError, match="raised an error"):
        run(tmp_path, spawning, [])
    logs = "".join(log.read_text() for log in tmp_path.glob("process-*.log"))
    assert "such as a worker of a DataLoader, runs the script again" in logs


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.cold  # a spawned process is a child of the one that spawned it
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_a_killed_rank_leaves_no_loader_workers_of_any_start_method(tmp_path, context):
    (tmp_path / "pids").mkdir()
    fault = {"act": "kill", "rank": 1, "point": "bucket", "step": 5, "claim": str(tmp_path / "claim")}
    logs = run(
        tmp_path, GUARDED, [context, str(tmp_path / "pids")], environment={FAULTS: json.dumps([fault])}
    )
    assert (tmp_path / "claim").exists()
    said = [log.splitlines()[-1] for log in logs if "done" in log]
    # At least two workers and their parent, which is the rank where they are forked or spawned by it. The other rank
    # may have come to its end before, with workers of before and after the failure.
    found = [re.fullmatch(r"done (\d+) \[\]", line) for line in said]
    assert len(found) == 2 and all(one and int(one[1]) >= 3 for one in found), logs
