"""Stalls of unmodified scripts, from the command to the report."""

from __future__ import annotations

import os
import sys
import time

import msgspec
import pytest

from tests.harness.tiers import spread
from tests.lab.helpers import processes_with
from tests.trace.synthetic import make
from wirewise.cost.stalls import COMPONENTS, Amount
from wirewise.errors import InputError, PeerError
from wirewise.profile.stalls.report import StallReport, load_report
from wirewise.trace import align
from wirewise.trials.stalls import StallJob, counterfactuals, measure, run_once, workload

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Items(Dataset):
    def __len__(self): return 64
    def fetch(self, i): time.sleep(0.03); return i
    def prepare(self, i): time.sleep(0.01); return torch.ones(1) * i
    def __getitem__(self, i): return self.prepare(self.fetch(i))

model = torch.nn.Linear(1, 3)
sampler = None
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    sampler = DistributedSampler(Items())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Items(), batch_size=8, sampler=sampler, num_workers=int(sys.argv[1]))
try:
    while True:
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
finally:
    print("the end of the script was reached")
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return str(tmp_path / "train.py")


def job(*command, **changes):
    return StallJob(command=list(command), **{"steps": 6, "warmup": 1, "repeats": 1} | changes)


def alone(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    return job(sys.executable, str(tmp_path / "train.py"))


@pytest.mark.dist
@pytest.mark.slow
def test_two_ranks_and_their_workers(script, tmp_path):
    found = measure(
        job("torchrun", "--nproc-per-node=2", script, "1", launcher="direct", fractions=[0.5]),
        tmp_path / "raw",
    )
    assert found.ranks == 2 and found.network == "loopback"
    assert sum(getattr(found, f"{n}_s").mean_s for n in COMPONENTS) == pytest.approx(found.total_s.mean_s)
    assert list(found.runs_s) == ["compute", "machine", "cached", "cold", "whole", "partial 0.5"]
    # A batch takes a worker 320 ms, 80 ms where files are cached: far beyond what other programs add.
    assert found.runs_s["cold"][0] > found.runs_s["cached"][0] > found.runs_s["machine"][0]
    assert found.largest in ("fetch", "prep")
    assert found.hit_rates["cached"] == 1.0 and found.hit_rates["cold"] == 0.0
    assert 0.2 < found.hit_rates["partial 0.5"] < 0.8
    assert found.facts["gradient_bytes"] == 24 and found.facts["reductions"] == 1
    assert found.network_s == Amount(0.0, (0.0, 0.0))
    assert found.data.workers == 1 and found.data.storage_s >= 8 * 0.03
    assert sorted(p.name for p in (tmp_path / "raw").iterdir())[0] == "0-cached"
    again = load_report_of(found, tmp_path)
    assert again == found
    assert workload(again, 1e4).batch == 8
    assert processes_with(script) == []


def load_report_of(found, folder):
    (folder / "stalls.json").write_bytes(msgspec.json.encode(found))
    return load_report(folder / "stalls.json")


@pytest.mark.dist
@pytest.mark.lab
@pytest.mark.slow
def test_a_run_over_two_hosts(script):
    found = run_once(
        job("torchrun", "--nproc-per-node=2", script, "0", launcher="direct", hosts=2), "network"
    )
    assert len(found.step_s) == 6 and (found.step_s > 0).all()
    assert found.lanes.items == 0 and found.facts["batch"] == 8


@pytest.mark.dist
@pytest.mark.slow
def test_a_command_of_the_users_own_is_the_network(script):
    own = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 {script} 0"
    found = run_once(job("torchrun", "--nproc-per-node=2", script, "0", network_command=own), "cold")
    assert len(found.step_s) == 6 and found.lanes.items >= 8 * 8 * 2


HEAD = "import torch\nfrom torch.utils.data import DataLoader\n"
STEP = "p = torch.nn.Parameter(torch.ones(3))\no = torch.optim.SGD([p], lr=0.1)\n"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    spread(
        [
            (f"{HEAD}raise RuntimeError('disk on fire')", PeerError, "failed after 0 of 8 .*disk on fire"),
            (
                f"{HEAD}for x in DataLoader(range(9)): pass",
                InputError,
                "iterated a DataLoader but never stepped",
            ),
            (
                f"{HEAD}import os; print('the run', os.environ['WIREWISE_TRIAL'])",
                InputError,
                "iterated no DataLoader and never stepped .*the run whole",
            ),
            (f"{HEAD}{STEP}for x in range(20): p.sum().backward(); o.step()", InputError, "never iterates"),
            (
                f"{HEAD}{STEP}for x in DataLoader(range(4)): p.sum().backward(); o.step()",
                InputError,
                "ended by itself after 4 optimizer steps",
            ),
        ],
        2,
    ),
    ids=spread(["dies", "no step", "nothing", "no loader", "short"], 2),
)
@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.dist
def test_scripts_that_cannot_be_measured_are_named(tmp_path, text, error, words):
    with pytest.raises(error, match=f"(?s){words}"):
        run_once(alone(tmp_path, text))


