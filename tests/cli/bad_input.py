"""Bad input as a user gives it: files by name, and a command for each case of docs/bad-input.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.trace.synthetic import make, shifted
from wirewise.collective.builders import build
from wirewise.trace import Header, Op, RankTrace, Trace, write_trace

GOOD_GRAPH: dict[str, Any] = {
    "edge_index": np.array([[0, 1, 2], [1, 2, 3]]),
    "x": np.ones((4, 2), np.float32),
    "y": np.array([0, 1, 1, 0]),
    "split": np.array([0, 1, 2, 0]),
}
SPARSE = {
    "x": None,
    "x_indptr": np.arange(5),
    "x_indices": np.array([0, 1, 0, 1]),
    "num_features": np.array(2),
}


def _with(value: float) -> np.ndarray[Any, Any]:
    x = np.ones((4, 2))
    x[2, 1] = value
    return x


GRAPHS: dict[str, dict[str, Any]] = {
    "dangling": {"edge_index": np.array([[0, 1], [1, 9]])},
    "negative": {"edge_index": np.array([[0, -1], [1, 0]])},
    "transposed": {"edge_index": GOOD_GRAPH["edge_index"].T.copy()},
    "float-edges": {"edge_index": GOOD_GRAPH["edge_index"] + 0.5},
    "nan": {"x": _with(np.nan)},
    "infinity": {"x": _with(np.inf)},
    "too-large": {"x": _with(1e300)},
    "rows": {"x": np.ones((3, 2))},
    "no-columns": {"x": np.ones((4, 0))},
    "complex": {"x": np.ones((4, 2), np.complex64)},
    "objects": {"x": np.array([[None, 1]] * 4)},
    "no-y": {"y": None},
    "y-nan": {"y": np.array([0, np.nan, 1, 0])},
    "y-negative": {"y": np.array([0, -1, 1, 0])},
    "y-huge": {"y": np.array([0, 10**9, 1, 0])},
    "y-column": {"y": np.array([[0], [1], [2], [0]])},
    "split-unknown": {"split": np.array([0, 1, 7, 0])},
    "split-short": {"split": np.array([0, 1])},
    "no-train": {"split": np.array([1, 1, 2, 2])},
    "empty": {k: v[:, :0] if k == "edge_index" else v[:0] for k, v in GOOD_GRAPH.items()},
    "indptr": SPARSE | {"x_indptr": np.array([0, 2, 1, 3, 4])},
    "column": SPARSE | {"x_indices": np.array([0, 1, 7, 1])},
    "column-wraps": SPARSE | {"x_indices": np.array([0, 1, 2**32, 1])},
    "num-features": SPARSE | {"num_features": np.array(-8)},
    "weight-text": {"edge_weight": np.array(["a", "b", "c"])},
    "weight-short": {"edge_weight": np.ones(2)},
    "names": {"class_names": np.array("abc")},
    "directed": {"directed": np.array([True, False])},
}

GOOD_TOPOLOGY = """name = "two"
[[hosts]]
name = "a"
[[hosts]]
name = "b"
[[links]]
from = "a"
to = "b"
latency_s = 1e-5
bandwidth_bytes_per_s = 1e9
"""
TOPOLOGIES = {
    "type": GOOD_TOPOLOGY.replace("1e9", '"fast"'),
    "key": GOOD_TOPOLOGY.replace("latency_s", "latency"),
    "dangling": GOOD_TOPOLOGY.replace('to = "b"', 'to = "c"'),
    "rate": GOOD_TOPOLOGY.replace("1e9", "nan"),
    "zero": GOOD_TOPOLOGY.replace("1e9", "0"),
    "below-zero": GOOD_TOPOLOGY.replace("1e9", "-1e9"),
    "latency": GOOD_TOPOLOGY.replace("1e-5", "-1e-5"),
    "apart": GOOD_TOPOLOGY.partition("[[links]]")[0],
    "one-way": f'{GOOD_TOPOLOGY}direction = "one"\n',
    "cut-off": GOOD_TOPOLOGY[:45],
    "deep": "x = " + "[" * 5000 + "]" * 5000,
}

_CHANNEL = {"exchange": "forward1", "sender": 0, "receiver": 1, "width": 4, "bits": "BAgI"}
_PLAN = {"family": "bitwidth", "world_size": 2, "planner": "test", "channels": [_CHANNEL]}
PLANS = {
    "cut-off": json.dumps(_PLAN)[:60],
    "family": json.dumps(_PLAN | {"family": ["bitwidth"]}),
    "key": json.dumps(_PLAN | {"world": 2}),
    "world-size": json.dumps(_PLAN | {"world_size": -1}),
    "sender": json.dumps(_PLAN | {"channels": [_CHANNEL | {"sender": 9}]}),
    "bits": json.dumps(_PLAN | {"channels": [_CHANNEL | {"bits": "/w=="}]}),
    "deep": "[" * 100_000,
}


_RING = json.loads(build("all_reduce", "ring", 4).to_json())
PROGRAMS = {
    "cut-off": json.dumps(_RING)[:60],
    "key": json.dumps(_RING | {"hosts": 2}),
    "type": json.dumps(_RING | {"ranks": "four"}),
    "deep": "[" * 100_000,
    "rank": json.dumps(_RING | {"transfers": [[0, 0, 9, 0, False]]}),
    "itself": json.dumps(_RING | {"transfers": [[0, 1, 1, 0, False]]}),
    "root": json.dumps(_RING | {"collective": "broadcast", "root": 7}),
    "members": json.dumps(_RING | {"members": [0, 9]}),
    "chunks": json.dumps(_RING | {"collective": "all_gather", "chunks": 3}),
    "share": json.dumps(_RING | {"shares": [1, 1, 1, 0]}),
}


def _write_programs(folder: Path) -> None:
    """Programs, and a plan that holds one."""
    named = {f"program-{name}": text for name, text in PROGRAMS.items()}
    named["ring"] = json.dumps(_RING)
    named["incomplete"] = json.dumps(_RING | {"transfers": _RING["transfers"][1:]})
    named["plan-program"] = json.dumps({"family": "collective", "program": json.loads(PROGRAMS["rank"])})
    for name, text in named.items():
        (folder / f"{name}.json").write_text(text)


def _write_traces(folder: Path) -> None:
    """Runs of three ranks and four steps, each spoilt in one way."""
    for name in ("run", "rank-missing", "cut-off-early", "other-format", "two-runs", "renamed"):
        write_trace(make(ranks=3, steps=4).seen, folder / name)
    (folder / "rank-missing" / "rank-1.jsonl").unlink()
    write_trace(make(ranks=2, steps=2).seen, folder / "two-runs")
    (folder / "renamed" / "rank-2.jsonl").rename(folder / "renamed" / "rank-5.jsonl")
    file = folder / "other-format" / "rank-1.jsonl"
    file.write_text(file.read_text().replace('"format":1', '"format":7', 1))
    file = folder / "cut-off-early" / "rank-0.jsonl"
    head, first, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([head, f"{first[:20]}\n", *rest]))
    apart = make(ranks=3, steps=4).true
    for rank in apart.ranks:
        rank.ops = [op for op in rank.ops if op.kind not in ("communication", "wait")]
    write_trace(apart, folder / "no-communication")
    write_trace(shifted(apart, np.array([0.0, 0.0, 9000.0]), np.zeros(3)), folder / "hours-apart")
    alone = Op(name="setup", kind="other", start_s=0.0, end_s=1.0, step=-1)
    header = Header(rank=0, world_size=1, host="a", groups={})
    write_trace(Trace([RankTrace(header, [alone])]), folder / "no-steps")


_GRADIENT: dict[str, Any] = {"name": "weight", "elements": 10, "gap_us": 5.0}
GRADIENTS = {
    "gradients": [_GRADIENT],
    "no-elements": [_GRADIENT | {"elements": 0}],
    "name-twice": [_GRADIENT, _GRADIENT],
}


HELIOS = "job_id,gpu_num,cpu_num,submit_time,duration\n7,2,8,2020-04-01 00:10:00,600\n"

SLOW = """{"queue": [{"name": "a", "kind": "k", "arrival": 0}], "kinds": {"k": {"progress": [[0], [1e-12]]}},
 "clusters": [{"name": "c", "cpus": 1, "gpus": 0}]}"""


SPLIT = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)


class Plain(Layer):
    def forward(self, x):
        return self.layer(x).square().mean()


class Branching(Layer):
    def forward(self, x):
        y = self.layer(x)
        return (2 * y if y.sum() > 0 else y).square().mean()


class Choosing(Layer):
    def forward(self, x):
        y = self.layer(x)
        return y[y > 0].square().mean()


def plain(batch=8):
    return Plain(), (torch.randn(batch, 16),)


def branching():
    return Branching(), (torch.randn(8, 16),)


def choosing():
    return Choosing(), (torch.randn(8, 16),)


def rows():
    return nn.Linear(16, 16), (torch.randn(8, 16),)


def number():
    return 3
"""


