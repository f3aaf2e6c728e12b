"""A cluster on one machine: hosts as network namespaces, shaped links, faults, counters, virtual accelerators."""

from typing import Any

from wirewise.hosts.job import JobResult, RunningJob
from wirewise.hosts.launch import Loopback
from wirewise.hosts.owned import run_owned
from wirewise.lab.counters import HostBytes, interface_bytes
from wirewise.lab.faults import HostFault, RankFault, arm_faults, parse_fault
from wirewise.lab.namespaces import available, clean
from wirewise.lab.network import Lab
from wirewise.lab.pairs import Pairs, pairs_of, topology_of
from wirewise.lab.servers import Servers
from wirewise.lab.slurm import SlurmCluster, slurm_available

__all__ = [
    "HostBytes",
    "HostFault",
    "JobResult",
    "Lab",
    "Loopback",
    "PacedOperators",
    "Pairs",
    "RankFault",
    "RunningJob",
    "Servers",
    "SlurmCluster",
    "VirtualAccelerator",
    "VirtualLayer",
    "arm_faults",
    "available",
    "clean",
    "interface_bytes",
    "pairs_of",
    "parse_fault",
    "run_owned",
    "slurm_available",
    "topology_of",
]


def __getattr__(name: str) -> Any:
    # The only part of the lab that needs torch.
    if name in ("PacedOperators", "VirtualAccelerator", "VirtualLayer"):
        from wirewise.lab import accelerator

        return getattr(accelerator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
