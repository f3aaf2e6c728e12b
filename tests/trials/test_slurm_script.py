"""Files for sbatch: what is asked for, and how the ranks of a command are started."""

from __future__ import annotations

import re
import subprocess

import pytest

from wirewise.errors import InputError
from wirewise.trials.slurm_script import SlurmScript, batch_script

ASKED = SlurmScript(hosts=3, ranks=2, cpus=4)


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("wirewise run adaqp --workers 6", "\n\nwirewise run adaqp --workers 6\n"),
        ("wirewise topo probe -o x.toml", "\n\nsrun --cpus-per-task=4 wirewise topo probe -o x.toml\n"),
        ("wirewise run collective x.json", "srun --cpus-per-task=4 wirewise run collective x.json"),
        (
            "python train.py --name 'a b'",
            "srun --cpus-per-task=4 wirewise slurm rank -- python train.py --name 'a b'",
        ),
        ("/opt/bin/torchrun train.py --lr 1", "    /opt/bin/torchrun --nnodes=3 --nproc-per-node=2 \\\n"),
    ],
)
def test_commands_are_started_as_they_need(tmp_path, command, started):
    import shlex

    text = batch_script(shlex.split(command), ASKED)
    assert started in text
    asked = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=3", "--ntasks-per-node=2", "--cpus-per-task=4", "--time=01:00:00", "--requeue"} <= set(
        asked
    )
    file = tmp_path / "job.sh"
    file.write_text(text)
    assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0


def test_what_is_asked_for_stands_in_the_head():
    asked = SlurmScript(partition="gpu", gpus=8, requeue=False, keep=True, name="mine", time="2-0")
    text = batch_script(["python", "x.py"], asked)
    for line in (
        "--partition=gpu",
        "--gpus-per-node=8",
        "--no-requeue",
        "--no-kill",
        "--job-name=mine",
        "--time=2-0",
    ):
        assert f"#SBATCH {line}\n" in text
    assert "srun --cpus-per-task=1 --no-kill wirewise" in text


def test_a_run_with_checkpoints_goes_on_after_a_requeue(tmp_path):
    command = ["echo", "run", "adaqp", "--out", "a b", "--checkpoint-every", "5", "--json=-"]
    text = batch_script(["wirewise", *command[1:]], ASKED)
    assert "exec wirewise run adaqp --resume 'a b' --json -" in text
    assert "--resume" not in batch_script(["wirewise", "run", "adaqp", "--out", "a"], ASKED)
    (tmp_path / "a b" / "checkpoints").mkdir(parents=True)
    for restarts, told in (
        ("0", "run adaqp --out a b --checkpoint-every 5 --json=-"),
        ("2", "run adaqp --resume a b --json -"),
    ):
        done = subprocess.run(
            ["bash", "-c", text.replace("wirewise", "echo")], cwd=tmp_path, env={"SLURM_RESTART_COUNT": restarts},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([], "no command was given"),
        (["torchrun", "--nnodes=2", "train.py"], "the command says '--nnodes=2' itself"),
    ],
)
def test_what_cannot_be_started_is_refused(command, told):
    with pytest.raises(InputError, match=told):
        batch_script(command, ASKED)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("time", "soon", "'soon' is no time of Slurm; expected minutes, such as 30, 12:00:00 or 1-12:00:00"),
        ("time", "1:2", "'1:2' is no time of Slurm"),
        (
            "partition",
            "gpu\n#SBATCH --exclusive",
            "is no name for Slurm; expected letters, digits and . , + - _",
        ),
        ("name", "two words", "'two words' is no name for Slurm"),
    ],
)
def test_what_would_be_another_line_of_the_file_is_refused(field, value, told):
    with pytest.raises(InputError, match=re.escape(told)):
        SlurmScript(**{field: value})


@pytest.mark.parametrize("time", ["30", "12:00", "12:00:00", "1-12", "1-12:00", "1-12:00:00"])
def test_times_of_slurm_are_taken(time):
    assert f"#SBATCH --time={time}\n" in batch_script(["python", "x.py"], SlurmScript(time=time))
