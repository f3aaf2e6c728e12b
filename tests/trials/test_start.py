"""Starting ranks and commands: their outcome, their log lines, and why they failed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from wirewise import lab
from wirewise.errors import InputError, LabError, PeerError
from wirewise.files import write_json
from wirewise.hosts import slurm
from wirewise.hosts.allocation import Allocation
from wirewise.hosts.slurm_host import StartRanks
from wirewise.trials import start
from wirewise.trials.rank import Rank, main
from wirewise.trials.start import (
    choose_network,
    expect_one_host,
    find_program,
    hosts_of_command,
    open_network,
    parse_command,
    run_command,
    run_ranks,
    start_command,
)


class Job(msgspec.Struct, frozen=True):
    fails: int = -1
    """Rank that raises."""
    timeout_s: float = 30.0


def work(rank: Rank[Job], word: str) -> None:
    """Add up the ranks, or fail."""
    if rank.transport.rank == rank.job.fails:
        raise InputError(f"rank {rank.job.fails} has nothing to give")
    rank.log(f"{word} from rank {rank.transport.rank}")
    rank.outcome(float(rank.transport.total(rank.transport.rank)))


def run(job: Job, folder: Path, log: list[str]) -> float:
    write_json(folder / "job.json", job)
    with lab.Loopback() as network:
        return run_ranks(
            "tests.trials.test_start",
            folder,
            float,
            network=network,
            ranks=3,
            log=log.append,
            arguments=["hello"],
        )


@pytest.mark.dist
def test_the_outcome_of_the_ranks_and_the_lines_of_rank_0_come_back(tmp_path: Path) -> None:
    log: list[str] = []
    assert run(Job(), tmp_path, log) == 3.0
    assert log == ["hello from rank 0"]


@pytest.mark.slow
@pytest.mark.dist
def test_a_rank_that_fails_is_quoted_and_no_older_outcome_stays(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_text("7.0")
    with pytest.raises(
        PeerError, match=r"worker 1: rank 1 has nothing to give.* The full logs are in .*logs"
    ):
        run(Job(fails=1), tmp_path, [])
    assert not (tmp_path / "outcome.json").exists()


def test_a_command_leaves_its_output_in_the_log_and_its_result(tmp_path: Path) -> None:
    log, result = tmp_path / "log.txt", tmp_path / "result"
    script = f"print('working'); open({str(result)!r}, 'w').write('done')"
    run_command([sys.executable, "-c", script], log, os.environ, result=result)
    assert (log.read_text(), result.read_text()) == ("working\n", "done")


def test_a_command_that_fails_or_leaves_no_result_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with pytest.raises(PeerError, match=r"ended with exit code 3; its log is .*log.txt, and ends:\nno luck"):
        run_command([sys.executable, "-c", "print('no luck'); exit(3)"], log, os.environ)
    result = tmp_path / "result"
    result.write_text("of an earlier run")
    with pytest.raises(PeerError, match="ended with exit code 0 before the first step; its log is"):
        run_command([sys.executable, "-c", "pass"], log, os.environ, result=result, label="the first step")


def test_programs_are_found_beside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert Path(find_program("python")).parent == Path(sys.executable).parent
    with pytest.raises(InputError, match="there is no program 'torchrunner'; expected a command such as"):
        find_program("torchrunner")


def test_a_lab_that_cannot_be_had_is_refused_unless_any_network_will_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lab, "available", lambda: (False, "ip not found"))
    with pytest.raises(LabError, match="no lab here: ip not found; `wirewise doctor` says more"):
        open_network("lab", 2, "1gbit")
    with pytest.raises(LabError, match=r"no lab here: ip not found\. Use --network loopback"):
        choose_network("lab")
    network, (note,) = choose_network("auto")
    assert network == "loopback" and "No lab here (ip not found)" in note
    assert isinstance(open_network(network, 2, "1gbit"), lab.Loopback)


def test_each_host_of_a_lab_has_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "available", lambda: (True, ""))
    monkeypatch.setattr(lab, "Lab", lambda *what: what)
    assert open_network("lab", 2, ["1gbit", "5mbit"]) == (2, "1gbit", {0: "1gbit", 1: "5mbit"})
    with pytest.raises(
        InputError, match="got 3 links for 2 hosts; expected one for each host, or one for all"
    ):
        open_network("lab", 2, ["1gbit"] * 3)


def test_ranks_that_need_no_shaped_links_stay_on_this_machine() -> None:
    name, [note] = choose_network("auto", shaped=False)
    assert name == "loopback" and "which no link shapes" in note


if __name__ == "__main__":
    from functools import partial

    main(Job, partial(work, word=sys.argv[2]), sys.argv[1])


def test_commands_are_taken_apart():
    one = parse_command(
        ["torchrun", "--standalone", "--nproc-per-node", "3", "train.py", "--nproc-per-node=9"]
    )
    assert (one.arguments, one.ranks, one.torchrun) == (["train.py", "--nproc-per-node=9"], 3, True)
    two = parse_command(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "pkg", "-x"]
    )
    assert (two.arguments, two.ranks) == (["-m", "pkg", "-x"], 2)
    three = parse_command([sys.executable, "train.py"])
    assert (three.arguments, three.ranks, three.torchrun) == ([sys.executable, "train.py"], 1, False)
    for wrong in (["no-such-program"], ["torchrun", "--nnodes=2", "train.py"], ["torchrun", "--nonsense"]):
        with pytest.raises(InputError, match=r"expected|hosts"):
            parse_command(wrong)


@pytest.fixture
def allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts of Slurm, whose facts are not asked for."""
    found = Allocation("7", ("h0", "h1"), 4)
    monkeypatch.setattr(start, "current_allocation", lambda: found)
    monkeypatch.setattr(slurm, "current_allocation", lambda: found)
    monkeypatch.setattr(slurm.SlurmHosts, "_check", lambda self: 1234)