FILES = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
class Files(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        with open(f"{sys.argv[1]}/{i}", "rb") as f: return len(f.read())
p = torch.nn.Parameter(torch.ones(3)); o = torch.optim.SGD([p], lr=0.1)
for e in range(9):
    for x in DataLoader(Files(), batch_size=2): p.sum().backward(); o.step()
"""


@pytest.mark.slow
@pytest.mark.dist
def test_files_are_read_in_every_kind_of_run(tmp_path):
    for i in range(40):
        (tmp_path / str(i)).write_bytes(os.urandom(5000))
    (tmp_path / "train.py").write_text(FILES)
    wish = job(sys.executable, str(tmp_path / "train.py"), str(tmp_path))
    for name in spread(("whole", "cold", "cached"), 2):
        found = run_once(wish, name)
        assert len(found.step_s) == 6 and not found.facts["separable"]
        assert (found.lanes.items > 0) == (name != "whole")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hosts": 2}, "without torchrun"),
        ({"network_command": "srun x"}, "without torchrun"),
        ({"steps": 0}, "steps is 0; expected at least 1"),
        ({"fractions": [1.5]}, "fractions"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused_at_once(changes, words):
    start = time.monotonic()
    with pytest.raises(InputError, match=words):
        measure(job(sys.executable, "train.py", **changes))
    assert time.monotonic() - start < 60


def report(**parts):
    levels = {
        "compute": 40.0,
        "interconnect": 1.0,
        "network": 30.0,
        "prep": 20.0,
        "fetch": 8.0,
        "residual": 1.0,
    }
    levels |= parts
    amounts = {f"{n}_s": Amount(v, (v - 2, v + 2)) for n, v in levels.items()}
    total = sum(levels.values())
    return StallReport(
        **amounts,
        total_s=Amount(total, (total - 3, total + 3)),
        runs_s={"compute": [40.0], "cached": [91.0], "cold": [99.0], "whole": [100.0]},
        command=["python"],
        ranks=2,
        hosts=2,
        steps=10,
        warmup=1,
        link_bytes_per_s=1e6,
        network="lab",
        facts={"batch": 4, "gradient_bytes": 957_000, "reductions": 1},
    )


def test_hidden_communication_stays_hidden_elsewhere():
    # A ring of 957 kB at 1 MB/s takes 1 s and 31 s were seen: nothing is hidden.
    assert workload(report(), 100).hidden_s == 0.0
    assert workload(report(network=0.2, interconnect=0.3), 100).hidden_s == pytest.approx(0.5)
    with pytest.raises(InputError, match="batch"):
        workload(msgspec.structs.replace(report(), facts={}), 100)


def test_gains_of_a_trace_without_data_ops():
    trace = align(make(2, steps=12, jitter=0.0, lag_s=0.0).seen)
    gains = counterfactuals(trace)
    assert set(gains) == {"no_communication"}
    gain = gains["no_communication"]
    assert gain.ci95_s[0] <= gain.mean_s <= gain.ci95_s[1]
    # Nothing hides the last bucket: 2 MB at 250 MB/s.
    assert gain.mean_s == pytest.approx(0.008, abs=2e-4)


@pytest.mark.parametrize("value", [{"a": 1}, "many", -1, float("inf"), True])
def test_a_fact_that_is_no_number_is_named(value):
    facts = report().facts | {"reductions": value}
    with pytest.raises(InputError, match=r"\$\.facts\.reductions is .*expected a finite number"):
        workload(msgspec.structs.replace(report(), facts=facts), 100)
