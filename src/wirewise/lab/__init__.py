"""A cluster on one machine: hosts as network namespaces, shaped links, faults, byte counters, slept accelerators."""

from typing import Any

from wirewise.lab.faults import Fault, parse_fault
from wirewise.lab.job import JobResult
from wirewise.lab.namespaces import available, clean, enter_user_namespace
from wirewise.lab.network import HostBytes, Lab, Loopback, interface_bytes

__all__ = [
    "Fault",
    "HostBytes",
    "JobResult",
    "Lab",
    "Loopback",
    "VirtualLayer",
    "VirtualModel",
    "available",
    "clean",
    "enter_user_namespace",
    "interface_bytes",
    "parse_fault",
]


def __getattr__(name: str) -> Any:
    # The only part of the lab that needs torch.
    if name in ("VirtualLayer", "VirtualModel"):
        from wirewise.lab import accelerator

        return getattr(accelerator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
