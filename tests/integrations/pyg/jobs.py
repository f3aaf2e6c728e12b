"""Jobs on ranks that are threads."""

from __future__ import annotations

from typing import Any

from wirewise.integrations import pyg


def job_of(data: Any, rank: int, group: Any, store: Any, **options: Any) -> pyg.Job:
    return pyg.Job(
        data if rank == 0 else None, mode="fp32", group=group, store=store, timeout_s=20, **options
    )
