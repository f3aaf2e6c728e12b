"""Recipes in an allocation of Slurm: what they give is what they give in the lab."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from tests.harness.slurm import ROOT, in_allocation
from wirewise import topology
from wirewise.cli.main import app
from wirewise.hosts.slurm import SlurmHosts
from wirewise.lab import SlurmCluster
from wirewise.runtime.state_files import read_state
from wirewise.trace.gradients import GradientTensor, GradientTrace
from wirewise.trials.link_rates import link_rates
from wirewise_papers import own_links
from wirewise_papers.swift.job import SwiftJob
from wirewise_papers.swift.ways import match_recoveries, train_with_spares

pytestmark = [pytest.mark.slurm, pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(900)]


def in_lab(*words: object) -> dict:
    """JSON of a command that runs beside those of Slurm."""
    shown = CliRunner().invoke(app, [*map(str, words), "--json", "-"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def both(cluster: SlurmCluster, folder: Path, command: list[str], python: Path) -> tuple[dict, dict]:
    """JSON of a command in a lab and in an allocation of two hosts."""
    lab = in_lab(*command, "--network", "lab", "--link", "1gbit", "--out", folder / "lab")
    told = in_allocation(
        cluster, 2, "-m", "wirewise", *command, "--out", folder / "slurm", "--json", "-", python=python
    )
    return lab, json.loads(told.splitlines()[-1])


def test_e1_full_graph_training_gives_the_bits_that_it_gives_in_the_lab(slurm_cluster, tmp_path, warm_python):
    command = ["run", "adaqp", "--dataset", "block:nodes=600,features=16,classes=4", "--workers", "2"]
    command += ["--modes", "fp32,uniform-8", "--epochs", "2", "--hidden", "16", "--checkpoint-every", "2"]
    lab, slurm = both(slurm_cluster, tmp_path, command, warm_python)
    assert (lab["hosts"], slurm["hosts"], slurm["network"]) == (2, 2, "slurm")
    assert lab.keys() == slurm.keys()
    states = sorted(path.relative_to(tmp_path / "lab") for path in tmp_path.glob("lab/checkpoints/**/*.pt"))
    assert len(states) == 4
    for path in states:
        ours, theirs = (read_state(tmp_path / where / path)["model"] for where in ("lab", "slurm"))
        assert all(torch.equal(ours[name], theirs[name]) for name in (*ours, *theirs))


def test_e1_plans_of_gradients_are_carried_out_as_in_the_lab(slurm_cluster, tmp_path, warm_python):
    tensors = tuple(GradientTensor(name=f"{i}", elements=20_000 + i, gap_us=1_000.0) for i in range(4))
    trace = tmp_path / "trace.json"
    trace.write_bytes(msgspec.json.encode(GradientTrace(tensors=tensors, model="four")))
    command = ["run", "cupcake", "--trace", str(trace), "--hosts", "2"]
    # Of PowerSGD there is one scheme: others are chosen by what was measured where a job is planned.
    command += ["--plans", "powersgd:even:2,none:bucket:25"]
    command += ["--steps", "2", "--rounds", "1", "--trials", "0"]
    lab, slurm = both(slurm_cluster, tmp_path, command, warm_python)
    assert lab.keys() == slurm.keys()
    assert (slurm["hosts"], lab["link"], slurm["link"]) == (2, "1gbit", "their own rate")
    for name, plan in lab["plans"].items():
        assert [group["payload_bytes"] for group in slurm["plans"][name]["groups"]] == [
            group["payload_bytes"] for group in plan["groups"]
        ]


def killed(folder: str) -> None:
    """On the head: a protected training, whose host h1 loses its rank; says in one line what was found."""
    # It trains for seconds, so that the kill finds it training.
    job = SwiftJob(hosts=2, kills=1, steps=200, width=32, network="slurm")
    with SlurmHosts() as hosts:
        found = train_with_spares(hosts, Path(folder), job, kills=[(0.2, 1)])
    ((kill, one),) = match_recoveries(Path(folder), found)
    told = {
        "host": hosts.names[kill.rank],
        "seconds": found.seconds,
        "recovered_s": found.survived[0].recovered_s,
    }
    after_s = [] if one is None else [one.seen_s - kill.clock_s, one.committed_s - kill.clock_s]
    sys.stdout.write(json.dumps({**told, "after_s": after_s, "kill_s": kill.at_s - found.first_s}) + "\n")


def test_e1_a_rank_on_another_host_is_killed_and_its_recovery_is_on_one_clock(
    slurm_cluster, tmp_path, warm_python
):
    program = "import sys; from tests.papers import test_on_slurm; test_on_slurm.killed(sys.argv[1])"
    told = in_allocation(slurm_cluster, 2, "-c", program, tmp_path / "run", python=warm_python)
    found = json.loads(told.splitlines()[-1])
    assert found["host"] == "h1"
    # Clocks of hosts are days apart.
    assert 0.2 <= found["kill_s"] < found["kill_s"] + found["recovered_s"] <= found["seconds"] < 200
    seen_s, committed_s = found["after_s"]
    assert 0 <= seen_s < committed_s < 200


def test_e1_links_are_measured_by_ranks_of_srun(slurm_cluster, tmp_path, warm_python):
    file = tmp_path / "measured.toml"
    command = ["srun", "--nodes=2", "--ntasks=2", warm_python, "-m", "wirewise", "topo", "probe", "-o", file]
    slurm_cluster.run(*map(str, command), environment={"PYTHONPATH": str(ROOT / "src")}, timeout_s=240.0)
    found = topology.load(file)
    assert [host.name for host in found.hosts] == ["h0", "h1"]
    rates = [link.bandwidth_bytes_per_s for link in found.links]
    assert rates and all(5e6 < rate < 130e6 for rate in rates)


TRAINING = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(12):
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
"""
TORCHRUN = "-- torchrun --nproc-per-node 1 train.py"
COMMANDS = {
    "pipedream-2bw": "run pipedream-2bw --hosts 2 --modes flush,2bw --updates 4 --turns 1 --blocks 2 --width 16 "
    "--length 8 --microbatches 2 --forward-ms 1 --backward-ms 1 --out FOLDER",
    "rhino": "run rhino --model mlp --hosts 2 --against ddp --steps 1 --turns 1 --gflops 1000 --memory-gbyte-s 1000 "
    "--launch-us 1 --out FOLDER",
    "tag": "run tag --model mlp --speeds 1,0.5 --plans ddp,ddp-proportional --compute-ms 1 --steps 2 --turns 1 "
    "--out FOLDER",
    "gnn-tasks": "run gnn-tasks --hosts 2 --dataset block:nodes=300,features=8,classes=3 --methods "
    "colocated,store-affine --policies iter --turns 1 --out FOLDER",
    "reshard": "run reshard moves.json --turns 1 --out FOLDER",
    "sea-er": "run sea-er --workers 2 --dataset block:nodes=600,features=16,classes=4 --methods bare,joint --tasks 2 "
    "--epochs 2 --out FOLDER",
    "salientpp": "run salientpp --workers 2 --hosts 2 --dataset block:nodes=600,features=16,classes=4 --hidden 8 "
    "--modes base,cache --out FOLDER",
    "trace": f"profile trace --warmup 2 --steps 2 --out FOLDER {TORCHRUN}",
    "advise": f"advise --codecs fp16 --warmup 2 --steps 2 --trials 0 --out FOLDER {TORCHRUN}",
    "tapfinger": "run tapfinger --real-jobs 1",
    "swift, a command": f"run swift {TORCHRUN}",
    "stalls": f"profile stalls {TORCHRUN}",
    "collective": "bench collective",
}
"""Commands that start ranks, by a name."""
REFUSED = {
    "tapfinger": "real jobs go through the queue of Slurm",
    "swift, a command": "`wirewise run swift` starts its ranks on one machine",
    "stalls": "`wirewise profile stalls` starts its ranks on one machine",
    "collective": "in an allocation of Slurm as `srun wirewise bench collective`",
}
"""What those say that use no hosts of an allocation."""
IN_LAB = {"sea-er": "--network loopback", "tag": "--network lab --links 1gbit"}
"""How those run beside Slurm that do not as the others do, on links of the same rate."""
ALIKE = {
    "pipedream-2bw": lambda told: [(one["losses"], one["final_loss"]) for one in told["modes"].values()],
    "rhino": lambda told: [(told["losses"], [one["loss_equal"] for one in told["plans"].values()])],
    "gnn-tasks": lambda told: [one["crossing_bytes"] for one in told["plans"].values()],
    "reshard": lambda told: (told["equal"], [one["bytes_sent"] for one in told["plans"].values()]),
    "tag": lambda told: [one["loss_equal"] for one in told["plans"].values()],
    "sea-er": lambda told: [(one["ap_by_task"], one["accuracy"]) for one in told["methods"].values()],
}
"""What is the same on hosts of the lab, or of this machine."""


