"""Kernels of an accelerator in a torch.profiler file: their launches, and which of them communicate.

Three generations of traces name a collective in three ways: arguments of the kernel or of the call that has its
External id ("Collective name"); an annotation such as `nccl:all_to_all` around the launch; the name of the kernel
alone, which does not reveal what ncclKernel_SendRecv executes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from wirewise.trace.device_collectives import collective_of_kernel, family_of_kernel, family_of_operator
from wirewise.trace.profiles import ProfileEvent, collective_name, item_bytes, shapes, tensor_bytes

__all__ = ["COPY", "Launches", "collective_of", "is_launch", "is_on_device", "payload_bytes"]

COPY = re.compile(r"Memcpy|Memset|dma")
"""Prefix of the names of copies, as in HolisticTraceAnalysis."""
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events"}
_LAUNCHES = re.compile(r"runtime|driver", re.IGNORECASE)
_OPERATOR = "cpu_op"
_ANNOTATION = "nccl:"
_SEND_RECEIVE = re.compile(r"send_?recv", re.IGNORECASE)


def is_on_device(event: ProfileEvent) -> bool:
    """Whether an event ran on an accelerator: a kernel or a copy."""
    return event.cat.lower() in _ON_DEVICE


def is_launch(event: ProfileEvent) -> bool:
    """Whether an event is a runtime or driver call of an accelerator."""
    return _LAUNCHES.search(event.cat) is not None


class Launches:
    """Index from kernels to the host events that launched them.

    Args:
        spans: Events with a duration, sorted by start, longer ones first.
    """

    def __init__(self, spans: Sequence[ProfileEvent]) -> None:
        self._by_correlation: dict[Any, ProfileEvent] = {}
        self._by_id: dict[Any, ProfileEvent] = {}
        self._annotations: dict[tuple[Any, Any], list[ProfileEvent]] = defaultdict(list)
        for e in spans:
            if is_launch(e) and "correlation" in e.args:
                self._by_correlation.setdefault(e.args["correlation"], e)
            elif e.name == "record_param_comms" and "External id" in e.args:
                self._by_id[e.args["External id"]] = e
            elif e.cat == "user_annotation" and e.name.startswith(_ANNOTATION):
                self._annotations[e.pid, e.tid].append(e)
        self._senders = _launched_by_collectives(spans)
        self._starts = {thread: [e.ts for e in own] for thread, own in self._annotations.items()}

    def of(self, kernel: ProfileEvent) -> ProfileEvent | None:
        """Runtime or driver call that launched a kernel. None if unknown."""
        return self._by_correlation.get(kernel.args.get("correlation"))

    def communicates(self, event: ProfileEvent) -> bool:
        """Whether a kernel executes a collective, by its name, its arguments or the operator that launched it."""
        if "Collective name" in event.args or family_of_kernel(event.name):
            return True
        is_copy = event.cat.lower().find("mem") >= 0 or COPY.match(event.name) is not None
        return not is_copy and event.args.get("correlation", -1) in self._senders

    def call(self, kernel: ProfileEvent) -> ProfileEvent | None:
        """Event of the torch.distributed call that a kernel executes. None if unknown."""
        own = kernel.args.get("External id")
        # In older traces the id of a kernel numbers launches, not calls.
        call = None if own == kernel.args.get("correlation", -1) else self._by_id.get(own)
        return call or self._around(self.of(kernel))

    def _around(self, launch: ProfileEvent | None) -> ProfileEvent | None:
        """The annotation of a collective on the thread of a launch, around it."""
        if launch is None:
            return None
        thread = launch.pid, launch.tid
        place = bisect_right(self._starts.get(thread, []), launch.ts) - 1
        if place < 0:
            return None
        found = self._annotations[thread][place]
        return found if launch.ts <= found.end else None


def collective_of(kernel: ProfileEvent, call: ProfileEvent | None) -> str:
    """Collective executed by a kernel; empty if unknown."""
    for own in (kernel, call):
        if own is not None and (told := collective_name(str(own.args.get("Collective name", "")))):
            return told
    if call is not None and call.name.startswith(_ANNOTATION) and (told := collective_name(call.name)):
        return told
    # Messages as well as every all-to-all are groups of sends and receives to NCCL.
    if _SEND_RECEIVE.search(kernel.name):
        return ""
    return collective_of_kernel(kernel.name) or collective_name(kernel.name)


def _launched_by_collectives(spans: Iterable[ProfileEvent]) -> set[Any]:
    """Correlation ids of launches whose innermost operator communicates."""
    open_ones: dict[tuple[Any, Any], list[ProfileEvent]] = defaultdict(list)
    family = cache(family_of_operator)
    found = set()
    for e in spans:
        launch = is_launch(e)
        if not launch and e.cat != _OPERATOR:
            continue
        around = open_ones[e.pid, e.tid]
        while around and around[-1].end <= e.ts:
            around.pop()
        if not launch:
            around.append(e)
        elif around and family(around[-1].name):
            found.add(e.args.get("correlation"))
    return found - {None}


def payload_bytes(kernel: ProfileEvent, call: ProfileEvent | None) -> int:
    """Input bytes of a rank to a collective; 0 if unknown."""
    args = {**(call.args if call else {}), **kernel.args}
    if told := int(args.get("In msg nelems", 0)) * item_bytes(str(args.get("dtype", ""))):
        return told
    return next((size for pair in shapes(call.args) if (size := tensor_bytes(*pair))), 0) if call else 0