def test_inside_an_allocation_its_hosts_are_the_network(allocation: None) -> None:
    name, [told] = choose_network("auto")
    assert (name, told) == ("slurm", "The workers ran on hosts of Slurm's job 7: h0, h1.")
    assert choose_network("auto", slurm=False)[0] != "slurm"
    assert choose_network("loopback")[0] == "loopback"
    with open_network("slurm", 2, "1gbit") as network:
        assert isinstance(network, slurm.SlurmHosts) and network.num_hosts == 2


def test_what_runs_on_one_machine_says_how_it_is_started_there(
    allocation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        InputError, match=r"has 2 hosts: h0, h1; run it on one of them, as `srun -N1 -n1 wirewise x"
    ):
        expect_one_host("x", "leave it")
    step = {"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    expect_one_host("x", "leave it")
    monkeypatch.setattr(start, "current_allocation", lambda: None)
    expect_one_host("x", "leave it")


def test_a_torchrun_of_one_machine_starts_on_each_host_of_an_allocation(
    allocation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = start_command(["torchrun", "--nproc-per-node", "2", "train.py", "--lr", "1"])
    assert hosts_of_command(["torchrun", "train.py"]) == 2 and hosts_of_command(["python", "train.py"]) == 1
    assert argv[0] == "srun" and {"--nodes=2", "--nodelist=h0,h1", "--ntasks=2", "--overlap"} <= set(argv)
    order = msgspec.json.decode(argv[-1], type=StartRanks)
    assert order == StartRanks([["train.py", "--lr", "1"]], "torchrun", 2, 1234)
    # What a user says of hosts by other means is not touched.
    assert start_command(["python", "train.py"])[1:] == ["train.py"]
    with pytest.raises(InputError, match="--nnodes=2"):
        start_command(["torchrun", "--nnodes=2", "train.py"])
    # One that srun has started on each host is whole as it is.
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert start_command(["torchrun", "--nnodes=2", "train.py"])[1:] == ["--nnodes=2", "train.py"]
    assert start_command(["torchrun", "train.py"])[0] == "srun"
