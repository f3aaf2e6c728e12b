"""Files of torch.profiler as public traces have them, a few events each, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

US = 1e-6


class Profiled:
    """A file in the making; times in microseconds.

    Args:
        info: Record `distributedInfo`, where there is one.
    """

    def __init__(self, info: dict[str, Any] | None = None) -> None:
        self.info = info
        self.events: list[dict[str, Any]] = []
        self._correlation = 1000

    def span(
        self, cat: str, name: str, ts: float, dur: float, tid: int = 1, pid: int = 1, **args: Any
    ) -> None:
        """Any event with a duration."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
        self.events.append({**event, "args": args})

    def step(self, number: int, ts: float, dur: float) -> None:
        """The mark of a step."""
        self.span("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def host(self, name: str, ts: float, dur: float) -> None:
        """An operator."""
        self.span("cpu_op", name, ts, dur)

    def kernel(
        self,
        name: str,
        ts: float,
        dur: float,
        *,
        launched: float | None = None,
        stream: int = 7,
        cat: str = "kernel",
        runtime: str = "cuda_runtime",
    ) -> None:
        """A kernel, and the call that launched it; no `launched`: the call was not recorded."""
        self._correlation += 1
        number = self._correlation
        told = {"stream": stream, "correlation": number, "External id": number}
        self.span(cat, name, ts, dur, tid=stream, pid=0, **told)
        if launched is not None:
            self.span(runtime, "cudaLaunchKernel", launched, 3, correlation=number)

    def older_collective(self, annotation: str, kernel: str, ts: float, dur: float, launched: float) -> None:
        """Record a collective as before kernels told their names: only an annotation around the launch."""
        self.span("cpu_op", "record_param_comms", launched - 8, 20, **{"External id": len(self.events)})
        shape = {"Input Dims": [[8, 100]], "Input type": ["float"]}
        self.span("user_annotation", annotation, launched - 5, 15, **shape)
        self.kernel(kernel, ts, dur, launched=launched, stream=20)

    def write(self, path: Path) -> Path:
        """The file, at its path."""
        head = {"schemaVersion": 1, **({} if self.info is None else {"distributedInfo": self.info})}
        path.write_text(json.dumps({**head, "traceEvents": self.events}))
        return path


def info(rank: int, world_size: int | None = None) -> dict[str, Any]:
    """A distributedInfo; some files do not tell how many ranks there were."""
    return {"backend": "nccl", "rank": rank, **({} if world_size is None else {"world_size": world_size})}
