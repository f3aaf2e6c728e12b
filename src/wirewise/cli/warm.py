"""Compiles kernels ahead by small jobs of every kind, so that the first command of a user does not pay for it."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wirewise.errors import WirewiseError
from wirewise.files import write_json

__all__ = ["COMMANDS", "warm_commands"]

_RANKS, _STEPS = 2, 3
_TRACE, _GRADIENTS = "run", "gradients.json"
COMMANDS = (
    f"trace show {_TRACE}",
    f"sim {_TRACE} --what-if bandwidth=*:x2",
    f"plan fusion {_TRACE}",
    f"plan fusion --trace {_GRADIENTS} --ranks 4 --bandwidth 1gbit --codec efsign -o fusion.json",
    "plan collective --topology h4 --bytes 1MB --with blink -o collective.json",
    "check collective.json",
    "plan collective --topology dgx-1v --bytes 1MB --with adapt",
    "plan collective --topology h4 --collective all_to_all --bytes 1MB --time-limit 2",
    "plan jobs even",
    "plan reshard --from 2x2:R,S0,R --to 2x2:S0,R,R --shape 64,64,16 --topology lab-4x2@200mbit",
    "plan cache --dataset debian --workers 2 --alpha 0.1",
    "plan placement --topology lab-4@100mbit --dataset debian",
    "data partition debian -o parts --parts 2",
    "data partition debian -o streamed --parts 2 --method stream",
)
"""Commands whose kernels are compiled, on jobs that are as small as they come."""


def warm_commands() -> list[str]:
    """Run every command in a folder of its own; those that failed, with the reason."""
    from wirewise.cli.main import app

    failed = []
    with _own_folder() as folder:
        _write_jobs(folder)
        for command in COMMANDS:
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    app(command.split(), standalone_mode=False)
                except WirewiseError as error:
                    failed.append(f"{command}: {error}")
                except SystemExit as error:
                    if error.code:
                        failed.append(f"{command}: exit code {error.code}")
    return failed


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="wirewise-warm-") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def _write_jobs(folder: Path) -> None:
    """A recorded run, and gradients, for the commands."""
    from wirewise.trace import Header, RankTrace, Trace, write_trace
    from wirewise.trace.gradients import GradientTensor, GradientTrace

    groups = {"world": list(range(_RANKS))}
    ranks = [
        RankTrace(Header(rank=rank, world_size=_RANKS, host=f"host{rank}", groups=groups, run="warm"), _ops())
        for rank in range(_RANKS)
    ]
    write_trace(Trace(ranks=ranks), folder / _TRACE)
    tensors = tuple(GradientTensor(name=f"{n}.weight", elements=4**n * 100, gap_us=200.0) for n in range(6))
    write_json(folder / _GRADIENTS, GradientTrace(tensors=tensors))


def _ops() -> list[Any]:
    """Steps of two layers whose gradients are reduced."""
    from wirewise.trace import Op

    ops = []
    for step in range(_STEPS):
        at = 0.02 * step
        times: dict[str, Any] = {"step": step}
        ops.append(Op(name="step", kind="step", start_s=at, end_s=at + 0.02, **times))
        ops.append(Op(name="forward", kind="forward", start_s=at, end_s=at + 0.004, **times))
        for number in range(2):
            start = at + 0.005 + 0.003 * number
            bucket: dict[str, Any] = {"group": "world", "seq": 2 * step + number, **times}
            backward = Op(
                name=str(1 - number),
                kind="backward",
                start_s=start,
                end_s=start + 0.003,
                gradient_bytes=40_000,
                **times,
            )
            ops.append(backward)
            reduced = Op(
                name=f"bucket {number}", kind="communication", start_s=start + 0.003, end_s=start + 0.006,
                thread="comm", collective="all_reduce", size_bytes=40_000, enqueued_s=start + 0.003,
                parameters=(f"{1 - number}.weight",), **bucket,
            )  # fmt: skip
            ops.append(reduced)
        ops.append(
            Op(
                name="bucket 1",
                kind="wait",
                start_s=at + 0.011,
                end_s=at + 0.014,
                group="world",
                seq=2 * step + 1,
                **times,
            )
        )
        ops.append(Op(name="optimizer", kind="optimizer", start_s=at + 0.015, end_s=at + 0.019, **times))
    return ops
