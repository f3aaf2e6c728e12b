"""Example lines at the end of each command's help; the documentation shows the same lines."""

from __future__ import annotations

from typing import Any

__all__ = ["EXAMPLES", "add_example"]

EXAMPLES = {
    "advise": "wirewise advise -- torchrun --nproc-per-node 4 train.py",
    "check": "wirewise check placement.json --topology lab-4@100mbit --job job.json",
    "compare": "wirewise compare runs/baseline runs/today --fail-over 5%",
    "data check": "wirewise data check graph.npz",
    "data convert": "wirewise data convert ogbn_products -o products",
    "data generate": "wirewise data generate --nodes 1000000 --mean-degree 16 -o graph",
    "data partition": "wirewise data partition graph --parts 4 -o parts",
    "export": "wirewise export plan.json --to msccl-xml -o plan.xml",
    "lab run": "wirewise lab run --hosts 4 --link 200mbit -- train.py",
    "lab slurm": "wirewise lab slurm --hosts 3",
    "plan cache": "wirewise plan cache --dataset debian --workers 4 --alpha 0.1,0.5 --policy all",
    "plan collective": "wirewise plan collective --topology h4 --collective all_reduce --bytes 16MB -o plan.json",
    "plan fusion": "wirewise plan fusion run -o plan.json",
    "plan jobs": "wirewise plan jobs queue.json --with tapfinger",
    "plan parallel": "wirewise plan parallel my_model.py:build --topology lab-4@200mbit --memory 16GB -o plan.json",
    "plan pipeline": (
        "wirewise plan pipeline stages.json --topology lab-4@1gbit --stages 4 --batch 16 --with 1f1b -o plan.json"
    ),
    "plan placement": "wirewise plan placement --topology lab-4@100mbit --dataset debian -o placement.json",
    "profile recommend": (
        "wirewise profile recommend prices.toml --from stalls.json --samples 128e6 --budget 12h"
    ),
    "profile stages": "wirewise profile stages model.py:build -o model.json",
    "profile stalls": "wirewise profile stalls -- torchrun --nproc-per-node 4 train.py",
    "profile trace": "wirewise profile trace -o run -- torchrun --nproc-per-node 4 train.py",
    "recover": (
        "wirewise recover --hosts 2 --node-rank 0 --address head --ranks-per-host 4 --spares 1 -- train.py"
    ),
    "show": "wirewise show plan.json --html plan.html",
    "sim": "wirewise sim run --plan plan.json",
    "topo check": "wirewise topo check cluster.toml",
    "topo import": "wirewise topo import topo.xml --hosts 4 -o cluster.toml",
    "topo show": "wirewise topo show dgx-1v",
    "trace show": "wirewise trace show run",
    "watch show": "wirewise watch show runs/watch --follow",
}
"""Example by command."""


def add_example(command: Any, *words: str) -> None:
    """Append an example to the help of a command, or of each command of a group.

    Args:
        command: A command or group of click.
        *words: Words of the command line after `wirewise`.
    """
    if example := EXAMPLES.get(" ".join(words)):
        command.epilog = f"Example: {example}"
    for name, inner in getattr(command, "commands", {}).items():
        add_example(inner, *words, name)