def write_files(folder: Path) -> None:
    """All of them, under the names that the cases use."""
    np.savez(folder / "good.npz", **GOOD_GRAPH)
    for name, changes in GRAPHS.items():
        arrays = {key: value for key, value in (GOOD_GRAPH | changes).items() if value is not None}
        np.savez(folder / f"{name}.npz", **arrays)
    whole = (folder / "good.npz").read_bytes()
    (folder / "cut-off.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "text.npz").write_text("hello")
    for name, text in TOPOLOGIES.items():
        (folder / f"{name}.toml").write_text(text)
    (folder / "two.toml").write_text(GOOD_TOPOLOGY)
    for name, text in PLANS.items():
        (folder / f"{name}.json").write_text(text)
    for name, tensors in GRADIENTS.items():
        (folder / f"{name}.json").write_text(json.dumps({"tensors": tensors}))
    (folder / "helios.csv").write_text(HELIOS)
    (folder / "no-duration.csv").write_text(HELIOS.replace("duration", "length"))
    (folder / "duration.csv").write_text(HELIOS.replace("600", "long"))
    (folder / "never-ran.csv").write_text(HELIOS.replace("600", "0"))
    (folder / "minus.csv").write_text(HELIOS.replace("2,8", "-2,8"))
    (folder / "binary.csv").write_bytes(b"job_id\xff")
    (folder / "empty.txt").write_text("")
    (folder / "slow.json").write_text(SLOW)
    (folder / "mine.py").write_text("def main():\n    pass\n")
    (folder / "speeds.csv").write_text("lm,1,1,26\nlm,2,2,6\n")
    (folder / "split.py").write_text(SPLIT)
    _write_programs(folder)
    _write_traces(folder)


_ASKED = "plan collective --topology two.toml"
_RUN = "run adaqp --dataset good.npz --workers 2"
_SPLIT = "plan parallel --topology lab-2@100mbit --device a100 split.py"
_DEPLOY = "plan placement split.py:plain --topology lab-2@100mbit"

CASES: dict[str, str] = {
    **{name: f"data show {name}.npz" for name in [*GRAPHS, "cut-off", "text", "absent"]},
    "unknown dataset": "data show nonsense",
    "more parts than nodes": "data partition good.npz -o parts --parts 5",
    "no part": "data partition good.npz -o parts --parts 0",
    "unknown method": "data partition good.npz -o parts --method nonsense",
    "seed below zero": "data partition good.npz -o parts --seed -1",
    "output is a file": "data partition good.npz -o good.npz",
    "knob out of range": "data generate -o out.npz --nodes 0",
    "seed of a generated graph": "data generate -o out.npz --nodes 50 --seed -1",
    "output in no folder": "data generate -o absent/out.npz --nodes 50",
    "output on a full disk": "data generate -o /dev/full --nodes 50",
    "no package list": "data build-debian --from text.npz -o out.npz",
    **{f"topology, {name}": f"topo check {name}.toml" for name in TOPOLOGIES},
    "topology, absent": "topo check absent.toml",
    "topology, unknown": "topo show lab-0",
    "topology, unknown rate": "topo show lab-4@fast",
    "topology, written over a folder": "topo export lab-4 .",
    **{f"plan, {name}": f"show {name}.json" for name in PLANS},
    "plan, another file": "show good.npz",
    "plan, absent": "show absent.json",
    "plan, absent for hosts": "check absent.json --topology lab-2",
    "plan, inconsistent for hosts": "check sender.json --topology lab-2",
    "plan, a program for a job": "check ring.json --job gradients.json",
    "collective, ranks apart": "plan collective --topology apart.toml",
    "collective, links one way": "plan collective --topology one-way.toml",
    "collective, no link of a kind": f"{_ASKED} --kind nvlink",
    "collective, no bandwidth": "plan collective --topology zero.toml",
    "collective, unknown": f"{_ASKED} --collective sort",
    "collective, no bytes": f"{_ASKED} --bytes 0",
    "collective, unknown rank": f"{_ASKED} --ranks a,z",
    "collective, unknown members": f"{_ASKED} --members 0,5",
    "collective, malformed members": f"{_ASKED} --members x",
    "collective, root": f"{_ASKED} --collective broadcast --root 5",
    "collective, root outside the group": f"{_ASKED} --collective broadcast --members 1",
    "collective, unknown planner": f"{_ASKED} --with nonsense",
    "collective, planner of others": f"{_ASKED} --collective all_to_all --with forest",
    "collective, no time": f"{_ASKED} --time-limit 0",
    **{f"program, {name}": f"check program-{name}.json" for name in PROGRAMS},
    "program, in a plan": "check plan-program.json",
    "program, absent": "check absent.json",
    "program, unknown algorithm": "check all_reduce:rung:4",
    "program, no ranks": "check all_reduce:ring:0",
    "program, exported though wrong": "export incomplete.json --to msccl-xml -o out.xml",
    "program, shown though wrong": "show incomplete.json --html out.html",
    "program, unknown format": "export ring.json --to xml -o out.xml",
    "program, without a topology": "export ring.json --to nccl-tuner -o out.csv",
    "program, other ranks than the topology": "export ring.json --to nccl-graph --topology lab-8 -o out.xml",
    "program, shown on other ranks": "show ring.json --topology lab-8",
    "program, exported to no folder": "export ring.json --to msccl-xml -o absent/out.xml",
    "program, run without ranks": "run collective ring.json",
    "recorded run, next to programs": "show run ring.json",
    "recorded run, no communication": "show no-communication --html out.html",
    "recorded run, step": "show run --step 99",
    "--json in no folder": "list systems --json absent/out.json",
    "--json is a folder": "list systems --json .",
    "--json on a full disk": "list systems --json /dev/full",
    "run, dangling edges": "run adaqp --dataset dangling.npz",
    "run, no workers": f"{_RUN} --workers 0",
    "run, hosts do not divide": f"{_RUN} --hosts 3",
    "run, no hosts": f"{_RUN} --hosts -1",
    "run, no epochs": f"{_RUN} --epochs 0",
    "run, no mode": f"{_RUN} --modes ,",
    "run, a mode twice": f"{_RUN} --modes fp32,fp32",
    "run, no rate": f"{_RUN} --link 0",
    "run, rate of no host": f"{_RUN} --links 9=1gbit",
    "run, rate twice": f"{_RUN} --links 1=1gbit,1=2gbit",
    "run, seed below zero": f"{_RUN} --seed -1",
    "run, never planned": f"{_RUN} --replan-every 0",
    "run, no timeout": f"{_RUN} --timeout nan",
    "run, learning rate": f"{_RUN} --learning-rate -1",
    "run, dropout": f"{_RUN} --dropout 1",
    "run, unknown network": f"{_RUN} --network wifi",
    "run, no allocation": f"{_RUN} --network slurm",
    "slurm script, two nodes": "slurm script -- torchrun --nnodes=2 train.py",
    "slurm script, no hosts": "slurm script --hosts 0 -- python train.py",
    "slurm script, no time": "slurm script --time soon -- python train.py",
    "slurm script, no partition": "slurm script --partition gpu/2 -- python train.py",
    "slurm script, no program": "slurm script -- run adaqp",
    "lab slurm, no hosts": "lab slurm --hosts 0",
    "slurm script, no file to submit": "slurm script --submit -- python train.py",
    "slurm rank, no rank": "slurm rank -- python train.py",
    "run, more workers than nodes": f"{_RUN} --workers 5",
    "run, output is a file": f"{_RUN} --out good.npz",
    "run, --json in no folder": f"{_RUN} --json absent/out.json",
    "trace, absent": "trace show absent",
    "trace, a rank is missing": "trace show rank-missing",
    "trace, two runs in one folder": "trace show two-runs",
    "trace, another format": "trace show other-format",
    "trace, damaged": "trace show cut-off-early",
    "trace, a file renamed": "trace show renamed",
    "trace, no steps": "trace show no-steps",
    "trace, clocks hours apart": "trace align hours-apart",
    "trace, another file": "trace show good.npz",
    "trace, of two kinds": "trace merge run text.npz -o merged",
    "trace, written over another": "trace merge run -o run",
    "trace, exported to no folder": "trace export run -o absent/out.json",
    "advise, a run and a command": "advise --trace run -- torchrun train.py",
    "compare, a limit that is none": "compare run run --fail-over much",
    "watch, no history": "watch show absent",
    "sim, unknown change": "sim run --what-if bandwith=x2",
    "sim, change of no host": "sim run --what-if bandwidth=7:x2",
    "sim, change without a value": "sim run --what-if straggler",
    "sim, change of no rank": "sim run --what-if straggler=9:x2",
    "sim, change of no op": "sim run --what-if scale=embedding:x0.5",
    "sim, stragglers without a plan": "sim run --stragglers exp:0.1",
    "sim, too few samples": "sim run --samples 3",
    "lab, no hosts": "lab run --hosts 0 -- true",
    "lab, unknown rate": "lab run --link fast -- true",
    "lab, rate of no host": "lab run --hosts 2 --links 9=1gbit -- true",
    "lab, malformed rates": "lab run --links 1gbit -- true",
    "lab, malformed fault": "lab run --fault explode -- true",
    "lab, malformed change": "lab run --change 1=20mbit -- true",
    "gradients, no file": "plan fusion --trace nothing.json",
    "gradients, other file": "plan fusion --trace good.npz",
    "gradients, no elements": "plan fusion --trace no-elements.json",
    "gradients, a name twice": "plan fusion --trace name-twice.json",
    "gradients, unknown planner": "plan fusion --trace gradients.json --bandwidth 1gbit --with best",
    "gradients, unknown codec": "plan fusion --trace gradients.json --codec zip",
    "gradients, unknown costs": "plan fusion --trace gradients.json --costs nothing.json",
    "gradients, no bandwidth": "plan fusion --trace gradients.json --codec fp16",
    "gradients, one rank": "plan fusion --trace gradients.json --ranks 1",
    "gradients, unknown rate": "plan fusion --trace gradients.json --bandwidth fast",
    "gradients, unknown pieces": "plan fusion --trace gradients.json --bandwidth 1gbit --split lots",
    "compressed steps, one host": "run cupcake --trace gradients.json --hosts 1",
    "compressed steps, unknown plan": "run cupcake --trace gradients.json --plans best",
    "compressed steps, no share": "run cupcake --trace gradients.json --least-gain 2",
    "operators, no file": "plan fusion --graph nothing.json --with disco",
    "mini-batches, text for fanouts": "run salientpp --dataset good.npz --fanouts a,b",
    "mini-batches, no batch": "run salientpp --dataset good.npz --batch-size 0",
    "mini-batches, negative cache": "run salientpp --dataset good.npz --alpha -1",
    "mini-batches, unknown policy": "run salientpp --dataset good.npz --policy best",
    "mini-batches, unknown mode": "run salientpp --dataset good.npz --modes base,fast",
    "mini-batches, workers over hosts": "run salientpp --dataset good.npz --workers 3 --hosts 2",
    "mini-batches, no training nodes": "run salientpp --dataset no-train.npz",
    "mini-batches, unknown topology": "run salientpp --dataset good.npz --topology half",
    "mini-batches, unknown device": "run salientpp --dataset good.npz --device tpu",
    "mini-batches, unknown network": "run salientpp --dataset good.npz --network wifi",
    "mini-batches, unknown share": "run salientpp --dataset good.npz --share fair",
    "mini-batches, unknown processors": "run salientpp --dataset good.npz --processors many",
    "mini-batches, prefix": "run salientpp --dataset good.npz --prefix 2",
    "cache, negative": "plan cache --dataset good.npz --workers 2 --alpha -1",
    "cache, unknown policy": "plan cache --dataset good.npz --workers 2 --policy best",
    "cache, unknown share": "plan cache --dataset good.npz --workers 2 --share fair",
    "jobs, no file": "plan jobs nothing.json",
    "jobs, other file": "plan jobs good.npz",
    "jobs, unknown planner": "plan jobs even --with best",
    "jobs, no window": "plan jobs even --window 0",
    "jobs, share that is kept": "plan jobs even --kept 2",
    "jobs, several for another planner": "plan jobs even --several",
    "jobs, clusters of no log": "plan jobs even --clusters 4x4",
    "jobs, a log of no clusters": "plan jobs helios.csv --log helios",
    "jobs, malformed cluster": "plan jobs helios.csv --log helios --clusters 4",
    "jobs, unknown log": "plan jobs helios.csv --log slurm --clusters 4x4",
    "jobs, a column is missing": "plan jobs no-duration.csv --log helios --clusters 4x4",
    "jobs, a figure is none": "plan jobs duration.csv --log helios --clusters 4x4",
    "jobs, none ran": "plan jobs never-ran.csv --log helios --clusters 4x4",
    "jobs, one fits nowhere": "plan jobs helios.csv --log helios --clusters 1x1",
    "jobs, another log": "plan jobs helios.csv --log philly --clusters 4x4",
    "jobs, a log of two files": "plan jobs . --log pai --clusters 4x4",
    "jobs, an empty log": "plan jobs empty.txt --log helios --clusters 4x4",
    "jobs, a log that is no text": "plan jobs binary.csv --log helios --clusters 4x4",
    "jobs, a negative amount": "plan jobs minus.csv --log helios --clusters 4x4",
    "jobs, one that never ends": "plan jobs slow.json",
    "jobs, a speed is missing": "plan jobs even --speeds speeds.csv",
    "jobs, speeds of a queue": "plan jobs queue.json --speeds speeds.csv",
    "jobs, no speed": "plan jobs even --speeds empty.txt",
    "real jobs, no seeds": "run tapfinger --seeds 0",
    "real jobs, no clusters": "run tapfinger --clusters 0",
    "real jobs, unknown scheduler": "run tapfinger --planner best",
    "real jobs, negative rate": "run tapfinger --rate -1",
    "real jobs, unknown kind": "run tapfinger --kinds text,video",
    "real jobs, kinds given twice": "run tapfinger --kinds text --kinds graph",
    "real jobs, no file of a kind": "run tapfinger --kinds mine=absent.py:train",
    "real jobs, no function of a kind": "run tapfinger --kinds mine=mine.py:train",
    "real jobs, fault of no host": "run tapfinger --fault kill:9@1s",
    "placement, neither job nor dataset": "plan placement --topology dgx-2",
    "placement, no file": "plan placement --topology dgx-2 --job nothing.json",
    "placement, other file": "plan placement --topology dgx-2 --job good.npz",
    "placement, unknown method": "plan placement --topology lab-2@100mbit --dataset good.npz --with best",
    "placement, unknown flow policy": "plan placement --topology lab-2@100mbit --dataset good.npz --policy best",
    "placement, no room": "plan placement --topology lab-2@100mbit --dataset good.npz --room 1 --workers-per-host 2",
    "placement, an option of datasets": "plan placement --topology dgx-2 --job nothing.json --room 3",
    "pipeline, no file": "plan pipeline nothing.json --topology lab-2@100mbit",
    "pipeline, other file": "plan pipeline good.npz --topology lab-2@100mbit",
    "pipeline, no model": "plan pipeline nothing.py:small --topology lab-2@100mbit",
    "pipeline, unknown planner": "plan pipeline nothing.json --topology lab-2@100mbit --with best",
    "pipeline, no samples": "plan pipeline nothing.json --topology lab-2@100mbit --batch 0",
    "pipeline, unknown way of messages": "plan pipeline nothing.json --topology dgx-2 --messages fast",
    "shardings, no graph": "plan parallel nothing.json --topology lab-2@100mbit",
    "shardings, no model": "plan parallel nothing.py:build --topology lab-2@100mbit",
    "shardings, no mesh": "plan parallel nothing.py:build --topology lab-2@100mbit --mesh 2by2",
    "shardings, unknown planner": "plan parallel nothing.json --topology lab-2@100mbit --with best",
    "shardings, unknown device": "plan parallel nothing.json --topology lab-2@100mbit --device abacus",
    "shardings, no memory": f"{_SPLIT}:plain --memory 1KB",
    "shardings, memory that is none": f"{_SPLIT}:plain --memory 0",
    "shardings, microbatches of no whole samples": f"{_SPLIT}:plain --stages 2 --microbatches 3",
    "shardings, stages that ranks cannot share": f"{_SPLIT}:plain --stages 3",
    "shardings, mesh of three dimensions": f"{_SPLIT}:plain --mesh 2x1x1",
    "shardings, nothing is recomputed so": f"{_SPLIT}:plain --recompute all",
    "shardings, no time": f"{_SPLIT}:plain --time-budget 0",
    "shardings, no batch": f"{_SPLIT}:plain --batch 0",
    "shardings, a batch for no argument": f"{_SPLIT}:rows --batch 4",
    "shardings, no loss": f"{_SPLIT}:rows",
    "shardings, not a model": f"{_SPLIT}:number",
    "shardings, a branch on values": f"{_SPLIT}:branching",
    "shardings, sizes that depend on values": f"{_SPLIT}:choosing",
    "deployments, unknown planner": f"{_DEPLOY} --with best",
    "deployments, no batch": f"{_DEPLOY} --with tag --batch 0",
    "deployments, no groups": f"{_DEPLOY} --with tag --groups 0",
    "deployments, one simulation": f"{_DEPLOY} --with tag --simulations 1",
    "deployments, malformed profile": f"{_DEPLOY} --with tag --profile a100",
    "deployments, no weights": f"{_DEPLOY} --with tag --weights nothing.npz",
    "deployments, not a model": "plan placement split.py:number --topology lab-2@100mbit --with tag",
    "parallel run, one host": "run rhino --hosts 1",
    "parallel run, hosts that cannot share the batch": "run rhino --hosts 3",
    "parallel run, stages that hosts cannot share": "run rhino --stages 3",
    "parallel run, unknown model": "run rhino --model vgg",
    "parallel run, unknown way": "run rhino --against zero",
    "parallel run, rate of no host": "run rhino --links 7=1mbit",
    "parallel run, no speed": "run rhino --gflops 0",
    "deployed run, no speed": "run tag --speeds 0",
    "deployed run, links of other hosts": "run tag --speeds 1,0.5 --links 1mbit,1mbit,1mbit",
    "deployed run, unknown plan": "run tag --plans best",
    "deployed run, fewer rows than hosts": "run tag --batch 2",
    "deployed run, no host of full speed": "run tag --computing real --speeds 0.5",
    "deployed run, one step": "run tag --steps 1",
    "modules, no model": "profile stages nothing.py:small -o m.json",
    "modules, no size": "profile stages nothing.py:small -o m.json --sizes 0",
    "stages, more than hosts": "run pipedream-2bw --stages 3",
    "stages, too few microbatches": "run pipedream-2bw --microbatches 3",
    "stages, unknown mode": "run pipedream-2bw --modes fast",
    "stages, too few blocks": "run pipedream-2bw --blocks 3",
    "recovery, no file": "plan recovery nothing.json --topology lab-2@100mbit",
    "recovery, another job": "plan recovery gradients.json --topology lab-2@100mbit",
    "recovery, no failures": "plan recovery nothing.json --topology lab-2@100mbit --mtbf 0",
    "recovery, unknown way": "plan recovery nothing.json --topology lab-2@100mbit --consistency hope",
    "meshes, absent ranks": "plan reshard --from 2x2:R,S0 --to 2x2:S0,R --shape 8,8 --topology lab-4",
    "meshes, a layout of other dimensions": "plan reshard --from 2:S0,R --to 2:S0 --shape 8,8 --topology lab-4",
    "meshes, no layout": "plan reshard --from 2:T0 --to 2:S0 --shape 8 --topology lab-4",
    "meshes, unknown strategy": "plan reshard --from 2:S0 --to 2:R --shape 8 --topology lab-4 --strategy fast",
    "meshes, no plan": "run reshard nothing.json",
    "placed tasks, neither job nor dataset": "run gnn-tasks",
    "placed tasks, no file": "run gnn-tasks --job nothing.json",
    "placed tasks, an option of datasets": "run gnn-tasks --job nothing.json --iterations 3",
    "placed tasks, unknown method": "run gnn-tasks --dataset good.npz --methods best",
    "placed tasks, order without rates": "run gnn-tasks --dataset good.npz --policies mrtf",
    "placed tasks, one host": "run gnn-tasks --dataset good.npz --hosts 1",
    "placed tasks, rate of no host": "run gnn-tasks --dataset good.npz --links 9=1gbit",
    "placed tasks, no turn": "run gnn-tasks --dataset good.npz --turns 0",
    "growing, too few classes": "run sea-er --dataset good.npz",
    "growing, unknown method": "run sea-er --dataset good.npz --methods best",
    "growing, no budget": "run sea-er --dataset good.npz --budget 0",
    "growing, unknown setting": "run sea-er --dataset good.npz --setting all",
    "growing, no workers": "run sea-er --dataset good.npz --workers 0",
}
"""What is wrong, and the command that meets it in the folder of `write_files`."""
