"""MSCCL++ execution plans on the command line: read, and shown as a table or a page."""

from __future__ import annotations

from pathlib import Path

from wirewise.cli.output import write_out
from wirewise.collective.exporters.mscclpp_machine import sent_chunks
from wirewise.collective.exporters.mscclpp_plan import ExecutionPlan, PlanGpu, loads
from wirewise.errors import InputError, ProgramError

__all__ = ["read", "show"]


def read(path: str) -> ExecutionPlan:
    """Read the plan in a file; a ProgramError names the file.

    Raises:
        InputError: The file cannot be read.
        ProgramError: The file is no plan.
    """
    try:
        return loads(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path!r}: {error.strerror}; expected a plan of MSCCL++") from error
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from error


def show(path: str, json: str | None, html: Path | None) -> None:
    """Show a plan as a table with one row per rank.

    Args:
        path: Path of the file.
        json: Target for the JSON object; see `output.write_json`.
        html: File for the page.

    Raises:
        InputError: The file cannot be read.
        ProgramError: The file is no MSCCL++ plan.
    """
    plan = read(path)
    titles = ["rank", "thread blocks", "operations", "channels", "writes to", "scratch chunks"]
    rows = [_row(gpu) for gpu in plan.gpus]
    headline = (
        f"{plan.name}: {plan.collective} of {len(plan.gpus)} ranks as a plan of MSCCL++, {plan.protocol}, "
        f"{'in place' if plan.inplace else 'out of place'}"
    )
    record = {
        "kind": "mscclpp",
        "name": plan.name,
        "collective": plan.collective,
        "ranks": len(plan.gpus),
        "protocol": plan.protocol,
        "in_place": plan.inplace,
        "rows": [dict(zip(titles, row, strict=True)) for row in rows],
    }
    if html is not None:
        from wirewise.report.algorithm_page import algorithm_html
        from wirewise.report.shell import write_page

        write_page(algorithm_html("wirewise show MSCCL++", headline, titles, rows, sent_chunks(plan)), html)
    page = [f"Page: {html}"] if html is not None else []
    write_out(
        json, record, headline, (titles, rows), f"`wirewise check {path}` says whether it is right.", *page
    )


def _row(gpu: PlanGpu) -> list[str]:
    kinds: dict[str, int] = {}
    for channel in gpu.channels:
        kinds[channel.channel_type] = kinds.get(channel.channel_type, 0) + len(
            channel.connected_to or channel.rank_groups
        )
    targets = sorted({remote.rank for remote in gpu.remote_buffers})
    return [
        str(gpu.id),
        str(len(gpu.threadblocks)),
        str(sum(len(block.ops) for block in gpu.threadblocks)),
        ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "-",
        ", ".join(map(str, targets[:8])) + (f" and {len(targets) - 8} more" if len(targets) > 8 else ""),
        str(gpu.scratch_chunks),
    ]