def told_of(folder: str) -> None:
    """On the head: run all commands, one after the other in one process, and write what came of each.

    Links are measured for the first command that asks, by ranks on the hosts; they are the same hosts for the others.
    """
    found, rates = {}, {}

    def once(network: SlurmHosts) -> tuple[str, ...]:
        if network.names not in rates:
            rates[network.names] = link_rates(network)
        return rates[network.names]

    own_links.link_rates = once
    for name, words in COMMANDS.items():
        file, out = Path(folder) / f"{name}.json", Path(folder) / name
        command, dashes, rest = words.replace("FOLDER", str(out).replace(" ", "-")).partition(" -- ")
        done = CliRunner().invoke(app, [*command.split(), "--json", str(file), *(dashes + rest).split()])
        found[name] = {"code": done.exit_code, "output": done.output, "error": repr(done.exception)}
    (Path(folder) / "found.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def on_slurm(slurm_cluster, warm_python, tmp_path_factory) -> Path:
    """Folder with what came of all commands in one allocation of two hosts."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "train.py").write_text(TRAINING)
    planned = "plan reshard --from 1x2:R,S1 --to 1x2:S1,R --shape 64,64 --topology lab-2x2@1gbit -o".split()
    assert CliRunner().invoke(app, [*planned, str(folder / "moves.json")]).exit_code == 0
    program = "import sys; from tests.papers import test_on_slurm; test_on_slurm.told_of(sys.argv[1])"
    in_allocation(
        slurm_cluster, 2, "-c", program, folder, per_host=2, python=warm_python, cwd=folder, timeout_s=800.0
    )
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_e1_commands_that_start_ranks_use_the_allocation_or_say_why_not(
    on_slurm, tmp_path, monkeypatch, name
):
    found = json.loads((on_slurm / "found.json").read_text())[name]
    if name in REFUSED:
        assert found["code"] == 2 and REFUSED[name] in found["output"]
        return
    told = json.loads((on_slurm / f"{name}.json").read_text())
    # Advice has the hosts among what was measured for the codecs.
    told = told.get("compression", told)
    assert (told["hosts"], told.get("network", "slurm")) == (2, "slurm"), found
    if name in ALIKE:
        monkeypatch.chdir(on_slurm)
        command = COMMANDS[name].replace("FOLDER", str(tmp_path / "lab")).split()
        where = IN_LAB.get(name, "--network lab --link 1gbit").split()
        assert ALIKE[name](told) == ALIKE[name](in_lab(*command, *where))
